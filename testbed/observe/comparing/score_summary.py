"""Summary of reproductions: a row for each system with the errors of its predictions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from testbed.observe.comparing.scores import Errors, Scores

HEADINGS: Final = ("system", "rows", "predicted", "median error", "p90", "worst", "worst row", "shapes")


class ScoredRow(Protocol):
    """A published value beside ours. error: relative, of ours."""

    @property
    def name(self) -> str: ...

    @property
    def error(self) -> float: ...

    @property
    def calibrated(self) -> bool: ...


class Scored(Protocol):
    """Rows of a system beside ours, measured or kept. shapes_hold: for each shape whether it holds."""

    @property
    def system(self) -> str: ...

    @property
    def rows(self) -> Sequence[ScoredRow]: ...

    @property
    def shapes_hold(self) -> Sequence[bool]: ...


def summary_rows(systems: Iterable[Scored]) -> list[list[str]]:
    """Cells of a table with `HEADINGS`: for each system its rows, and the median, 90th percentile and worst error of the
    predicted ones; a dash where there are none."""
    return [_cells(system) for system in systems]


def _cells(system: Scored) -> list[str]:
    predicted = [row for row in system.rows if not row.calibrated]
    shapes = f"{sum(system.shapes_hold)} of {len(system.shapes_hold)} hold"
    counts = [system.system, str(len(system.rows)), str(len(predicted))]
    if not predicted:
        return [*counts, "–", "–", "–", "–", shapes]
    worst = max(predicted, key=lambda row: abs(row.error)).name
    return [*counts, *_shares(Errors.of([row.error for row in predicted])), worst, shapes]


def table_errors(scores: Scores) -> list[list[str]]:
    """Cells of the errors of a paper's predicted rows, by table, and of all where there are several tables: number of rows,
    median, 90th percentile, worst."""
    by_table = {table or "rows of no table": errors for table, errors in scores.errors.items()}
    if len(by_table) > 1 and scores.overall is not None:
        by_table["all"] = scores.overall
    return [[table, str(errors.rows), *_shares(errors)] for table, errors in by_table.items()]


def _shares(errors: Errors) -> list[str]:
    return [f"{error:.1%}" for error in (errors.median, errors.p90, errors.worst)]
