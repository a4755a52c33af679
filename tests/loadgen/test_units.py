from __future__ import annotations

import pytest

from loadgen.errors import UsageError
from loadgen.units import parse_count, parse_duration, parse_warmup


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("10s", 10.0),
        ("1.5m", 90.0),
        ("2h", 7200.0),
        ("0", 0.0),
        (" 3 s ", 3.0),
        ("250us", 250e-6),
    ],
)
def test_durations_carry_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["5", "", "s", "-3s", "3 parsecs", "1s2", "nan", "inf s"])
def test_a_duration_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "count"), [("64Ki", 65536), ("10k", 10_000), ("4096", 4096), ("1.5k", 1500)]
)
def test_counts(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["1.5", "-1", "ten", "1s", ""])
def test_a_count_is_whole(text: str) -> None:
    with pytest.raises(UsageError, match="not a whole number"):
        parse_count(text)


def test_warmup_is_auto_or_a_time() -> None:
    assert parse_warmup("auto") is None
    assert parse_warmup("10s") == 10.0
    assert parse_warmup("0") == 0.0
