"""``reproduce``: what a paper has published beside what comes out here."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from testbed.cli.options import json_option, print_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testbed.controller.reproducing import Reproduction
    from testbed.controller.running import Mode

_NOT_REPRODUCED = 10


@click.command("reproduce", short_help="Compare what a paper has published with what comes out here.")
@click.argument("protocol", metavar="PROTOCOL")
@click.option(
    "--mode", type=click.Choice(["sim", "dilated"]), default="sim", show_default=True, help="Where it is measured."
)
@click.option("--dilate", type=click.IntRange(1), default=None, metavar="K",
              help="How many times slower than its model time passes where it is dilated; 200 if not said.")  # fmt: skip
@click.option("--profile", default="", metavar="NAME|FILE", help="Of other hardware than the paper's.")
@click.option(
    "--run", "runs", multiple=True, metavar="NAME", help="Only this one of the paper's runs; may be repeated."
)
@json_option
@click.pass_context
def reproduce_command(
    ctx: click.Context,
    protocol: str,
    mode: Mode,
    dilate: int | None,
    profile: str,
    runs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run a paper's workloads on its cluster under its hardware's profile, and compare, row by row.

    \b
    testbed reproduce emp
    testbed reproduce emp --mode dilated --dilate 500
    testbed reproduce am2 --run logp --run contention

    A calibrated row has chosen a constant of the profile; all others are predictions, with their errors. Exit code 10: a
    calibrated row is off by more than 3 %, or a shape is broken.
    """
    from testbed.controller.reproducing import reproduce

    found = reproduce(protocol, mode=mode, dilate=dilate, profile=profile, runs=runs, follow=_follow)
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", err=True, nl=False)
    if as_json:
        print_json("reproduce", _document(found))
    else:
        _print(found)
    ctx.exit(_NOT_REPRODUCED if found.failures else 0)


def _follow(what: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{what}\x1b[K", err=True, nl=False)


def _print(found: Reproduction) -> None:
    from testbed.cli.tables import print_table
    from testbed.observe.quantities import cell, heading

    paper = found.paper
    click.echo(f"{paper.authors}: {paper.title}, {paper.published}")
    constants = f"{paper.constants} calibrated constant" + ("s" if paper.constants != 1 else "")
    click.echo(f"cluster {paper.cluster}, profile {found.profile.name}, with {constants}\n")
    systems = list(dict.fromkeys(name for one in found.rows for name in one.row.others))
    print_table(
        ["", "paper", "ours", "error", "", *(f"paper: {name}" for name in systems)],
        [
            [
                one.row.name,
                f"{one.row.paper:g} {one.row.unit}",
                f"{one.ours:.4g} {one.row.unit}",
                f"{one.error:+.1%}",
                "calibrated" if one.row.calibrated else "predicted",
                *(f"{one.row.others[name]:g} {one.row.unit}" if name in one.row.others else "" for name in systems),
            ]
            for one in found.rows
        ],
    )
    if found.predicts:
        click.echo(f"\nmedian error of the predicted rows: {found.median_error:.1%}\n")
    for table, rows in found.tables:
        click.echo(f"\n{table.name}: {table.source}")
        told = [row for row in rows if any(key in row for key in table.columns)]
        print_table(
            [heading(key) for key in table.columns],
            ([cell(key, row.get(key)) for key in table.columns] for row in told),
        )
    if found.tables:
        click.echo()
    for shape in found.shapes:
        word = click.style("holds", fg="green") if shape.holds else click.style("broken", fg="red")
        click.echo(f"{word}: {shape.shape.name} ({shape.detail})")
    for one in paper.unmatched:
        click.echo(f"no row: {one.value}: {one.why}")
    for sentence in found.failures:
        click.echo(f"{click.style('not reproduced', fg='red')}: {sentence}")


def _document(found: Reproduction) -> Mapping[str, object]:
    from testbed.controller.profiles import in_words

    rows = [
        {"name": one.row.name, "paper": one.row.paper, "ours": one.ours, "unit": one.row.unit, "error": one.error,
         "calibrated": one.row.calibrated, "source": one.row.source, "meaning": one.row.meaning,
         "others": dict(one.row.others)}
        for one in found.rows
    ]  # fmt: skip
    return {
        "protocol": found.protocol,
        "paper": f"{found.paper.authors}: {found.paper.title}, {found.paper.published}",
        "cluster": found.paper.cluster,
        "profile": in_words(found.profile),
        "rows": rows,
        "median_error": found.median_error,
        "tables": [
            {"name": one.name, "source": one.source, "columns": list(one.columns), "rows": list(rows)}
            for one, rows in found.tables
        ],
        "shapes": [{"name": one.shape.name, "holds": one.holds, "detail": one.detail} for one in found.shapes],
        "failures": found.failures,
    }
