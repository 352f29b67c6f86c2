"""The points that the paper of a run's protocol has published, where a plot shows the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.errors import TestbedError
from testbed.observe.papers import UNITS, paper_of
from testbed.observe.quantities import cell
from testbed.observe.report.telling import Told


@dataclass(frozen=True, slots=True)
class Published:
    """points: in the units of rows. words: the same for who does not see them. source: which paper."""

    points: tuple[tuple[float, float], ...]
    words: str
    source: str


def published(runs: Sequence[Told], x: str, y: str) -> Published | None:
    """Of the first run's protocol that has any for these keys."""
    for protocol, workload in dict.fromkeys(
        (str(run.asked.get("protocol", "")), str(run.asked.get("form", ""))) for run in runs
    ):
        try:
            paper = paper_of(protocol)
        except TestbedError:  # there is none, or the protocol is not installed here
            continue
        rows = [
            row
            for row in paper.rows
            if row.take == y and x in row.where and not (row.sum or row.less_than or row.of)
            and paper.runs[row.run].workload == workload
            and not (paper.runs[row.run].profile or paper.runs[row.run].firmware)
        ]  # fmt: skip
        if rows:
            points = tuple(sorted((float(row.where[x]), row.paper / UNITS[row.unit] * row.per) for row in rows))
            words = ", ".join(f"{cell(y, value)} at {cell(x, round(place))}" for place, value in points)
            return Published(points, f"{words}.", f"{paper.authors}, {paper.published}")
    return None
