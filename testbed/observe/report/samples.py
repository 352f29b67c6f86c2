"""Samples of single measurements: the messages of a history, or the rows of a workload that writes a row for each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy

from testbed.observe.format.quantities import heading
from testbed.observe.report.columns import Kind, Numbers
from testbed.observe.report.run_summary import RunSummary

_MIN_SAMPLES: Final = 30  # fewer rows are treated as results, not as a sample
_PERCENTILE_KEYS: Final = ("p50_ns", "p99_ns")
_NOT_TIMES: Final = ("clock_ns", "work_ns")  # keys that are not measured times


@dataclass(frozen=True, slots=True)
class Samples:
    """Measurements in order of time. at: times in seconds since the start of the programs. took: measured times, ns. moved:
    bytes; None if unknown. quantity: name of the measured time. source: the measurements' origin, for a caption."""

    at: Numbers
    took: Numbers
    moved: Numbers | None
    quantity: str
    source: str


def samples(run: RunSummary) -> Samples | None:
    """Return samples of the messages if a history was written, otherwise of the rows of a kind that has enough rows. None if
    there are none, or if all times are 0, as in a simulation without costs."""
    sample = _samples(run)
    return sample if sample is not None and sample.took.any() and sample.at[-1] > sample.at[0] else None


def _samples(run: RunSummary) -> Samples | None:
    if run.deliveries is not None and run.deliveries.at.size >= _MIN_SAMPLES:
        deliveries = run.deliveries
        return Samples(
            (deliveries.at - run.zero) / 1e9,
            deliveries.took,
            deliveries.bytes_moved,
            "message",
            "the programs' histories",
        )
    kinds = [
        kind
        for kind in run.kinds
        if kind.count >= _MIN_SAMPLES and not any(key in kind.keys for key in _PERCENTILE_KEYS)
    ]
    for kind in sorted(kinds, key=lambda kind: -kind.count):
        times = _first_numeric(kind, (key for key in kind.keys if key.endswith("_ns") and key not in _NOT_TIMES))
        if times is not None and kind.is_numeric("clock_ns"):
            rows = kind.where(repeat=1.0) if kind.is_numeric("repeat") else kind.data
            clock = rows["clock_ns"].to_numpy()
            order = numpy.argsort(clock, kind="stable")  # a sort in polars takes 40 MB more for a million rows
            size = _first_numeric(kind, (key for key in kind.keys if key.endswith("_bytes")))
            moved = rows[size].to_numpy()[order] if size is not None else None
            return Samples(
                (clock[order] - run.zero) / 1e9, rows[times].to_numpy()[order], moved, heading(times), "the rows"
            )
    return None


def _first_numeric(kind: Kind, keys: Iterable[str]) -> str | None:
    return next((key for key in keys if kind.is_numeric(key)), None)
