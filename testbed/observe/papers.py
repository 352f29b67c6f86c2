"""What a paper has published of a system, as `paper.toml` beside the system's protocol says it: rows, shapes, tables, and
with which runs ours are measured. An unknown key, or a row of a run that is not there, is an error."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from importlib import resources
from statistics import linear_regression
from typing import Any, Final, TypeVar

from testbed import registry
from testbed.errors import DescriptionError, NotFoundError, Problem, TestbedError
from testbed.workloads.settings import checked

Form = TypeVar("Form")

UNITS: Final = {"us": 1e-3, "Mb/s": 1e-6, "MB/s": 1 / 8e6, "%": 100.0}
"""What a row's figure is multiplied by: times are ns, rates bit/s, shares of 1 in the runs."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A run. profile, cluster: others than the paper's. firmware: settings of the NICs other than their usual ones."""

    workload: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    profile: str = ""
    cluster: str = ""
    firmware: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """One published value. source: where it stands. meaning: what of it is ours.

    run, where, take, pick: the value `take` of that run's rows that are as `where` says; the "last" or the "max" of several.
    Divided by `per`, or its share `of` a whole. less_than: of another run's rows; ours is the most that any is less, as a
    share. sum: of other rows, instead. others: other systems' values, as the paper has them.
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
    sum: tuple[str, ...] = ()
    others: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Shape:
    """What must hold, whatever the figures are; kind:

    order: `row` of ours is less than all others of that row, as the paper's is. step: of the run's values `take`, by `by`,
    the one between the second and third of `points` grows by more than the slopes on both sides do. flat: they stay `within`
    a share of the first one while `by` is at most `until`, and have fallen to less than half at the end.
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


@dataclass(frozen=True, slots=True)
class Figures:
    """Values `take` of a run's rows that are as `where` says, and of which `by` lies in `span`, from and to; slope: the
    slope of a straight line through them, over `by`, instead."""

    run: str
    take: str
    where: Mapping[str, Any] = field(default_factory=dict)
    by: str = ""
    span: tuple[float, ...] = ()
    slope: bool = False


@dataclass(frozen=True, slots=True)
class Relation:
    """What must hold between values of our own runs, for want of the paper's: every `left` one is at least, and at most, so
    many times the `right` one; of either there is one for all, or there are as many as of the other. 0: there is no such
    bound."""

    name: str
    source: str
    left: Figures
    right: Figures
    least: float = 0.0
    most: float = 0.0


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a run, to be looked at. columns: their keys."""

    name: str
    source: str
    run: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A value that no row has, and why."""

    value: str
    why: str


@dataclass(frozen=True, slots=True)
class Paper:
    """cluster, profile: of its testbed. constants: how many of the profile's are calibrated."""

    title: str
    authors: str
    published: str
    cluster: str
    profile: str
    constants: int
    runs: Mapping[str, Measured]
    rows: tuple[Row, ...]
    shapes: tuple[Shape, ...]
    relations: tuple[Relation, ...]
    tables: tuple[Table, ...]
    unmatched: tuple[Unmatched, ...]


def paper_of(protocol: str) -> Paper:
    """A registered protocol's. Raises NotFoundError where it has none, DescriptionError for one that is wrong."""
    offered = registry.offered(registry.PROTOCOLS)
    if protocol not in offered:
        registry.load(registry.PROTOCOLS, protocol)  # which says what is wrong with it
    package = offered[protocol].module.rpartition(".")[0]
    file = resources.files(package) / "paper.toml"
    if not file.is_file():
        there = [name for name, one in offered.items() if _has_one(one.module.rpartition(".")[0])]
        raise NotFoundError(f"there is no paper of {protocol} to be held against; of {', '.join(there)} there is")
    return parse(file.read_text(encoding="utf-8"), f"the paper of {protocol}")


def figure(row: Row, rows: Iterable[Mapping[str, Any]], whole: Iterable[Mapping[str, Any]] = ()) -> float | None:
    """A row's figure of ours, in its unit, from a run's rows; None where they do not tell it. whole: the rows of the run
    than which it is less. Not of a sum."""
    values = _taken(row, rows)
    if not values:
        return None
    if row.less_than:
        return UNITS[row.unit] * max(1 - mine / other for mine, other in zip(values, _taken(row, whole), strict=True))
    value = max(values) if row.pick == "max" else values[-1]
    return value / row.per / (row.of or 1.0) * UNITS[row.unit]


def _taken(row: Row, rows: Iterable[Mapping[str, Any]]) -> list[float]:
    return [
        float(one[row.take])
        for one in rows
        if row.take in one and all(one.get(key) == value for key, value in row.where.items())
    ]


def figures(of: Figures, rows: Iterable[Mapping[str, Any]]) -> list[float]:
    """See `Figures`; empty where the rows do not tell them."""
    chosen = [
        one
        for one in rows
        if of.take in one
        and all(one.get(key) == value for key, value in of.where.items())
        and (not of.span or (of.by in one and of.span[0] <= one[of.by] <= of.span[-1]))
    ]
    values = [float(one[of.take]) for one in chosen]
    if of.slope:
        return [linear_regression([float(one[of.by]) for one in chosen], values).slope] if len(values) > 1 else []
    return values


def only(paper: Paper, runs: Collection[str]) -> Paper:
    """The same, as far as these runs tell something of it. Raises NotFoundError for one that there is not."""
    for name in runs:
        if name not in paper.runs:
            near = get_close_matches(name, paper.runs, 1)
            hint = f" — did you mean {near[0]!r}?" if near else ""
            raise NotFoundError(f"the paper has no run {name!r}{hint}; there are {', '.join(paper.runs)}")
    rows: list[Row] = []
    for row in paper.rows:
        parts = {one.name for one in rows}
        if all(part in parts for part in row.sum) if row.sum else {row.run, row.less_than or row.run} <= set(runs):
            rows.append(row)
    names = {row.name for row in rows}
    return replace(
        paper,
        runs={name: one for name, one in paper.runs.items() if name in runs},
        rows=tuple(rows),
        shapes=tuple([one for one in paper.shapes if (one.row in names if one.kind == "order" else one.run in runs)]),
        relations=tuple([one for one in paper.relations if {one.left.run, one.right.run} <= set(runs)]),
        tables=tuple([one for one in paper.tables if one.run in runs]),
    )


def parse(text: str, source: str) -> Paper:
    """Raises DescriptionError with all that is wrong."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DescriptionError(source, [Problem("", "", f"a file in TOML: {error}")]) from error
    problems: list[Problem] = []

    def built(form: type[Form], table: object, path: str) -> Form | None:
        try:
            return form(**checked(form, _table(table), path))
        except DescriptionError as error:
            problems.extend(
                Problem(f"{path}{f'.{one.path}' if one.path else ''}", one.found, one.expected, one.suggestion)
                for one in error.problems
            )
            return None

    def several(form: type[Form], key: str) -> tuple[Form, ...]:
        given = [built(form, table, f"{key}[{number}]") for number, table in enumerate(document.pop(key, []), 1)]
        return tuple([one for one in given if one is not None])

    def sided(table: object, path: str) -> object:
        """A relation's table, with its sides as figures."""
        if not isinstance(table, Mapping):
            return table
        sides = {side: built(Figures, table[side], f"{path}.{side}") for side in ("left", "right") if side in table}
        return {**table, **sides}

    document["relation"] = [
        sided(table, f"relation[{number}]") for number, table in enumerate(document.get("relation", []), 1)
    ]
    runs = {name: built(Measured, table, f"run.{name}") for name, table in document.pop("run", {}).items()}
    parts = {
        "runs": {name: one for name, one in runs.items() if one is not None},
        "rows": several(Row, "row"), "shapes": several(Shape, "shape"), "relations": several(Relation, "relation"),
        "tables": several(Table, "table"), "unmatched": several(Unmatched, "unmatched"),
    }  # fmt: skip
    paper = built(Paper, {**document, **parts}, "")
    if paper is not None:
        problems += _loose_ends(paper, list(runs))
    if paper is None or problems:
        raise DescriptionError(source, problems)
    return paper


def _loose_ends(paper: Paper, runs: list[str]) -> list[Problem]:
    """What names something that is not there."""
    found: list[Problem] = []

    def named(path: str, name: str, there: list[str], what: str) -> None:
        if name not in there:
            near = get_close_matches(name, there, 1)
            found.append(Problem(path, repr(name), f"the name of a {what}", near[0] if near else ""))

    names = [row.name for row in paper.rows]
    for row in paper.rows:
        if row.unit not in UNITS:
            named(f"{row.name}.unit", row.unit, list(UNITS), "unit")
        for part in row.sum:
            named(f"{row.name}.sum", part, names, "row")
        if not row.sum:
            named(f"{row.name}.run", row.run, runs, "run")
        if row.less_than:
            named(f"{row.name}.less_than", row.less_than, runs, "run")
    for shape in paper.shapes:
        named(f"{shape.name}.kind", shape.kind, ["order", "step", "flat"], "kind of shape")
        if shape.kind == "order":
            named(f"{shape.name}.row", shape.row, names, "row")
        else:
            named(f"{shape.name}.run", shape.run, runs, "run")
        if shape.kind == "step" and len(shape.points) != 4:
            found.append(Problem(f"{shape.name}.points", str(len(shape.points)), "four points"))
    for relation in paper.relations:
        for side in (relation.left, relation.right):
            if isinstance(side, Figures):
                named(f"{relation.name}.run", side.run, runs, "run")
                if len(side.span) not in (0, 2) or ((side.span or side.slope) and not side.by):
                    found.append(Problem(f"{relation.name}.span", str(side.span), "from and to, and by what"))
        if not relation.least and not relation.most:
            found.append(Problem(relation.name, "no bound", "least or most"))
    for table in paper.tables:
        named(f"{table.name}.run", table.run, runs, "run")
    calibrated = sum(row.calibrated for row in paper.rows)
    if paper.constants >= max(calibrated, 1) and paper.constants:
        found.append(
            Problem("constants", str(paper.constants), f"fewer than the {calibrated} rows that calibrate them")
        )
    if calibrated > _MOST:
        found.append(Problem("row", f"{calibrated} calibrated ones", f"at most {_MOST}"))
    return found


_MOST: Final = 3


def _has_one(package: str) -> bool:
    try:
        return (resources.files(package) / "paper.toml").is_file()
    except (ImportError, TestbedError):
        return False


def _table(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise DescriptionError("", [Problem("", repr(value), "a table")])
    return value
