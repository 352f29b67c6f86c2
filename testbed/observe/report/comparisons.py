"""Each run of a report beside the first one, in figures: what is worse, what is better, and what cannot be told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from testbed.errors import TestbedError
from testbed.observe.comparing.comparison import Comparison, Judgement, Measured, compare
from testbed.observe.quantities import cell, heading
from testbed.observe.report.markup import Table, details, table
from testbed.observe.report.telling import Told

_MOST_ROWS: Final = 50_000
"""Rows of two runs above which their samples are not gone through here: `testbed compare` does it."""

_SHOWN: Final = 100


def comparisons(runs: Sequence[Told]) -> Iterator[str]:
    """Of each run but the first with the first; nothing where they have nothing in common."""
    for place, told in enumerate(runs[1:], 1):
        if sum(kind.count for one in (runs[0], told) for kind in one.kinds) > _MOST_ROWS:
            continue
        try:
            found = compare(runs[0].run.folder, told.run.folder)
        except TestbedError as error:
            yield f"<h3>{told.label} against {runs[0].label}</h3><p>Not comparable: {escape(str(error))}.</p>"
            continue
        yield f"<h3>{told.label} against {runs[0].label}</h3><p>{escape(_in_short(found))}</p>"
        notes = "".join(f"<li>{escape(note)}</li>" for note in found.notes)
        of = _table(found, runs[0].label, told.label)
        content = table(of, f"comparison-{place}") + (f"<ul>{notes}</ul>" if notes else "")
        yield details("Measure by measure", content, opened=found.worse)


def _in_short(found: Comparison) -> str:
    counts = ((len(found.judged(one)), one.value) for one in Judgement)
    words = ", ".join(f"{count} {word}" for count, word in counts if count)
    return f"{len(found.measured)} measures, where less than {found.threshold:.0%} is no difference: {words}."


def _table(found: Comparison, ours: str, theirs: str) -> Table:
    rows = [
        [one.where, heading(one.measure), cell(one.measure, one.ours), cell(one.measure, one.theirs),
         f"{one.ratio.value:.3f}", _interval(one), one.judgement.value]
        for one in found.measured[:_SHOWN]
    ]  # fmt: skip
    headings = ["where", "measure", ours, theirs, f"{theirs} / {ours}", "interval", "judgement"]
    note = f"The first {_SHOWN} of {len(found.measured):,}." if len(found.measured) > _SHOWN else ""
    return Table(f"{theirs} against {ours}, the worst first", headings, rows, frozenset({0, 1, 5, 6}), note=note)


def _interval(one: Measured) -> str:
    if one.ratio.low is None or one.ratio.high is None:
        return "open"
    return f"{one.ratio.low:.3f} to {one.ratio.high:.3f}"
