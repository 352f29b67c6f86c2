"""What runs have measured, as samples: for each measure at each point one value of every repetition, its rows' median."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from testbed.errors import NotFoundError, TestbedError
from testbed.observe.quantities import LABELS, Sense, is_point, sense_of
from testbed.observe.recorded import ROWS, RUN, Recorded, recorded, runs

Point = tuple[tuple[str, object], ...]
"""What was measured: ``(("node", "n1"), ("size_bytes", 64))``."""

_MOST: Final = 1e18  # what is more, or no number at all, nobody has measured
_NO_FIGURES: Final = ("invalid", "failed")


class NotComparableError(TestbedError):
    """What is to be compared is not there, tells no figures, or is of different things."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Gathered:
    """Runs of one kind. values: of each repetition that has any, by its seed and then in the order of the runs. notes: what
    is to be known of them."""

    runs: tuple[Recorded, ...]
    values: Mapping[tuple[Point, str], Sequence[float]]
    seeds: Mapping[tuple[Point, str], Sequence[int]]
    notes: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """The same runs would give the same figures."""
        return all(run.asked.get("mode") == "sim" for run in self.runs)

    def said(self, key: str) -> str:
        """What was asked for, of all runs."""
        return ", ".join(dict.fromkeys(_words(run.asked.get(key, "")) for run in self.runs))

    @property
    def settings(self) -> Mapping[str, str]:
        """Of the first run's workload: the others have the same."""
        return {key: _words(value) for key, value in (self.runs[0].asked.get("settings") or {}).items()}


def gather(folder: Path) -> Gathered:
    """A run's folder, or one with several runs of the same kind. Raises NotComparableError, and what reading does."""
    try:
        chosen, notes = _chosen(folder)
    except NotFoundError as error:
        raise NotComparableError(str(error)) from error
    kinds = dict.fromkeys((str(run.asked.get("workload")), str(run.asked.get("settings"))) for run in chosen)
    if len(kinds) > 1:
        raise NotComparableError(
            f"the runs in {folder} are of different things: {' and '.join(' '.join(kind) for kind in kinds)}"
        )
    found: list[tuple[int, Point, str, float]] = []
    for run in chosen:
        found += _of_run(run)
    if not found:
        raise NotComparableError(f"{folder} has no rows with a figure: there is nothing to compare")
    found.sort(key=lambda one: one[0])  # by seed; what has the same in the order of the runs
    values: dict[tuple[Point, str], list[float]] = {}
    seeds: dict[tuple[Point, str], list[int]] = {}
    for seed, point, measure, value in found:
        values.setdefault((point, measure), []).append(value)
        seeds.setdefault((point, measure), []).append(seed)
    return Gathered(tuple(chosen), values, seeds, tuple(notes))


def _chosen(folder: Path) -> tuple[list[Recorded], list[str]]:
    """Those whose figures can be trusted, and sentences about the others."""
    alone = (folder / RUN).exists()
    found, notes = ([recorded(folder)], []) if alone else runs(folder)
    if not found:
        raise NotComparableError(
            "; ".join(notes) or f"{folder} is no folder of a run, and has none in it: there is no {RUN}"
        )
    sound = []
    for run in found:
        grade = str((run.result.get("verdict") or {}).get("grade", ""))
        if run.status != "done":
            notes.append(f"{run.folder} has not ended well ({run.status}), and is left out")
        elif grade in _NO_FIGURES:
            notes.append(f"{run.folder} is {grade}, and no figure of it counts")
        else:
            if grade == "degraded":
                notes.append(f"{run.folder} is degraded: its links did not do quite what was asked")
            sound.append(run)
    if not sound:
        raise NotComparableError("; ".join(notes))
    return sound, notes


def _of_run(run: Recorded) -> Iterator[tuple[int, Point, str, float]]:
    """Seed, point, measure and value of each of its repetitions."""
    if not (run.folder / ROWS).exists():
        raise NotComparableError(f"{run.folder} has no {ROWS}: what it measured is lost")
    first = int(run.asked.get("seed") or 0)
    found: dict[tuple[int, Point, str], list[float]] = {}
    for row in run.rows():
        point = point_of(row)
        repeat = repeat_of(row)
        for key, value in row.items():
            if is_measure(key, value):
                found.setdefault((repeat, point, key), []).append(float(value))
    for (repeat, point, key), values in found.items():
        yield first + repeat - 1, point, key, median(values)


def repeat_of(row: Mapping[str, Any]) -> int:
    """In which repetition it was measured; 1 where there was one only."""
    number = row.get("repeat")
    return number if isinstance(number, int) else 1


def point_of(row: Mapping[str, Any]) -> Point:
    """What a row says of what was measured. Where it was, too: no two nodes are the same."""
    return tuple(
        (key, str(value) if key == "node" else value)
        for key, value in row.items()
        if key == "node" or (key not in LABELS and is_point(key, value))
    )


def is_measure(key: str, value: object) -> bool:
    """Whether it is a figure of which more or less is better."""
    return (
        key not in LABELS
        and isinstance(value, int | float)
        and abs(value) < _MOST
        and not is_point(key, value)
        and sense_of(key) is not Sense.NONE
    )


def _words(value: object) -> str:
    """A profile by its name."""
    if isinstance(value, dict):
        return str(value.get("name", value))
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
