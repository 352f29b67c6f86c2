"""Swarm of workload am-random: random requests under random faults, verified only by the checkers.

A case is a run with a scenario. Unlike `am2_swarm`, which inspects host libraries and NICs, it uses only histories, which
every protocol of active messages has.

    python -m tests.sim.request_swarm am2 4711        repeat one case, and shrink it if it fails
    python -m tests.sim.request_swarm ssam 0 1000     a range of them, on SSAM
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import testbed
from testbed import Cluster, TestbedError
from testbed.controller.checkers.runs import read_reports
from testbed.controller.conformance.trials import Swarm, Violation
from testbed.engine.sources import Source, source
from testbed.observe.recorded import read_run
from testbed.spec.fault_models import Crash, Down, Fault, Pause, Reset, Restart
from testbed.spec.scenario import Scenario

NO_FAULT: Final = ""
FAULTS: Final = (NO_FAULT, NO_FAULT, NO_FAULT, "cut", "long cut", "pause", "reset", "restart", "crash")
"""Faults of a case; a long cut outlasts a NIC's retransmissions."""
TIMEOUT: Final = 120.0
"""Seconds of virtual time."""


@dataclass(frozen=True, slots=True)
class Case:
    """kind: of the switch. impairments: of every link. firmware: the protocol's settings. settings: the workload's.
    fault: one of FAULTS, at the node `victim`. begin: the fault's start in microseconds."""

    protocol: str
    kind: str
    seed: int
    nodes: int
    impairments: tuple[tuple[str, str], ...]
    firmware: tuple[tuple[str, int], ...]
    settings: tuple[tuple[str, object], ...]
    fault: str
    victim: int
    begin: int

    def scenario(self) -> Scenario | None:
        if self.fault == NO_FAULT:
            return None
        span: dict[str, Any] = {"on": f"n{self.victim}", "at": f"{self.begin}us"}
        faults: dict[str, Fault] = {
            "cut": Down(**span, for_="300ms"),
            "long cut": Down(**span, for_="9s"),
            "pause": Pause(**span, for_="200ms"),
            "reset": Reset(**span),
            "restart": Restart(**span),
            "crash": Crash(**span),
        }
        return Scenario(faults=[faults[self.fault]])


def draw(protocol: str, seed: int) -> Case:
    """Draw the case of a seed."""
    rng = source(seed, "case of requests")
    endpoints = 1 + rng.below(4)
    impairments = {"delay": rng.choice(("0s", "20us", "1ms"))}
    for name, chances in (("loss", ("0%", "2%", "10%")), ("duplicate", ("0%", "5%")), ("reorder", ("0%", "5%"))):
        impairments[name] = rng.choice(chances)
    is_atm = protocol == "ssam"
    if impairments["delay"] == "0s" or is_atm:  # an ATM network keeps the order of cells
        del impairments["reorder"]
    settings = {
        "requests": 60 + rng.below(60),
        "endpoints": endpoints,
        "freed": rng.below(2) if endpoints > 1 else 0,
        "largest": rng.choice((500, 4_000, 12_000)),
        "over": rng.choice(("0s", "20ms")),
    }
    # With one frame for several endpoints that send at once, paging takes longer than the bound on recovery.
    firmware = {"credits": rng.choice((1, 2, 4)), "frames": max(2, endpoints - rng.below(2))}
    if is_atm:
        firmware = {"window": rng.choice((2, 8, 31)), "long_payload": rng.below(2) == 1}
        firmware["interrupts"] = rng.below(2) == 1
        firmware["long_window"] = 32 * rng.below(2)
    return Case(
        protocol, "atm" if is_atm else "ethernet", seed, 2 + rng.below(3), tuple(impairments.items()),
        tuple(firmware.items()), tuple(settings.items()), rng.choice(FAULTS), victim=1 + rng.below(2),
        begin=_draw_begin(rng),
    )  # fmt: skip


def _draw_begin(rng: Source) -> int:
    return 200 + rng.below(15_000)


def run(case: Case) -> Counter[str]:
    """Run a case; return counts of the checks. Raises Violation with the checkers' first finding."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / "run"
        failure = ""
        try:
            testbed.run(
                Cluster.star(case.nodes, kind=case.kind, **dict(case.impairments)), "am-random", protocol=case.protocol,
                mode="sim", seed=case.seed, settings=dict(case.settings), firmware=dict(case.firmware),
                scenario=case.scenario(), check=True, output=folder, timeout=TIMEOUT,
            )  # fmt: skip
        except TestbedError as error:
            failure = str(error)
        reports = []
        with suppress(TestbedError):
            reports = read_reports(read_run(folder))
    violations = [sentence for report in reports for check in report.checks.values() for sentence in check.violations]
    if violations or failure or not reports:
        raise Violation(violations[0] if violations else f"no check failed, but the run did: {failure[-500:]}")
    counts = Counter({f"checked: {check.name}": check.checked for check in reports[0].checks.values()})
    counts.update({f"doubts: {ambiguity.outcome}": 1 for ambiguity in reports[0].ambiguities})
    counts.update({name: int(count) for name, count in reports[0].figures.items() if "seconds" not in name})
    counts[f"fault: {case.fault}"] += 1
    return counts


def reduced_cases(case: Case) -> Iterator[Case]:
    """Yield simpler cases."""
    settings = dict(case.settings)
    if case.fault:
        yield replace(case, fault=NO_FAULT)
    if case.impairments:
        yield replace(case, impairments=())
    if case.nodes > 2:
        yield replace(case, nodes=case.nodes - 1)
    for name, minimum in (("requests", 1), ("endpoints", 1 + bool(settings["freed"])), ("largest", 1)):
        value = settings[name]
        assert isinstance(value, int)
        if value > minimum:
            yield replace(case, settings=tuple({**settings, name: max(minimum, value // 2)}.items()))
    if settings["freed"]:
        yield replace(case, settings=tuple({**settings, "freed": 0}.items()))


SWARMS: Final = {
    name: Swarm(f"python -m tests.sim.request_swarm {name}", partial(draw, name), run, reduced_cases)
    for name in ("am2", "ssam")
}

if __name__ == "__main__":
    sys.exit(SWARMS[sys.argv[1]].main(sys.argv[2:]))
