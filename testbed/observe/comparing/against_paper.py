"""Comparison of a run, or of the output of `reproduce --json`, with the published results of its protocol's paper."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from testbed.errors import NotFoundError
from testbed.observe.comparing.comparison import (
    RISK,
    THRESHOLD,
    ComparedMeasure,
    Comparison,
    Judgement,
    judge,
    sort_by_judgement,
)
from testbed.observe.comparing.ratios import Ratio, min_samples_to_constant, to_constant
from testbed.observe.comparing.run_samples import NotComparableError, read_runs, repeat_of, samples_of
from testbed.observe.format.quantities import Sense
from testbed.observe.paper_files import paper_of
from testbed.observe.papers import Row, figure, is_measured_by
from testbed.observe.recorded import RecordedRun


def compare_with_paper(source: Path, threshold: float = THRESHOLD) -> Comparison:
    """Compare measured values, the candidate, with those of the paper, the baseline.

    source: a run's folder, a folder of runs, or a file written by `testbed reproduce --json`. Raises
    NotComparableError if the paper has no value that the run measured, and the errors of `read_runs`.
    """
    if source.is_file():
        return _compare_reproduction(source, threshold)
    runs, notes_on_runs = read_runs(source)
    run_samples = samples_of(source, runs, notes_on_runs)
    run = runs[0]
    protocol = str(run.parameters.get("protocol", ""))
    try:
        paper = paper_of(protocol)
    except NotFoundError as error:
        raise NotComparableError(str(error)) from error
    rows = [row for row in paper.rows if is_measured_by(row, paper, run.parameters)]
    samples = [(row, values) for row in rows if (values := _our_values(row, runs))]
    if not samples:
        measured = ", ".join(sorted({paper_run.workload for paper_run in paper.runs.values()}))
        raise NotComparableError(
            f"{source}: the paper has no value that this run of {run.parameters.get('workload')} measured; it has values of "
            f"{measured}, at the paper's sizes (testbed reproduce {protocol})"
        )
    risk = RISK / len(samples)
    results = []
    for row, values in samples:
        ratio = to_constant(row.paper, values, risk, exact=run_samples.exact)
        results.append(_compare_row(row.name, row.unit, row.paper, values, ratio, threshold))
    notes = [
        *run_samples.notes,
        f"{paper.citation}; measured on the paper's hardware",
    ]
    if any(result.judgement is Judgement.UNDECIDED and result.ratio.low is None for result in results):
        notes.append(
            f"undecided: too few repetitions for a significant difference; {min_samples_to_constant(risk)} suffice if all "
            "differ in one direction"
        )
    profile = run_samples.parameter("profile")
    differences = [f"profile ({paper.profile}, {profile})"] if profile != paper.profile else []
    clusters = dict.fromkeys(paper.runs[row.run].cluster or paper.cluster for row, _ in samples)
    if run_samples.parameter("cluster") not in clusters:
        differences.append(f"cluster ({', '.join(clusters)}, {run_samples.parameter('cluster')})")
    return Comparison(tuple(sort_by_judgement(results)), threshold, tuple(differences), tuple(notes))


def _our_values(published: Row, runs: Sequence[RecordedRun]) -> list[float]:
    """Return our values of a row, in the row's unit, one for each repetition that measured the row."""
    values = []
    for run in runs:
        repetitions: dict[int, list[Mapping[str, Any]]] = {}
        for row in run.rows():
            repetitions.setdefault(repeat_of(row), []).append(row)
        for rows in repetitions.values():
            value = figure(published, rows)
            if value is not None:
                values.append(value)
    return values


def _compare_reproduction(file: Path, threshold: float) -> Comparison:
    """Compare the rows of a file written by `testbed reproduce --json`. Raises NotComparableError."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        if document["kind"] != "reproduce":
            raise ValueError
        results = [
            _compare_row(f"{row['system']}: {row['name']}", str(row["unit"]), float(row["paper"]), [float(row["ours"])],
                      to_constant(float(row["paper"]), [float(row["ours"])], RISK, exact=True), threshold)
            for row in document["rows"]
            if row["kind"] != "paper"
        ]  # fmt: skip
        notes = tuple([str(system["paper"]) for system in document["systems"]])
    except (ValueError, KeyError, TypeError) as error:
        raise NotComparableError(f"{file} is not a file of this version's 'testbed reproduce --json'") from error
    return Comparison(tuple(sort_by_judgement(results)), threshold, (), notes)


def _compare_row(
    name: str, unit: str, paper: float, values: Sequence[float], ratio: Ratio, threshold: float
) -> ComparedMeasure:
    sense = Sense.LESS if unit == "us" else Sense.MORE
    return ComparedMeasure(
        (("row", name),), unit, paper, median(values), (1, len(values)), ratio, judge(ratio, sense, threshold)
    )
