"""A few questions to the target before the load: is it there, what does it speak, does it do as asked?

Decides the protocol, the model, how many tokens the server adds to a prompt (chat template, BOS) and which of
its events are tokens, and says for each finding what it means for the metrics. Its requests are never rows. A
probe that fails is a warning; only where nothing answers is the target refused, with the reason named. What a
server does not say (usage, context length) is noted, not guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from loadgen.endpoints import ENDPOINTS
from loadgen.endpoints.base import Endpoint, TokenEvents, variants_of, with_fields
from loadgen.endpoints.errors import one_line
from loadgen.endpoints.template import load_template
from loadgen.errors import TargetError
from loadgen.probing import Answer, Prober, excerpt, models_in, native_models
from loadgen.prompt_lengths import CountTokens, CountWords, PromptLengths, find_lengths
from loadgen.redaction import secrets_of
from loadgen.telemetry import Sample, parse_metrics
from loadgen.token_events import TokenCount, count_tokens

SHORT_WORDS = 24
LONG_WORDS = (288, 96, 48)  # the first fills two of the largest cache blocks in use (128 tokens)
PROBE_OUTPUT_TOKENS = 16
MAX_SKEW_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the preflight table. meaning: for the metrics; empty where all is as it should be."""

    what: str
    found: str
    meaning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """What the target turned out to be.

    endpoint: the API, without the fields that this server refuses, and with what is known of its events.
    lengths: how many tokens a prompt of n words is; None where nobody counts them.
    context_tokens: longest prompt plus answer, where the server says.
    """

    api: str
    endpoint: Endpoint
    model: str
    lengths: PromptLengths | None
    context_tokens: int | None
    findings: tuple[Finding, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not as it should be, one sentence each."""
        return tuple(f"{f.what}: {f.found}; {f.meaning}" for f in self.findings if f.meaning)

    @property
    def prompt_offset(self) -> int | None:
        """Tokens that the server adds to every prompt; None where nobody counts them."""
        return None if self.lengths is None else self.lengths.offset

    @property
    def fitted_lengths(self) -> str | None:
        """How prompt lengths were fitted, where the words are not one token each."""
        return None if self.lengths is None else self.lengths.describe_fit()

    def facts(self) -> dict[str, Any]:
        """The same as JSON-able facts for the manifest."""
        names = ("api", "model", "prompt_offset", "fitted_lengths", "context_tokens")
        findings = [{f.name: getattr(item, f.name) for f in fields(item)} for item in self.findings]
        return {name: getattr(self, name) for name in names} | {
            "notes": list(self.notes),
            "preflight": findings,
        }


def probe(
    url: str,
    *,
    api: str,
    model: str | None,
    headers: Mapping[str, str],
    words: Sequence[str],
    extra: tuple[tuple[str, str], ...] = (),
    count_tokens: CountTokens | None = None,
    **client: Any,
) -> Preflight:
    """Ask the target what it is. url: as from `base_url`; api: `auto`, a name of ENDPOINTS or a TOML file.

    words: one-token words for the probes. extra: further body fields. count_tokens: by a local tokenizer.
    client: as for `Prober`. Raises TargetError (one line) where the target cannot be measured,
    KeyboardInterrupt once its `stop` is set.
    """
    secrets = secrets_of(headers)
    with Prober(url, headers=headers, secrets=secrets, **client) as prober:
        return _Interview(prober, words, count_tokens, has_key=bool(secrets)).conduct(api, model, extra)


class _Interview:
    """One preflight; `findings` grow as the questions are answered."""

    def __init__(
        self, prober: Prober, words: Sequence[str], count_tokens: CountTokens | None, *, has_key: bool
    ) -> None:
        self._prober = prober
        self._words = words
        self._count_tokens = count_tokens
        self._has_key = has_key
        self.findings: list[Finding] = []

    def note(self, what: str, found: str, meaning: str = "") -> None:
        self.findings.append(Finding(what=what, found=one_line(found), meaning=one_line(meaning)))

    def conduct(self, api: str, model: str | None, extra: tuple[tuple[str, str], ...]) -> Preflight:
        is_template = api.endswith(".toml")
        listed = [] if is_template else self._list_models(needs_one=model is None)
        self._name = model or (str(listed[0]["id"]) if listed else "")
        candidates = {api: load_template(Path(api), model)} if is_template else _candidates(api)
        candidates = {name: with_fields(endpoint, extra=extra) for name, endpoint in candidates.items()}
        name, endpoint, short = self._choose(candidates, listed)
        if listed and all(self._name != entry["id"] for entry in listed):
            self.note("model", f"{self._name!r} is not listed", "answered all the same: is it the one meant?")
        context = self._context_tokens(listed)
        long = self._ask_long(endpoint, context)
        before = _metrics_in(self._prober.get("/metrics"))
        again = self._prober.ask(endpoint, self._words[: long.num_words], 1, self._name)
        lengths = self._prompt_lengths(endpoint, (short, long))
        endpoint = self._check_lengths(endpoint)
        page = self._prober.get("/metrics")
        self._check_cache(again, before, _metrics_in(page))
        self._check_metrics(page)
        self._check_ends()
        return Preflight(
            api=name,
            endpoint=endpoint,
            model=self._name,
            lengths=lengths,
            context_tokens=context,
            findings=tuple(self.findings),
        )

    def _ask_long(self, endpoint: Endpoint, context_tokens: int | None) -> Answer:
        """A prompt as long as the server takes; some have little room and do not say so."""
        for num_words in LONG_WORDS:
            room = context_tokens - PROBE_OUTPUT_TOKENS if context_tokens else num_words
            answer = self._prober.ask(endpoint, self._words[: min(num_words, room)], 1, self._name)
            if answer.complaint() is None:
                break
        return answer

    def _list_models(self, *, needs_one: bool) -> list[dict[str, Any]]:
        """The models that the server lists, by OpenAI's API or by its own."""
        url = self._prober.url
        answer = self._prober.get("/v1/models")
        self._refuse_wrong_key(answer, "GET /v1/models")
        if answer.failure:
            raise TargetError(f"{url} does not answer: {answer.failure}; is it still starting?")
        models = models_in(answer)
        if models is None and answer.status == 200:
            site = "; is --target the API, or a site in front of it?" if answer.is_page else ""
            raise TargetError(
                f"{url} is not an OpenAI-compatible server: GET /v1/models answered "
                f"{excerpt(answer.body, answer.content_type)}{site}"
            )
        models = models or native_models(self._prober)
        if models:
            version = self._prober.get_json("/version")
            number = f" {version['version']}" if isinstance(version, dict) and "version" in version else ""
            self.note("server", f"{models[0].get('owned_by') or 'unnamed'}{number}, model {models[0]['id']}")
        elif needs_one:
            raise TargetError(self._nothing_listed(answer))
        return models

    def _nothing_listed(self, answer: Answer) -> str:
        url = self._prober.url
        parts = urlsplit(url)
        root = urlunsplit((parts.scheme, parts.netloc, "", "", ""))
        said = f"answered {answer.status}"
        if parts.path and models_in(self._prober.get(f"{root}/v1/models")):
            return f"{url} has no API (GET /v1/models {said}), but {root} has: use --target {root}"
        return (
            f"{url} lists no model at /v1/models ({said}); is it an LLM server, and is the path right? "
            "Else say --model NAME"
        )

    def _refuse_wrong_key(self, answer: Answer, question: str) -> None:
        if answer.status not in (401, 403):
            return
        what = "refuses the key" if self._has_key else "wants a key"
        raise TargetError(
            f"{self._prober.url} {what} ({question} answered {answer.status}); "
            "set BENCH_API_KEY or give --header 'Authorization: Bearer ...'"
        )

    def _choose(
        self, candidates: Mapping[str, Endpoint], listed: list[dict[str, Any]]
    ) -> tuple[str, Endpoint, Answer]:
        """Find the first API that answers, leaving out fields that the server refuses."""
        complaints: list[str] = []
        for name, endpoint in candidates.items():
            tried: list[str] = []
            for variant, refused in variants_of(endpoint):
                answer = self._prober.ask(variant, self._words[:SHORT_WORDS], 1, self._name)
                self._refuse_wrong_key(answer, f"POST {endpoint.path}")
                complaint = answer.complaint()
                if complaint is None or self._is_mere_hiccup(answer, variant):
                    self._note_choice(name, refused, complaint, complaints)
                    return name, variant, answer
                tried.append(f"POST {endpoint.path} {complaint}")
                if answer.status not in (400, 422):
                    break
            complaints.append(tried[0])
            if answer.failure:
                break  # the server is there, and slow: other paths would wait as long
        raise TargetError(self._cannot(candidates, complaints, listed))

    def _is_mere_hiccup(self, answer: Answer, endpoint: Endpoint) -> bool:
        """Whether a probe that failed was an exception: the same API answers a second, other prompt."""
        if answer.failure is None and answer.status < 500:
            return False
        second = self._prober.ask(endpoint, self._words[1 : SHORT_WORDS + 1], 1, self._name)
        return second.complaint() is None

    def _note_choice(self, name: str, refused: str, complaint: str | None, before: list[str]) -> None:
        self.note("api", name + (f" ({before[0]})" if before else ""))
        if refused:
            means = "answers may end before the length asked for" if "eos" in refused else ""
            means += "; token counts are unknown" if "stream_options" in refused else ""
            self.note("fields", f"the server refuses {refused}", means)
        if complaint is not None:
            self.note("first probe", complaint, "the next one was answered; expect failed requests")

    def _cannot(
        self, candidates: Mapping[str, Endpoint], complaints: list[str], listed: list[dict[str, Any]]
    ) -> str:
        words = f"{self._prober.url} cannot be measured: " + "; ".join(complaints[:2])
        names = [str(model["id"]) for model in listed]
        if names and self._name not in names:
            words += f". It lists no model {self._name!r}, but: {', '.join(names[:5])}"
        elif len(candidates) == 1:
            for name, endpoint in _candidates("auto").items():
                if name in candidates:
                    continue
                answer = self._prober.ask(endpoint, self._words[:SHORT_WORDS], 1, self._name)
                if answer.complaint() is None:
                    return f"{words}. It does answer --api {name}"
        return words

    def _context_tokens(self, listed: list[dict[str, Any]]) -> int | None:
        lengths = (entry.get("max_model_len") for entry in listed if entry["id"] == self._name)
        return next((length for length in lengths if isinstance(length, int) and length > 0), None)

    def _prompt_lengths(self, endpoint: Endpoint, probes: Sequence[Answer]) -> PromptLengths | None:
        """How long prompts are, by whoever counts them; None where nobody does."""
        known = [(self._words[: a.num_words], a.num_prompt_tokens) for a in probes]
        counters: dict[str, CountWords] = {
            "usage": lambda words: self._prober.ask(endpoint, words, 1, self._name).num_prompt_tokens,
            "its /tokenize": self._tokenize,
        }
        if self._count_tokens is not None:
            count_tokens_of = self._count_tokens
            counters["the tokenizer file"] = lambda words: count_tokens_of(" ".join(words))
        lengths = find_lengths(known, counters, self._words)
        if lengths is None:
            meaning = "prompt lengths are as planned, not as counted; --tokenizer FILE counts them"
            self.note("prompt tokens", "the server reports no usage", meaning)
        else:
            self.note("prompt tokens", *lengths.finding())
        return lengths

    def _tokenize(self, words: Sequence[str]) -> int | None:
        """Count by the server's tokenizer (vLLM, SGLang: `prompt`; llama.cpp: `content`)."""
        text = " ".join(words)
        value = {"model": self._name, "prompt": text, "content": text, "add_special": True}
        said = self._prober.post_json("/tokenize", value)
        if not isinstance(said, dict):
            return None
        count, tokens = said.get("count"), said.get("tokens")
        return count if isinstance(count, int) else len(tokens) if isinstance(tokens, list) else None

    def _check_lengths(self, endpoint: Endpoint) -> Endpoint:
        """Whether it streams, counts, and gives the length asked for; which of its events are tokens.

        A usage that rises with the stream is asked for where a server has it: events that merge under load
        are then still known token by token.
        """
        rising = with_fields(endpoint, continuous_usage=True)
        if rising != endpoint:
            answer = self._ask_length(rising)
            count = count_tokens(answer.facts, None)
            if answer.complaint() is None and answer.num_usages > 1 and None not in count.tokens:
                self._note_stream(count, answer, "; each event says how many it holds")
                return rising
        answer = self._ask_length(endpoint)
        if complaint := answer.complaint():
            self.note("lengths", complaint, "how it streams and counts is not known")
            return endpoint
        if not answer.is_stream:
            self.note("streaming", "no", "there is no first token apart from the last")
            return endpoint
        count = count_tokens(answer.facts, None)
        self._note_stream(count, answer)
        if count.total is not None and None in count.tokens:
            ratio = count.total / max(len(count.events), 1)
            self.note(
                "tokens per event", f"{ratio:.2g} on average", "event gaps are not token gaps; no itl_s"
            )
        return _knowing(endpoint, answer, count)

    def _ask_length(self, endpoint: Endpoint) -> Answer:
        return self._prober.ask(endpoint, self._words[:8], PROBE_OUTPUT_TOKENS, self._name)

    def _note_stream(self, count: TokenCount, answer: Answer, more: str = "") -> None:
        """How it streams, and what came against what was asked for."""
        produced, asked, num_events = count.total, PROBE_OUTPUT_TOKENS, len(count.events)
        total = "an unknown number of" if produced is None else produced
        self.note("streaming", f"yes, {num_events} events for {total} tokens{more}")
        own = "lengths are its own"
        if produced == asked:
            found, meaning = f"{produced}, as asked", ""
        elif produced is None and num_events > asked:
            found, meaning = f"{num_events} events for max_tokens {asked}, and no usage", own
        elif produced is None:
            found = "the server reports no usage"
            meaning = "output tokens are counted from events, or unknown"
        elif produced > asked:
            found, meaning = f"{produced} for max_tokens {asked}", own
        else:
            found = f"{produced} of {asked} asked for, finish reason {answer.finish_reason!r}"
            meaning = f"it ends at its own end token: {own}"
        self.note("output tokens", found, meaning)

    def _check_cache(self, again: Answer, before: Sample, after: Sample) -> None:
        """Whether a prompt sent twice is found in a prefix cache; prompts of a run are all different."""
        cached = again.usage.cached_tokens if again.usage else None
        name = "prefix_hit_tokens"
        if cached is None and name in before and name in after:
            cached = round(after[name] - before[name])
        if cached is None:
            self.note("prefix cache", "the server does not say what it found cached")
        elif cached:
            self.note("prefix cache", f"on ({cached} of {again.num_words} tokens of a repeated prompt)")
        else:
            self.note("prefix cache", "off, or nothing found of a repeated prompt")

    def _check_metrics(self, page: Answer) -> None:
        """Which series are known, and whether the server's clock is ours; samples are stamped by ours."""
        found = ", ".join(name for name in _metrics_in(page) if "." not in name)
        self.note("/metrics", f"read during the run: {found}" if found else "none that is known")
        if page.clock_skew_s is not None and abs(page.clock_skew_s) > MAX_SKEW_S:
            side = "ahead of" if page.clock_skew_s > 0 else "behind"
            meaning = "look for this run in its own logs and dashboards at another time"
            self.note("clock", f"the server's is {abs(page.clock_skew_s):.0f} s {side} ours", meaning)

    def _check_ends(self) -> None:
        if (cut_s := self._prober.cut_after_s) is not None:
            found = f"an answer had not ended after {cut_s:.3g} s and was cut"
            self.note("end", found, "where it ignores max_tokens, each request runs until --timeout")


def _metrics_in(page: Answer) -> Sample:
    return parse_metrics(page.body.decode("utf-8", "replace")) if page.status == 200 else {}


def _candidates(api: str) -> dict[str, Endpoint]:
    return dict(ENDPOINTS) if api == "auto" else {api: ENDPOINTS[api]}


def _knowing(endpoint: Endpoint, answer: Answer, count: TokenCount) -> Endpoint:
    """The endpoint with the rule that made one event one token; of two that fit, the wider one.

    A server that sends an event for a token without text need not have done so in this answer.
    """
    rule = count.rule
    if rule is TokenEvents.TEXT:
        wider = count_tokens(answer.facts, TokenEvents.CONTENT)
        content = [f for f in answer.facts if f.is_token or (f.is_content_event and not f.finish_reason)]
        rule = TokenEvents.CONTENT if len(content) == wider.total else rule
    return endpoint if rule is None else with_fields(endpoint, token_events=rule)
