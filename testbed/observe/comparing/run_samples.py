"""Samples of the measures of runs: for each measure at each point one value per repetition, the median of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from testbed.errors import NotFoundError, TestbedError
from testbed.observe.format.quantities import LABELS, Sense, is_point, sense_of
from testbed.observe.recorded import ROWS, RUN, RecordedRun, read_run, runs

Point = tuple[tuple[str, object], ...]
"""The conditions of a measurement: ``(("node", "n1"), ("size_bytes", 64))``."""

_MAX: Final = 1e18  # larger values, and NaN, are no measurements
NO_FIGURES: Final = ("invalid", "failed")
"""Verdicts on runs whose figures do not count."""


class NotComparableError(TestbedError):
    """Runs cannot be compared: missing, without valid figures, or of different workloads."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class RunSamples:
    """Samples of runs of one kind. values: of each repetition that has any, by seed and then in the order of the runs.
    exact: whether repeating the runs would give equal figures. parameters: of the runs, as texts; different values are
    joined by commas. settings: of the workload. notes: sentences for the reader."""

    values: Mapping[tuple[Point, str], Sequence[float]]
    seeds: Mapping[tuple[Point, str], Sequence[int]]
    exact: bool
    parameters: Mapping[str, str]
    settings: Mapping[str, str]
    notes: tuple[str, ...]

    def parameter(self, key: str) -> str:
        return self.parameters.get(key, "")


Figure = tuple[int, Point, str, float]
"""Seed, point, measure and value of a repetition."""


def read_samples(folder: Path) -> RunSamples:
    """Read a run's folder or a folder of runs of one kind. Raises NotComparableError, and the errors of reading."""
    return samples_of(folder, *read_runs(folder))


def read_runs(folder: Path) -> tuple[list[RecordedRun], list[str]]:
    """Read the runs of one kind whose figures count, with sentences about the others. Raises as `read_samples`."""
    try:
        chosen, notes = _trusted_runs(folder)
    except NotFoundError as error:
        raise NotComparableError(str(error)) from error
    kinds = dict.fromkeys((str(run.parameters.get("workload")), str(run.parameters.get("settings"))) for run in chosen)
    if len(kinds) > 1:
        raise NotComparableError(
            f"the runs in {folder} differ in workload or settings: {' and '.join(' '.join(kind) for kind in kinds)}"
        )
    return chosen, notes


def samples_of(folder: Path, chosen: Sequence[RecordedRun], notes: Sequence[str]) -> RunSamples:
    """Gather the samples of runs of one kind. Raises as `read_samples`."""
    figures: list[Figure] = []
    for run in chosen:
        figures += _run_figures(run)
    asked = [run.parameters for run in chosen]
    settings = {key: _format_parameter(value) for key, value in (asked[0].get("settings") or {}).items()}
    return gathered(folder, figures, asked, settings, notes)


def gathered(
    folder: Path,
    figures: list[Figure],
    asked: Sequence[Mapping[str, Any]],
    settings: Mapping[str, str],
    notes: Sequence[str],
) -> RunSamples:
    """Gather figures by point and measure. asked: the parameters of each run. Raises NotComparableError where there are no
    figures."""
    if not figures:
        raise NotComparableError(f"{folder} has no rows with a figure: there is nothing to compare")
    values: dict[tuple[Point, str], list[float]] = {}
    seeds: dict[tuple[Point, str], list[int]] = {}
    for seed, point, measure, value in sorted(figures, key=lambda figure: figure[0]):
        # Sorted by seed; stable, so equal seeds keep the order of the runs.
        values.setdefault((point, measure), []).append(value)
        seeds.setdefault((point, measure), []).append(seed)
    keys = dict.fromkeys(key for one in asked for key in one)
    parameters = {key: ", ".join(dict.fromkeys(_format_parameter(one.get(key, "")) for one in asked)) for key in keys}
    exact = all(one.get("mode") == "sim" for one in asked)
    return RunSamples(values, seeds, exact, parameters, settings, tuple(notes))


def _trusted_runs(folder: Path) -> tuple[list[RecordedRun], list[str]]:
    """Select the runs whose figures can be trusted, with sentences about the others."""
    alone = (folder / RUN).exists()
    found, notes = ([read_run(folder)], []) if alone else runs(folder)
    if not found:
        raise NotComparableError("; ".join(notes) or f"{folder} is not the folder of a run and contains none: no {RUN}")
    sound = []
    for run in found:
        grade = str((run.result.get("verdict") or {}).get("grade", ""))
        if run.status != "done":
            notes.append(f"{run.folder} has not ended well ({run.status}), and is left out")
        elif grade in NO_FIGURES:
            notes.append(f"{run.folder} is {grade}, and no figure of it counts")
        else:
            if grade == "degraded":
                notes.append(f"{run.folder} is degraded: its links deviated from their configuration")
            sound.append(run)
    if not sound:
        raise NotComparableError("; ".join(notes))
    return sound, notes


def _run_figures(run: RecordedRun) -> Iterator[Figure]:
    if not (run.folder / ROWS).exists():
        raise NotComparableError(f"{run.folder} has no {ROWS}: its measurements are lost")
    yield from figures_of(run.rows(), int(run.parameters.get("seed") or 0))


def figures_of(rows: Iterable[Mapping[str, Any]], first: int) -> Iterator[Figure]:
    """Yield the figures of a run's repetitions, each the median of its rows. first: the first repetition's seed."""
    values_by_measure: dict[tuple[int, Point, str], list[float]] = {}
    for row in rows:
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
