"""Comparison of studies point by point, with the runs of different seeds as samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from testbed.observe.comparing.comparison import THRESHOLD, Comparison, compare_samples
from testbed.observe.comparing.run_samples import UNUSABLE_GRADES, Figure, Point, RunSamples, figures_of, gather
from testbed.studies.study_folder import open_folder

_SEED = "seed"


def compare_studies(ours: Path, theirs: Path, threshold: float = THRESHOLD, measures: Sequence[str] = ()) -> Comparison:
    """Compare the study in folder `theirs` with the one in `ours`. The other parameters, the result and the errors are those
    of `observe.comparing.comparison.compare`."""
    return compare_samples((ours, theirs), study_samples(ours), study_samples(theirs), threshold, measures)


def study_samples(path: Path) -> RunSamples:
    """Read the samples in the folder of a study. The conditions of a figure are the varied parameters except the seed, and
    the conditions of its row. Raises NotComparableError, and the errors of `open_folder`."""
    folder, study = open_folder(path)
    figures: list[Figure] = []
    left_out = 0
    outcomes = folder.outcomes()
    for number, parameters in enumerate(study.points):
        outcome = outcomes.get(number)
        if outcome is None or not outcome.is_done or outcome.verdict in UNUSABLE_GRADES:
            left_out += 1
            continue
        varied: Point = tuple([(name, parameters.get(name)) for name in study.varied if name != _SEED])
        seed = parameters.get(_SEED, 0)
        assert isinstance(seed, int)
        figures += [
            (row_seed, (*varied, *point), key, value) for row_seed, point, key, value in figures_of(outcome.rows, seed)
        ]
    notes = [f"{left_out} points of {path} have no valid figures, and are left out"] if left_out else []
    common = {name: value for name, value in study.points[0].items() if name not in study.varied}
    settings = {name.partition(".")[2]: str(value) for name, value in common.items() if "." in name}
    modes = sorted({str(point.get("mode", "live")) for point in study.points})
    return gather(path, figures, [{**common, "mode": ", ".join(modes)}], settings, notes)
