"""Compare a paper's values with ours: its workloads on its cluster under its hardware's profile, row by row.

    found = testbed.reproduce("emp")
    found.rows[0].ours, found.rows[0].error, found.median_error, found.failures

Rows that calibrated the profile must be within `MAX` of the paper's, and the shapes that the paper describes must hold,
some of them as relations between our own runs. All other rows are predictions: nothing was chosen by them, and their
errors are shown in any case.
"""

from __future__ import annotations

import gc
import importlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, median
from typing import Any, Final, Self

from protocols.core.profile import Profile
from testbed.controller.runs.profiles import profile_of
from testbed.controller.runs.run_options import DILATE, Mode
from testbed.controller.runs.run_target import find_target
from testbed.controller.runs.runner import RunResult, protocol_of, run
from testbed.errors import TestbedError, UnsupportedError
from testbed.observe.format.quantities import format_value
from testbed.observe.papers import Paper, PaperRun, Relation, Row, Shape, Table, figure, figures, paper_of, restrict
from testbed.spec.layout import Layout

MAX: Final = 0.03
"""Relative difference that a calibrated row may have."""

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Compared:
    """A row with our value, in its unit. error: the relative difference of ours."""

    row: Row
    ours: float

    @property
    def error(self) -> float:
        return self.ours / self.row.paper - 1

    @property
    def fails(self) -> bool:
        return self.row.calibrated and abs(self.error) > MAX


@dataclass(frozen=True, slots=True)
class Errors:
    """Absolute errors of several rows: their number, median, 90th percentile (the least that 90 % do not exceed), and the
    worst."""

    rows: int
    median: float
    p90: float
    worst: float

    @classmethod
    def of(cls, errors: Sequence[float]) -> Self:
        """Sum up errors, at least one."""
        ordered = sorted(errors)
        return cls(len(ordered), median(ordered), ordered[-(-len(ordered) * 9 // 10) - 1], ordered[-1])


@dataclass(frozen=True, slots=True)
class Seen:
    """A shape or relation, and whether it holds; detail: the figures."""

    shape: Shape | Relation
    holds: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Reproduction:
    """Comparison of a paper's values with ours under a profile."""

    protocol: str
    paper: Paper
    profile: Profile
    rows: Sequence[Compared]
    shapes: Sequence[Seen]
    tables: Sequence[tuple[Table, Rows]]
    """Tables, each with the rows of its run."""
    late: Mapping[str, int] = field(default_factory=dict)
    """By run, where time is dilated: see `frame_lateness`."""

    @property
    def predicts(self) -> bool:
        """Whether any row is a prediction."""
        return not all(compared.row.calibrated for compared in self.rows)

    @property
    def median_error(self) -> float:
        """Median absolute error of the predicted rows; 0 where there are none."""
        errors = [abs(compared.error) for compared in self.rows if not compared.row.calibrated]
        return median(errors) if errors else 0.0

    @property
    def errors(self) -> Mapping[str, Errors]:
        """Errors of the predicted rows, by table; "" are the rows of none."""
        by_table: dict[str, list[float]] = {}
        for compared in self.rows:
            if not compared.row.calibrated:
                by_table.setdefault(compared.row.table, []).append(abs(compared.error))
        return {table: Errors.of(errors) for table, errors in by_table.items()}

    @property
    def failures(self) -> list[str]:
        """A sentence for each calibrated row beyond `MAX` and each shape that does not hold."""
        return [
            f"{compared.row.name}: {compared.ours:.4g} {compared.row.unit}, not {compared.row.paper:g}: "
            f"{compared.error:+.1%}, and it calibrates"
            for compared in self.rows
            if compared.fails
        ] + [f"{shape.shape.name}: {shape.detail}" for shape in self.shapes if not shape.holds]


def reproduce(
    protocol: str,
    *,
    mode: Mode = "sim",
    dilate: int | None = None,
    profile: str | Path | Profile = "",
    runs: Collection[str] = (),
    follow: Callable[[str], object] = lambda _: None,
) -> Reproduction:
    """Run a paper's workloads and compare. profile: instead of the paper's, for runs that name none of their own. runs:
    only these of the paper's runs, and the rows from them. follow: progress callback.

    mode: sim, or dilated, on real frames; dilate: the factor by which time is slowed there. Raises NotFoundError where
    there is no paper, UnsupportedError for mode live.
    """
    if mode == "live":
        raise UnsupportedError("reproduce in live: a profile prices what NICs do in sim and in dilated")
    paper = paper_of(protocol)
    if runs:
        paper = restrict(paper, runs)
    own = profile_of(profile or paper.profile, protocol_of(protocol, "sim"))
    measured: dict[str, Rows] = {}
    late: dict[str, int] = {}
    for name, measured_run in paper.runs.items():
        follow(f"{name}: {measured_run.workload or measured_run.model}")
        if measured_run.model:
            measured[name] = _computed(measured_run.model, own)
            continue
        result = _measure(protocol, paper, measured_run, own, mode, dilate)
        measured[name] = result.rows
        if mode == "dilated":
            late[name] = frame_lateness(result, DILATE if dilate is None else dilate)
        del result
        gc.collect()  # a run's hosts and NICs refer to each other, with all memory of their endpoints
    rows: dict[str, Compared] = {}
    for row in paper.rows:
        rows[row.name] = Compared(row, _our_value(row, measured, rows))
    shapes = [_check_shape(shape, measured, rows) for shape in paper.shapes]
    shapes += [_check_relation(relation, measured) for relation in paper.relations]
    tables = [(table, measured[table.run]) for table in paper.tables]
    return Reproduction(protocol, paper, own, list(rows.values()), shapes, tables, late)


def frame_lateness(result: RunResult, factor: int) -> int:
    """Return how late a frame of a dilated run was at most, but for one in a hundred: nanoseconds of the model, at the NICs
    and in the relay together. factor: by which time was slowed."""
    nics = max((late.p99 for execution in result.repetitions for late in execution.lateness.values()), default=0)
    relayed = [finding.measured or 0.0 for finding in result.verdict.findings if finding.what == "relay lateness p99"]
    return nics + math.ceil(max(relayed, default=0.0) / factor)


def _measure(
    protocol: str, paper: Paper, measured_run: PaperRun, own: Profile, mode: Mode, dilate: int | None
) -> RunResult:
    where: str | Layout = measured_run.cluster or paper.cluster
    if measured_run.cores:
        layout = find_target(where, mode, None).layout
        where = replace(layout, nodes=tuple([replace(node, ranks=measured_run.cores) for node in layout.nodes]))
    return run(
        where, measured_run.workload, protocol=protocol, mode=mode,
        settings=measured_run.settings, profiles=measured_run.profiles, ranks_per_node=measured_run.ranks_per_node,
        profile=measured_run.profile or own, firmware=measured_run.firmware, dilate=dilate, check=False, timeout=600,
    )  # fmt: skip


def _computed(model: str, profile: Profile) -> Rows:
    """Return the rows of a paper's model."""
    module, _, name = model.partition(":")
    rows: Rows = getattr(importlib.import_module(module), name)(profile)
    return rows


def _our_value(row: Row, measured: Mapping[str, Rows], before: Mapping[str, Compared]) -> float:
    """Return our value in the row's unit. A sum adds earlier rows."""
    if row.sum:
        return sum(before[name].ours for name in row.sum)
    value = figure(row, measured[row.run], measured[row.other_run] if row.other_run else ())
    if value is None:
        raise TestbedError(f"{row.name}: run {row.run} has told no {row.take} where {dict(row.where)}")
    return value


def _check_shape(shape: Shape, measured: Mapping[str, Rows], rows: Mapping[str, Compared]) -> Seen:
    if shape.kind == "order":
        return _ordered(shape, rows[shape.row])
    if shape.kind == "crossing":
        return _crossed(shape, list(rows.values()))
    points = sorted((float(row[shape.by]), float(row[shape.take])) for row in measured[shape.run])
    return _stepped(shape, dict(points)) if shape.kind == "step" else _flat(shape, points)


def _check_relation(relation: Relation, measured: Mapping[str, Rows]) -> Seen:
    left, right = (figures(side, measured[side.run]) for side in (relation.left, relation.right))
    most = max(len(left), len(right))
    if not left or not right or min(len(left), len(right)) not in (1, most):
        return Seen(relation, False, f"{len(left)} values, and {len(right)} to hold them against")
    pairs = zip(left * (most // len(left)), right * (most // len(right)), strict=True)
    ratios = [a / b if b else math.inf for a, b in pairs]
    low, high = (mean(ratios),) * 2 if relation.average else (min(ratios), max(ratios))
    holds = low >= relation.least and (not relation.most or high <= relation.most)
    bounds = [
        f"{word} {bound:g}" for word, bound in (("at least", relation.least), ("at most", relation.most)) if bound
    ]
    ratio = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
    ours, theirs = _format_range(left, relation.left.take), _format_range(right, relation.right.take)
    on_average = " on average" if relation.average else ""
    return Seen(relation, holds, f"{ours} against {theirs}: {ratio} times{on_average}, {' and '.join(bounds)}")


def _format_range(values: Sequence[float], key: str) -> str:
    ends = dict.fromkeys(format_value(key, value) for value in (min(values), max(values)))
    return " to ".join(ends)


def _ordered(shape: Shape, compared: Compared) -> Seen:
    published = compared.row.others
    shown = ", ".join(f"{name} {value:g}" for name, value in published.items())
    return Seen(
        shape,
        all(compared.ours < value for value in published.values()),
        f"{compared.ours:.3g} {compared.row.unit}; {shown}",
    )


def _crossed(shape: Shape, rows: Sequence[Compared]) -> Seen:
    """Check a crossing: find the condition from which on a table is more than another, by a straight line between those
    measured, and the range in which they differ by no more than their error."""
    table, other = ([row for row in rows if row.row.table == name] for name in (shape.table, shape.other))
    points = [
        (float(list(row.row.where.values())[-1]), row.ours / base.ours) for row, base in zip(table, other, strict=True)
    ]
    error = max(median([abs(row.error) for row in side]) for side in (table, other))
    at = _first_at(points, 1.0)
    if at is None:
        return Seen(shape, False, f"{shape.table} is never first less and then more")
    low, high = _first_at(points, 1 - error) or points[0][0], _first_at(points, 1 + error) or points[-1][0]
    band = f"{low:,.0f} to {high:,.0f}" if _first_at(points, 1 + error) else f"{low:,.0f} to {high:,.0f} and beyond"
    detail = f"at {at:,.0f}; with an error of {error:.1%} anywhere from {band}; the paper's between {shape.points[0]:,}"
    return Seen(shape, low <= shape.points[-1] and high >= shape.points[0], f"{detail} and {shape.points[-1]:,}")


def _first_at(points: Sequence[tuple[float, float]], ratio: float) -> float | None:
    """Return where a curve rises above a value for good; None where it does not, or begins there."""
    above = [value > ratio for _, value in points]
    if not above[-1] or all(above):
        return None
    (x, y), (next_x, next_y) = points[(last := len(above) - above[::-1].index(False)) - 1], points[last]
    return x + (next_x - x) * (ratio - y) / (next_y - y)


def _stepped(shape: Shape, values: Mapping[float, float]) -> Seen:
    """Check a step: it must exceed ten times what the steeper slope beside it predicts."""
    first, before, behind, last = shape.points
    slopes = [(values[b] - values[a]) / (b - a) for a, b in ((first, before), (behind, last))]
    step, expected = values[behind] - values[before], (behind - before) * max(slopes)
    return Seen(shape, step > 10 * max(expected, 0), f"{step / 1e3:.2f} us more, where {expected / 1e3:.3f} continue")


def _flat(shape: Shape, points: Sequence[tuple[float, float]]) -> Seen:
    idle = points[0][1]
    early = [value for at, value in points if at <= shape.until]
    least, end = min(early) / idle, points[-1][1] / idle
    holds = len(early) > 2 and least >= 1 - shape.within and end < 0.5
    return Seen(shape, holds, f"{least:.1%} of it is left at {shape.until:.0%} of the processor, {end:.1%} at the end")
