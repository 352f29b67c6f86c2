"""Scores of a reproduction: a paper's rows compared with ours, the errors of the predictions, and failures.

A calibrated row was used to choose a constant of the profile; its error must be within `MAX_CALIBRATION_ERROR`. All other
rows are predictions; the error of a prediction may exceed that of the kept row by at most `MAX_WORSENING`. The shapes that
the paper describes must hold; some are relations between our own runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Final, Literal, Self, TypeAlias

from testbed.errors import TestbedError
from testbed.observe.comparing.paper_shapes import Compared, Rows, ShapeResult, check_relation, check_shape
from testbed.observe.papers import Paper, Row, Table, figure

Kind: TypeAlias = Literal["calibrated", "predicted", "paper"]

KINDS: Final[Mapping[Kind, str]] = {"calibrated": "calibrated", "predicted": "predicted", "paper": "the paper's"}
"""Kinds of lines and their names; "paper": a published value that we do not measure."""

MAX_CALIBRATION_ERROR: Final = 0.03
"""Maximum relative error of a calibrated row."""

MAX_WORSENING: Final = 0.02
"""Maximum increase of a predicted row's relative error over that of the kept row."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Absolute errors of several rows: their number, median, 90th percentile (nearest rank), and maximum."""

    rows: int
    median: float
    p90: float
    worst: float

    @classmethod
    def of(cls, errors: Sequence[float]) -> Self:
        """Summarize relative errors, at least one."""
        ordered = sorted(map(abs, errors))
        return cls(len(ordered), median(ordered), ordered[-(-len(ordered) * 9 // 10) - 1], ordered[-1])


@dataclass(frozen=True, slots=True)
class ScoreLine:
    """A published value and ours, in `unit`. ours, error: None if we do not measure the value. place: the table, figure or
    section of the paper. table: group of rows whose errors are summarized separately. kind: see `KINDS`."""

    place: str
    table: str
    name: str
    unit: str
    paper: float
    ours: float | None
    error: float | None
    kind: Kind
    source: str
    meaning: str = ""


@dataclass(frozen=True)
class Scores:
    """A paper's values and ours. measured: our rows, by run. kept: our values of an earlier reproduction, by name of the
    row; empty: they are not compared."""

    system: str
    paper: Paper
    measured: Mapping[str, Rows]
    kept: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def rows(self) -> list[Compared]:
        """The paper's rows with our values. Raises TestbedError if a run lacks a row."""
        rows: dict[str, Compared] = {}
        for row in self.paper.rows:
            rows[row.name] = Compared(row, _our_value(row, self.measured, rows))
        return list(rows.values())

    @cached_property
    def shapes(self) -> list[ShapeResult]:
        """Results of the checks of shapes and relations."""
        rows = {compared.row.name: compared for compared in self.rows}
        return [
            *[check_shape(shape, self.measured, rows) for shape in self.paper.shapes],
            *[check_relation(relation, self.measured) for relation in self.paper.relations],
        ]

    @property
    def tables(self) -> list[tuple[Table, Rows]]:
        """Tables to print, each with the rows of its run."""
        return [(table, self.measured[table.run]) for table in self.paper.tables]

    @property
    def lines(self) -> list[ScoreLine]:
        """All published values: first the rows, then the values that we do not measure."""
        ours = [
            ScoreLine(row.place, row.table, row.name, row.unit, row.paper, compared.ours, compared.error,
                 "calibrated" if row.calibrated else "predicted", row.source, row.meaning)
            for compared in self.rows
            for row in [compared.row]
        ]  # fmt: skip
        return ours + [
            ScoreLine(row.place, "", f"{row.name}: {series}", row.unit, value, None, None, "paper", row.source)
            for row in self.paper.unmeasured
            for series, value in row.values.items()
        ]

    @property
    def predicted(self) -> list[Compared]:
        """The rows that were not used for calibration."""
        return [compared for compared in self.rows if not compared.calibrated]

    @property
    def shapes_hold(self) -> list[bool]:
        """Whether each shape holds."""
        return [result.holds for result in self.shapes]

    @property
    def overall(self) -> Errors | None:
        """Errors of all predicted rows; None if there are none."""
        return Errors.of([compared.error for compared in self.predicted]) if self.predicted else None

    @property
    def errors(self) -> Mapping[str, Errors]:
        """Errors of the predicted rows, by table; "" for rows without a table."""
        by_table: dict[str, list[float]] = {}
        for compared in self.predicted:
            by_table.setdefault(compared.row.table, []).append(compared.error)
        return {table: Errors.of(errors) for table, errors in by_table.items()}

    @property
    def failures(self) -> list[str]:
        """A message for each calibrated row beyond `MAX_CALIBRATION_ERROR`, each shape that does not hold, and each
        predicted row that has become worse than the kept one."""
        missed = [
            compared for compared in self.rows if compared.calibrated and abs(compared.error) > MAX_CALIBRATION_ERROR
        ]
        worsened = [
            (compared, error)
            for compared in self.predicted
            if (error := self._kept_error(compared.row)) is not None
            and abs(compared.error) > abs(error) + MAX_WORSENING
        ]
        return [
            *[f"{_deviation(compared)}, though it is calibrated" for compared in missed],
            *[f"{result.shape.name}: {result.detail}" for result in self.shapes if not result.holds],
            *[f"{_deviation(compared)}, the kept error is {error:+.1%}" for compared, error in worsened],
        ]

    def _kept_error(self, row: Row) -> float | None:
        """Return the relative error of the kept value; None if the row is new."""
        return self.kept[row.name] / row.paper - 1 if row.name in self.kept else None


def _deviation(compared: Compared) -> str:
    row = compared.row
    return f"{row.name}: {compared.ours:.4g} {row.unit}, not {row.paper:g}: {compared.error:+.1%}"


def _our_value(row: Row, measured: Mapping[str, Rows], previous: Mapping[str, Compared]) -> float:
    """Return our value in the row's unit. previous: the rows before it, by name, which a row with `sum` adds up. Raises
    TestbedError if the run lacks the value."""
    if row.sum:
        return sum(previous[name].ours for name in row.sum)
    value = figure(row, measured[row.run], measured[row.other_run] if row.other_run else ())
    if value is None:
        raise TestbedError(f"{row.name}: run {row.run} has no row with {row.take} and {dict(row.where)}")
    return value
