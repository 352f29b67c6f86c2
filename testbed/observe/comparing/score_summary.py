"""Summary of reproductions: a row for each system with the errors of its predictions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from testbed.observe.comparing.scores import Errors, Scores

HEADINGS: Final = ("system", "rows", "predicted", "median error", "p90", "worst", "worst row", "shapes")


class ScoredRow(Protocol):
    """A published value and ours. error: relative error of our value."""

    @property
    def name(self) -> str: ...

    @property
    def error(self) -> float: ...

    @property
    def calibrated(self) -> bool: ...


class ScoredSystem(Protocol):
    """A system's rows with our values, measured or kept. shapes_hold: whether each shape holds."""

    @property
    def system(self) -> str: ...

    @property
    def rows(self) -> Sequence[ScoredRow]: ...

    @property
    def shapes_hold(self) -> Sequence[bool]: ...


def summary_rows(systems: Iterable[ScoredSystem]) -> list[list[str]]:
    """Return the cells of a table with `HEADINGS`: for each system its rows, and the median, 90th percentile and worst error
    of the predicted rows; a dash if there are none."""
    return [_cells(system) for system in systems]


def _cells(system: ScoredSystem) -> list[str]:
    predicted = [row for row in system.rows if not row.calibrated]
    shapes = f"{sum(system.shapes_hold)} of {len(system.shapes_hold)} hold"
    counts = [system.system, str(len(system.rows)), str(len(predicted))]
    if not predicted:
        return [*counts, "–", "–", "–", "–", shapes]
    worst = max(predicted, key=lambda row: abs(row.error)).name
    return [*counts, *_percentages(Errors.of([row.error for row in predicted])), worst, shapes]


def table_errors(scores: Scores) -> list[list[str]]:
    """Return a row of cells for each table of a paper: the table, the number of its predicted rows, and the median, 90th
    percentile and worst of their errors. With several tables, a row for all of them follows."""
    by_table = {table or "rows of no table": errors for table, errors in scores.errors.items()}
    if len(by_table) > 1 and scores.overall is not None:
        by_table["all"] = scores.overall
    return [[table, str(errors.rows), *_percentages(errors)] for table, errors in by_table.items()]


def _percentages(errors: Errors) -> list[str]:
    return [f"{error:.1%}" for error in (errors.median, errors.p90, errors.worst)]
