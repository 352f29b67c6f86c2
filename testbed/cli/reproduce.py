"""Command ``reproduce``: compare a paper's published results with our measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from testbed.cli.consoles import echo, json_option, print_json, show_phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testbed.controller.reproduction import Reproduction
    from testbed.controller.runs.run_options import Mode

_NOT_REPRODUCED = 10


@click.command("reproduce", short_help="Compare a paper's published values with ours.")
@click.argument("protocol", metavar="PROTOCOL")
@click.option(
    "--mode", type=click.Choice(["sim", "dilated"]), default="sim", show_default=True, help="Mode of the measurements."
)
@click.option("--dilate", type=click.IntRange(1), default=None, metavar="K",
              help="Factor by which model time is slowed in a dilated run; default: 200.")  # fmt: skip
@click.option("--profile", default="", metavar="NAME|FILE", help="Profile of hardware other than the paper's.")
@click.option("--run", "runs", multiple=True, metavar="NAME", help="Only this one of the paper's runs; repeatable.")
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
    from testbed.controller.reproduction import reproduce

    reproduction = reproduce(protocol, mode=mode, dilate=dilate, profile=profile, runs=runs, follow=show_phase)
    show_phase()
    if as_json:
        print_json("reproduce", _document(reproduction))
    else:
        _print(reproduction)
    ctx.exit(_NOT_REPRODUCED if reproduction.failures else 0)


def _print(reproduction: Reproduction) -> None:
    from testbed.cli.table_layout import print_table
    from testbed.observe.format.quantities import format_value, heading

    paper = reproduction.paper
    echo(f"{paper.authors}: {paper.title}, {paper.published}")
    constants = f"{paper.constants} calibrated constant" + ("s" if paper.constants != 1 else "")
    echo(f"cluster {paper.cluster}, profile {reproduction.profile.name}, with {constants}\n")
    systems = list(dict.fromkeys(name for reproduced in reproduction.rows for name in reproduced.row.others))
    print_table(
        ["", "paper", "ours", "error", "", *(f"paper: {name}" for name in systems)],
        [
            [
                reproduced.row.name,
                f"{reproduced.row.paper:g} {reproduced.row.unit}",
                f"{reproduced.ours:.4g} {reproduced.row.unit}",
                f"{reproduced.error:+.1%}",
                "calibrated" if reproduced.row.calibrated else "predicted",
                *(
                    f"{reproduced.row.others[name]:g} {reproduced.row.unit}" if name in reproduced.row.others else ""
                    for name in systems
                ),
            ]
            for reproduced in reproduction.rows
        ],
    )
    if reproduction.predicts:
        echo(f"\nmedian error of the predicted rows: {reproduction.median_error:.1%}\n")
        print_table(
            ["errors of the predicted rows", "rows", "median", "p90", "worst"],
            [
                [
                    table or "rows",
                    str(errors.rows),
                    *(f"{error:.1%}" for error in (errors.median, errors.p90, errors.worst)),
                ]
                for table, errors in reproduction.errors.items()
            ],
        )
        echo()
    for table, rows in reproduction.tables:
        echo(f"\n{table.name}: {table.source}")
        shown_rows = [row for row in rows if any(key in row for key in table.columns)]
        print_table(
            [heading(key) for key in table.columns],
            ([format_value(key, row.get(key)) for key in table.columns] for row in shown_rows),
        )
    if reproduction.tables:
        echo()
    for shape in reproduction.shapes:
        word = click.style("holds", fg="green") if shape.holds else click.style("broken", fg="red")
        echo(f"{word}: {shape.shape.name} ({shape.detail})")
    for unmatched in paper.unmatched:
        echo(f"no row: {unmatched.value}: {unmatched.why}")
    for run, late in reproduction.late.items():
        echo(f"run {run}: 99 % of the frames were at most {late / 1000:.3g} us of the model's time late")
    for sentence in reproduction.failures:
        echo(f"{click.style('not reproduced', fg='red')}: {sentence}")


def _document(reproduction: Reproduction) -> Mapping[str, object]:
    from dataclasses import asdict

    from testbed.controller.runs.profiles import profile_values

    rows = [
        {"name": reproduced.row.name, "paper": reproduced.row.paper, "ours": reproduced.ours,
         "unit": reproduced.row.unit, "error": reproduced.error, "calibrated": reproduced.row.calibrated,
         "source": reproduced.row.source, "meaning": reproduced.row.meaning, "others": dict(reproduced.row.others)}
        for reproduced in reproduction.rows
    ]  # fmt: skip
    return {
        "protocol": reproduction.protocol,
        "paper": f"{reproduction.paper.authors}: {reproduction.paper.title}, {reproduction.paper.published}",
        "cluster": reproduction.paper.cluster,
        "profile": profile_values(reproduction.profile),
        "rows": rows,
        "median_error": reproduction.median_error,
        "errors": {table: asdict(errors) for table, errors in reproduction.errors.items()},
        "tables": [
            {"name": table.name, "source": table.source, "columns": list(table.columns), "rows": list(rows)}
            for table, rows in reproduction.tables
        ],
        "shapes": [
            {"name": shape.shape.name, "holds": shape.holds, "detail": shape.detail} for shape in reproduction.shapes
        ],
        "failures": reproduction.failures,
    }
