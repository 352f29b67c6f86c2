"""Points of a reproduction. Each is one run of a paper, independent of the others."""

from __future__ import annotations

import gc
import importlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from protocols.core.profile import Profile
from testbed.controller.runs.profiles import profile_values
from testbed.controller.runs.run_options import DILATE, Mode
from testbed.controller.runs.run_target import find_target
from testbed.controller.runs.runner import RunResult, run
from testbed.observe.papers import Paper, PaperRun
from testbed.spec.layout import Layout

Rows = Sequence[Mapping[str, Any]]

_TIMEOUT = 600  # seconds


@dataclass(frozen=True, slots=True)
class Point:
    """A run of a paper. cluster, profile: cluster and profile of the paper, used by runs without their own. dilate: factor
    by which time is slowed; None: the default of the mode."""

    system: str
    name: str
    run: PaperRun
    cluster: str
    profile: Profile
    mode: Mode
    dilate: int | None

    def __str__(self) -> str:
        return f"{self.system}, run {self.name}"

    def request(self) -> Mapping[str, object]:
        """Return all inputs that determine the point's rows, except the program's version."""
        return {
            "system": self.system, "name": self.name, "run": asdict(self.run), "cluster": self.cluster,
            "profile": profile_values(self.profile), "mode": self.mode, "dilate": self.dilate,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class PointResult:
    """Result of a point. late: in dilated runs, see `frame_lateness`; otherwise 0. seconds: duration of the run."""

    rows: Rows
    late: int
    seconds: float


def points_of(system: str, paper: Paper, profile: Profile, mode: Mode, dilate: int | None) -> list[Point]:
    """List the points of a paper."""
    return [Point(system, name, run, paper.cluster, profile, mode, dilate) for name, run in paper.runs.items()]


def measure(point: Point) -> PointResult:
    """Run a point, or compute it by the paper's model."""
    started = time.monotonic()
    if point.run.model:
        return PointResult(_model_rows(point.run.model, point.profile), 0, time.monotonic() - started)
    result = _run(point)
    late = frame_lateness(result, DILATE if point.dilate is None else point.dilate) if point.mode == "dilated" else 0
    rows = result.rows
    del result
    gc.collect()  # hosts and NICs of a run refer to each other, and to all memory of their endpoints
    return PointResult(rows, late, time.monotonic() - started)


def frame_lateness(result: RunResult, factor: int) -> int:
    """Return the 99th percentile of the lateness of a dilated run's frames, at NICs and in the relay together: nanoseconds
    of model time. factor: dilation factor."""
    nics = max(
        (lateness.p99 for execution in result.repetitions for lateness in execution.lateness.values()), default=0
    )
    relay = [finding.measured or 0.0 for finding in result.verdict.findings if finding.what == "relay lateness p99"]
    return nics + math.ceil(max(relay, default=0.0) / factor)


def _run(point: Point) -> RunResult:
    paper_run = point.run
    cluster: str | Layout = paper_run.cluster or point.cluster
    if paper_run.cores:
        layout = find_target(cluster, point.mode, None).layout
        cluster = replace(layout, nodes=tuple([replace(node, ranks=paper_run.cores) for node in layout.nodes]))
    return run(
        cluster, paper_run.workload, protocol=point.system, mode=point.mode,
        settings=paper_run.settings, profiles=paper_run.profiles, ranks_per_node=paper_run.ranks_per_node,
        profile=paper_run.profile or point.profile, firmware=paper_run.firmware, dilate=point.dilate, check=False,
        timeout=_TIMEOUT,
    )  # fmt: skip


def _model_rows(model: str, profile: Profile) -> Rows:
    """Compute rows by a paper's model. model: "module:function"."""
    module, _, name = model.partition(":")
    rows: Rows = getattr(importlib.import_module(module), name)(profile)
    return rows
