"""The published results of a paper: rows, shapes, relations, tables, figures, values that are only displayed, and the runs
that measure our values. `paper_files` reads them from `paper.toml` in the protocol's package."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import linear_regression
from typing import Any, Final

from testbed.errors import NotFoundError, TestbedError, did_you_mean

UNITS: Final = {"us": 1e-3, "Mb/s": 1e-6, "MB/s": 1 / 8e6, "%": 100.0}
"""Units of rows, and the factor from a run's value to each: runs have times in ns, rates in bit/s, and fractions of 1."""


def _place_of(source: str) -> str:
    """Return the start of a source: "table 2", "section 5.2", "abstract"."""
    return re.split("[,:;(]", source)[0].strip()


@dataclass(frozen=True, slots=True)
class PaperRun:
    """A run that measures values. profile, cluster: empty: those of the paper. profiles: profiles of nodes that do not have
    that of the run. firmware: NIC settings that differ from the default. cores: cores of each node's ranks, in order,
    instead of ranks_per_node.

    model: "module:function" in the protocol's package, which computes rows from a profile, instead of a workload; it is for
    other systems on the paper's hosts.
    """

    workload: str = ""
    model: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    profile: str = ""
    cluster: str = ""
    profiles: Mapping[str, str] = field(default_factory=dict)
    firmware: Mapping[str, Any] = field(default_factory=dict)
    ranks_per_node: int = 1
    cores: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """A published value. table: table of the paper; errors are summarized by table. source: place of the value in the paper.
    meaning: description of our value with which it is compared.

    Our value is that of the key `take` in the rows of `run` that match `where`; `pick` selects the "last" or the "max" of
    several. The value is divided by `per`, and by `of` to give a fraction of a total. less_than: a run with larger values;
    our value is then the largest reduction relative to that run, as a fraction. beyond: a run whose value is subtracted.
    sum: names of previous rows that are added up instead. others, others_source: the paper's values of other systems, and
    their place if it differs from `source`.
    """

    name: str
    source: str
    meaning: str
    paper: float
    unit: str
    calibrated: bool = False
    run: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)
    take: str = ""
    pick: str = "last"
    per: float = 1.0
    of: float = 0.0
    less_than: str = ""
    beyond: str = ""
    sum: tuple[str, ...] = ()
    others: Mapping[str, float] = field(default_factory=dict)
    others_source: str = ""
    table: str = ""

    @property
    def place(self) -> str:
        """The table, figure or section with the value."""
        return _place_of(self.source)

    @property
    def other_run(self) -> str:
        """The second run that the value needs; empty: none."""
        return self.less_than or self.beyond


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a published table, which gives a row for each condition. by: key of the condition. at: its values. paper:
    the published values under these conditions. calibrated: the values of `by` whose rows calibrated the profile. For the
    remaining fields see `Row`."""

    name: str
    source: str
    meaning: str
    unit: str
    run: str
    take: str
    by: str
    at: tuple[int, ...]
    paper: tuple[float, ...]
    calibrated: tuple[int, ...] = ()
    where: Mapping[str, Any] = field(default_factory=dict)

    def rows(self) -> list[Row]:
        """Return the rows."""
        return [
            Row(
                f"{self.name}, {at}", self.source, self.meaning, paper, self.unit, at in self.calibrated, self.run,
                {**self.where, self.by: at}, self.take, table=self.name,
            )
            for at, paper in zip(self.at, self.paper, strict=True)
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """A property of the results that must hold independently of the absolute figures. kind is one of:

    order: our value of `row` is less than all `others` of that row, like the paper's value. step: the run's values `take`
    over `by` grow much more between the second and the third of the four `points` than the slopes on both sides predict.
    flat: the values do not fall by more than the fraction `within` of the first value while `by` is at most `until`, and
    fall to less than half of it at the end. crossing: the values of the table `table` are first less and later more than
    those of the table `other`. The paper's crossing is between the first and the last of `points`; this range must overlap
    the range in which our tables differ by no more than their larger median error.
    """

    name: str
    source: str
    kind: str
    row: str = ""
    run: str = ""
    take: str = ""
    by: str = ""
    points: tuple[int, ...] = ()
    until: float = 0.0
    within: float = 0.0
    table: str = ""
    other: str = ""


@dataclass(frozen=True, slots=True)
class Figures:
    """Selection of a run's values: `take` of the rows that match `where` and whose `by` lies in `span` (from, to; empty:
    all). slope: the value is the slope of a straight line through them, over `by`."""

    run: str
    take: str
    where: Mapping[str, Any] = field(default_factory=dict)
    by: str = ""
    span: tuple[float, ...] = ()
    slope: bool = False


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation between values of our runs, for which the paper has no value: each `left` value is at least `least` times
    and at most `most` times the `right` value. Both sides have the same number of values, or one side has a single value. A
    bound of 0 is not checked. average: the bounds apply to the mean of the ratios, not to each ratio."""

    name: str
    source: str
    left: Figures
    right: Figures
    least: float = 0.0
    most: float = 0.0
    average: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a run's rows, to be printed. columns: the keys."""

    name: str
    source: str
    run: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve of a figure: the figure's `y` over its `x`, in the rows of `run` that match `where`. points: names of rows or
    columns whose published values are drawn, too."""

    label: str
    run: str
    where: Mapping[str, Any] = field(default_factory=dict)
    points: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PaperFigure:
    """A figure, drawn from our rows. x, y: keys of the rows. axes: labels of both axes. log: axes with a logarithmic scale:
    "x", "y", "xy"."""

    name: str
    source: str
    x: str
    y: str
    axes: tuple[str, ...]
    curves: tuple[Curve, ...]
    log: str = ""


@dataclass(frozen=True, slots=True)
class Published:
    """Published values that we do not measure, by system or condition."""

    name: str
    source: str
    unit: str
    values: Mapping[str, float]

    @property
    def place(self) -> str:
        """The table, figure or section with the values."""
        return _place_of(self.source)


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A published value that no row reproduces. why: the reason."""

    value: str
    why: str


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper's results. cluster, profile: cluster and profile that model the paper's testbed. constants: number of the
    profile's constants that are calibrated."""

    title: str
    authors: str
    published: str
    cluster: str
    profile: str
    constants: int
    runs: Mapping[str, PaperRun]
    rows: tuple[Row, ...]
    shapes: tuple[Shape, ...]
    relations: tuple[Relation, ...]
    tables: tuple[Table, ...]
    figures: tuple[PaperFigure, ...]
    shown: tuple[Published, ...]
    unmatched: tuple[Unmatched, ...]

    @property
    def citation(self) -> str:
        return f"{self.authors}: {self.title}, {self.published}"

    @property
    def unmeasured(self) -> list[Published]:
        """All published values that we do not measure: those of other systems in rows, and `shown`."""
        other_systems = [
            Published(row.name, row.others_source or row.source, row.unit, row.others)
            for row in self.rows
            if row.others
        ]
        return [*other_systems, *self.shown]


def figure(row: Row, rows: Iterable[Mapping[str, Any]], other_rows: Iterable[Mapping[str, Any]] = ()) -> float | None:
    """Compute our value for a row of the paper, in the row's unit; None if the run's rows do not have it. other_rows: the
    rows of the run that `less_than` or `beyond` names. Rows with `sum` are not supported."""
    values = _values(row, rows)
    if not values:
        return None
    if row.less_than:
        return UNITS[row.unit] * max(
            1 - ours / theirs for ours, theirs in zip(values, _values(row, other_rows), strict=True)
        )
    value = max(values) if row.pick == "max" else values[-1]
    if row.beyond:
        base = _values(row, other_rows)
        if not base:
            return None
        value -= base[-1]
    return value / row.per / (row.of or 1.0) * UNITS[row.unit]


def is_measured_by(row: Row, paper: Paper, parameters: Mapping[str, Any]) -> bool:
    """Whether a run with these parameters can have measured a row of the paper: the workload, the firmware settings and the
    number of ranks per node must match."""
    if row.sum or row.other_run:
        return False
    measured, ranks = paper.runs[row.run], parameters.get("ranks") or []
    return (
        measured.workload == str(parameters.get("form"))
        and not measured.profile
        and not measured.profiles
        and _as_texts(measured.firmware) == _as_texts(parameters.get("firmware") or {})
        and len(ranks) == measured.ranks_per_node * len({str(rank["node"]) for rank in ranks})
    )


def _as_texts(settings: Mapping[str, object]) -> dict[str, str]:
    """Return settings as text, as users write them."""
    return {key: str(value) for key, value in settings.items()}


def _values(published: Row, rows: Iterable[Mapping[str, Any]]) -> list[float]:
    return [
        _number(row, published.take)
        for row in rows
        if published.take in row and all(row.get(key) == value for key, value in published.where.items())
    ]


def figures(of: Figures, rows: Iterable[Mapping[str, Any]]) -> list[float]:
    """Select the values that `of` describes; empty if the rows do not have them. Raises TestbedError for a value that is not
    a number."""
    selected = [
        row
        for row in rows
        if of.take in row
        and all(row.get(key) == value for key, value in of.where.items())
        and (not of.span or (of.by in row and of.span[0] <= _number(row, of.by) <= of.span[-1]))
    ]
    values = [_number(row, of.take) for row in selected]
    if of.slope:
        return [linear_regression([_number(row, of.by) for row in selected], values).slope] if len(values) > 1 else []
    return values


def _number(row: Mapping[str, Any], key: str) -> float:
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TestbedError(f"a row of a run is damaged: {key} must be a number, got {value!r}")
    return float(value)


def restrict(paper: Paper, runs: Collection[str]) -> Paper:
    """Return the paper with only the values that these runs measure. Raises NotFoundError for an unknown run."""
    for name in runs:
        if name not in paper.runs:
            hint = did_you_mean(name, paper.runs)
            raise NotFoundError(f"the paper has no run {name!r}{hint}; there are {', '.join(paper.runs)}")
    rows: list[Row] = []
    for row in paper.rows:
        selected = {row.name for row in rows}
        if selected.issuperset(row.sum) if row.sum else {row.run, row.other_run or row.run} <= set(runs):
            rows.append(row)
    names = {row.name for row in rows}
    return replace(
        paper,
        shown=(),
        runs={name: run for name, run in paper.runs.items() if name in runs},
        rows=tuple(rows),
        shapes=tuple(
            [shape for shape in paper.shapes if _is_measured(shape, names, {row.table for row in rows}, runs)]
        ),
        relations=tuple(
            [relation for relation in paper.relations if {relation.left.run, relation.right.run} <= set(runs)]
        ),
        tables=tuple([table for table in paper.tables if table.run in runs]),
        figures=tuple([figure for figure in paper.figures if {curve.run for curve in figure.curves} <= set(runs)]),
    )


def _is_measured(shape: Shape, rows: Collection[str], tables: Collection[str], runs: Collection[str]) -> bool:
    if shape.kind == "crossing":
        return shape.table in tables and shape.other in tables
    return shape.row in rows if shape.kind == "order" else shape.run in runs
