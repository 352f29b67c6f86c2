"""Command ``reproduce``: repeat the measurements of papers, and compare the results with the published values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from testbed.cli.consoles import echo, is_given, json_option, new_results_folder, print_json
from testbed.cli.progress_display import step_progress
from testbed.cli.report_command import require_drawing

if TYPE_CHECKING:
    from testbed.controller.papers.point_folder import PointFolder
    from testbed.controller.papers.reproduction import Reproduction
    from testbed.controller.runs.run_options import Mode

_NOT_REPRODUCED = 10
_REPRODUCTIONS = Path("results/reproductions")


class _Request(TypedDict):
    """Options of the measurements, as in the request that a folder of points records."""

    mode: Mode
    dilate: int | None
    profile: str
    runs: tuple[str, ...]


@click.command("reproduce", short_help="Compare papers' published values with ours.")
@click.argument("systems", metavar="[SYSTEM]...", nargs=-1)
@click.option(
    "--mode", type=click.Choice(["sim", "dilated"]), default="sim", show_default=True, help="Mode of the measurements."
)
@click.option("--dilate", type=click.IntRange(1), default=None, metavar="K",
              help="Factor by which model time is slowed in a dilated run; default: 200.")  # fmt: skip
@click.option("--profile", default="", metavar="NAME|FILE", help="Profile of hardware other than the paper's.")
@click.option("--run", "runs", multiple=True, metavar="NAME", help="Make only this run of the paper; repeatable.")
@click.option("--jobs", type=click.IntRange(1), default=None, metavar="N",
              help="Points measured in parallel; default: the number of processors, in dilated mode 1.")  # fmt: skip
@click.option("--output", type=click.Path(path_type=Path), default=None, metavar="DIR",
              help="Folder of the points; by default a new one in results/reproductions.")  # fmt: skip
@click.option("--continue", "former", type=click.Path(path_type=Path), default=None, metavar="DIR",
              help="Continue the reproduction in a folder: completed points are not repeated.")  # fmt: skip
@click.option("--report", type=click.Path(path_type=Path), default=None, metavar="FILE",
              help="Write an HTML page with the figures; an existing file is replaced.")  # fmt: skip
@click.option("--keep", is_flag=True,
              help="Save the rows with the paper: later reproductions are compared with them.")  # fmt: skip
@json_option
@click.pass_context
def reproduce_command(
    ctx: click.Context,
    systems: tuple[str, ...],
    jobs: int | None,
    output: Path | None,
    former: Path | None,
    report: Path | None,
    keep: bool,
    as_json: bool,
    **asked: Unpack[_Request],
) -> None:
    """Run papers' workloads on their clusters under the profiles of their hardware, and compare the results row by row.
    Without a SYSTEM, all papers are reproduced.

    \b
    testbed reproduce
    testbed reproduce emp ssam --report papers.html
    testbed reproduce --continue results/reproductions/20261124-181500
    testbed reproduce emp --mode dilated --dilate 500
    testbed reproduce am2 --run logp --run contention

    A constant of the profile was fitted to each calibrated row; all other rows are predictions, with their errors. Exit code
    10: a calibrated row is off by more than 3 %, a shape does not hold, or the error of a predicted row exceeds that of the
    kept row by more than 2 percentage points.
    """
    if former is not None and (output is not None or systems or _has_option(ctx, _Request.__annotations__)):
        raise click.UsageError("--continue uses the systems and options of its folder")
    former_folder = _open_folder(former) if former is not None else None
    request = former_folder.request if former_folder is not None else asked
    if keep and (request["runs"] or request["profile"] or request["mode"] != "sim"):
        raise click.UsageError("--keep needs complete papers, in the simulation and under their own profiles")
    if request["mode"] == "sim" and request["dilate"] is not None:
        raise click.UsageError("--dilate needs --mode dilated")
    if request["mode"] == "dilated" and jobs is not None and jobs > 1:
        raise click.UsageError("--jobs needs the simulation: on real frames parallel points would delay each other")
    if report is not None:
        require_drawing()
        from testbed.observe.report.pages import require_writable

        require_writable(report)
    folder = former_folder or _new_folder(systems, asked, output)
    with _continuation_hint(folder.path):
        with step_progress("points measured") as progress:
            reproductions = _reproduce(folder, jobs, progress)
        if report is not None:
            from testbed.observe.report.paper_page import make_paper_page

            make_paper_page(reproductions, report)
    if as_json:
        print_json("reproduce", _document(folder, reproductions))
    else:
        from testbed.cli.score_tables import print_reproduction, print_summary

        for reproduction in reproductions:
            print_reproduction(reproduction)
        print_summary(reproductions)
        echo(f"points are in {folder.path}")
    if keep:
        from testbed.observe.kept_rows import keep as keep_rows

        for reproduction in reproductions:
            echo(f"kept in {keep_rows(reproduction)}", err=True)
    ctx.exit(_NOT_REPRODUCED if any(reproduction.failures for reproduction in reproductions) else 0)


def _has_option(ctx: click.Context, names: Iterable[str]) -> bool:
    return any(is_given(ctx, name) for name in names)


def _new_folder(systems: tuple[str, ...], asked: _Request, output: Path | None) -> PointFolder:
    """Create a folder, and record the complete request in it."""
    from testbed.controller.papers.point_folder import new_folder
    from testbed.controller.papers.reproduction import papers_of
    from testbed.controller.runs.profiles import profile_of, profile_values
    from testbed.controller.runs.runner import protocol_of

    selected = list(papers_of(systems, asked["mode"], asked["profile"], asked["runs"]))  # errors come before the folder
    profile = asked["profile"] and profile_values(profile_of(asked["profile"], protocol_of(selected[0], "sim")))
    request = {"systems": selected, **asked, "runs": list(asked["runs"]), "profile": profile}
    return new_folder(
        output or new_results_folder(_REPRODUCTIONS, "papers" if len(selected) > 1 else selected[0]), request
    )


def _open_folder(former: Path) -> PointFolder:
    from testbed.controller.papers.point_folder import open_folder

    return open_folder(former)


def _reproduce(folder: PointFolder, jobs: int | None, progress: Callable[[int, int], None]) -> list[Reproduction]:
    """Run the reproductions that the folder's request asks for. jobs: points in parallel; None: see --jobs."""
    from testbed.controller.engines import ProcessEngine, SerialEngine
    from testbed.controller.papers.reproduction import reproduce_all
    from testbed.controller.runs.profiles import profile_of
    from testbed.controller.runs.runner import protocol_of

    asked = folder.request
    is_serial = asked["mode"] == "dilated" or len(asked["runs"]) == 1
    engine = SerialEngine() if jobs == 1 or (jobs is None and is_serial) else ProcessEngine(jobs)
    profile = asked["profile"] and profile_of(asked["profile"], protocol_of(asked["systems"][0], "sim"))
    return reproduce_all(
        asked["systems"], mode=asked["mode"], dilate=asked["dilate"], profile=profile, runs=asked["runs"],
        engine=engine, folder=folder, progress=progress,
    )  # fmt: skip


@contextmanager
def _continuation_hint(folder: Path) -> Iterator[None]:
    """Context manager: if a reproduction ends early, print how to continue it."""
    try:
        yield
    except BaseException as error:
        for note in getattr(error, "__notes__", ()):
            echo(f"testbed: {note}", err=True)
        echo(f"completed points are kept; to continue: testbed reproduce --continue {folder}", err=True)
        raise


def _document(folder: PointFolder, reproductions: Sequence[Reproduction]) -> Mapping[str, object]:
    from testbed.controller.runs.profiles import profile_values

    return {
        "folder": str(folder.path),
        "mode": folder.request["mode"],
        "rows": [
            {"system": reproduction.system, **asdict(line)}
            for reproduction in reproductions
            for line in reproduction.lines
        ],
        "systems": [
            {
                "system": reproduction.system,
                "paper": reproduction.paper.citation,
                "cluster": reproduction.paper.cluster,
                "profile": profile_values(reproduction.profile),
                "constants": reproduction.paper.constants,
                "seconds": reproduction.seconds,
                "overall": asdict(reproduction.overall) if reproduction.overall is not None else None,
                "errors": {table: asdict(errors) for table, errors in reproduction.errors.items()},
                "tables": [
                    {"name": table.name, "source": table.source, "columns": list(table.columns), "rows": list(rows)}
                    for table, rows in reproduction.tables
                ],
                "shapes": [
                    {"name": result.shape.name, "holds": result.holds, "detail": result.detail}
                    for result in reproduction.shapes
                ],
                "unmatched": [asdict(unmatched) for unmatched in reproduction.paper.unmatched],
                "failures": reproduction.failures,
            }
            for reproduction in reproductions
        ],
    }
