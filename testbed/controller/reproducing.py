"""A paper's values beside ours: its workloads on its cluster under its hardware's profile, row by row.

    found = testbed.reproduce("emp")
    found.rows[0].ours, found.rows[0].error, found.median_error, found.failures

Rows that calibrated the profile must come out within `MOST` of the paper's, and the shapes that the paper describes must
hold, some of them as relations between our own runs. All other rows are predictions: nothing was chosen by them, and their
errors are shown whatever they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from protocols.core.profile import Profile
from testbed.controller.profiles import profile_of
from testbed.controller.running import Mode, protocol_of, run
from testbed.errors import TestbedError, UnsupportedError
from testbed.observe.papers import Measured, Paper, Relation, Row, Shape, Table, figure, figures, only, paper_of
from testbed.observe.quantities import cell

MOST: Final = 0.03
"""By what share a calibrated row may differ."""

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Compared:
    """A row and what ours is, in its unit. error: by what share ours is more."""

    row: Row
    ours: float

    @property
    def error(self) -> float:
        return self.ours / self.row.paper - 1

    @property
    def fails(self) -> bool:
        return self.row.calibrated and abs(self.error) > MOST


@dataclass(frozen=True, slots=True)
class Seen:
    """A shape or relation, and whether it holds; detail: in figures."""

    shape: Shape | Relation
    holds: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Reproduction:
    """What has come of a paper's values under a profile."""

    protocol: str
    paper: Paper
    profile: Profile
    rows: Sequence[Compared]
    shapes: Sequence[Seen]
    tables: Sequence[tuple[Table, Rows]]
    """Each with its run's rows."""

    @property
    def predicts(self) -> bool:
        """Whether it has any predicted row."""
        return not all(one.row.calibrated for one in self.rows)

    @property
    def median_error(self) -> float:
        """Of the predicted rows, whichever their sign; 0 where there are none."""
        errors = [abs(one.error) for one in self.rows if not one.row.calibrated]
        return median(errors) if errors else 0.0

    @property
    def failures(self) -> list[str]:
        """A sentence for each calibrated row and each shape that has not come out."""
        return [
            f"{one.row.name}: {one.ours:.4g} {one.row.unit}, not {one.row.paper:g}: {one.error:+.1%}, and it calibrates"
            for one in self.rows
            if one.fails
        ] + [f"{one.shape.name}: {one.detail}" for one in self.shapes if not one.holds]


def reproduce(
    protocol: str,
    *,
    mode: Mode = "sim",
    dilate: int | None = None,
    profile: str | Path | Profile = "",
    runs: Collection[str] = (),
    follow: Callable[[str], object] = lambda _: None,
) -> Reproduction:
    """profile: instead of the paper's, for runs that say none of their own. runs: only these of the paper's, and what they
    tell. follow: is told what it is at.

    mode: sim, or dilated, on real frames; dilate: how many times time is slowed there. Raises NotFoundError where there is
    no paper, UnsupportedError for mode live.
    """
    if mode == "live":
        raise UnsupportedError("reproduce in live: a profile prices what NICs do in sim and in dilated")
    paper = paper_of(protocol)
    if runs:
        paper = only(paper, runs)
    own = profile_of(profile or paper.profile, protocol_of(protocol, "sim"))
    measured: dict[str, Rows] = {}
    for name, one in paper.runs.items():
        follow(f"{name}: {one.workload}")
        measured[name] = _measured(protocol, paper, one, own, mode, dilate)
    rows: dict[str, Compared] = {}
    for row in paper.rows:
        rows[row.name] = Compared(row, _ours(row, measured, rows))
    shapes = [_seen(shape, measured, rows) for shape in paper.shapes]
    shapes += [_related(relation, measured) for relation in paper.relations]
    tables = [(table, measured[table.run]) for table in paper.tables]
    return Reproduction(protocol, paper, own, list(rows.values()), shapes, tables)


def _measured(protocol: str, paper: Paper, one: Measured, own: Profile, mode: Mode, dilate: int | None) -> Rows:
    return run(
        one.cluster or paper.cluster, one.workload, protocol=protocol, mode=mode, settings=one.settings,
        profile=one.profile or own, firmware=one.firmware, dilate=dilate, check=False, timeout=600,
    ).rows  # fmt: skip


def _ours(row: Row, measured: Mapping[str, Rows], before: Mapping[str, Compared]) -> float:
    """In the row's unit. A sum is of rows before it."""
    if row.sum:
        return sum(before[name].ours for name in row.sum)
    value = figure(row, measured[row.run], measured[row.less_than] if row.less_than else ())
    if value is None:
        raise TestbedError(f"{row.name}: run {row.run} has told no {row.take} where {dict(row.where)}")
    return value


def _seen(shape: Shape, measured: Mapping[str, Rows], rows: Mapping[str, Compared]) -> Seen:
    if shape.kind == "order":
        return _ordered(shape, rows[shape.row])
    points = sorted((float(one[shape.by]), float(one[shape.take])) for one in measured[shape.run])
    return _stepped(shape, dict(points)) if shape.kind == "step" else _flat(shape, points)


def _related(relation: Relation, measured: Mapping[str, Rows]) -> Seen:
    left, right = (figures(side, measured[side.run]) for side in (relation.left, relation.right))
    most = max(len(left), len(right))
    if not left or not right or min(len(left), len(right)) not in (1, most):
        return Seen(relation, False, f"{len(left)} values, and {len(right)} to hold them against")
    pairs = zip(left * (most // len(left)), right * (most // len(right)), strict=True)
    ratios = [a / b if b else math.inf for a, b in pairs]
    low, high = min(ratios), max(ratios)
    holds = low >= relation.least and (not relation.most or high <= relation.most)
    bounds = [
        f"{word} {bound:g}" for word, bound in (("at least", relation.least), ("at most", relation.most)) if bound
    ]
    told = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
    ours, theirs = _told(left, relation.left.take), _told(right, relation.right.take)
    return Seen(relation, holds, f"{ours} against {theirs}: {told} times, {' and '.join(bounds)}")


def _told(values: Sequence[float], key: str) -> str:
    ends = dict.fromkeys(cell(key, value) for value in (min(values), max(values)))
    return " to ".join(ends)


def _ordered(shape: Shape, mine: Compared) -> Seen:
    others = mine.row.others
    told = ", ".join(f"{name} {value:g}" for name, value in others.items())
    return Seen(shape, all(mine.ours < value for value in others.values()), f"{mine.ours:.3g} {mine.row.unit}; {told}")


def _stepped(shape: Shape, values: Mapping[float, float]) -> Seen:
    """The step must be more than ten times what the steeper side of it makes expect."""
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
