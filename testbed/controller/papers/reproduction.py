"""Compare papers' values with ours: each paper's workloads on its cluster under its hardware's profile, row by row.

    found = testbed.reproduce("emp")
    found.rows[0].ours, found.rows[0].error, found.overall.median, found.failures

`reproduce_all` does so for several systems: their points are measured side by side on an engine, and kept in a folder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from protocols.core.profile import Profile
from testbed.controller.engines import Engine, OwnProcess, completed
from testbed.controller.papers.paper_points import Measured, Point, measure, points_of
from testbed.controller.papers.point_folder import PointFolder
from testbed.controller.runs.profiles import profile_of
from testbed.controller.runs.run_options import Mode
from testbed.controller.runs.runner import protocol_of
from testbed.errors import UnsupportedError
from testbed.observe.comparing.scores import Scores
from testbed.observe.kept_rows import kept_rows
from testbed.observe.paper_files import paper_of, systems
from testbed.observe.papers import Paper, restrict

_OWN_PROCESS: Final = OwnProcess()

Progress = Callable[[int, int], object]
"""Callback of progress: points done, of how many."""


@dataclass(frozen=True)
class Reproduction(Scores):
    """Comparison of a paper's values with ours. profile: of the runs that name none of their own. late: by run, where time
    is dilated, see `paper_points.frame_lateness`. seconds: that the points took, added up."""

    profile: Profile = field(kw_only=True)
    late: Mapping[str, int] = field(kw_only=True)
    seconds: float = field(kw_only=True)


def reproduce(
    system: str,
    *,
    mode: Mode = "sim",
    dilate: int | None = None,
    profile: str | Path | Profile = "",
    runs: Collection[str] = (),
) -> Reproduction:
    """Run a paper's workloads in this process, and compare. See `reproduce_all`."""
    return reproduce_all([system], mode=mode, dilate=dilate, profile=profile, runs=runs)[0]


def reproduce_all(
    names: Sequence[str] = (),
    *,
    mode: Mode = "sim",
    dilate: int | None = None,
    profile: str | Path | Profile = "",
    runs: Collection[str] = (),
    engine: Engine = _OWN_PROCESS,
    folder: PointFolder | None = None,
    progress: Progress = lambda *_: None,
) -> list[Reproduction]:
    """Run the workloads of papers, and compare.

    names: systems; empty: all that have a paper. mode: sim, or dilated, on real frames; dilate: the factor by which time is
    slowed there. profile: instead of the paper's, of one system. runs: only these of the paper's runs, and the rows from
    them; of one system. engine: where the points are measured. folder: keeps them; those that are done are not repeated.
    Rows are compared with the kept ones in the simulation and under the paper's own profile, as the kept ones were made.

    Raises NotFoundError where there is no paper or run, UnsupportedError for mode live, points side by side in dilated, and
    a profile or runs of several systems.
    """
    papers = papers_of(names, mode, profile, runs)
    chosen = list(papers)
    if mode == "dilated" and engine.width > 1:
        raise UnsupportedError("points side by side in dilated: they would delay each other's frames")
    profiles = {name: profile_of(profile or papers[name].profile, protocol_of(name, "sim")) for name in chosen}
    points = [point for name in chosen for point in points_of(name, papers[name], profiles[name], mode, dilate)]
    measured = _measured(points, engine, folder, progress)
    reproductions = []
    for name in chosen:
        own = {run: result for (system, run), result in measured.items() if system == name}
        kept = kept_rows(name) if mode == "sim" and not profile else None
        reproductions.append(
            Reproduction(
                name,
                papers[name],
                {run: result.rows for run, result in own.items()},
                {row.name: row.ours for row in kept.rows} if kept is not None else {},
                profile=profiles[name],
                late={run: result.late for run, result in own.items()} if mode == "dilated" else {},
                seconds=sum(result.seconds for result in own.values()),
            )
        )
    return reproductions


def papers_of(names: Sequence[str], mode: Mode, profile: object, runs: Collection[str]) -> dict[str, Paper]:
    """Load the papers of a request, restricted to its runs. See `reproduce_all` for the arguments and errors."""
    if mode == "live":
        raise UnsupportedError("reproduce in live: a profile prices what NICs do in sim and in dilated")
    chosen = list(dict.fromkeys(names)) or systems()
    if len(chosen) > 1 and (profile or runs):
        raise UnsupportedError(f"a profile or runs for {', '.join(chosen)}: both belong to one system")
    papers = {name: paper_of(name) for name in chosen}
    return {name: restrict(paper, runs) for name, paper in papers.items()} if runs else papers


def _measured(
    points: Sequence[Point], engine: Engine, folder: PointFolder | None, progress: Progress
) -> dict[tuple[str, str], Measured]:
    """Measure the points that are not done; return all results by system and run."""
    results: dict[tuple[str, str], Measured] = {}
    missing = []
    for point in points:
        done = folder.done(point) if folder is not None else None
        if done is None:
            missing.append(point)
        else:
            results[point.system, point.name] = done
    progress(len(results), len(points))
    with closing(completed(engine, measure, missing)) as completions:  # its processes end with an error here, too
        for point, result in completions:
            results[point.system, point.name] = result
            if folder is not None:
                folder.keep(point, result)
            progress(len(results), len(points))
    return results
