"""Comparison section of the report: each run against the first one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from testbed.errors import TestbedError
from testbed.observe.comparing.comparison import ComparedMeasure, Comparison, Judgement, compare
from testbed.observe.format.quantities import format_value, heading
from testbed.observe.report.pages import Table
from testbed.observe.report.run_summary import RunSummary

_MAX_ROWS: Final = 50_000
"""Maximum rows of two runs together that the report compares; `testbed compare` has no limit."""

_MAX_SHOWN: Final = 100  # measures


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """Comparison of a run with the first one. label, baseline: labels of both. table: None if they are not comparable, for
    the reason in `summary`. name: name of the table, unique in the page. has_worse: whether a measure is worse."""

    label: str
    baseline: str
    summary: str
    name: str
    table: Table | None = None
    notes: Sequence[str] = ()
    has_worse: bool = False


def comparisons(runs: Sequence[RunSummary]) -> Iterator[ComparedRun]:
    """Compare each further run with the first one, except runs with very many rows."""
    for index, run in enumerate(runs[1:], 1):
        if sum(kind.count for summary in (runs[0], run) for kind in summary.kinds) > _MAX_ROWS:
            continue
        baseline, name = runs[0].label, f"comparison-{index}"
        try:
            comparison = compare(runs[0].record.folder, run.record.folder)
        except TestbedError as error:
            yield ComparedRun(run.label, baseline, f"Not comparable: {error}.", name)
            continue
        table = _table(comparison, baseline, run.label)
        yield ComparedRun(
            run.label, baseline, _summary(comparison), name, table, comparison.notes, comparison.has_worse
        )  # fmt: skip


def _summary(comparison: Comparison) -> str:
    counts = ((len(comparison.judged(judgement)), judgement.value) for judgement in Judgement)
    totals = ", ".join(f"{count} {name}" for count, name in counts if count)
    threshold = f"{comparison.threshold:.0%}"
    count = len(comparison.measures)
    measures = "1 measure" if count == 1 else f"{count:,} measures"
    return f"{measures}, where differences of {threshold} or less do not count: {totals}."


def _table(comparison: Comparison, baseline: str, candidate: str) -> Table:
    rows = [
        [compared.where, heading(compared.measure), format_value(compared.measure, compared.baseline),
         format_value(compared.measure, compared.candidate),
         f"{compared.ratio.value:.3f}", _interval(compared), compared.judgement.value]
        for compared in comparison.measures[:_MAX_SHOWN]
    ]  # fmt: skip
    headings = ["where", "measure", baseline, candidate, f"{candidate} / {baseline}", "interval", "judgement"]
    note = f"The first {_MAX_SHOWN} of {len(comparison.measures):,}." if len(comparison.measures) > _MAX_SHOWN else ""
    return Table(f"{candidate} against {baseline}, by judgement", headings, rows, frozenset({0, 1, 5, 6}), note=note)


def _interval(measure: ComparedMeasure) -> str:
    if measure.ratio.low is None or measure.ratio.high is None:
        return "too few samples"
    return f"{measure.ratio.low:.3f} to {measure.ratio.high:.3f}"
