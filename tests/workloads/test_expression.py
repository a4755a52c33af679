"""The language of processes and laws: what it reads, and that what it cannot read is one clear line."""

import pytest

from workloads import WorkloadError
from workloads.expression import Expression, parse, parse_number, parse_window


def test_names_arguments_pairs_and_nesting() -> None:
    law = parse("mixture(0.7: lognormal(median=97,p99.9=1.5k), 30%:fixed(411))")
    assert law.name == "mixture"
    (share, first), (other, second) = law.pairs
    assert (share, other) == (0.7, 0.3)
    assert isinstance(first, Expression)
    assert isinstance(second, Expression)
    assert first.named == {"median": 97.0, "p99.9": 1500.0}
    assert second.plain == (411.0,)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("500ms", 0.5), ("2m", 120), ("1.5h", 5400), ("7", 7), ("1e3", 1000)]
)
def test_units_come_out_in_seconds(text: str, seconds: float) -> None:
    assert parse_number(text) == pytest.approx(seconds)


@pytest.mark.parametrize(("text", "window"), [("0:60s", (0, 60)), ("10m:", (600, None)), (":1h", (0, 3600))])
def test_windows(text: str, window: tuple[float, float | None]) -> None:
    assert parse_window(text) == window


@pytest.mark.parametrize("text", ["60s", "a:b", "0:ten"])
def test_a_window_that_is_none(text: str) -> None:
    with pytest.raises(WorkloadError, match="such as 0:60s"):
        parse_window(text)


@pytest.mark.parametrize(
    "text",
    ["", "gamma(cv=2", "gamma(cv=)", "gamma(=2)", "gamma cv", "64", "onoff(on=2parsec)", "a(b:c)", "§"],
)
def test_what_cannot_be_read_is_one_line(text: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
