"""A run, or what `reproduce --json` has printed, against what the paper of its protocol has published."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from testbed.errors import NotFoundError
from testbed.observe.comparing.comparison import RISK, THRESHOLD, Comparison, Judgement, Measured, judge, sort
from testbed.observe.comparing.gathering import NotComparableError, gather, repeat_of
from testbed.observe.comparing.ratios import Ratio, enough_of_one, to_constant
from testbed.observe.papers import Paper, Row, figure, paper_of
from testbed.observe.quantities import Sense
from testbed.observe.recorded import Recorded


def compare_with_paper(source: Path, threshold: float = THRESHOLD) -> Comparison:
    """source: a run's folder, or a folder of runs, or a file that `testbed reproduce PROTOCOL --json` has written.

    Raises NotComparableError where the paper has no value that the run has measured, and what reading does.
    """
    if source.is_file():
        return _reproduced(source, threshold)
    found = gather(source)
    run = found.runs[0]
    protocol = str(run.asked.get("protocol", ""))
    try:
        paper = paper_of(protocol)
    except NotFoundError as error:
        raise NotComparableError(str(error)) from error
    rows = [row for row in paper.rows if _is_of(row, paper, run)]
    samples = [(row, values) for row in rows if (values := _ours(row, found.runs))]
    if not samples:
        measured = ", ".join(sorted({one.workload for one in paper.runs.values()}))
        raise NotComparableError(
            f"{source}: of what this run of {run.asked.get('workload')} has measured the paper has no value; of runs of "
            f"{measured} it has, at its own sizes (testbed reproduce {protocol})"
        )
    risk = RISK / len(samples)
    results = []
    for row, values in samples:
        ratio = to_constant(row.paper, values, risk, exact=found.exact)
        results.append(_measured(row.name, row.unit, row.paper, values, ratio, threshold))
    notes = [*found.notes, f"{paper.authors}: {paper.title}, {paper.published}; measured there on its own hardware"]
    if any(one.judgement is Judgement.UNDECIDED for one in results):
        notes.append(f"undecided: {enough_of_one(risk)} repetitions that are all worse could be told from chance")
    profile = found.said("profile")
    differences = [f"profile ({paper.profile}, {profile})"] if profile != paper.profile else []
    clusters = dict.fromkeys(paper.runs[row.run].cluster or paper.cluster for row, _ in samples)
    if found.said("cluster") not in clusters:
        differences.append(f"cluster ({', '.join(clusters)}, {found.said('cluster')})")
    return Comparison(tuple(sort(results)), threshold, tuple(differences), tuple(notes))


def _is_of(row: Row, paper: Paper, run: Recorded) -> bool:
    """Whether a run of this workload can have measured it."""
    if row.sum or row.less_than:
        return False
    measured = paper.runs[row.run]
    return measured.workload == str(run.asked.get("form")) and not measured.profile and not measured.firmware


def _ours(row: Row, runs: Sequence[Recorded]) -> list[float]:
    """In the row's unit, of each repetition that has it."""
    found = []
    for run in runs:
        repetitions: dict[int, list[Mapping[str, Any]]] = {}
        for one in run.rows():
            repetitions.setdefault(repeat_of(one), []).append(one)
        for rows in repetitions.values():
            value = figure(row, rows)
            if value is not None:
                found.append(value)
    return found


def _reproduced(file: Path, threshold: float) -> Comparison:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        if document["kind"] != "reproduce":
            raise ValueError
        results = [
            _measured(str(row["name"]), str(row["unit"]), float(row["paper"]), [float(row["ours"])],
                      to_constant(float(row["paper"]), [float(row["ours"])], RISK, exact=True), threshold)
            for row in document["rows"]
        ]  # fmt: skip
        note = str(document["paper"])
    except (ValueError, KeyError, TypeError) as error:
        raise NotComparableError(f"{file} is nothing that 'testbed reproduce PROTOCOL --json' has written") from error
    return Comparison(tuple(sort(results)), threshold, (), (note,))


def _measured(name: str, unit: str, paper: float, values: Sequence[float], ratio: Ratio, threshold: float) -> Measured:
    sense = Sense.LESS if unit == "us" else Sense.MORE
    return Measured(
        (("row", name),), unit, paper, median(values), (1, len(values)), ratio, judge(ratio, sense, threshold)
    )
