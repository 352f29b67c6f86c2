"""Lateness of a delayed frame, measured outside the relay: its receive time in the kernel minus its send time and the
delay."""

from collections.abc import Callable, Iterator

from benchmarks.harness.processors import RELAY, SENDER
from benchmarks.harness.rows import Row
from benchmarks.harness.traffic import FRAME, Traffic
from benchmarks.links.clusters import Clusters

RATE = 10_000  # frames/s
DELAY = 1_000_000  # ns
TIMERS_PER_FRAME = 0.25  # timers that are measured for comparison
MIN_RUNS = 3
SHARES = ("min", "p50", "p90", "p99", "p99.9", "max")
FRAME_LATE, TIMER_LATE = "lateness of a frame, {}", "lateness of a timer, {}"
TESTBED, MACHINE = "testbed", "timerfd and epoll"


def measure(
    clusters: Clusters, traffic: Traffic, repeat: int, seconds: float, progress: Callable[[str], None]
) -> Iterator[Row]:
    """Measure the lateness of frames, and of timers on the relay's processor, in turn."""
    late: dict[tuple[str, str], list[float]] = {}
    lost = 0
    runs = max(repeat, MIN_RUNS)
    count = int(RATE * seconds)
    with clusters.up(delay=f"{DELAY}ns") as cluster:
        # The relay is not pinned to a processor, as in normal use. A pinned relay would be preempted for tens of
        # milliseconds when the fair server of the scheduler gives 5 % of the processor to other processes.
        source, sink = cluster.nodes["n1"], cluster.nodes["n2"]
        traffic.send([(source, sink)], RATE, count // 4)  # warm-up
        for turn in range(runs):
            progress(f"lateness: {turn + 1} of {runs}")
            timers = traffic.timers(1_000_000_000 // RATE, int(count * TIMERS_PER_FRAME))
            with traffic.receiver(sink) as frames:
                sent = traffic.send([(source, sink)], RATE, count)
            lost += sent["sent"] - frames["received"]
            for share in SHARES:
                late.setdefault((TESTBED, FRAME_LATE.format(share)), []).append((frames[share] - DELAY) / 1e9)
                late.setdefault((MACHINE, TIMER_LATE.format(share)), []).append(timers[share] / 1e9)
    settings = {
        "rate": RATE, "delay": DELAY, "bytes": FRAME, "frames": count, "timers": int(count * TIMERS_PER_FRAME),
        "runs": runs, "lost": lost,
        "processors": {"sender": SENDER, "timers": RELAY},
        "from": "before the sender's system call", "to": "the kernel's stamp at the receiver",
    }  # fmt: skip
    for (contender, measured), samples in late.items():
        yield Row("lateness", contender, measured, 2, "s", tuple(samples), settings)
