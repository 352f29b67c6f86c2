"""Samples of single measurements: the messages of a history, or the rows of a workload that writes one for each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy

from testbed.observe.format.quantities import heading
from testbed.observe.report.columns import Kind, Numbers
from testbed.observe.report.run_summary import RunSummary

_FEW: Final = 30  # fewer rows are results, not a sample
_SUMMARY: Final = ("p50_ns", "p99_ns")
_NOT_TIMES: Final = ("clock_ns", "work_ns")


@dataclass(frozen=True, slots=True)
class Samples:
    """Measurements in order of time. at: seconds since the programs began. took: ns. moved: bytes, or None if unknown.
    what: name of the time measured."""

    at: Numbers
    took: Numbers
    moved: Numbers | None
    what: str
    source: str


def samples(run: RunSummary) -> Samples | None:
    """Samples of the messages where a history was written, else of the rows, where a kind has enough. None also where
    no time passes: a simulation in which nothing costs time."""
    sample = _samples(run)
    return sample if sample is not None and sample.at[-1] > sample.at[0] and sample.took.any() else None


def _samples(run: RunSummary) -> Samples | None:
    if run.deliveries is not None and run.deliveries.at.size >= _FEW:
        deliveries = run.deliveries
        return Samples(
            (deliveries.at - run.zero) / 1e9, deliveries.took, deliveries.moved, "message", "the programs' histories"
        )
    kinds = [kind for kind in run.kinds if kind.count >= _FEW and not any(key in kind.keys for key in _SUMMARY)]
    for kind in sorted(kinds, key=lambda kind: -kind.count):
        times = _first(kind, (key for key in kind.keys if key.endswith("_ns") and key not in _NOT_TIMES))
        if times is not None and kind.is_numeric("clock_ns"):
            chosen = kind.where(repeat=1.0) if kind.is_numeric("repeat") else kind.where()
            clock = kind.column("clock_ns")[chosen]
            order = numpy.argsort(clock, kind="stable")
            size = _first(kind, (key for key in kind.keys if key.endswith("_bytes")))
            moved = kind.column(size)[chosen][order] if size is not None else None
            return Samples((clock[order] - run.zero) / 1e9, kind.column(times)[chosen][order], moved, heading(times),
                           "the rows")  # fmt: skip
    return None


def _first(kind: Kind, keys: Iterable[str]) -> str | None:
    return next((key for key in keys if kind.is_numeric(key)), None)
