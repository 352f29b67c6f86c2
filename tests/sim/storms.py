"""Storms: random faults, including restarts, with programs that repeat messages; no check may fail.

A case is drawn from its seed alone: protocol, program, nodes, and faults at random times. It runs in the simulation, or
(`live`) in namespaces, and its history is checked whether it succeeds or fails.

    python -m tests.sim.storms 4711        repeat one case, and shrink it if it fails
    python -m tests.sim.storms 0 300       a range of them
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import testbed
from testbed import Cluster, Scenario
from testbed.controller.checkers.check_report import Report
from testbed.controller.checkers.runs import read_reports
from testbed.controller.conformance.trials import Swarm, Violation
from testbed.controller.scenarios.random_faults import draw_faults
from testbed.engine.sources import source
from testbed.errors import TestbedError
from testbed.observe.recorded import read_run
from testbed.spec.fault_models import Fault
from testbed.spec.resolver import resolve
from testbed.spec.scenario import RandomFaults
from tests.sim import storm_programs

MILLISECOND = 1_000_000
RESTARTS = ("crash", "restart", "reset")
OTHER_FAULTS = ("impair", "flap", "partition", "pause")
PROGRAMS = ("churn", "repeats", "constant", "raises")


@dataclass(frozen=True, slots=True)
class Case:
    """milliseconds: duration of a program's incarnation."""

    seed: int
    protocol: str
    program: str
    nodes: int
    milliseconds: int
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        report = "\n".join(f"  {fault.what}: {fault.model_dump(exclude_defaults=True)}" for fault in self.faults)
        return f"{self.program} over {self.protocol} on {self.nodes} nodes for {self.milliseconds} ms\n{report}"


def draw(seed: int, milliseconds: int = 120) -> Case:
    """Draw the case of a seed. The times of the faults scale with the duration."""
    rng = source(seed, "storm")
    protocol, program = ("emp", "am2")[seed % 2], PROGRAMS[seed // 2 % len(PROGRAMS)]
    nodes = 2 + rng.below(4)
    faults_end = milliseconds * MILLISECOND
    kinds = (
        *rng.sample(RESTARTS, 1 + rng.below(3)),
        *rng.sample(OTHER_FAULTS, rng.below(4)),
    )
    storm = RandomFaults(
        kinds=kinds, rate=(3 + rng.below(12)) * 1000 / milliseconds, seed=seed, shortest=f"{faults_end // 100}ns",
        longest=f"{faults_end // 4}ns",
    )  # fmt: skip
    faults = draw_faults(storm, resolve(Cluster.star(nodes)), seed, faults_end)
    return Case(seed, protocol, program, nodes, milliseconds, tuple(faults))


def run(case: Case, mode: Literal["sim", "live"] = "sim", timeout: float = 60.0) -> Counter[str]:
    """Run a case; return how often each check was made. Raises Violation for a failed check or a failed run."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / "run"
        reason = ""
        try:
            testbed.run(
                Cluster.star(case.nodes, delay="20us"), _program(case), mode=mode, protocol=case.protocol, seed=case.seed,
                settings=_settings(case), scenario=Scenario(faults=case.faults) if case.faults else None, check=True,
                output=folder, timeout=timeout,
            )  # fmt: skip
        except TestbedError as error:
            reason = str(error)
        if reason and not (case.program == "raises" and "ValueError: enough" in reason):
            raise Violation(f"{case.program} over {case.protocol}: {reason}")
        (report,) = read_reports(read_run(folder))
    return checked_counts(case, report)


def checked_counts(case: Case, report: Report) -> Counter[str]:
    if not report.passed:
        first = {name: report.checks[name].violations[0] for name in report.failed}
        raise Violation(f"{case.program} over {case.protocol}: {first}")
    return Counter({name: check.checked for name, check in report.checks.items()})


def _program(case: Case) -> object:
    return "churn" if case.program == "churn" else getattr(storm_programs, case.program)


def _settings(case: Case) -> dict[str, object]:
    if case.program == "churn":
        return {"time": f"{case.milliseconds}ms", "settle": f"{case.milliseconds // 2}ms"}
    return {"milliseconds": case.milliseconds}


def reduced_cases(case: Case) -> Iterator[Case]:
    """Yield cases with fewer faults, the largest reductions first."""
    step = len(case.faults) // 2
    while step:
        for start in range(0, len(case.faults), step):
            yield replace(case, faults=case.faults[:start] + case.faults[start + step :])
        step //= 2


SWARM = Swarm("python -m tests.sim.storms", draw, run, reduced_cases)


if __name__ == "__main__":
    sys.exit(SWARM.main(sys.argv[1:]))
