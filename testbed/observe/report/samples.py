"""Single measurements, as many as there are: the messages of a history, or rows of a workload that writes one for each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy

from testbed.observe.quantities import heading
from testbed.observe.report.columns import Kind, Numbers
from testbed.observe.report.telling import Told

_FEW: Final = 30  # below which rows are results, and no sample
_SUMMARY: Final = ("p50_ns", "p99_ns")
_NOT_TIMES: Final = ("clock_ns", "work_ns")


@dataclass(frozen=True, slots=True)
class Samples:
    """at: seconds since the programs began, in order. took: ns. moved: bytes, or None where nothing tells. what: of which
    time, in words."""

    at: Numbers
    took: Numbers
    moved: Numbers | None
    what: str
    source: str


def samples(told: Told) -> Samples | None:
    """Those of the messages where a history was written; else of the rows, where there are enough of a kind. None, too,
    where no time has passed: a simulation in which nothing costs anything."""
    found = _samples(told)
    return found if found is not None and found.at[-1] > found.at[0] and found.took.any() else None


def _samples(told: Told) -> Samples | None:
    if told.deliveries is not None and told.deliveries.at.size >= _FEW:
        one = told.deliveries
        return Samples((one.at - told.zero) / 1e9, one.took, one.moved, "message", "the programs' histories")
    kinds = [kind for kind in told.kinds if kind.count >= _FEW and not any(key in kind.keys for key in _SUMMARY)]
    for kind in sorted(kinds, key=lambda kind: -kind.count):
        times = _first(kind, (key for key in kind.keys if key.endswith("_ns") and key not in _NOT_TIMES))
        if times is not None and kind.numeric("clock_ns"):
            chosen = kind.where(repeat=1.0) if kind.numeric("repeat") else kind.where()
            clock = kind.column("clock_ns")[chosen]
            order = numpy.argsort(clock, kind="stable")
            size = _first(kind, (key for key in kind.keys if key.endswith("_bytes")))
            moved = kind.column(size)[chosen][order] if size is not None else None
            return Samples((clock[order] - told.zero) / 1e9, kind.column(times)[chosen][order], moved, heading(times),
                           "the rows")  # fmt: skip
    return None


def _first(kind: Kind, keys: Iterable[str]) -> str | None:
    return next((key for key in keys if kind.numeric(key)), None)
