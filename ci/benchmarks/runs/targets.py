"""Targets of runs, computed from the rows.

In the second half of a storm, processes may grow by free lists of their allocator, and node processes also by the send times
that the workload keeps for each message.
"""

from collections.abc import Sequence

from benchmarks.harness.rows import Row
from benchmarks.harness.targets import Target
from benchmarks.runs.first_message import FIRST, SHARE
from benchmarks.runs.process_watch import NODES
from benchmarks.runs.storm import DESCRIPTORS, LEFT, MEMORY, MESSAGES, WRONG

FIRST_MESSAGE, CONTROLLER_SHARE = 1.0, 0.01  # s; of a processor, for 10 nodes
ENOUGH = 200_000  # messages
STEADY = 512 * 1024  # bytes
EACH_NODE, EACH_MESSAGE = 64 * 1024, 100  # bytes


def targets(rows: Sequence[Row]) -> list[Target]:
    def first(subject: str, measure: str) -> float | None:
        return next((row.median for row in rows if (row.subject, row.measure) == (subject, measure)), None)

    results = [
        Target("from the command to the first message", FIRST_MESSAGE, "s", first("first", FIRST), strict=True),
        Target("the controller, per 10 nodes", CONTROLLER_SHARE, "1", first("controller", SHARE), strict=True),
    ]
    for contender in dict.fromkeys(row.contender for row in rows if row.subject == "storm"):
        storm = [row for row in rows if (row.subject, row.contender) == ("storm", contender)]
        results += [_of_storm(row, contender) for row in storm if limit_of(row) is not None]
    return results


def _of_storm(row: Row, contender: str) -> Target:
    limit = limit_of(row)
    assert limit is not None
    return Target(f"{contender}: {row.measure}", limit, row.unit, row.median, is_minimum=row.measure == MESSAGES)


def limit_of(row: Row) -> float | None:
    """Return a row's limit, None if it has none."""
    if row.measure == MESSAGES:
        return ENOUGH
    if row.measure in (WRONG, LEFT) or row.measure.endswith(DESCRIPTORS):
        return 0
    if row.measure == f"{NODES}: {MEMORY}":
        return float(EACH_NODE * row.hosts + EACH_MESSAGE * row.settings["messages"])
    return STEADY if row.measure.endswith(MEMORY) else None


def leaks(rows: Sequence[Row]) -> list[str]:
    """List grown or left-over resources in rows of storms, a sentence each."""
    return [
        f"{row.measure}: {row.median:,.0f} {row.unit} {row.settings.get('what', '')}".rstrip()
        for row in rows
        if row.measure != MESSAGES and (limit := limit_of(row)) is not None and row.median > limit
    ]
