"""Claims such as "p99 <= 500 ms at 99 % confidence": MLPerf's early stopping, with dependence allowed for.

Of n independent latencies t miss the limit. The claim that at most a share 1 - q misses holds at confidence c
where so few misses would be that improbable if it did not: P(Binomial(n, 1 - q) <= t) <= 1 - c (MLPerf
inference rules, early stopping, with tolerance 0). Latencies of one run share a queue: n and t are first
scaled to as many independent values as the run holds.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_REQUESTS = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """num_values, num_misses: independent ones. num_missing: further values, were all to keep the limit.

    num_missing is None where even a billion would not do.
    """

    is_certified: bool
    confidence: float
    num_values: int
    num_misses: int
    num_missing: int | None


def holds(num_values: int, num_misses: int, q: float, confidence: float) -> bool:
    """Whether q-quantile <= limit is certified by num_misses among num_values independent values."""
    from scipy.special import bdtr

    if num_misses >= num_values:
        return False
    return float(bdtr(num_misses, num_values, 1 - q)) <= 1 - confidence


def values_needed(num_misses: int, q: float, confidence: float) -> int | None:
    """The fewest independent values that certify with so many misses; None beyond a billion."""
    low, high = num_misses, max(2 * num_misses, 1)
    while not holds(high, num_misses, q, confidence):
        low, high = high, 2 * high
        if high > MAX_REQUESTS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle, num_misses, q, confidence) else (middle, high)
    return high


def certify(n: int, num_misses: int, q: float, *, n_eff: float, confidence: float = 0.99) -> Certificate:
    """Certify a claim about quantile q; n_eff: how many independent values the n are worth.

    Misses are rounded up, values down: what is unsure speaks against the claim.
    """
    share = min(1.0, n_eff / n) if n else 0.0
    num_values = int(n * share)
    misses = -int(-num_misses * share // 1)
    needed = values_needed(misses, q, confidence)
    return Certificate(
        is_certified=holds(num_values, misses, q, confidence),
        confidence=confidence,
        num_values=num_values,
        num_misses=misses,
        num_missing=None if needed is None else max(0, needed - num_values),
    )
