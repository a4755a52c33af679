from __future__ import annotations

import pytest

from reports import quantities
from reports.quantities import MICROSECONDS, MILLISECONDS, SECONDS, Unit


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (0.0999, "0.0999"),
        (9.996, "10.0"),
        (48.23, "48.2"),
        (99.96, "100"),
        (211.6, "212"),
        (12_345.6, "12,346"),
        (-3.14159, "-3.14"),
        (float("inf"), "–"),
    ],
)
def test_a_number_has_three_digits(value: float | None, text: str) -> None:
    assert quantities.format_number(value) == text


@pytest.mark.parametrize(
    ("value_s", "text"), [(None, "–"), (83e-6, "83.0 µs"), (0.212, "212 ms"), (1.418, "1.42 s")]
)
def test_a_time_chooses_its_unit(value_s: float | None, text: str) -> None:
    assert quantities.format_time(value_s) == text


@pytest.mark.parametrize(
    ("value_s", "text"), [(10**-3, "1 ms"), (2e-5, "20 µs"), (1.0, "1 s"), (100, "100 s")]
)
def test_a_tick_is_round(value_s: float, text: str) -> None:
    assert quantities.format_tick(value_s) == text


@pytest.mark.parametrize(
    ("values_s", "unit"),
    [
        ([2e-5, 4e-4], MICROSECONDS),
        ([2e-5, 4e-3], MILLISECONDS),
        ([0.4, 12.0], MILLISECONDS),
        ([1.2, 12.0], SECONDS),
        ([0.4, 120.0], SECONDS),
        ([None, None], MILLISECONDS),
    ],
)
def test_a_row_shares_one_unit(values_s: list[float | None], unit: Unit) -> None:
    assert quantities.choose_time_unit(values_s) == unit


@pytest.mark.parametrize(
    ("value_s", "text"), [(30, "30 s"), (1.5, "1.5 s"), (65, "1 min 5 s"), (120, "2 min")]
)
def test_a_duration_reads_as_it_is_set(value_s: float, text: str) -> None:
    assert quantities.format_duration(value_s) == text


@pytest.mark.parametrize(("fraction", "text"), [(0.41, "41 %"), (0.003, "0.3 %"), (0.0, "0 %"), (None, "–")])
def test_a_fraction_reads_as_percent(fraction: float | None, text: str) -> None:
    assert quantities.format_percent(fraction) == text


def test_a_sparkline_hides_zero_and_shows_everything_else() -> None:
    assert quantities.sparkline([0, 1, 50, 100]) == " ▁▄█"
    assert quantities.sparkline([0, 0]) == "  "
