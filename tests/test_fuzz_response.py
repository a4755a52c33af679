"""A short run of the fuzzer, and proof that it sees a fault."""

from __future__ import annotations

import random

import pytest

from tests.fuzz_response import check, make_seeds

NUM_INPUTS = 4_000


def run() -> set[str]:
    seeds = make_seeds()
    return {check(random.Random(i), seeds).outcome for i in range(NUM_INPUTS)}


def test_no_input_breaks_the_parser_and_all_kinds_of_end_come_up() -> None:
    assert len(run()) == 12


def test_a_fault_in_the_parser_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.interpret.error_text", None)
    with pytest.raises(TypeError):
        run()
