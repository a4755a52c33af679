"""An endpoint described by a TOML file: what to send, and where in each event the facts stand.

For every API but OpenAI's; the servers' own protocols stand beside this module. `request` is the body with
`${prompt}`, `${output_tokens}` and `${model}` in it; `read` names, for each fact, the paths under which it
may stand (`choices.0.text`), for every event or, with `where`, only for events where other paths hold given
values. What is found nowhere is not known. Worked examples: examples/endpoints/.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from loadgen.endpoints import fields
from loadgen.endpoints.base import ChunkFacts, EndpointDataError, Framing, TokenEvents
from loadgen.endpoints.errors import message_in
from loadgen.errors import UsageError

_PLACEHOLDER = re.compile(r"\$\{(\w*)\}")
_BODY_NAMES, _HEADER_NAMES = {"prompt", "output_tokens", "model"}, {"api_key"}
_MISSING = object()


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A path into an event, and what must stand elsewhere in it for the path to count."""

    path: str
    where: dict[str, Any] = {}


Places = tuple[Place | str, ...]


class Reading(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where each fact stands. num_tokens: how many this event holds, a list of them, or the one that it is;
    output_tokens: of the whole answer.
    """

    text: Places = ()
    reasoning: Places = ()
    num_tokens: Places = ()
    finish_reason: Places = ()
    error: Places = ("error",)
    prompt_tokens: Places = ()
    output_tokens: Places = ()
    cached_tokens: Places = ()


class Template(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An endpoint read from a file.

    ignore_eos: fields that tell the server not to end before the length asked for. token_ids: the field that
    takes a prompt of token ids in place of the one for text. headers: sent with each request; one that holds
    `${api_key}` takes the place of Authorization. done: the data of the event that ends a stream. expects:
    keys of which each event has one; any other is no event of this API. token_events: declares which events
    are one token each, for servers that state no counts.
    """

    path: str
    request: dict[str, Any]
    read: Reading
    framing: Framing = Framing.EVENTS
    ignore_eos: dict[str, Any] = {}
    token_ids: str | None = None
    headers: dict[str, str] = {}
    done: str | None = None
    expects: tuple[str, ...] = ()
    token_events: TokenEvents | None = None
    extra: fields.Extra = ()

    def body(self, prompt: str | list[int], output_tokens: int, model: str) -> bytes:
        request = self.request
        if not isinstance(prompt, str):
            if self.token_ids is None:
                raise TypeError("this API takes text only; token ids need the completions API")
            rest = {name: value for name, value in request.items() if value != "${prompt}"}
            request = {**rest, self.token_ids: "${prompt}"}
        values = {"prompt": prompt, "output_tokens": output_tokens, "model": model}
        more = {name: msgspec.json.decode(text) for name, text in self.extra}
        return msgspec.json.encode(merge(fill(request, values), self.ignore_eos, more))

    def interpret(self, data: bytes) -> ChunkFacts:
        if self.done is not None and data.strip() == self.done.encode():
            return ChunkFacts(is_done=True)
        event, read = fields.read_object(data), self.read
        if error := _first(event, read.error):
            return ChunkFacts(error=message_in(error) or fields.quote(data))
        if self.expects and not any(name in event for name in self.expects):
            raise EndpointDataError(f"no {self.expects[0]}: {fields.quote(data)}")
        texts, thoughts = list(_values(event, read.text)), list(_values(event, read.reasoning))
        num_tokens = _count(_first(event, read.num_tokens))
        is_token = any(texts) or any(thoughts) or num_tokens is not None
        finish_reason = fields.reason(_first(event, read.finish_reason))
        return ChunkFacts(
            num_tokens=num_tokens,
            is_token=is_token,
            is_content_event=is_token or (bool(texts or thoughts) and finish_reason is None),
            is_reasoning=any(thoughts) and not any(texts),
            finish_reason=finish_reason,
            usage=fields.usage(
                _first(event, read.prompt_tokens),
                _first(event, read.output_tokens),
                _first(event, read.cached_tokens),
            ),
        )


def read_template(file: Path) -> Template:
    """Read a template as it stands."""
    return msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), Template)


def load_template(file: Path, model: str | None) -> Template:
    """Read a template for one model; UsageError says in one line what is wrong with it."""
    try:
        template = read_template(file)
        _check_names(template.request, _BODY_NAMES)
        _check_names(template.headers, _HEADER_NAMES)
    except OSError as exc:
        raise UsageError(f"cannot read the endpoint template {file}: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise UsageError(f"the endpoint template {file} is not TOML: {exc}") from exc
    except ValueError as exc:  # msgspec's own, and ours
        raise UsageError(f"the endpoint template {file} is wrong: {exc}") from exc
    if "${prompt}" not in str(template.request):
        raise UsageError(f"the endpoint template {file} is wrong: its request holds no ${{prompt}}")
    if model is None and "${model}" in f"{template.path}{template.request}":
        raise UsageError(f"the endpoint template {file} speaks of ${{model}}: say --model NAME")
    return msgspec.structs.replace(template, path=template.path.replace("${model}", model or ""))


def merge(body: dict[str, Any], *overlays: Mapping[str, Any]) -> dict[str, Any]:
    """Lay further fields over a body; objects are merged, all else is replaced."""
    for name, value in (item for overlay in overlays for item in overlay.items()):
        before = body.get(name)
        body[name] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
    return body


def fill(value: Any, values: Mapping[str, Any]) -> Any:
    """Put values in place of `${name}`; a text that is nothing else becomes the value, whatever its type."""
    if isinstance(value, dict):
        return {name: fill(item, values) for name, item in value.items()}
    if isinstance(value, list):
        return [fill(item, values) for item in value]
    if not isinstance(value, str):
        return value
    if alone := _PLACEHOLDER.fullmatch(value):
        return values[alone[1]]
    return _PLACEHOLDER.sub(lambda match: str(values[match[1]]), value)


def _check_names(value: Any, known: set[str]) -> None:
    unknown = set(_PLACEHOLDER.findall(str(value))) - known
    if unknown:
        names = ", ".join(f"${{{name}}}" for name in sorted(known))
        raise ValueError(f"unknown ${{{unknown.pop()}}}; known here: {names}")


def _count(value: object) -> int | None:
    """How many tokens: the number itself, as many as a list has, one where a token stands there itself."""
    if isinstance(value, Mapping):
        return 1
    return fields.count(len(value) if isinstance(value, list) else value) or None


def _first(event: Mapping[str, Any], places: Places) -> object:
    return next((value for value in _values(event, places) if value is not None), None)


def _values(event: Mapping[str, Any], places: Places) -> Iterator[object]:
    """What stands at the places that the event has."""
    for place in places:
        path, where = (place, {}) if isinstance(place, str) else (place.path, place.where)
        if all(_at(event, other) == value for other, value in where.items()):
            value = _at(event, path)
            if value is not _MISSING:
                yield value


def _at(value: object, path: str) -> object:
    for step in path.split("."):
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return _MISSING
    return value
