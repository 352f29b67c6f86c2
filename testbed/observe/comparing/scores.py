"""Scores of a reproduction: each of a paper's rows beside ours, the errors of the predictions, and what fails.

A calibrated row has chosen a constant of the profile; it must be within `MAX` of the paper's. The shapes that the paper
describes must hold, some of them as relations between our own runs. All other rows are predictions: nothing was chosen by
them, their errors are shown in any case, and none may be more than `SLACK` worse than the row that was kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Final, Literal, Self, TypeAlias

from testbed.errors import TestbedError
from testbed.observe.comparing.paper_shapes import Compared, Rows, Seen, check_relation, check_shape
from testbed.observe.papers import Paper, Row, Table, figure

Kind: TypeAlias = Literal["calibrated", "predicted", "paper"]

KINDS: Final[Mapping[Kind, str]] = {"calibrated": "calibrated", "predicted": "predicted", "paper": "the paper's"}
"""Kinds of lines in words; of "paper" there is nothing of ours."""

MAX: Final = 0.03
"""Relative error that a calibrated row may have."""

SLACK: Final = 0.02
"""By how much the relative error of a predicted row may exceed that of the kept one."""


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
        """Sum up relative errors, at least one."""
        ordered = sorted(map(abs, errors))
        return cls(len(ordered), median(ordered), ordered[-(-len(ordered) * 9 // 10) - 1], ordered[-1])


@dataclass(frozen=True, slots=True)
class Line:
    """A published value, in its unit, and ours beside it; ours and error are None where it is no measurement of ours. table:
    whose errors are summed up apart. kind: calibrated, predicted, or paper, of which there is nothing of ours."""

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
    """A paper's values beside ours. measured: our rows, by run. kept: our values of an earlier reproduction, by the name of
    their rows; empty where they are not to be compared."""

    system: str
    paper: Paper
    measured: Mapping[str, Rows]
    kept: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def rows(self) -> list[Compared]:
        """The paper's rows beside ours. Raises TestbedError for one that its run does not have."""
        rows: dict[str, Compared] = {}
        for row in self.paper.rows:
            rows[row.name] = Compared(row, _our_value(row, self.measured, rows))
        return list(rows.values())

    @cached_property
    def shapes(self) -> list[Seen]:
        """Shapes and relations, with whether they hold."""
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
    def lines(self) -> list[Line]:
        """All published values: the rows, then what is shown as the paper's."""
        ours = [
            Line(row.place, row.table, row.name, row.unit, row.paper, compared.ours, compared.error,
                 "calibrated" if row.calibrated else "predicted", row.source, row.meaning)
            for compared in self.rows
            for row in [compared.row]
        ]  # fmt: skip
        return ours + [
            Line(each.place, "", f"{each.name}: {whose}", each.unit, value, None, None, "paper", each.source)
            for each in self.paper.not_ours
            for whose, value in each.values.items()
        ]

    @property
    def predicted(self) -> list[Compared]:
        return [compared for compared in self.rows if not compared.calibrated]

    @property
    def holding(self) -> list[bool]:
        """For each shape whether it holds."""
        return [seen.holds for seen in self.shapes]

    @property
    def overall(self) -> Errors | None:
        """Errors of all predicted rows; None where there are none."""
        return Errors.of([compared.error for compared in self.predicted]) if self.predicted else None

    @property
    def errors(self) -> Mapping[str, Errors]:
        """Errors of the predicted rows, by table; "" are the rows of none."""
        by_table: dict[str, list[float]] = {}
        for compared in self.predicted:
            by_table.setdefault(compared.row.table, []).append(compared.error)
        return {table: Errors.of(errors) for table, errors in by_table.items()}

    @property
    def failures(self) -> list[str]:
        """A sentence for each calibrated row beyond `MAX`, each shape that does not hold, and each predicted row that has
        become worse than the kept one."""
        off = [compared for compared in self.rows if compared.calibrated and abs(compared.error) > MAX]
        worse = [
            (compared, error)
            for compared in self.predicted
            if (error := self._kept_error(compared.row)) is not None and abs(compared.error) > abs(error) + SLACK
        ]
        return [
            *[f"{_words(compared)}, and it calibrates" for compared in off],
            *[f"{seen.shape.name}: {seen.detail}" for seen in self.shapes if not seen.holds],
            *[f"{_words(compared)}, and the kept value was off by {error:+.1%}" for compared, error in worse],
        ]

    def _kept_error(self, row: Row) -> float | None:
        """Return the relative error of the kept value; None where the row is new."""
        return self.kept[row.name] / row.paper - 1 if row.name in self.kept else None


def _words(compared: Compared) -> str:
    row = compared.row
    return f"{row.name}: {compared.ours:.4g} {row.unit}, not {row.paper:g}: {compared.error:+.1%}"


def _our_value(row: Row, measured: Mapping[str, Rows], before: Mapping[str, Compared]) -> float:
    """Return our value in the row's unit. A sum adds earlier rows."""
    if row.sum:
        return sum(before[name].ours for name in row.sum)
    value = figure(row, measured[row.run], measured[row.other_run] if row.other_run else ())
    if value is None:
        raise TestbedError(f"{row.name}: run {row.run} has no {row.take} where {dict(row.where)}")
    return value
