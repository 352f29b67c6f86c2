"""Targets of clusters that are spread over machines, computed from the rows."""

import statistics
from collections.abc import Sequence

from benchmarks.harness.rows import Row
from benchmarks.harness.targets import Target
from benchmarks.machines import bring_up, tunnels

BRING_UP = 1.25  # times the bring-up on one machine, both without connection set-up
MESSAGES = 1.0  # per node and phase
TUNNEL = 0.05  # relative difference to a bare VXLAN


def targets(rows: Sequence[Row]) -> list[Target]:
    def samples(subject: str, contender: str, measure: str) -> tuple[float, ...]:
        expected = (subject, contender, measure)
        return next((row.samples for row in rows if (row.subject, row.contender, row.measure) == expected), ())

    def relative(subject: str, ours: str, theirs: str, measure: str) -> float | None:
        """Return the median of the repetitions' ratios: a temporary slowdown of the machine affects both."""
        pairs = zip(samples(subject, ours, measure), samples(subject, theirs, measure), strict=True)
        results = [first / second for first, second in pairs]
        return statistics.median(results) if results else None

    def loss_against_bare(contender: str, measure: str) -> float | None:
        ratio = relative(tunnels.SUBJECT, contender, tunnels.BARE, measure)
        if ratio is None:
            return None
        return max(ratio - 1 if measure == tunnels.ROUND_TRIP else 1 - ratio, 0.0)

    results = []
    for shape in dict.fromkeys(row.subject for row in rows if row.measure == bring_up.BRING_UP):
        nodes = next(row.hosts for row in rows if row.subject == shape)
        ratio = relative(shape, bring_up.THREE, bring_up.ONE, bring_up.BRING_UP)
        results.append(Target(f"{shape} of {nodes}: bring-up over three machines to that on one", BRING_UP, "1", ratio))
    for phase in bring_up.PHASES:
        counted = samples("messages", bring_up.THREE, bring_up.MESSAGES.format(phase))
        measured = counted[0] if counted else None
        results.append(Target(f"control messages per node: {phase}", MESSAGES, "1", measured))
    for contender in (tunnels.DIRECT, tunnels.TESTBED):
        for measure in (tunnels.TCP, tunnels.ROUND_TRIP):
            name = f"{contender}: {measure}, from a bare VXLAN's"
            results.append(Target(name, TUNNEL, "1", loss_against_bare(contender, measure)))
    return results
