"""Comparison of two sets of runs, measure by measure: worse, better, undecided, or no difference.

The confidence intervals are simultaneous: the risk is divided among them (Bonferroni). So an equally good run is judged
worse in at most one of 20 comparisons, however many measures it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from statistics import median
from typing import Final

from testbed.observe.comparing.ratios import Ratio, independent, min_samples, paired
from testbed.observe.comparing.run_samples import NotComparableError, Point, RunSamples, read_samples
from testbed.observe.format.quantities import Sense, format_value, heading, sense_of

RISK: Final = 0.05
"""Probability that any of the intervals does not contain the true ratio."""

THRESHOLD: Final = 0.05
"""Default fraction by which a measure must differ to matter."""

_PARAMETERS: Final = ("cluster", "protocol", "mode", "profile", "codec", "nics", "dilate")


class Judgement(Enum):
    """Result for a measure."""

    WORSE = "worse"
    BETTER = "better"
    UNDECIDED = "undecided"
    """The ratio is beyond the threshold, but its interval includes 1, or there are too few samples for an interval."""
    SAME = "no difference"


@dataclass(frozen=True, slots=True)
class ComparedMeasure:
    """A measure at a point, compared. ours, theirs: medians. samples: number of samples on each side."""

    point: Point
    measure: str
    ours: float
    theirs: float
    samples: tuple[int, int]
    ratio: Ratio
    judgement: Judgement

    @property
    def where(self) -> str:
        """The point as text: ``n1, size 64 B``; a paper's row by its name."""
        return ", ".join(
            str(value) if isinstance(value, str) else f"{heading(key)} {format_value(key, value)}"
            for key, value in self.point
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of a comparison. measured: sorted by judgement, as its members are. differences: between the runs' parameters,
    as text. notes: sentences."""

    measured: tuple[ComparedMeasure, ...]
    threshold: float
    differences: tuple[str, ...]
    notes: tuple[str, ...]

    def judged(self, judgement: Judgement) -> list[ComparedMeasure]:
        return [measure for measure in self.measured if measure.judgement is judgement]

    @property
    def worse(self) -> bool:
        return bool(self.judged(Judgement.WORSE))


def compare(ours: Path, theirs: Path, threshold: float = THRESHOLD, measures: Sequence[str] = ()) -> Comparison:
    """Compare theirs, the candidate, with ours, the baseline; each is a run's folder or a folder of runs of one
    kind. measures: compare only these keys.

    Raises NotComparableError for different workloads and for runs without a common measure, and the errors of `read_runs`.
    """
    return compare_samples((ours, theirs), read_samples(ours), read_samples(theirs), threshold, measures)


def compare_samples(
    folders: tuple[Path, Path],
    our_samples: RunSamples,
    their_samples: RunSamples,
    threshold: float = THRESHOLD,
    measures: Sequence[str] = (),
) -> Comparison:
    """Compare samples, see `compare`. folders: folders of both sides, for error messages."""
    ours, theirs = folders
    workloads = our_samples.parameter("workload"), their_samples.parameter("workload")
    if workloads[0] != workloads[1]:
        raise NotComparableError(
            f"{ours} is of {workloads[0]}, {theirs} of {workloads[1]}: different workloads cannot be compared"
        )
    shared = [key for key in our_samples.values if key in their_samples.values]
    differences = _differences(our_samples, their_samples)
    if not shared:
        reason = f"; they differ in {', '.join(differences)}" if differences else ""
        raise NotComparableError(f"{ours} and {theirs} have no measure in common{reason}")
    shared = select_measures(shared, measures)
    risk = RISK / len(shared)
    compared = [_compared(key, our_samples, their_samples, threshold, risk) for key in shared]
    notes = [*our_samples.notes, *their_samples.notes, *_one_sided_notes(our_samples, their_samples)]
    undecided = [result.ratio for result in compared if result.judgement is Judgement.UNDECIDED]
    if any(ratio.low is None for ratio in undecided):
        needed = min_samples(risk)
        notes.append(
            f"undecided: too few repetitions for a significant difference; {needed} on each side, all worse, would "
            f"suffice (run --repeat {needed}, or compare fewer measures)"
        )
    if any(ratio.low is not None for ratio in undecided):
        notes.append(
            "undecided: the repetitions vary so much that the ratio may as well be 1; more of them narrow its interval"
        )
    return Comparison(tuple(sort_by_judgement(compared)), threshold, tuple(differences), tuple(notes))


def select_measures(keys: Sequence[tuple[Point, str]], measures: Sequence[str]) -> list[tuple[Point, str]]:
    """Select measures by key or by column heading. Raises NotComparableError for an unknown one."""
    known = dict.fromkeys(measure for _, measure in keys)
    for name in measures:
        if not any(name in (measure, heading(measure)) for measure in known):
            raise NotComparableError(f"no measure {name!r} in both; valid: {', '.join(known)}")
    return [key for key in keys if not measures or {key[1], heading(key[1])} & set(measures)]


def judge(ratio: Ratio, sense: Sense, threshold: float) -> Judgement:
    """Judge a ratio: it matters if it is beyond the threshold and significant."""
    if sense is Sense.NONE or 1 - threshold <= ratio.value <= 1 + threshold:
        return Judgement.SAME
    if not ratio.excludes_one:
        return Judgement.UNDECIDED
    return Judgement.WORSE if (ratio.value > 1) is (sense is Sense.LESS) else Judgement.BETTER


def sort_by_judgement(compared: Iterable[ComparedMeasure]) -> list[ComparedMeasure]:
    """Sort by judgement, the worst first; equal ones keep their order."""
    return sorted(compared, key=lambda measure: list(Judgement).index(measure.judgement))


def _compared(
    key: tuple[Point, str], ours: RunSamples, theirs: RunSamples, threshold: float, risk: float
) -> ComparedMeasure:
    our_values, their_values = ours.values[key], theirs.values[key]
    same_seeds = list(ours.seeds[key]) == list(theirs.seeds[key])
    # Simulations are exact: with equal seeds they differ only because of a change.
    ratio = (paired if ours.exact and theirs.exact and same_seeds else independent)(our_values, their_values, risk)
    point, measure = key
    counts = len(our_values), len(their_values)
    return ComparedMeasure(
        point,
        measure,
        median(our_values),
        median(their_values),
        counts,
        ratio,
        judge(ratio, sense_of(measure), threshold),
    )


def _differences(ours: RunSamples, theirs: RunSamples) -> list[str]:
    def differing(kind: str, left: Mapping[str, str], right: Mapping[str, str]) -> list[str]:
        keys = dict.fromkeys([*left, *right])
        return [
            f"{kind}{key} ({left.get(key) or 'none'}, {right.get(key) or 'none'})"
            for key in keys
            if left.get(key) != right.get(key)
        ]

    parameters = {key: ours.parameter(key) for key in _PARAMETERS}, {key: theirs.parameter(key) for key in _PARAMETERS}
    return [*differing("", *parameters), *differing("setting ", ours.settings, theirs.settings)]


def _one_sided_notes(ours: RunSamples, theirs: RunSamples) -> list[str]:
    """Return notes on points, and on measures of other points, that only one side has."""
    our_points, their_points = ({point for point, _ in side.values} for side in (ours, theirs))
    notes = []
    if count := len(our_points ^ their_points):
        points = "1 point was" if count == 1 else f"{count} points were"
        notes.append(f"{points} measured on one side only: left out")
    shared = our_points & their_points
    one_sided = [
        measure
        for side, other in ((ours, theirs), (theirs, ours))
        for point, measure in side.values
        if point in shared and (point, measure) not in other.values
    ]
    if one_sided:
        notes.append(f"measured on one side only, and left out: {', '.join(dict.fromkeys(one_sided))}")
    return notes
