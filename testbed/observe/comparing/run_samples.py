"""Samples of the measures of runs. A sample of a measure at a point has one value per repetition: the median of the
repetition's rows."""

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

_MAX_FIGURE: Final = 1e18  # larger values, and NaN, are not measurements
UNUSABLE_GRADES: Final = ("invalid", "failed")
"""Verdicts on runs whose figures are not used."""


_KIND: Final = ("workload", "settings", "protocol", "mode")
"""Parameters that are equal in runs of one kind."""


class NotComparableError(TestbedError):
    """Runs cannot be compared: missing, without valid figures, or of different workloads."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class RunSamples:
    """Samples of runs of one kind. values: a value for each repetition that has one, in the order of the seeds and then of
    the runs. seeds: the seeds of these repetitions. exact: whether repeating the runs would give equal figures. parameters:
    parameters of the runs, as text; different values are joined by commas. settings: settings of the workload. notes:
    sentences for the reader."""

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
    """Read a run's folder or a folder of runs of one kind. Raises NotComparableError, and the errors of `read_run`."""
    return samples_of(folder, *read_runs(folder))


def read_runs(folder: Path) -> tuple[list[RecordedRun], list[str]]:
    """Read the runs of one kind that have valid figures, with a note on each run that is left out. Raises the errors of
    `read_samples`."""
    try:
        selected, notes = _trusted_runs(folder)
    except NotFoundError as error:
        raise NotComparableError(str(error)) from error
    kinds = dict.fromkeys(tuple(str(run.parameters.get(key)) for key in _KIND) for run in selected)
    if len(kinds) > 1:
        raise NotComparableError(
            f"the runs in {folder} differ in workload, settings, protocol or mode: "
            f"{' and '.join(' '.join(kind) for kind in kinds)}"
        )
    return selected, notes


def samples_of(folder: Path, selected: Sequence[RecordedRun], notes: Sequence[str]) -> RunSamples:
    """Gather the samples of runs of one kind. Raises the errors of `read_samples`."""
    figures: list[Figure] = []
    for run in selected:
        figures += _run_figures(run)
    parameters_of_runs = [run.parameters for run in selected]
    settings = {key: _format_parameter(value) for key, value in (parameters_of_runs[0].get("settings") or {}).items()}
    return gather(folder, figures, parameters_of_runs, settings, notes)


def gather(
    folder: Path,
    figures: list[Figure],
    parameters_of_runs: Sequence[Mapping[str, Any]],
    settings: Mapping[str, str],
    notes: Sequence[str],
) -> RunSamples:
    """Gather figures by point and measure. folder: for error messages. parameters_of_runs: an entry for each run. Raises
    NotComparableError if there are no figures."""
    if not figures:
        raise NotComparableError(f"{folder} has no rows with a measure: there is nothing to compare")
    values: dict[tuple[Point, str], list[float]] = {}
    seeds: dict[tuple[Point, str], list[int]] = {}
    for seed, point, measure, value in sorted(
        figures, key=lambda figure: figure[0]
    ):  # equal seeds in the order of the runs
        values.setdefault((point, measure), []).append(value)
        seeds.setdefault((point, measure), []).append(seed)
    keys = dict.fromkeys(key for run in parameters_of_runs for key in run)
    parameters = {
        key: ", ".join(dict.fromkeys(_format_parameter(run.get(key, "")) for run in parameters_of_runs)) for key in keys
    }
    exact = all(run.get("mode") == "sim" for run in parameters_of_runs)
    return RunSamples(values, seeds, exact, parameters, settings, tuple(notes))


def _trusted_runs(folder: Path) -> tuple[list[RecordedRun], list[str]]:
    """Select the runs that have valid figures, with a note on each run that is left out or degraded."""
    is_run = (folder / RUN).exists()
    all_runs, notes = ([read_run(folder)], []) if is_run else runs(folder)
    if not all_runs:
        raise NotComparableError("; ".join(notes) or f"{folder} is not the folder of a run and contains none: no {RUN}")
    trusted = []
    for run in all_runs:
        grade = str((run.result.get("verdict") or {}).get("grade", ""))
        if run.status != "done":
            notes.append(f"{run.folder} did not complete ({run.status}), and is left out")
        elif grade in UNUSABLE_GRADES:
            notes.append(f"{run.folder} is {grade}, and its figures are not used")
        else:
            if grade == "degraded":
                notes.append(f"{run.folder} is degraded: its links deviated from their configuration")
            trusted.append(run)
    if not trusted:
        raise NotComparableError("; ".join(notes))
    return trusted, notes


def _run_figures(run: RecordedRun) -> Iterator[Figure]:
    if not (run.folder / ROWS).exists():
        raise NotComparableError(f"{run.folder} has no {ROWS}: its measurements are lost")
    yield from figures_of(run.rows(), int(run.parameters.get("seed") or 0))


def figures_of(rows: Iterable[Mapping[str, Any]], first_seed: int) -> Iterator[Figure]:
    """Yield the figures of a run's repetitions, each the median of the repetition's rows. first_seed: seed of the first
    repetition; each further one has the next seed."""
    values_by_measure: dict[tuple[int, Point, str], list[float]] = {}
    for row in rows:
        point = point_of(row)
        repeat = repeat_of(row)
        for key, value in row.items():
            if is_measure(key, value):
                values_by_measure.setdefault((repeat, point, key), []).append(float(value))
    for (repeat, point, key), values in values_by_measure.items():
        yield first_seed + repeat - 1, point, key, median(values)


def repeat_of(row: Mapping[str, Any]) -> int:
    """Return the number of the repetition that measured the row; 1 if the run had a single repetition."""
    number = row.get("repeat")
    return number if isinstance(number, int) else 1


def point_of(row: Mapping[str, Any]) -> Point:
    """Return the conditions under which a row was measured, including its node, since nodes differ."""
    return tuple(
        (key, str(value) if key == "node" else value)
        for key, value in row.items()
        if key == "node" or (key not in LABELS and is_point(key, value))
    )


def is_measure(key: str, value: object) -> bool:
    """Whether a value is a figure for which less or more is better."""
    return (
        key not in LABELS
        and isinstance(value, int | float)
        and abs(value) < _MAX_FIGURE
        and not is_point(key, value)
        and sense_of(key) is not Sense.NONE
    )


def _format_parameter(value: object) -> str:
    """Format a parameter; a profile is shown by its name."""
    if isinstance(value, dict):
        return str(value.get("name", value))
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
