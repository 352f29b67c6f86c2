"""Samples of the measures of runs: for each measure at each point one value per repetition, the median of its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from testbed.errors import NotFoundError, TestbedError
from testbed.observe.format.quantities import LABELS, Sense, is_point, sense_of
from testbed.observe.recorded import ROWS, RUN, Recorded, recorded, runs

Point = tuple[tuple[str, object], ...]
"""The conditions of a measurement: ``(("node", "n1"), ("size_bytes", 64))``."""

_MAX: Final = 1e18  # larger values, and NaN, are no measurements
_NO_FIGURES: Final = ("invalid", "failed")


class NotComparableError(TestbedError):
    """Runs cannot be compared: missing, without valid figures, or of different workloads."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class RunSamples:
    """Samples of runs of one kind. values: of each repetition that has any, by seed and then in the order of the runs.
    notes: sentences for the reader."""

    runs: tuple[Recorded, ...]
    values: Mapping[tuple[Point, str], Sequence[float]]
    seeds: Mapping[tuple[Point, str], Sequence[int]]
    notes: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Whether repeating the runs would give equal figures."""
        return all(run.asked.get("mode") == "sim" for run in self.runs)

    def parameter(self, key: str) -> str:
        """A parameter of the runs as text; different values are joined by commas."""
        return ", ".join(dict.fromkeys(_format_parameter(run.asked.get(key, "")) for run in self.runs))

    @property
    def settings(self) -> Mapping[str, str]:
        """Settings of the first run's workload, which all runs share."""
        return {key: _format_parameter(value) for key, value in (self.runs[0].asked.get("settings") or {}).items()}


def read_samples(folder: Path) -> RunSamples:
    """Read a run's folder or a folder of runs of one kind. Raises NotComparableError, and the errors of reading."""
    try:
        chosen, notes = _trusted_runs(folder)
    except NotFoundError as error:
        raise NotComparableError(str(error)) from error
    kinds = dict.fromkeys((str(run.asked.get("workload")), str(run.asked.get("settings"))) for run in chosen)
    if len(kinds) > 1:
        raise NotComparableError(
            f"the runs in {folder} differ in workload or settings: {' and '.join(' '.join(kind) for kind in kinds)}"
        )
    figures: list[tuple[int, Point, str, float]] = []
    for run in chosen:
        figures += _run_figures(run)
    if not figures:
        raise NotComparableError(f"{folder} has no rows with a figure: there is nothing to compare")
    figures.sort(key=lambda figure: figure[0])  # by seed; stable, so equal seeds keep the order of the runs
    values: dict[tuple[Point, str], list[float]] = {}
    seeds: dict[tuple[Point, str], list[int]] = {}
    for seed, point, measure, value in figures:
        values.setdefault((point, measure), []).append(value)
        seeds.setdefault((point, measure), []).append(seed)
    return RunSamples(tuple(chosen), values, seeds, tuple(notes))


def _trusted_runs(folder: Path) -> tuple[list[Recorded], list[str]]:
    """Select the runs whose figures can be trusted, with sentences about the others."""
    alone = (folder / RUN).exists()
    found, notes = ([recorded(folder)], []) if alone else runs(folder)
    if not found:
        raise NotComparableError("; ".join(notes) or f"{folder} is not the folder of a run and contains none: no {RUN}")
    sound = []
    for run in found:
        grade = str((run.result.get("verdict") or {}).get("grade", ""))
        if run.status != "done":
            notes.append(f"{run.folder} has not ended well ({run.status}), and is left out")
        elif grade in _NO_FIGURES:
            notes.append(f"{run.folder} is {grade}, and no figure of it counts")
        else:
            if grade == "degraded":
                notes.append(f"{run.folder} is degraded: its links deviated from their configuration")
            sound.append(run)
    if not sound:
        raise NotComparableError("; ".join(notes))
    return sound, notes


def _run_figures(run: Recorded) -> Iterator[tuple[int, Point, str, float]]:
    """Yield seed, point, measure and value of each repetition of a run."""
    if not (run.folder / ROWS).exists():
        raise NotComparableError(f"{run.folder} has no {ROWS}: its measurements are lost")
    first = int(run.asked.get("seed") or 0)
    values_by_measure: dict[tuple[int, Point, str], list[float]] = {}
    for row in run.rows():
        point = point_of(row)
        repeat = repeat_of(row)
        for key, value in row.items():
            if is_measure(key, value):
                values_by_measure.setdefault((repeat, point, key), []).append(float(value))
    for (repeat, point, key), values in values_by_measure.items():
        yield first + repeat - 1, point, key, median(values)


def repeat_of(row: Mapping[str, Any]) -> int:
    """Number of the repetition that measured the row; 1 where there was one only."""
    number = row.get("repeat")
    return number if isinstance(number, int) else 1


def point_of(row: Mapping[str, Any]) -> Point:
    """The conditions under which a row was measured, including its node, since nodes differ."""
    return tuple(
        (key, str(value) if key == "node" else value)
        for key, value in row.items()
        if key == "node" or (key not in LABELS and is_point(key, value))
    )


def is_measure(key: str, value: object) -> bool:
    """Whether a value is a figure with a better direction."""
    return (
        key not in LABELS
        and isinstance(value, int | float)
        and abs(value) < _MAX
        and not is_point(key, value)
        and sense_of(key) is not Sense.NONE
    )


def _format_parameter(value: object) -> str:
    """Format a parameter; a profile by its name."""
    if isinstance(value, dict):
        return str(value.get("name", value))
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
