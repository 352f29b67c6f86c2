"""Tables of reproductions in the terminal: the values of a paper and ours, and the errors of each system."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from testbed.cli.consoles import echo
from testbed.cli.table_layout import print_table
from testbed.observe.comparing.score_summary import HEADINGS, summary_rows, table_errors
from testbed.observe.comparing.scores import KINDS
from testbed.observe.format.quantities import format_value, heading

if TYPE_CHECKING:
    from testbed.controller.papers.reproduction import Reproduction


def print_reproduction(reproduction: Reproduction) -> None:
    """Print all results of one system: its rows, errors, tables, shapes and failures."""
    paper = reproduction.paper
    echo(f"{reproduction.system}: {paper.citation}")
    constants = f"{paper.constants} calibrated constant" + ("s" if paper.constants != 1 else "")
    echo(f"cluster {paper.cluster}, profile {reproduction.profile.name}, with {constants}\n")
    print_table(
        ["", "in the paper", "value", "paper", "ours", "error", ""],
        [
            [
                reproduction.system,
                line.place,
                line.name,
                f"{line.paper:g} {line.unit}",
                f"{line.ours:.4g} {line.unit}" if line.ours is not None else "",
                f"{line.error:+.1%}" if line.error is not None else "",
                KINDS[line.kind],
            ]
            for line in reproduction.lines
        ],
    )
    if reproduction.errors:
        echo()
        headings = ["errors of the predicted rows", "rows", "median", "p90", "worst"]
        print_table(headings, table_errors(reproduction))
    for table, rows in reproduction.tables:
        echo(f"\n{table.name}: {table.source}")
        shown_rows = [row for row in rows if any(key in row for key in table.columns)]
        print_table(
            [heading(key) for key in table.columns],
            ([format_value(key, row.get(key)) for key in table.columns] for row in shown_rows),
        )
    echo()
    for result in reproduction.shapes:
        word = click.style("holds", fg="green") if result.holds else click.style("broken", fg="red")
        echo(f"{word}: {result.shape.name} ({result.detail})")
    for unmatched in paper.unmatched:
        echo(f"no row: {unmatched.value}: {unmatched.why}")
    for run, late in reproduction.late.items():
        echo(f"run {run}: 99 % of the frames were at most {late / 1000:.3g} us of model time late")
    for sentence in reproduction.failures:
        echo(f"{click.style('not reproduced', fg='red')}: {sentence}")
    echo()


def print_summary(reproductions: Sequence[Reproduction]) -> None:
    """Print the errors of each system."""
    print_table(HEADINGS, summary_rows(reproductions))
