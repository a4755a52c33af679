"""Prompt lengths by whoever counts them: exact where a word is a token, else fitted and said to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.drive.config import DriveConfig
from loadgen.drive.dispatch import split_plan
from loadgen.drive.requests import RequestBodies
from loadgen.endpoints import ENDPOINTS
from loadgen.errors import UsageError
from loadgen.preflight import Preflight, probe
from loadgen.prompt_lengths import count_by_file, find_lengths, fit_lengths
from tests.loadgen.answering import MODELS, Answer, completions, server, sse
from workloads import Workload
from workloads.prompts import universal_words

SILENT: Answer = (200, "text/event-stream", sse(16, None))


def ask(url: str, **more: Any) -> Preflight:
    return probe(url, api="auto", model=None, words=universal_words(), headers={}, timeout_s=5.0, **more)


def pieces(text: str) -> int:
    """A tokenizer that splits long words."""
    return sum(1 + len(word) // 6 for word in text.split()) + 3


def counting_pieces(request: Any) -> Answer:
    usage = {"prompt_tokens": pieces(request["prompt"]), "completion_tokens": request["max_tokens"]}
    return 200, "text/event-stream", sse(request["max_tokens"], usage)


def test_two_probes_tell_the_offset_where_a_word_is_a_token() -> None:
    lengths = fit_lengths([(24, 31), (288, 295)], "usage")
    assert (lengths.offset, lengths.tokens_per_word, lengths.is_exact) == (7, 1.0, True)
    assert lengths.describe_fit() is None


def test_a_line_is_fitted_where_it_is_not_and_its_error_told() -> None:
    lengths = fit_lengths([(10, 25), (100, 205), (50, 108)], "usage")
    assert lengths.tokens_per_word == pytest.approx(2, abs=0.03)
    assert 0 < lengths.worst_miss < 0.05
    assert not lengths.is_exact


def test_whoever_says_the_same_of_every_prompt_counts_none() -> None:
    words = universal_words()
    known = [(words[:2], 7), (words[:64], 7)]
    assert find_lengths(known, {"usage": lambda _: 7}, words) is None
    assert find_lengths(known, {"usage": lambda _: 7, "a file": len}, words) == fit_lengths(
        [(2, 2), (64, 64)], "a file"
    )


def test_a_server_that_splits_the_words_gets_prompts_of_about_the_length_planned() -> None:
    with server({"/v1/models": MODELS, "/v1/completions": counting_pieces}) as url:
        found = ask(url)
    lengths = found.lengths
    assert lengths is not None
    assert 1.1 < lengths.tokens_per_word < 2
    assert any("prompts are fitted, to within" in note for note in found.notes)
    assert found.facts()["fitted_lengths"].startswith("fitted at 1.")
    plan = Workload(rate_per_s=20, input_tokens="fixed(400)").plan(1)
    config = DriveConfig(
        url="http://x",
        model="m",
        seed=1,
        nonce=2,
        run_id="r",
        prompt_offset=lengths.offset,
        tokens_per_word=lengths.tokens_per_word,
    )
    bodies = RequestBodies(split_plan(plan, 1)[0], config, ENDPOINTS["completions"])
    counted = [pieces(json.loads(bodies.body(i))["prompt"]) for i in range(len(plan))]
    assert np.mean(counted) == pytest.approx(400, rel=0.05)


def test_the_servers_tokenizer_comes_before_a_local_one_and_both_after_usage() -> None:
    def tokenize(request: Any) -> Answer:
        return 200, "application/json", b'{"count":%d}' % (len(request["prompt"].split()) + 2)

    local = {"count_tokens": lambda text: len(text.split()) + 1}
    routes: dict[str, Any] = {"/v1/models": MODELS, "/v1/completions": completions(4), "/tokenize": tokenize}
    with server(routes) as url:
        by_usage = ask(url, **local)
    with server(routes | {"/v1/completions": SILENT}) as url:
        by_server = ask(url, **local)
    with server({"/v1/models": MODELS, "/v1/completions": SILENT}) as url:
        by_file, unknown = ask(url, **local), ask(url)
    found = [answer.lengths and answer.lengths.counted_by for answer in (by_usage, by_server, by_file)]
    assert found == ["usage", "its /tokenize", "the tokenizer file"]
    assert [answer.prompt_offset for answer in (by_usage, by_server, by_file)] == [4, 2, 1]
    assert any("knows no chat template" in finding.found for finding in by_file.findings)
    assert unknown.lengths is None
    assert any("not as counted" in note for note in unknown.notes)


def test_a_local_tokenizer_counts(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="optional: counts prompts by a local file")
    words = universal_words()[:50]
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate([*words, "?"])}, unk_token="?")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert count_by_file(tmp_path / "tokenizer.json")(" ".join(words)) == 50
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(UsageError, match="cannot be read as a tokenizer.json"):
        count_by_file(tmp_path / "other.json")
