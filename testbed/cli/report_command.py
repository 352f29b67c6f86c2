"""Command ``report``: runs as one HTML file with plots."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

import click

from testbed.cli.collector import collector_off
from testbed.cli.consoles import echo, show_phase

_PACKAGES: Final = ("jinja2", "matplotlib", "numpy", "polars")


@click.command("report", short_help="Make one HTML file of runs: verdict, plots, tables.")
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("report.html"), show_default=True,
              metavar="FILE", help="File to write; an existing one is replaced.")  # fmt: skip
def report_command(folders: tuple[Path, ...], output: Path) -> None:
    """Make one HTML file of a run's folder, or of several: verdict, topology, timeline, plots and tables. Of a study's
    folder: each measure against the parameters that vary.

    \b
    testbed report results/runs/20261121-192009-racks-token
    testbed report results/studies/20261121-192009-losses
    testbed report before after -o comparison.html

    The file needs no network. Several runs share the plots.
    """
    require_drawing()
    if len(folders) == 1 and (folders[0] / "study.json").exists():
        size = _report_study(folders[0], output)
        echo(f"the report is in {output} ({size / 1000:,.0f} kB)")
        return
    from testbed.observe.recorded import read_run

    for folder in folders:  # reports errors before the slow import
        read_run(folder)
    from testbed.observe.report.builder import MAX_RUNS, make_report

    if len(folders) > MAX_RUNS:
        raise click.UsageError(f"{len(folders)} runs are too many for one report: {MAX_RUNS} at most")
    with collector_off():  # the collector would scan up to a million rows, which all stay alive
        size = make_report(folders, output, show_phase)
    show_phase()
    echo(f"the report is in {output} ({size / 1000:,.0f} kB)")


def _report_study(path: Path, output: Path) -> int:
    from testbed.observe.report.study_page import PointSummary, make_study_page
    from testbed.studies.study_folder import labelled_rows, open_folder, varied_values

    folder, study = open_folder(path)
    outcomes = folder.outcomes()
    points = []
    for number, parameters in enumerate(study.points):
        outcome = outcomes.get(number)
        ending = (
            "has not run" if outcome is None else outcome.verdict if outcome.is_done else f"failed: {outcome.error}"
        )
        values = ["" if value is None else str(value) for value in varied_values(study, parameters).values()]
        points.append(PointSummary(number, values, ending))
    common = {name: value for name, value in study.points[0].items() if name not in study.varied}
    # The figures of an invalid run are meaningless.
    valid = {number: outcome for number, outcome in outcomes.items() if outcome.verdict != "invalid"}
    rows = list(labelled_rows(study, valid))
    return make_study_page(study.name, common, study.varied, points, rows, output)


def require_drawing() -> None:
    """Raise UnsupportedError if the packages for drawing a report are missing."""
    from testbed.errors import UnsupportedError

    if missing := missing_packages():
        raise UnsupportedError(
            f"a report needs packages that are not installed ({', '.join(missing)}): pip install 'netns-testbed[report]'"
        )


def missing_packages() -> list[str]:
    """Return the packages for drawing a report that are not installed."""
    return [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
