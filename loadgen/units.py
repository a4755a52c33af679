"""Values with units, as people type them: `500ms`, `10s`, `2m`, `64Ki`.

A bare number is refused where two units are plausible; only 0 needs none.
"""

from __future__ import annotations

import re

from loadgen.errors import UsageError

SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
MULTIPLES = {"": 1, "k": 1000, "M": 1000**2, "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3}

_QUANTITY = re.compile(r"\s*(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(?P<unit>[A-Za-z]*)\s*")


def parse_duration(text: str) -> float:
    """Read a duration as seconds: `500ms`, `10s`, `1.5m`, `0`."""
    match = _QUANTITY.fullmatch(text)
    if match and match["unit"] in SECONDS:
        return float(match["number"]) * SECONDS[match["unit"]]
    if match and not match["unit"] and float(match["number"]) == 0:
        return 0.0
    raise UsageError(f"not a duration: {text!r}; write a number with a unit, such as 500ms, 30s or 2m")


def format_rate(per_s: float) -> str:
    """A rate of requests in words: `1 request/s`, `18.2 requests/s`."""
    number = f"{per_s:.4g}"
    return f"{number} request{'' if number == '1' else 's'}/s"


def parse_count(text: str) -> int:
    """Read a size or a count: `64Ki` is 65,536, `10k` is 10,000."""
    match = _QUANTITY.fullmatch(text.replace("_", "").replace(",", ""))
    if match and match["unit"] in MULTIPLES:
        value = float(match["number"]) * MULTIPLES[match["unit"]]
        if value == int(value):
            return int(value)
    raise UsageError(f"not a whole number: {text!r}; write 4096, 10k or 64Ki")


def parse_warmup(text: str) -> float | None:
    """Read `--warmup`: seconds, or None for `auto`."""
    return None if text.strip() == "auto" else parse_duration(text)


def format_seconds(value_s: float) -> str:
    """Write a duration with three digits and the unit that keeps it above 1: `41 ms`, `1.25 s`."""
    for unit in ("s", "ms", "us", "ns"):
        if abs(value_s) >= SECONDS[unit] * 0.9995 or unit == "ns":
            return f"{value_s / SECONDS[unit]:.3g} {unit}"
    raise AssertionError(value_s)
