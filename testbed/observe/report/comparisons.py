"""Comparison section of the report: each run against the first one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from testbed.errors import TestbedError
from testbed.observe.comparing.comparison import ComparedMeasure, Comparison, Judgement, compare
from testbed.observe.format.quantities import format_value, heading
from testbed.observe.report.markup import Table, details, table
from testbed.observe.report.run_summary import RunSummary

_MAX_ROWS: Final = 50_000
"""Maximum rows of two runs that the report compares; `testbed compare` has no limit."""

_MAX_SHOWN: Final = 100


def comparisons(runs: Sequence[RunSummary]) -> Iterator[str]:
    """Compare each further run with the first run; yield the reason if they are not comparable."""
    for index, run in enumerate(runs[1:], 1):
        if sum(kind.count for summary in (runs[0], run) for kind in summary.kinds) > _MAX_ROWS:
            continue
        try:
            comparison = compare(runs[0].record.folder, run.record.folder)
        except TestbedError as error:
            yield f"<h3>{run.label} against {runs[0].label}</h3><p>Not comparable: {escape(str(error))}.</p>"
            continue
        yield f"<h3>{run.label} against {runs[0].label}</h3><p>{escape(_summary(comparison))}</p>"
        notes = "".join(f"<li>{escape(note)}</li>" for note in comparison.notes)
        shown = _table(comparison, runs[0].label, run.label)
        content = table(shown, f"comparison-{index}") + (f"<ul>{notes}</ul>" if notes else "")
        yield details("Measure by measure", content, opened=comparison.worse)


def _summary(comparison: Comparison) -> str:
    counts = ((len(comparison.judged(judgement)), judgement.value) for judgement in Judgement)
    totals = ", ".join(f"{count} {name}" for count, name in counts if count)
    return (
        f"{len(comparison.measured)} measures, where less than {comparison.threshold:.0%} is no difference: {totals}."
    )


def _table(comparison: Comparison, ours: str, theirs: str) -> Table:
    rows = [
        [compared.where, heading(compared.measure), format_value(compared.measure, compared.ours),
         format_value(compared.measure, compared.theirs),
         f"{compared.ratio.value:.3f}", _interval(compared), compared.judgement.value]
        for compared in comparison.measured[:_MAX_SHOWN]
    ]  # fmt: skip
    headings = ["where", "measure", ours, theirs, f"{theirs} / {ours}", "interval", "judgement"]
    note = f"The first {_MAX_SHOWN} of {len(comparison.measured):,}." if len(comparison.measured) > _MAX_SHOWN else ""
    return Table(f"{theirs} against {ours}, the worst first", headings, rows, frozenset({0, 1, 5, 6}), note=note)


def _interval(measure: ComparedMeasure) -> str:
    if measure.ratio.low is None or measure.ratio.high is None:
        return "open"
    return f"{measure.ratio.low:.3f} to {measure.ratio.high:.3f}"
