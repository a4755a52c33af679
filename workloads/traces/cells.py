"""Reads single cells: token counts and instants, exactly, with a reason where a cell is no good.

Instants are int nanoseconds. A date has a fraction of any length (finer than 1 ns is cut off), and `Z`, an
offset or none (then UTC); a number is in the format's unit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

NS_PER_UNIT = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
Bad = dict[int, str]
_INSTANT = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?)(?:[.,](\d+))?\s*(Z|z|UTC|[+-]\d\d:?\d\d)?")


class CellError(ValueError):
    """A cell that cannot be used; the text is the reason: empty, nan, negative or unparsable."""


def parse_count(cell: object) -> int:
    """Read a number of tokens: a whole number, 0 or more."""
    value = _number(cell)
    if value != int(value):
        raise CellError("unparsable")
    return int(value)


def parse_instant(cell: object, unit: str) -> int:
    """Read an instant as ns; a text that is a date is one whatever the unit."""
    if isinstance(cell, str) and (match := _INSTANT.fullmatch(cell.strip())):
        return _date_ns(match)
    if unit == "datetime":
        if isinstance(cell, datetime):
            return _datetime_ns(cell)
        raise CellError("empty" if cell in (None, "") else "unparsable")
    return _scaled(_number(cell), NS_PER_UNIT[unit])


def counts(cells: list[Any]) -> tuple[NDArray[np.int64], Bad]:
    """Read a column of token counts; the bad cells by position, with the reason."""
    values = _plain_numbers(cells)
    if values is not None and (values == np.floor(values)).all():
        return values.astype(np.int64), {}
    return _one_by_one(cells, parse_count)


def instants(cells: list[Any], unit: str) -> tuple[NDArray[np.int64], Bad]:
    """Read a column of instants."""
    numbers = None if unit == "datetime" else _plain_numbers(cells)
    if numbers is None:
        return _one_by_one(cells, lambda cell: parse_instant(cell, unit))
    whole, scale = np.floor(numbers), NS_PER_UNIT[unit]
    return whole.astype(np.int64) * scale + np.rint((numbers - whole) * scale).astype(np.int64), {}


def _plain_numbers(cells: list[Any]) -> NDArray[np.float64] | None:
    """All cells at once, where each is a number from 0 to 2^32: exact, and no overflow in any unit."""
    if bool in set(map(type, cells)):
        return None
    try:
        numbers = np.array(cells, dtype=np.float64)
    except (ValueError, TypeError):
        return None
    is_plain = np.isfinite(numbers).all() and bool(np.all((numbers >= 0) & (numbers < 2**32)))
    return numbers if is_plain else None


def _one_by_one(cells: list[Any], parse: Callable[[Any], int]) -> tuple[NDArray[np.int64], Bad]:
    values = np.zeros(len(cells), np.int64)
    bad: Bad = {}
    for i, cell in enumerate(cells):
        try:
            values[i] = parse(cell)
        except CellError as exc:
            bad[i] = str(exc)
        except OverflowError:
            bad[i] = "unparsable"
    return values, bad


def _number(cell: object) -> float:
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        raise CellError("empty")
    if isinstance(cell, bool) or not isinstance(cell, str | int | float):
        raise CellError("unparsable")
    try:
        # An int stays an int: epoch nanoseconds do not fit a float.
        value = cell if isinstance(cell, int) else float(cell)
    except ValueError:
        raise CellError("unparsable") from None
    if math.isnan(value):
        raise CellError("nan")
    if math.isinf(value):
        raise CellError("unparsable")
    if value < 0:
        raise CellError("negative")
    return value


def _scaled(value: float, ns_per_unit: int) -> int:
    whole = int(value)
    return whole * ns_per_unit + round((value - whole) * ns_per_unit)


def _date_ns(match: re.Match[str]) -> int:
    fraction = int((match[2] or "0")[:9].ljust(9, "0"))
    return _epoch_s(match[1], match[3]) * 1_000_000_000 + fraction


@lru_cache(maxsize=4096)
def _epoch_s(text: str, zone: str | None) -> int:
    """Seconds of a date without its fraction; without a zone it is UTC."""
    offset = "+00:00" if zone in (None, "UTC") else str(zone).upper()
    try:
        return int(datetime.fromisoformat(text + offset).timestamp())
    except ValueError:
        raise CellError("unparsable") from None


def _datetime_ns(value: datetime) -> int:
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    since = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1000
