"""Command ``report``: runs as one HTML file with plots."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from testbed.cli.collector import collector_off
from testbed.cli.consoles import echo, show_phase


@click.command("report", short_help="Make one HTML file of runs: verdict, plots, tables.")
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("report.html"), show_default=True,
              metavar="FILE", help="File to write; an existing one is replaced.")  # fmt: skip
def report_command(folders: tuple[Path, ...], output: Path) -> None:
    """Make one HTML file of a run's folder, or of several: verdict, topology, timeline, plots and tables.

    \b
    testbed report results/runs/20261121-192009-racks-token
    testbed report before after -o comparison.html

    It needs no network. Several runs share the plots.
    """
    require_drawing()
    from testbed.observe.recorded import recorded

    for folder in folders:  # errors appear before the slow import
        recorded(folder)
    from testbed.observe.report.builder import MAX, make_report

    if len(folders) > MAX:
        raise click.UsageError(f"{len(folders)} runs are too many for one report: {MAX} at most")
    with collector_off():  # a million rows are kept: nothing to collect
        size = make_report(folders, output, show_phase)
    show_phase()
    echo(f"the report is in {output} ({size / 1000:,.0f} kB)")


def require_drawing() -> None:
    """Raise UnsupportedError if the packages that a report is drawn with are missing."""
    from testbed.errors import UnsupportedError

    if missing := [name for name in ("matplotlib", "numpy") if importlib.util.find_spec(name) is None]:
        raise UnsupportedError(
            f"a report is drawn with {' and '.join(missing)}, which is not installed: pip install 'netns-testbed[report]'"
        )
