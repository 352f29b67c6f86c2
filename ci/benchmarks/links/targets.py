"""Targets of links, computed from the rows."""

import statistics
from collections.abc import Sequence

from benchmarks.harness.rows import Row
from benchmarks.harness.targets import Target
from benchmarks.links import lateness, relay, throughput, trust

FRAMES_PER_CORE = 120_000
DELAYED_TCP = 1e9  # bit/s
LATE_P50, LATE_P99 = 50e-6, 300e-6  # s; medians of the runs
UNIMPAIRED = 0.05  # relative deviation from a star made by ip
TRUSTED = 0.9  # share of the runs of the demo's ring on an idle machine
MANY_LINKS = 1.5  # times the cost of a frame with few links


def targets(rows: Sequence[Row]) -> list[Target]:
    def samples(subject: str, contender: str, measure: str) -> tuple[float, ...]:
        expected = (subject, contender, measure)
        return next((row.samples for row in rows if (row.subject, row.contender, row.measure) == expected), ())

    def median(subject: str, contender: str, measure: str) -> float | None:
        values = samples(subject, contender, measure)
        return statistics.median(values) if values else None

    def relative(subject: str, ours: str, theirs: str, measure: str) -> float | None:
        """Return the median of the repetitions' ratios: a temporary slowdown of the machine affects both."""
        pairs = zip(samples(subject, ours, measure), samples(subject, theirs, measure), strict=True)
        results = [first / second for first, second in pairs]
        return statistics.median(results) if results else None

    def difference_to_ip(measure: str) -> float | None:
        ratio = relative("unimpaired", throughput.TESTBED, throughput.BY_IP, measure)
        if ratio is None:
            return None
        return max(ratio - 1 if measure == throughput.ROUND_TRIP else 1 - ratio, 0.0)

    few, many = (f"{links} links" for links in (relay.FEW, relay.MANY))

    def late(share: str) -> float | None:
        return median("lateness", lateness.TESTBED, lateness.FRAME_LATE.format(share))

    return [
        Target(
            "relay: frames/s per core, saturated",
            FRAMES_PER_CORE,
            "1/s",
            median("relay", "testbed", relay.SATURATED),
            is_minimum=True,
        ),
        Target(
            "relay: frames/s without unasked-for loss, on one core",
            FRAMES_PER_CORE,
            "1/s",
            median("relay", "testbed", relay.CLEAN),
            is_minimum=True,
        ),
        Target(
            "TCP through one delayed link",
            DELAYED_TCP,
            "bit/s",
            median("throughput", throughput.DELAYED, throughput.TCP),
            is_minimum=True,
        ),
        Target("lateness at 10,000 frames/s, p50", LATE_P50, "s", late("p50"), strict=True),
        Target("lateness at 10,000 frames/s, p99", LATE_P99, "s", late("p99"), strict=True),
        Target("unimpaired: TCP below ip's by", UNIMPAIRED, "1", difference_to_ip(throughput.TCP)),
        Target("unimpaired: round trip above ip's by", UNIMPAIRED, "1", difference_to_ip(throughput.ROUND_TRIP)),
        Target(
            "demo ring on an idle machine: share of runs that are trusted",
            TRUSTED,
            "1",
            trust.share_trusted(samples("trust", "testbed", trust.TRUSTED)),
            is_minimum=True,
        ),
        *(
            Target(
                f"cost of a frame: {relay.MANY} links over {relay.FEW}, {load:,}/s",
                MANY_LINKS,
                "×",
                relative("links", many, few, relay.LINKS.format(load=load)),
                strict=True,
            )
            for load in relay.LOADS
        ),
    ]
