"""Comparison of two sets of runs, measure by measure: worse, better, undecided, or no difference.

The confidence intervals are simultaneous: the risk is divided among them (Bonferroni). So an equally good run is judged
worse in at most one of 20 comparisons on average, however many measures it has.
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
"""Maximum probability that any of the intervals does not contain the true ratio."""

THRESHOLD: Final = 0.05
"""Default of the fraction by which a measure must differ to matter."""

_PARAMETERS: Final = ("cluster", "protocol", "mode", "profile", "codec", "nics", "dilate")
"""Parameters of runs whose differences are reported."""


class Judgement(Enum):
    """Judgement on a measure of the candidate, in the order in which comparisons list them."""

    WORSE = "worse"
    BETTER = "better"
    UNDECIDED = "undecided"
    """The ratio is beyond the threshold, but its interval includes 1, or there are too few samples for an interval."""
    NO_DIFFERENCE = "no difference"


@dataclass(frozen=True, slots=True)
class ComparedMeasure:
    """Comparison of a measure at a point. baseline, candidate: medians. samples: number of values on both sides."""

    point: Point
    measure: str
    baseline: float
    candidate: float
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
    """Result of a comparison. measures: sorted by judgement, in the order of `Judgement`. differences: parameters in which
    the runs differ, as text. notes: sentences."""

    measures: tuple[ComparedMeasure, ...]
    threshold: float
    differences: tuple[str, ...]
    notes: tuple[str, ...]

    def judged(self, judgement: Judgement) -> list[ComparedMeasure]:
        """Return the measures with this judgement."""
        return [measure for measure in self.measures if measure.judgement is judgement]

    @property
    def has_worse(self) -> bool:
        """Whether any measure is worse."""
        return bool(self.judged(Judgement.WORSE))


def compare(baseline: Path, candidate: Path, threshold: float = THRESHOLD, measures: Sequence[str] = ()) -> Comparison:
    """Compare a candidate with a baseline; each is a run's folder or a folder of runs of one kind. measures: keys or
    column headings of the measures to compare; empty: all.

    Raises NotComparableError for different workloads and for runs without a common measure, and the errors of `read_runs`.
    """
    return compare_samples((baseline, candidate), read_samples(baseline), read_samples(candidate), threshold, measures)


def compare_samples(
    folders: tuple[Path, Path],
    baseline_samples: RunSamples,
    candidate_samples: RunSamples,
    threshold: float = THRESHOLD,
    measures: Sequence[str] = (),
) -> Comparison:
    """Compare samples; see `compare`. folders: baseline and candidate, for error messages."""
    baseline, candidate = folders
    workloads = baseline_samples.parameter("workload"), candidate_samples.parameter("workload")
    if workloads[0] != workloads[1]:
        raise NotComparableError(
            f"{baseline} is of workload {workloads[0]}, {candidate} of {workloads[1]}: different workloads cannot be "
            "compared"
        )
    shared = [key for key in baseline_samples.values if key in candidate_samples.values]
    differences = _differences(baseline_samples, candidate_samples)
    if not shared:
        reason = f"; they differ in {', '.join(differences)}" if differences else ""
        raise NotComparableError(f"{baseline} and {candidate} have no measure in common{reason}")
    shared = select_measures(shared, measures)
    risk = RISK / len(shared)
    compared = [_compare_measure(key, baseline_samples, candidate_samples, threshold, risk) for key in shared]
    notes = [*baseline_samples.notes, *candidate_samples.notes, *_one_sided_notes(baseline_samples, candidate_samples)]
    undecided = [result.ratio for result in compared if result.judgement is Judgement.UNDECIDED]
    if any(ratio.low is None for ratio in undecided):
        needed = min_samples(risk)
        notes.append(
            f"undecided: too few repetitions for a significant difference; {needed} on each side suffice if all differ in "
            f"one direction (run --repeat {needed}, or compare fewer measures)"
        )
    if any(ratio.low is not None for ratio in undecided):
        notes.append(
            "undecided: the repetitions vary so much that the true ratio may be 1; more repetitions narrow its interval"
        )
    return Comparison(tuple(sort_by_judgement(compared)), threshold, tuple(differences), tuple(notes))


def select_measures(keys: Sequence[tuple[Point, str]], measures: Sequence[str]) -> list[tuple[Point, str]]:
    """Select measures by key or by column heading; select all if `measures` is empty. Raises NotComparableError for an
    unknown measure."""
    valid = dict.fromkeys(measure for _, measure in keys)
    for name in measures:
        if not any(name in (measure, heading(measure)) for measure in valid):
            raise NotComparableError(f"both sides have no measure {name!r}; valid: {', '.join(valid)}")
    return [key for key in keys if not measures or {key[1], heading(key[1])} & set(measures)]


def judge(ratio: Ratio, sense: Sense, threshold: float) -> Judgement:
    """Judge a ratio: a difference counts if it exceeds the threshold and is significant. sense: direction in which the
    measure is better."""
    if sense is Sense.NONE or 1 - threshold <= ratio.value <= 1 + threshold:
        return Judgement.NO_DIFFERENCE
    if not ratio.excludes_one:
        return Judgement.UNDECIDED
    return Judgement.WORSE if (ratio.value > 1) is (sense is Sense.LESS) else Judgement.BETTER


def sort_by_judgement(compared: Iterable[ComparedMeasure]) -> list[ComparedMeasure]:
    """Sort by judgement, in the order of `Judgement`; measures of equal judgement keep their order."""
    return sorted(compared, key=lambda measure: list(Judgement).index(measure.judgement))


def _compare_measure(
    key: tuple[Point, str], baseline: RunSamples, candidate: RunSamples, threshold: float, risk: float
) -> ComparedMeasure:
    baseline_values, candidate_values = baseline.values[key], candidate.values[key]
    same_seeds = list(baseline.seeds[key]) == list(candidate.seeds[key])
    # Simulations are exact: with equal seeds they differ only because of a change.
    compare_values = paired if baseline.exact and candidate.exact and same_seeds else independent
    ratio = compare_values(baseline_values, candidate_values, risk)
    point, measure = key
    counts = len(baseline_values), len(candidate_values)
    return ComparedMeasure(
        point,
        measure,
        median(baseline_values),
        median(candidate_values),
        counts,
        ratio,
        judge(ratio, sense_of(measure), threshold),
    )


def _differences(baseline: RunSamples, candidate: RunSamples) -> list[str]:
    """Return the parameters and settings that differ, with both values."""

    def differing(prefix: str, left: Mapping[str, str], right: Mapping[str, str]) -> list[str]:
        keys = dict.fromkeys([*left, *right])
        return [
            f"{prefix}{key} ({left.get(key) or 'none'}, {right.get(key) or 'none'})"
            for key in keys
            if left.get(key) != right.get(key)
        ]

    parameters = [{key: side.parameter(key) for key in _PARAMETERS} for side in (baseline, candidate)]
    return [*differing("", *parameters), *differing("setting ", baseline.settings, candidate.settings)]


def _one_sided_notes(baseline: RunSamples, candidate: RunSamples) -> list[str]:
    """Return notes on points, and on measures of other points, that only one side has."""
    baseline_points, candidate_points = ({point for point, _ in side.values} for side in (baseline, candidate))
    notes = []
    if count := len(baseline_points ^ candidate_points):
        points = "1 point was" if count == 1 else f"{count} points were"
        notes.append(f"{points} measured on one side only: left out")
    shared = baseline_points & candidate_points
    one_sided = [
        measure
        for side, opposite in ((baseline, candidate), (candidate, baseline))
        for point, measure in side.values
        if point in shared and (point, measure) not in opposite.values
    ]
    if one_sided:
        notes.append(f"measured on one side only, and left out: {', '.join(dict.fromkeys(one_sided))}")
    return notes
