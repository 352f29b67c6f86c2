"""Page of a study: a self-contained HTML file with the study's points and a plot of each measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from testbed.observe.report.pages import Table, render, write_page
from testbed.observe.report.study_plots import study_plots

_MAX_SHOWN: Final = 1000  # points


@dataclass(frozen=True, slots=True)
class PointSummary:
    """A point of a study. values: values of the varied parameters. ending: the run's verdict; without a result, the error
    of the last attempt, or that it has not run."""

    number: int
    values: Sequence[str]
    ending: str


def make_study_page(
    name: str,
    common: Mapping[str, object],
    varied: Sequence[str],
    points: Sequence[PointSummary],
    rows: Sequence[Mapping[str, Any]],
    output: Path,
) -> int:
    """Write the page; return its size in bytes. common: the parameters that are equal in all runs. varied: names of the
    other parameters. rows: rows of the runs to plot, with the values of the varied parameters. Raises
    UnwritableReportError."""
    return write_page(study_page(name, common, varied, points, rows), output)


def study_page(
    name: str,
    common: Mapping[str, object],
    varied: Sequence[str],
    points: Sequence[PointSummary],
    rows: Sequence[Mapping[str, Any]],
) -> str:
    """Render the page of a study as HTML. See `make_study_page`."""
    point_table = Table(
        f"{len(points):,} points", ["point", *varied, ""],
        [[str(point.number), *point.values, point.ending] for point in points[:_MAX_SHOWN]],
        frozenset(range(len(varied) + 2)),
        note=f"{len(points) - _MAX_SHOWN:,} more are in points.jsonl." if len(points) > _MAX_SHOWN else "",
    )  # fmt: skip
    return render(
        "study_page.html", title=f"Study {name}", links={"measures": "Measures", "points": "Points"},
        plots=study_plots(varied, rows), common=common.items(), points=point_table,
    )  # fmt: skip
