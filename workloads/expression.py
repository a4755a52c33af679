"""The small language in which processes and laws are written: `lognormal(median=32, p99=128)`.

An expression is a name with arguments: named (`cv=2`), in pairs (`30s:20`, `0.7:fixed(97)`) or plain (`64`).
Numbers may carry a unit, and come out in seconds, fractions or plain counts. What a name means is decided
elsewhere (arrivals, lengths).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from workloads.errors import WorkloadError

UNITS = {
    "": 1.0, "%": 0.01, "k": 1e3, "Ki": 1024.0, "M": 1e6,
    "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0,
}  # fmt: skip
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?P<unit>%|[A-Za-z]*)"
    r"|(?P<name>[A-Za-z_][\w.\-]*)|(?P<mark>[(),=:]))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """A parsed `name(...)`; `text` is what the user wrote."""

    text: str
    name: str
    named: dict[str, Value] = field(default_factory=dict)
    pairs: tuple[tuple[float, Value], ...] = ()
    plain: tuple[Value, ...] = ()

    def numbers(self, allowed: Iterable[str]) -> dict[str, float]:
        """Give the named arguments, all of them numbers; an argument not `allowed` is an error."""
        known = list(allowed)
        for key, value in self.named.items():
            if key not in known:
                raise WorkloadError(f"{self.text}: unknown argument {key!r}; known: {', '.join(known)}")
            if isinstance(value, Expression):
                raise WorkloadError(f"{self.text}: {key} must be a number, not {value.text!r}")
        return {key: value for key, value in self.named.items() if not isinstance(value, Expression)}


Value = float | Expression


def parse(text: str) -> Expression:
    """Parse an expression; a bare number is an error here (callers know what it stands for)."""
    parser = _Parser(text)
    value = parser.value()
    parser.expect_end()
    if not isinstance(value, Expression):
        raise WorkloadError(f"{text!r} is a number where a name such as poisson or lognormal is needed")
    return value


def parse_number(text: str) -> float | None:
    """Read a number with an optional unit (`30s`, `500ms`, `10%`, `4Ki`); None where it is none."""
    match = _TOKEN.fullmatch(text.strip())
    if match is None or match["number"] is None or match["unit"] not in UNITS:
        return None
    return _finite(float(match["number"]) * UNITS[match["unit"]], text)


def parse_window(text: str) -> tuple[float, float | None]:
    """Read `0:60s`, `10m:` or `:1h` as seconds; the end is None where it is open."""
    start, colon, end = text.partition(":")
    from_s = parse_number(start) if start.strip() else 0.0
    to_s = parse_number(end) if end.strip() else None
    if not colon or from_s is None or (end.strip() and to_s is None):
        raise WorkloadError(f"window {text!r} is not START:END, such as 0:60s or 10m:")
    return from_s, to_s


def _finite(number: float, text: str) -> float:
    if not math.isfinite(number):
        raise WorkloadError(f"{text.strip()} is too large a number")
    return number


class _Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def _match(self) -> re.Match[str]:
        match = _TOKEN.match(self.text, self.position)
        if match is None:
            rest = self.text[self.position :].strip() or "the end"
            raise WorkloadError(f"cannot read {self.text!r} at {rest!r}: write name(key=value, ...)")
        return match

    def _take(self, mark: str) -> bool:
        match = _TOKEN.match(self.text, self.position)
        if match is None or match["mark"] != mark:
            return False
        self.position = match.end()
        return True

    def expect_end(self) -> None:
        if self.text[self.position :].strip():
            rest = self.text[self.position :].strip()
            raise WorkloadError(f"cannot read {self.text!r}: {rest!r} is left over")

    def value(self) -> Value:
        start = self.position
        match = self._match()
        self.position = match.end()
        if match["number"] is not None:
            if match["unit"] not in UNITS:
                raise WorkloadError(
                    f"{self.text!r}: unknown unit {match['unit']!r}; known: {', '.join(UNITS)}"
                )
            return _finite(float(match["number"]) * UNITS[match["unit"]], match[0])
        if match["name"] is None:
            raise WorkloadError(
                f"cannot read {self.text!r} at {match[0].strip()!r}: a name or number is missing"
            )
        return self._call(match["name"], start)

    def _call(self, name: str, start: int) -> Expression:
        named: dict[str, Value] = {}
        pairs: list[tuple[float, Value]] = []
        plain: list[Value] = []
        if self._take("(") and not self._take(")"):
            while True:
                value = self.value()
                if self._take("="):
                    named[value.name if isinstance(value, Expression) else str(value)] = self.value()
                elif self._take(":"):
                    if isinstance(value, Expression):
                        raise WorkloadError(f"{self.text!r}: {value.text!r} before ':' must be a number")
                    pairs.append((value, self.value()))
                else:
                    plain.append(value)
                if self._take(")"):
                    break
                if not self._take(","):
                    raise WorkloadError(f"cannot read {self.text!r}: a ',' or ')' is missing")
        text = self.text[start : self.position].strip()
        return Expression(text=text, name=name, named=named, pairs=tuple(pairs), plain=tuple(plain))
