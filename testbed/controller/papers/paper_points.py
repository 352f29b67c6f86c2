"""Points of a reproduction: one run of a paper each, independent of the others."""

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
    """A paper's run to measure. cluster, profile: of the paper, for runs that name none of their own. dilate: the factor by
    which time is slowed; None: the default of the mode."""

    system: str
    name: str
    run: PaperRun
    cluster: str
    profile: Profile
    mode: Mode
    dilate: int | None

    def __str__(self) -> str:
        return f"{self.system}, run {self.name}"

    def asked(self) -> Mapping[str, object]:
        """Everything that decides the point's rows, but for the program."""
        return {
            "system": self.system, "name": self.name, "run": asdict(self.run), "cluster": self.cluster,
            "profile": profile_values(self.profile), "mode": self.mode, "dilate": self.dilate,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of a point. late: where time is dilated, see `frame_lateness`. seconds: that it took."""

    rows: Rows
    late: int
    seconds: float


def points_of(system: str, paper: Paper, profile: Profile, mode: Mode, dilate: int | None) -> list[Point]:
    """List the points of a paper."""
    return [Point(system, name, run, paper.cluster, profile, mode, dilate) for name, run in paper.runs.items()]


def measure(point: Point) -> Measured:
    """Measure a point."""
    begun = time.monotonic()
    if point.run.model:
        return Measured(_computed(point.run.model, point.profile), 0, time.monotonic() - begun)
    result = _measured(point)
    late = frame_lateness(result, DILATE if point.dilate is None else point.dilate) if point.mode == "dilated" else 0
    rows = result.rows
    del result
    gc.collect()  # a run's hosts and NICs refer to each other, with all memory of their endpoints
    return Measured(rows, late, time.monotonic() - begun)


def frame_lateness(result: RunResult, factor: int) -> int:
    """Return how late a frame of a dilated run was at most, but for one in a hundred: nanoseconds of the model, at the NICs
    and in the relay together. factor: by which time was slowed."""
    nics = max((late.p99 for execution in result.repetitions for late in execution.lateness.values()), default=0)
    relayed = [finding.measured or 0.0 for finding in result.verdict.findings if finding.what == "relay lateness p99"]
    return nics + math.ceil(max(relayed, default=0.0) / factor)


def _measured(point: Point) -> RunResult:
    asked = point.run
    where: str | Layout = asked.cluster or point.cluster
    if asked.cores:
        layout = find_target(where, point.mode, None).layout
        where = replace(layout, nodes=tuple([replace(node, ranks=asked.cores) for node in layout.nodes]))
    return run(
        where, asked.workload, protocol=point.system, mode=point.mode,
        settings=asked.settings, profiles=asked.profiles, ranks_per_node=asked.ranks_per_node,
        profile=asked.profile or point.profile, firmware=asked.firmware, dilate=point.dilate, check=False,
        timeout=_TIMEOUT,
    )  # fmt: skip


def _computed(model: str, profile: Profile) -> Rows:
    """Return the rows of a paper's model."""
    module, _, name = model.partition(":")
    rows: Rows = getattr(importlib.import_module(module), name)(profile)
    return rows
