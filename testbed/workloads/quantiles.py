"""Summary statistics of samples, and the numbers of warm-up rounds and sizes of random messages of workloads."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}


def quantiles(samples: Sequence[int], divisor: int = 1) -> dict[str, int]:
    """Return min_ns to p999_ns of times in nanoseconds, divided by `divisor` (2: half of a round trip); no entries for an
    empty sample. A quantile is the smallest sample s such that at least this share of the samples is s or less."""
    if not samples:
        return {}
    ordered = sorted(samples)
    result = {"min_ns": ordered[0] // divisor}
    for name, share in _SHARES.items():
        result[f"{name}_ns"] = ordered[ceil(share * len(ordered)) - 1] // divisor
    return result


def fairness(rates: Sequence[float]) -> float:
    """Return Jain's fairness index: 1 if all rates are equal, 1/n if all but one are 0 (Jain, Chiu, Hawe, DEC-TR-301,
    1984)."""
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else 1.0


def warm_up(count: int) -> int:
    """Return the number of warm-up rounds: a tenth of the measured rounds, at least 10."""
    return max(10, count // 10)


def log_uniform(draw: float, largest: int) -> int:
    """Scale a draw from 0 to 1 to a size from 0 to `largest`, log-uniformly."""
    return min(largest, int((largest + 1) ** draw) - 1)
