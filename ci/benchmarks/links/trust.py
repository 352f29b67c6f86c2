"""The verdict of the demo's ring of Myrinet switches: the share of trusted runs on an otherwise idle machine, and the
findings of the others."""

import statistics
from collections.abc import Callable, Iterator

import testbed
from benchmarks.harness.rows import REPOSITORY, Row
from testbed import Grade, RunResult

RING = REPOSITORY / "ci" / "ring.toml"
SETTINGS = {"messages": 300, "over": "4s"}  # as in ci/demo
TRUSTED, LATENESS = "share of runs that are trusted", "lateness of the relay, p99"


def measure(runs: int, progress: Callable[[str], None]) -> Iterator[Row]:
    """Run the workload `runs` times, each time on a new cluster."""
    samples: dict[tuple[str, str], list[float]] = {}
    findings_of_runs = []
    for number in range(1, runs + 1):
        progress(f"trust: {number} of {runs}")
        result = testbed.run(RING, "random", protocol="am2", settings=SETTINGS, check=True)
        samples.setdefault((TRUSTED, "1"), []).append(result.verdict.grade is Grade.TRUSTED)
        samples.setdefault((LATENESS, "s"), []).append(_highest(result, "relay lateness p99") / 1e9)
        for what in ("relay waiting", "steal"):
            samples.setdefault((f"share of time: {what}", "1"), []).append(_highest(result, what))
        bad = [finding for finding in result.verdict.findings if finding.grade not in (Grade.TRUSTED, Grade.UNDECIDED)]
        findings_of_runs.append([str(finding) for finding in bad])
    settings = {**SETTINGS, "cluster": RING.name, "workload": "random", "protocol": "am2", "findings": findings_of_runs}
    for (measured, unit), values in samples.items():
        yield Row("trust", "testbed", measured, 4, unit, tuple(map(float, values)), settings)


def share_trusted(samples: tuple[float, ...]) -> float | None:
    return statistics.mean(samples) if samples else None


def _highest(result: RunResult, what: str) -> float:
    return max((finding.measured or 0.0 for finding in result.verdict.findings if finding.what == what), default=0.0)
