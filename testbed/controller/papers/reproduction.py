"""Reproduce papers: run each paper's workloads on its cluster with its hardware's profile, and compare row by row.

    result = testbed.reproduce("emp")
    result.rows[0].ours, result.rows[0].error, result.overall.median, result.failures

`reproduce_all` reproduces several systems. An engine measures their points in parallel, and a folder keeps the results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from protocols.core.profile import Profile
from testbed.controller.engines import Engine, SerialEngine, map_unordered
from testbed.controller.papers.paper_points import Point, PointResult, measure, points_of
from testbed.controller.papers.point_folder import PointFolder
from testbed.controller.runs.profiles import profile_of
from testbed.controller.runs.run_options import Mode
from testbed.controller.runs.runner import protocol_of
from testbed.errors import UnsupportedError
from testbed.observe.comparing.scores import Scores
from testbed.observe.kept_rows import kept_rows
from testbed.observe.paper_files import paper_of, systems
from testbed.observe.papers import Paper, restrict

_SERIAL_ENGINE: Final = SerialEngine()

Progress = Callable[[int, int], object]
"""Progress callback; arguments: completed points, all points."""


@dataclass(frozen=True)
class Reproduction(Scores):
    """Comparison of a paper's values with measured ones. profile: profile of runs without their own. late: by run, in
    dilated runs, see `paper_points.frame_lateness`. seconds: sum of the points' durations."""

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
    """Run a paper's workloads in this process, and compare the results. See `reproduce_all`."""
    return reproduce_all([system], mode=mode, dilate=dilate, profile=profile, runs=runs)[0]


def reproduce_all(
    names: Sequence[str] = (),
    *,
    mode: Mode = "sim",
    dilate: int | None = None,
    profile: str | Path | Profile = "",
    runs: Collection[str] = (),
    engine: Engine = _SERIAL_ENGINE,
    folder: PointFolder | None = None,
    progress: Progress = lambda *_: None,
) -> list[Reproduction]:
    """Run the workloads of papers, and compare the results.

    names: systems; empty: all systems with a paper. mode: sim, or dilated, which uses real frames. dilate: factor by which
    time is slowed in dilated. profile: replaces the paper's; only for one system. runs: only these runs of the paper and
    their rows; only for one system. engine: measures the points. folder: keeps the results; completed points are not
    repeated. progress: progress callback. In the simulation, with the paper's profile, rows are also compared with the rows
    that the testbed ships.

    Raises NotFoundError for an unknown system or run, UnsupportedError for mode live, for a parallel engine in dilated, and
    for a profile or runs with several systems.
    """
    papers = papers_of(names, mode, profile, runs)
    chosen = list(papers)
    if mode == "dilated" and engine.width > 1:
        raise UnsupportedError(
            f"dilated points must run one at a time, as they would delay each other's frames: the engine runs {engine.width}"
        )
    profiles = {name: profile_of(profile or papers[name].profile, protocol_of(name, "sim")) for name in chosen}
    points = [point for name in chosen for point in points_of(name, papers[name], profiles[name], mode, dilate)]
    measured = _measure_all(points, engine, folder, progress)
    reproductions = []
    for name in chosen:
        results = {run: result for (system, run), result in measured.items() if system == name}
        kept = kept_rows(name) if mode == "sim" and not profile else None
        reproductions.append(
            Reproduction(
                name,
                papers[name],
                {run: result.rows for run, result in results.items()},
                {row.name: row.ours for row in kept.rows} if kept is not None else {},
                profile=profiles[name],
                late={run: result.late for run, result in results.items()} if mode == "dilated" else {},
                seconds=sum(result.seconds for result in results.values()),
            )
        )
    return reproductions


def papers_of(names: Sequence[str], mode: Mode, profile: object, runs: Collection[str]) -> dict[str, Paper]:
    """Load papers by system, restricted to `runs`. The arguments and errors are those of `reproduce_all`."""
    if mode == "live":
        raise UnsupportedError("reproduce needs mode sim or dilated, got live: profiles give costs to NICs only there")
    chosen = list(dict.fromkeys(names)) or systems()
    if len(chosen) > 1 and (profile or runs):
        raise UnsupportedError(f"a profile or runs need one system, got {', '.join(chosen)}")
    papers = {name: paper_of(name) for name in chosen}
    return {name: restrict(paper, runs) for name, paper in papers.items()} if runs else papers


def _measure_all(
    points: Sequence[Point], engine: Engine, folder: PointFolder | None, progress: Progress
) -> dict[tuple[str, str], PointResult]:
    """Measure the incomplete points; return all results by system and run."""
    results: dict[tuple[str, str], PointResult] = {}
    missing = []
    for point in points:
        completed = folder.read(point) if folder is not None else None
        if completed is None:
            missing.append(point)
        else:
            results[point.system, point.name] = completed
    progress(len(results), len(points))
    with closing(
        map_unordered(engine, measure, missing)
    ) as completions:  # closes the engine, also after an error in the block
        for point, result in completions:
            results[point.system, point.name] = result
            if folder is not None:
                folder.write(point, result)
            progress(len(results), len(points))
    return results
