"""Page of reproductions: a self-contained HTML file with a section for each paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from testbed.observe.comparing.score_summary import HEADINGS, summary_rows, table_errors
from testbed.observe.comparing.scores import KINDS, Scores
from testbed.observe.format.quantities import format_value, heading
from testbed.observe.report.pages import Part, Table, render, write_page
from testbed.observe.report.paper_plots import error_plot, figure_plots, row_plots


def make_paper_page(reproductions: Sequence[Scores], output: Path) -> int:
    """Write the page; return its size in bytes. Raises UnwritableReportError."""
    return write_page(paper_page(reproductions), output)


def paper_page(reproductions: Sequence[Scores]) -> str:
    """Render the page of these reproductions as HTML."""
    systems = [scores.system for scores in reproductions]
    return render(
        "paper_page.html",
        title=f"{systems[0]} compared with its paper" if len(systems) == 1 else "Papers, compared with our results",
        links={"summary": "Summary", **{system: system for system in systems}},
        errors=error_plot(reproductions),
        summary=Table("Errors of the predicted rows", HEADINGS, summary_rows(reproductions), frozenset({0, 6, 7})),
        papers=[
            (scores, [*figure_plots(scores), *row_plots(scores)], list(_values(scores)), list(_tables(scores)))
            for scores in reproductions
        ],
    )


def _values(scores: Scores) -> Iterator[Part]:
    """Yield tables of the errors and of all published values."""
    if scores.errors:
        headings = ["table", "rows", "median", "p90", "worst"]
        errors = Table("Errors of the predicted rows, by table", headings, table_errors(scores))
        yield Part(errors, f"{scores.system}-errors")
    rows = [
        [
            line.name,
            line.source,
            f"{line.paper:g} {line.unit}",
            f"{line.ours:.4g} {line.unit}" if line.ours is not None else "",
            f"{line.error:+.1%}" if line.error is not None else "",
            KINDS[line.kind],
        ]
        for line in scores.lines
    ]
    headings = ["value", "in the paper", "paper", "ours", "error", ""]
    content = Table(f"{len(rows)} published values", headings, rows, frozenset({0, 1, 5}))
    yield Part(content, f"{scores.system}-values", "All published values")


def _tables(scores: Scores) -> Iterator[Part]:
    """Yield the tables of our rows that the paper's file declares."""
    for number, (content, rows_of_table) in enumerate(scores.tables):
        cells = [
            [format_value(key, row.get(key)) for key in content.columns]
            for row in rows_of_table
            if any(key in row for key in content.columns)
        ]
        headings = [heading(key) for key in content.columns]
        table = Table(f"{content.name}: {content.source}", headings, cells, headed=False)
        yield Part(table, f"{scores.system}-table-{number}", content.name)
