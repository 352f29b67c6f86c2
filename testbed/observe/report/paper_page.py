"""Page of reproductions: a self-contained HTML file with a section for each paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from testbed.observe.comparing.score_summary import HEADINGS, summary_rows, table_errors
from testbed.observe.comparing.scores import KINDS, Scores
from testbed.observe.format.quantities import format_value, heading
from testbed.observe.report.builder import write_page
from testbed.observe.report.markup import Table, complete_page, details, section, table
from testbed.observe.report.paper_plots import error_plot, figure_plots, row_plots
from testbed.observe.report.plots import framed


def make_paper_page(reproductions: Sequence[Scores], output: Path) -> int:
    """Write the page; return its size in bytes. Raises UnwritableReportError."""
    return write_page(paper_page(reproductions), output)


def paper_page(reproductions: Sequence[Scores]) -> str:
    """Render the page of these reproductions as HTML."""
    summary = Table("Errors of the predicted rows", HEADINGS, summary_rows(reproductions), frozenset({0, 6, 7}))
    content = "\n".join(
        [
            section("summary", "Summary", [framed(error_plot(reproductions)), table(summary, "summary-table")]),
            *[section(scores.system, scores.system, _parts(scores)) for scores in reproductions],
        ]
    )
    title = f"{reproductions[0].system} beside its paper" if len(reproductions) == 1 else "Papers, and ours beside them"
    links = {"summary": "Summary", **{scores.system: scores.system for scores in reproductions}}
    return complete_page(
        title, "testbed reproduce", ("summary", "the summary"), links, content,
        "Made by <code>testbed reproduce</code> from its measurements and the papers' published values.",
    )  # fmt: skip


def _parts(scores: Scores) -> Iterator[str]:
    system, paper = scores.system, scores.paper
    constants = f"{paper.constants} calibrated constant{'s' if paper.constants != 1 else ''}"
    yield f"<p>{escape(paper.citation)}. Cluster {escape(paper.cluster)}, {constants}.</p>"
    if scores.failures:
        yield f"<p>Not reproduced:</p>{_list(scores.failures)}"
    for plot in (*figure_plots(scores), *row_plots(scores)):
        yield framed(plot)
    if scores.errors:
        headings = ["table", "rows", "median", "p90", "worst"]
        yield table(Table("Errors of the predicted rows, by table", headings, table_errors(scores)), f"{system}-errors")
    yield details("All published values", _values(scores))
    shapes = [
        f"{'holds' if result.holds else 'broken'}: {result.shape.name} ({result.detail})" for result in scores.shapes
    ]
    if shapes:
        yield details(f"Shapes: {sum(scores.shapes_hold)} of {len(shapes)} hold", _list(shapes))
    for number, (content, rows_of_table) in enumerate(scores.tables):
        cells = [
            [format_value(key, row.get(key)) for key in content.columns]
            for row in rows_of_table
            if any(key in row for key in content.columns)
        ]
        headings = [heading(key) for key in content.columns]
        caption = f"{content.name}: {content.source}"
        yield details(content.name, table(Table(caption, headings, cells, headed=False), f"{system}-table-{number}"))
    if paper.unmatched:
        yield details(
            "Published values without a row", _list([f"{value.value}: {value.why}" for value in paper.unmatched])
        )


def _values(scores: Scores) -> str:
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
    return table(content, f"{scores.system}-values")


def _list(sentences: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in sentences)}</ul>"
