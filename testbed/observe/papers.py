"""The published results of a paper, read from `paper.toml` beside its system's protocol: rows, shapes, relations,
tables, and the runs that measure ours. An unknown key, or a reference to a run that does not exist, is an error."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from importlib import resources
from statistics import linear_regression
from typing import Any, Final, TypeVar

from testbed import registry
from testbed.errors import DescriptionError, NotFoundError, Problem, TestbedError, did_you_mean
from testbed.workloads.workload_settings import checked

Form = TypeVar("Form")

UNITS: Final = {"us": 1e-3, "Mb/s": 1e-6, "MB/s": 1 / 8e6, "%": 100.0}
"""Factor from a run's figure to a row's unit: runs have times in ns, rates in bit/s, and fractions of 1."""

_MAX_CALIBRATED: Final = 3  # rows


@dataclass(frozen=True, slots=True)
class PaperRun:
    """A run to measure. profile, cluster: where they differ from the paper's. profiles: of nodes with another one. firmware:
    NIC settings that differ from the default. cores: of each node's ranks, in order, in place of ranks_per_node.

    model: instead of a workload, "module:function" of the protocol's package, which computes rows from a profile; for
    another system on the paper's hosts."""

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
    """A published value. table: of the paper, whose errors are summed up apart. source: its place in the paper. meaning:
    the value of ours that it is compared with.

    Our value is `take` of the rows of `run` that match `where`; `pick` selects the "last" or the "max" of several. It
    is divided by `per`, and by `of` to give a fraction of a whole. less_than: another run, which ours stays below; the
    value is then the largest reduction, as a fraction. beyond: another run, whose value is subtracted. sum: names of rows
    to add up instead. others: the paper's values of other systems.
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
    table: str = ""

    @property
    def other_run(self) -> str:
        """The run that it compares with; empty: none."""
        return self.less_than or self.beyond


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a published table: a row for each condition. at: the values of `by`; paper: the values there; others:
    those of other systems. calibrated: the values of `by` whose rows calibrated the profile. For the rest see `Row`."""

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

    order: our value of `row` is less than all `others` of that row, as the paper's is. step: the run's values `take`
    over `by` grow more between the second and third of `points` than the slopes on both sides predict. flat: the values
    stay within the fraction `within` of the first one while `by` is at most `until`, and have fallen to less than half
    at the end. crossing: the table `table` is less than the table `other` first, and more in the end; the paper's change
    lies between the first and the last of `points`, and so does at least a part of the range in which ours differ by no
    more than their larger median error.
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
    """Values `take` of the rows of a run that match `where` and whose `by` lies in `span` (from, to). slope: use the
    slope of a straight line through them, over `by`, instead."""

    run: str
    take: str
    where: Mapping[str, Any] = field(default_factory=dict)
    by: str = ""
    span: tuple[float, ...] = ()
    slope: bool = False


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation between values of our own runs, where the paper has no value: each `left` value is at least `least`
    times and at most `most` times the `right` one. Either side has one value for all, or as many as the other. A bound
    of 0 is not checked. average: the mean of the ratios keeps the bounds, whatever each of them is."""

    name: str
    source: str
    left: Figures
    right: Figures
    least: float = 0.0
    most: float = 0.0
    average: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a run to print. columns: their keys."""

    name: str
    source: str
    run: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A published value that no row covers, and the reason."""

    value: str
    why: str


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper's results. cluster, profile: of its testbed. constants: how many of the profile's constants are
    calibrated."""

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
    unmatched: tuple[Unmatched, ...]


def paper_of(protocol: str) -> Paper:
    """Load the paper of a registered protocol. Raises NotFoundError where it has none, DescriptionError for an invalid
    file."""
    offered = registry.offered(registry.PROTOCOLS)
    if protocol not in offered:
        registry.load(registry.PROTOCOLS, protocol)  # raises NotFoundError with the reason
    package = offered[protocol].module.rpartition(".")[0]
    file = resources.files(package) / "paper.toml"
    if not file.is_file():
        available = [name for name, offer in offered.items() if _has_paper(offer.module.rpartition(".")[0])]
        raise NotFoundError(f"protocol {protocol} has no paper to compare with; {', '.join(available)} have one")
    return parse(file.read_text(encoding="utf-8"), f"the paper of {protocol}")


def figure(row: Row, rows: Iterable[Mapping[str, Any]], whole: Iterable[Mapping[str, Any]] = ()) -> float | None:
    """Compute our figure for a row, in the row's unit; None where the run's rows do not have it. whole: the rows of the
    run named by `less_than` or `beyond`. Sums are not computed here."""
    values = _taken(row, rows)
    if not values:
        return None
    if row.less_than:
        return UNITS[row.unit] * max(1 - ours / theirs for ours, theirs in zip(values, _taken(row, whole), strict=True))
    value = max(values) if row.pick == "max" else values[-1]
    if row.beyond:
        base = _taken(row, whole)
        if not base:
            return None
        value -= base[-1]
    return value / row.per / (row.of or 1.0) * UNITS[row.unit]


def is_measured_by(row: Row, paper: Paper, asked: Mapping[str, Any]) -> bool:
    """Whether a run, as it was asked for, can have measured a row: with this workload, these settings of the firmware, and
    so many ranks on each node."""
    if row.sum or row.other_run:
        return False
    measured, ranks = paper.runs[row.run], asked.get("ranks") or []
    return (
        measured.workload == str(asked.get("form"))
        and not measured.profile
        and not measured.profiles
        and _as_texts(measured.firmware) == _as_texts(asked.get("firmware") or {})
        and len(ranks) == measured.ranks_per_node * len({str(rank["node"]) for rank in ranks})
    )


def _as_texts(settings: Mapping[str, object]) -> dict[str, str]:
    """Return settings as a user writes them."""
    return {key: str(value) for key, value in settings.items()}


def _taken(published: Row, rows: Iterable[Mapping[str, Any]]) -> list[float]:
    return [
        float(row[published.take])
        for row in rows
        if published.take in row and all(row.get(key) == value for key, value in published.where.items())
    ]


def figures(of: Figures, rows: Iterable[Mapping[str, Any]]) -> list[float]:
    """Select the values that `of` describes; empty where the rows do not have them."""
    chosen = [
        row
        for row in rows
        if of.take in row
        and all(row.get(key) == value for key, value in of.where.items())
        and (not of.span or (of.by in row and of.span[0] <= row[of.by] <= of.span[-1]))
    ]
    values = [float(row[of.take]) for row in chosen]
    if of.slope:
        return [linear_regression([float(row[of.by]) for row in chosen], values).slope] if len(values) > 1 else []
    return values


def restrict(paper: Paper, runs: Collection[str]) -> Paper:
    """Restrict the paper to what these runs measure. Raises NotFoundError for an unknown run."""
    for name in runs:
        if name not in paper.runs:
            hint = did_you_mean(name, paper.runs)
            raise NotFoundError(f"the paper has no run {name!r}{hint}; there are {', '.join(paper.runs)}")
    rows: list[Row] = []
    for row in paper.rows:
        parts = {row.name for row in rows}
        if all(part in parts for part in row.sum) if row.sum else {row.run, row.other_run or row.run} <= set(runs):
            rows.append(row)
    names = {row.name for row in rows}
    return replace(
        paper,
        runs={name: run for name, run in paper.runs.items() if name in runs},
        rows=tuple(rows),
        shapes=tuple(
            [shape for shape in paper.shapes if _is_measured(shape, names, {row.table for row in rows}, runs)]
        ),
        relations=tuple(
            [relation for relation in paper.relations if {relation.left.run, relation.right.run} <= set(runs)]
        ),
        tables=tuple([table for table in paper.tables if table.run in runs]),
    )


def _is_measured(shape: Shape, rows: Collection[str], tables: Collection[str], runs: Collection[str]) -> bool:
    if shape.kind == "crossing":
        return shape.table in tables and shape.other in tables
    return shape.row in rows if shape.kind == "order" else shape.run in runs


def parse(text: str, source: str) -> Paper:
    """Parse a paper's TOML. Raises DescriptionError with all problems."""
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
                Problem(
                    f"{path}{f'.{problem.path}' if problem.path else ''}",
                    problem.found,
                    problem.expected,
                    problem.suggestion,
                )
                for problem in error.problems
            )
            return None

    def several(form: type[Form], key: str) -> tuple[Form, ...]:
        built_tables = [built(form, table, f"{key}[{number}]") for number, table in enumerate(document.pop(key, []), 1)]
        return tuple([table for table in built_tables if table is not None])

    def sided(table: object, path: str) -> object:
        """Parse the two sides of a relation's table as figures."""
        if not isinstance(table, Mapping):
            return table
        sides = {side: built(Figures, table[side], f"{path}.{side}") for side in ("left", "right") if side in table}
        return {**table, **sides}

    document["relation"] = [
        sided(table, f"relation[{number}]") for number, table in enumerate(document.get("relation", []), 1)
    ]
    runs = {name: built(PaperRun, table, f"run.{name}") for name, table in document.pop("run", {}).items()}
    parts = {
        "runs": {name: run for name, run in runs.items() if run is not None},
        "rows": (*several(Row, "row"), *_rows_of(several(Column, "column"), problems)),
        "shapes": several(Shape, "shape"), "relations": several(Relation, "relation"),
        "tables": several(Table, "table"), "unmatched": several(Unmatched, "unmatched"),
    }  # fmt: skip
    paper = built(Paper, {**document, **parts}, "")
    if paper is not None:
        problems += _inconsistencies(paper, list(runs))
    if paper is None or problems:
        raise DescriptionError(source, problems)
    return paper


def _rows_of(columns: Iterable[Column], problems: list[Problem]) -> list[Row]:
    rows: list[Row] = []
    for column in columns:
        if len(column.at) != len(column.paper):
            found = f"{len(column.paper)} values"
            problems.append(Problem(f"{column.name}.paper", found, f"as many as in 'at', {len(column.at)}"))
        else:
            rows += column.rows()
    return rows


def _inconsistencies(paper: Paper, runs: list[str]) -> list[Problem]:
    """List the references to rows and runs that do not exist, and other inconsistencies."""
    problems: list[Problem] = []

    def named(path: str, name: str, known: list[str], what: str) -> None:
        if name not in known:
            near = get_close_matches(name, known, 1)
            problems.append(Problem(path, repr(name), f"the name of a {what}", near[0] if near else ""))

    names, tables = [row.name for row in paper.rows], list({row.table for row in paper.rows if row.table})
    for name, run in paper.runs.items():
        if bool(run.workload) == bool(run.model):
            problems.append(Problem(f"run.{name}", "workload and model", "one of the two"))
    for row in paper.rows:
        if row.unit not in UNITS:
            named(f"{row.name}.unit", row.unit, list(UNITS), "unit")
        for part in row.sum:
            named(f"{row.name}.sum", part, names, "row")
        if not row.sum:
            named(f"{row.name}.run", row.run, runs, "run")
        if row.other_run:
            named(f"{row.name}.{'less_than' if row.less_than else 'beyond'}", row.other_run, runs, "run")
    for shape in paper.shapes:
        named(f"{shape.name}.kind", shape.kind, ["order", "step", "flat", "crossing"], "kind of shape")
        if shape.kind == "order":
            named(f"{shape.name}.row", shape.row, names, "row")
        elif shape.kind == "crossing":
            named(f"{shape.name}.table", shape.table, tables, "column")
            named(f"{shape.name}.other", shape.other, tables, "column")
            if len(shape.points) < 2:
                problems.append(Problem(f"{shape.name}.points", str(len(shape.points)), "two points or more"))
        else:
            named(f"{shape.name}.run", shape.run, runs, "run")
        if shape.kind == "step" and len(shape.points) != 4:
            problems.append(Problem(f"{shape.name}.points", str(len(shape.points)), "four points"))
    for relation in paper.relations:
        for side in (relation.left, relation.right):
            if isinstance(side, Figures):
                named(f"{relation.name}.run", side.run, runs, "run")
                if len(side.span) not in (0, 2) or ((side.span or side.slope) and not side.by):
                    problems.append(Problem(f"{relation.name}.span", str(side.span), "from and to, and by what"))
        if not relation.least and not relation.most:
            problems.append(Problem(relation.name, "no bound", "least or most"))
    for table in paper.tables:
        named(f"{table.name}.run", table.run, runs, "run")
    calibrated = sum(row.calibrated for row in paper.rows)
    if paper.constants >= max(calibrated, 1) and paper.constants:
        problems.append(
            Problem("constants", str(paper.constants), f"fewer than the {calibrated} rows that calibrate them")
        )
    if calibrated > _MAX_CALIBRATED:
        problems.append(Problem("row", f"{calibrated} calibrated ones", f"at most {_MAX_CALIBRATED}"))
    return problems


def _has_paper(package: str) -> bool:
    try:
        return (resources.files(package) / "paper.toml").is_file()
    except (ImportError, TestbedError):
        return False


def _table(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise DescriptionError("", [Problem("", repr(value), "a table")])
    return value
