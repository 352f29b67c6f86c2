"""Two sets of runs, measure by measure: what is worse, what is better, and what the samples do not tell.

All intervals hold together: the risk that any of them misses is divided among them (Bonferroni), so that a run that is as
good as another is called worse once in twenty comparisons at most, however many measures there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from statistics import median
from typing import Final

from testbed.observe.comparing.gathering import Gathered, NotComparableError, Point, gather
from testbed.observe.comparing.ratios import Ratio, enough, independent, paired
from testbed.observe.quantities import Sense, cell, heading, sense_of

RISK: Final = 0.05
"""That any of the intervals misses."""

THRESHOLD: Final = 0.05
"""By what share a measure must be worse to matter, if nothing else is said."""

_ASKED: Final = ("cluster", "protocol", "mode", "profile", "codec", "nics", "dilate")


class Judgement(Enum):
    """Of a measure."""

    WORSE = "worse"
    BETTER = "better"
    UNDECIDED = "undecided"
    """The medians differ by more than the threshold, and the samples are too few to tell whether that is chance."""
    SAME = "no difference"


@dataclass(frozen=True, slots=True)
class Measured:
    """A measure at a point. ours, theirs: medians. samples: of each side."""

    point: Point
    measure: str
    ours: float
    theirs: float
    samples: tuple[int, int]
    ratio: Ratio
    judgement: Judgement

    @property
    def where(self) -> str:
        """``n1, size 64 B``; a row of a paper by its name."""
        return ", ".join(
            str(value) if isinstance(value, str) else f"{heading(key)} {cell(key, value)}" for key, value in self.point
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """measured: the worst first. differences: what was asked for differently, in words. notes: sentences."""

    measured: tuple[Measured, ...]
    threshold: float
    differences: tuple[str, ...]
    notes: tuple[str, ...]

    def judged(self, judgement: Judgement) -> list[Measured]:
        return [one for one in self.measured if one.judgement is judgement]

    @property
    def worse(self) -> bool:
        return bool(self.judged(Judgement.WORSE))


def compare(ours: Path, theirs: Path, threshold: float = THRESHOLD, measures: Sequence[str] = ()) -> Comparison:
    """Theirs against ours: a run's folder, or one with runs of the same kind. measures: only these keys.

    Raises NotComparableError for different workloads, and where they have nothing in common; and what reading does.
    """
    one, other = gather(ours), gather(theirs)
    workloads = one.said("workload"), other.said("workload")
    if workloads[0] != workloads[1]:
        raise NotComparableError(
            f"{ours} is of {workloads[0]}, {theirs} of {workloads[1]}: different things do not compare"
        )
    shared = [key for key in one.values if key in other.values]
    differences = _differences(one, other)
    if not shared:
        because = f"; they differ in {', '.join(differences)}" if differences else ""
        raise NotComparableError(f"{ours} and {theirs} have measured nothing that is the same{because}")
    shared = chosen(shared, measures)
    risk = RISK / len(shared)
    found = [_measured(key, one, other, threshold, risk) for key in shared]
    notes = [*one.notes, *other.notes, *_alone(one, other)]
    if any(result.judgement is Judgement.UNDECIDED for result in found):
        notes.append(
            f"undecided: too few repetitions to tell a difference from chance; of {enough(risk)} on each side that are all "
            f"worse it can be told (run --repeat {enough(risk)}, or compare fewer measures)"
        )
    return Comparison(tuple(sort(found)), threshold, tuple(differences), tuple(notes))


def chosen(keys: Sequence[tuple[Point, str]], measures: Sequence[str]) -> list[tuple[Point, str]]:
    """Those of the measures that somebody asked for, by key or as tables call it. Raises NotComparableError."""
    there = dict.fromkeys(measure for _, measure in keys)
    for wanted in measures:
        if not any(wanted in (measure, heading(measure)) for measure in there):
            raise NotComparableError(f"there is no measure {wanted!r} in both; there are {', '.join(there)}")
    return [key for key in keys if not measures or {key[1], heading(key[1])} & set(measures)]


def judge(ratio: Ratio, sense: Sense, threshold: float) -> Judgement:
    """Beyond the threshold, and not by chance."""
    if sense is Sense.NONE or 1 - threshold <= ratio.value <= 1 + threshold:
        return Judgement.SAME
    if ratio.low is None:
        return Judgement.UNDECIDED
    if not ratio.excludes_one:
        return Judgement.SAME
    return Judgement.WORSE if (ratio.value > 1) is (sense is Sense.LESS) else Judgement.BETTER


def sort(found: Iterable[Measured]) -> list[Measured]:
    """The worst first; what is alike stays in its order."""
    return sorted(found, key=lambda one: list(Judgement).index(one.judgement))


def _measured(key: tuple[Point, str], one: Gathered, other: Gathered, threshold: float, risk: float) -> Measured:
    ours, theirs = one.values[key], other.values[key]
    same_seeds = list(one.seeds[key]) == list(other.seeds[key])
    # Simulations repeat exactly: under the same seeds they differ by what was changed, and by nothing else.
    ratio = (paired if one.exact and other.exact and same_seeds else independent)(ours, theirs, risk)
    point, measure = key
    counts = len(ours), len(theirs)
    return Measured(
        point, measure, median(ours), median(theirs), counts, ratio, judge(ratio, sense_of(measure), threshold)
    )


def _differences(one: Gathered, other: Gathered) -> list[str]:
    def differing(kind: str, ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
        keys = dict.fromkeys([*ours, *theirs])
        return [
            f"{kind}{key} ({ours.get(key) or 'none'}, {theirs.get(key) or 'none'})"
            for key in keys
            if ours.get(key) != theirs.get(key)
        ]

    asked = {key: one.said(key) for key in _ASKED}, {key: other.said(key) for key in _ASKED}
    return [*differing("", *asked), *differing("setting ", one.settings, other.settings)]


def _alone(one: Gathered, other: Gathered) -> list[str]:
    """What only one side has measured."""
    ours, theirs = ({point for point, _ in side.values} for side in (one, other))
    missing = len(ours ^ theirs)
    return [f"{missing} points were measured on one side only, and are left out"] if missing else []
