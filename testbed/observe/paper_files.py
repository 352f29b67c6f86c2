"""Reader of papers' results: the file `paper.toml` in a protocol's package. An unknown key, or a reference to a run, row or
column that does not exist, is an error. All errors of a file are reported together."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final, TypeVar

from testbed import registry
from testbed.errors import DescriptionError, NotFoundError, Problem, TestbedError
from testbed.observe.papers import (
    UNITS,
    Column,
    Curve,
    Figures,
    Paper,
    PaperFigure,
    PaperRun,
    Published,
    Relation,
    Row,
    Shape,
    Table,
    Unmatched,
)
from testbed.workloads.workload_settings import parse_settings

Form = TypeVar("Form")

_MAX_CALIBRATED_ROWS: Final = 3


def systems() -> list[str]:
    """List the registered protocols that have a paper."""
    offered = registry.offered(registry.PROTOCOLS)
    return [name for name, offer in offered.items() if _has_paper(offer.module.rpartition(".")[0])]


def folder_of(protocol: str) -> Traversable:
    """Return the package folder of a registered protocol that has a paper. Raises NotFoundError."""
    offered = registry.offered(registry.PROTOCOLS)
    if protocol not in offered:
        registry.load(registry.PROTOCOLS, protocol)  # raises NotFoundError, with the reason
    package = offered[protocol].module.rpartition(".")[0]
    if not _has_paper(package):
        raise NotFoundError(f"protocol {protocol} has no paper to compare with; {', '.join(systems())} have one")
    return resources.files(package)


def paper_of(protocol: str) -> Paper:
    """Load the paper of a registered protocol. Raises NotFoundError if the protocol has none, DescriptionError for an
    invalid file."""
    text = (folder_of(protocol) / "paper.toml").read_text(encoding="utf-8")
    return parse(text, f"the paper of {protocol}")


def parse(text: str, source: str) -> Paper:
    """Parse a paper's TOML. source: name of the text, for errors. Raises DescriptionError with all problems."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DescriptionError(source, [Problem("", "", f"a file in TOML: {error}")]) from error
    problems: list[Problem] = []

    def build(form: type[Form], table: object, path: str) -> Form | None:
        try:
            return form(**parse_settings(form, _table(table), path))
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

    def build_all(form: type[Form], key: str) -> tuple[Form, ...]:
        built_tables = [build(form, table, f"{key}[{number}]") for number, table in enumerate(document.pop(key, []), 1)]
        return tuple([table for table in built_tables if table is not None])

    def build_sides(table: object, path: str) -> object:
        """Parse the two sides of a relation's table as figures."""
        if not isinstance(table, Mapping):
            return table
        sides = {side: build(Figures, table[side], f"{path}.{side}") for side in ("left", "right") if side in table}
        return {**table, **sides}

    def build_curves(table: object, path: str) -> object:
        """Parse the curves of a figure's table."""
        if not isinstance(table, Mapping) or not isinstance(table.get("curves"), list):
            return table
        curves = [build(Curve, curve, f"{path}.curves[{number}]") for number, curve in enumerate(table["curves"], 1)]
        return {**table, "curves": [curve for curve in curves if curve is not None]}

    document["figure"] = [
        build_curves(table, f"figure[{number}]") for number, table in enumerate(document.get("figure", []), 1)
    ]
    document["relation"] = [
        build_sides(table, f"relation[{number}]") for number, table in enumerate(document.get("relation", []), 1)
    ]
    runs = {name: build(PaperRun, table, f"run.{name}") for name, table in document.pop("run", {}).items()}
    fields = {
        "runs": {name: run for name, run in runs.items() if run is not None},
        "rows": (*build_all(Row, "row"), *_rows_of(build_all(Column, "column"), problems)),
        "shapes": build_all(Shape, "shape"), "relations": build_all(Relation, "relation"),
        "tables": build_all(Table, "table"), "unmatched": build_all(Unmatched, "unmatched"),
        "figures": build_all(PaperFigure, "figure"), "shown": build_all(Published, "shown"),
    }  # fmt: skip
    paper = build(Paper, {**document, **fields}, "")
    if paper is not None:
        problems += _inconsistencies(paper, list(runs))
    if paper is None or problems:
        raise DescriptionError(source, problems)
    return paper


def _rows_of(columns: Iterable[Column], problems: list[Problem]) -> list[Row]:
    """Return the rows of columns; add a problem for each invalid column."""
    rows: list[Row] = []
    for column in columns:
        if len(column.at) != len(column.paper):
            count = f"{len(column.paper)} values"
            problems.append(Problem(f"{column.name}.paper", count, f"as many as in 'at', {len(column.at)}"))
        else:
            rows += column.rows()
    return rows


def _inconsistencies(paper: Paper, runs: list[str]) -> list[Problem]:
    """List the references to rows and runs that do not exist, and other inconsistencies. runs: the names of all runs, also
    of invalid ones."""
    problems: list[Problem] = []

    def check_name(path: str, name: str, names: list[str], kind: str) -> None:
        if name not in names:
            near = get_close_matches(name, names, 1)
            problems.append(Problem(path, repr(name), f"the name of a {kind}", near[0] if near else ""))

    names, tables = [row.name for row in paper.rows], list({row.table for row in paper.rows if row.table})
    for name, run in paper.runs.items():
        if bool(run.workload) == bool(run.model):
            problems.append(Problem(f"run.{name}", "workload and model", "one of the two"))
    for row in paper.rows:
        if row.unit not in UNITS:
            check_name(f"{row.name}.unit", row.unit, list(UNITS), "unit")
        for summand in row.sum:
            check_name(f"{row.name}.sum", summand, names, "row")
        if not row.sum:
            check_name(f"{row.name}.run", row.run, runs, "run")
        if row.other_run:
            check_name(f"{row.name}.{'less_than' if row.less_than else 'beyond'}", row.other_run, runs, "run")
    for shape in paper.shapes:
        check_name(f"{shape.name}.kind", shape.kind, ["order", "step", "flat", "crossing"], "kind of shape")
        if shape.kind == "order":
            check_name(f"{shape.name}.row", shape.row, names, "row")
        elif shape.kind == "crossing":
            check_name(f"{shape.name}.table", shape.table, tables, "column")
            check_name(f"{shape.name}.other", shape.other, tables, "column")
            if len(shape.points) < 2:
                problems.append(Problem(f"{shape.name}.points", str(len(shape.points)), "two points or more"))
        else:
            check_name(f"{shape.name}.run", shape.run, runs, "run")
        if shape.kind == "step" and len(shape.points) != 4:
            problems.append(Problem(f"{shape.name}.points", str(len(shape.points)), "four points"))
    for relation in paper.relations:
        for side in (relation.left, relation.right):
            if isinstance(side, Figures):
                check_name(f"{relation.name}.run", side.run, runs, "run")
                if len(side.span) not in (0, 2) or ((side.span or side.slope) and not side.by):
                    problems.append(Problem(f"{relation.name}.span", str(side.span), "two bounds, and a key 'by'"))
        if not relation.least and not relation.most:
            problems.append(Problem(relation.name, "no bound", "least or most"))
    for table in paper.tables:
        check_name(f"{table.name}.run", table.run, runs, "run")
    for figure in paper.figures:
        if len(figure.axes) != 2:
            problems.append(Problem(f"{figure.name}.axes", str(len(figure.axes)), "two labels, of x and of y"))
        for curve in figure.curves:
            check_name(f"{figure.name}.run", curve.run, runs, "run")
            for point in curve.points:
                check_name(f"{figure.name}.points", point, [*names, *tables], "row or column")
    calibrated = sum(row.calibrated for row in paper.rows)
    if paper.constants >= max(calibrated, 1) and paper.constants:
        problems.append(
            Problem("constants", str(paper.constants), f"fewer than the {calibrated} rows that calibrate them")
        )
    if calibrated > _MAX_CALIBRATED_ROWS:
        problems.append(Problem("row", f"{calibrated} calibrated rows", f"at most {_MAX_CALIBRATED_ROWS}"))
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
