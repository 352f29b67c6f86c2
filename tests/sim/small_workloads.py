"""Settings for a small run of each workload."""

from __future__ import annotations

from collections.abc import Mapping

SMALL: Mapping[str, Mapping[str, object]] = {
    "imb": {"count": 3, "sizes": (0, 1024)},
    "nas": {},
    "pingpong": {"count": 10, "sizes": (0, 1024)},
    "bandwidth": {"count": 20, "sizes": (1024, 65536)},
    "rate": {"count": 200},
    "random": {"messages": 30},
    "churn": {"time": 30_000_000},
    "logp": {"rounds": 3},
    "permutation": {"count": 5},
    "contention": {"time": 10_000_000},
    "comb": {"rounds": 2, "steps": 3},
    "sort": {"keys": 1000},
    "service": {"requests": 100},
}
