"""Checks whether our rows have the shapes and relations that a paper describes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from testbed.observe.format.quantities import format_value
from testbed.observe.papers import Relation, Row, Shape, figures

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Compared:
    """A row of a paper with our value, in the row's unit. error: relative error of our value."""

    row: Row
    ours: float

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def calibrated(self) -> bool:
        return self.row.calibrated

    @property
    def error(self) -> float:
        return self.ours / self.row.paper - 1


@dataclass(frozen=True, slots=True)
class ShapeResult:
    """A shape or relation, and whether it holds. detail: the values, as text."""

    shape: Shape | Relation
    holds: bool
    detail: str


def check_shape(shape: Shape, measured: Mapping[str, Rows], rows: Mapping[str, Compared]) -> ShapeResult:
    """Check a shape. measured: our rows, by run. rows: compared rows, by name."""
    if shape.kind == "order":
        return _check_order(shape, rows[shape.row])
    if shape.kind == "crossing":
        return _check_crossing(shape, list(rows.values()))
    points = sorted((float(row[shape.by]), float(row[shape.take])) for row in measured[shape.run])
    return _check_step(shape, dict(points)) if shape.kind == "step" else _check_flat(shape, points)


def check_relation(relation: Relation, measured: Mapping[str, Rows]) -> ShapeResult:
    """Check a relation. measured: our rows, by run."""
    left, right = (figures(side, measured[side.run]) for side in (relation.left, relation.right))
    count = max(len(left), len(right))
    if not left or not right or min(len(left), len(right)) not in (1, count):
        return ShapeResult(relation, False, f"{len(left)} values cannot be compared with {len(right)}")
    pairs = zip(left * (count // len(left)), right * (count // len(right)), strict=True)
    ratios = [a / b if b else math.inf for a, b in pairs]
    low, high = (mean(ratios),) * 2 if relation.average else (min(ratios), max(ratios))
    holds = low >= relation.least and (not relation.most or high <= relation.most)
    bounds = [
        f"{word} {bound:g}" for word, bound in (("at least", relation.least), ("at most", relation.most)) if bound
    ]
    ratio = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
    left_range, right_range = _format_range(left, relation.left.take), _format_range(right, relation.right.take)
    on_average = " on average" if relation.average else ""
    detail = f"{left_range} against {right_range}: {ratio} times{on_average}, {' and '.join(bounds)}"
    return ShapeResult(relation, holds, detail)


def _format_range(values: Sequence[float], key: str) -> str:
    ends = dict.fromkeys(format_value(key, value) for value in (min(values), max(values)))
    return " to ".join(ends)


def _check_order(shape: Shape, compared: Compared) -> ShapeResult:
    published = compared.row.others
    published_values = ", ".join(f"{name} {value:g}" for name, value in published.items())
    return ShapeResult(
        shape,
        all(compared.ours < value for value in published.values()),
        f"{compared.ours:.3g} {compared.row.unit}; {published_values}",
    )


def _check_crossing(shape: Shape, rows: Sequence[Compared]) -> ShapeResult:
    """Check a crossing: find the condition from which on one table exceeds another, by linear interpolation, and the range
    in which the tables differ by no more than their error."""
    table, base_table = ([row for row in rows if row.row.table == name] for name in (shape.table, shape.other))
    points = [
        (float(list(row.row.where.values())[-1]), row.ours / base.ours)
        for row, base in zip(table, base_table, strict=True)
    ]
    error = max(median([abs(row.error) for row in side]) for side in (table, base_table))
    crossing = _crossing(points, 1.0)
    if crossing is None:
        return ShapeResult(shape, False, f"{shape.table} does not change from less to more")
    low, high = _crossing(points, 1 - error) or points[0][0], _crossing(points, 1 + error) or points[-1][0]
    band = f"{low:,.0f} to {high:,.0f}" if _crossing(points, 1 + error) else f"{low:,.0f} to {high:,.0f} and beyond"
    uncertain = f"with an error of {error:.1%} anywhere from {band}"
    detail = f"at {crossing:,.0f}; {uncertain}; the paper's between {shape.points[0]:,}"
    return ShapeResult(shape, low <= shape.points[-1] and high >= shape.points[0], f"{detail} and {shape.points[-1]:,}")


def _crossing(points: Sequence[tuple[float, float]], ratio: float) -> float | None:
    """Return the x at which a curve last rises above a ratio; None if the curve does not end above the ratio, or is always
    above it."""
    above = [value > ratio for _, value in points]
    if not above[-1] or all(above):
        return None
    (x, y), (next_x, next_y) = points[(last := len(above) - above[::-1].index(False)) - 1], points[last]
    return x + (next_x - x) * (ratio - y) / (next_y - y)


def _check_step(shape: Shape, values: Mapping[float, float]) -> ShapeResult:
    """Check a step: it must exceed ten times the increase that the steeper adjacent slope predicts. values: nanoseconds."""
    first, before, after, last = shape.points
    slopes = [(values[b] - values[a]) / (b - a) for a, b in ((first, before), (after, last))]
    step, expected = values[after] - values[before], (after - before) * max(slopes)
    return ShapeResult(
        shape, step > 10 * max(expected, 0), f"{step / 1e3:.2f} us more, where the slopes predict {expected / 1e3:.3f}"
    )


def _check_flat(shape: Shape, points: Sequence[tuple[float, float]]) -> ShapeResult:
    """Check that the values stay near the first one up to `shape.until`, and end below half of it."""
    idle = points[0][1]
    early = [value for x, value in points if x <= shape.until]
    minimum, end = min(early) / idle, points[-1][1] / idle
    holds = len(early) > 2 and minimum >= 1 - shape.within and end < 0.5
    return ShapeResult(
        shape, holds, f"at least {minimum:.1%} of it up to {shape.until:.0%} of the processor, {end:.1%} at the end"
    )
