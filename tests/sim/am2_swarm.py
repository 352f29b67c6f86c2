"""The swarm of AM-II: random cases in the simulator, each first under faults, then on a healed network.

In every case there are more endpoints than frames, so that they are paged while they talk. While the faults last nothing
wrong may happen; once they are over everything must end: every request handled once and replied to, or back
at its sender with a reason that is true; all credits back, no channel and no slot in use.

    python -m tests.sim.am2_swarm 4711        run one case again, and shrink it if it fails
    python -m tests.sim.am2_swarm 0 1000      a range of them
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from typing import Final, cast

from protocols.active_messages.am_errors import ActiveMessageError
from protocols.am2.firmware import Firmware
from protocols.am2.host.library import ActiveMessages
from protocols.am2.plug import plug
from protocols.am2.settings import Settings
from protocols.core.profile import IDEAL, Profile
from protocols.myrinet.mapper.settings import Settings as MapperSettings
from testbed.controller.conformance.network_faults import DELAY_ONLY, MILLISECOND, SECOND, run_cuts
from testbed.controller.conformance.trials import Swarm, Violation
from testbed.sim.simulation import Simulation
from tests.sim.am2_swarm_cases import CROSSBARS, Case, draw, reduced_cases
from tests.sim.am2_swarm_ledger import Ledger
from tests.sim.am2_swarm_programs import SwarmEndpoint
from tests.sim.unwrapped_errors import unwrapped

TIMEOUT: Final = 2 * SECOND
"""Virtual time after the faults, in which a case must have ended."""
WITH_COSTS: Final = Profile(
    "round numbers", post=500, write_rate=1_000_000_000, translate=300, notice=200, interrupt=5_000,
    receive=2_000, ring=1_000, tick=500, send=1_500, transfer=200, show=300, fetch=800, fetch_rate=1_000_000_000, store=900,
    store_rate=1_000_000_000, receive_ring=64,
)  # fmt: skip
MAPPING: Final = MapperSettings(
    ports=8, timeout=MILLISECOND, watch=20 * MILLISECOND, stagger=5 * MILLISECOND, rumour=50 * MILLISECOND,
    patience=200 * MILLISECOND,
)  # fmt: skip
MISTAKES: Final = (
    ActiveMessageError,
    ArithmeticError,
    AssertionError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Errors by which the firmware and the host library show an inconsistent state."""


class Run:
    """Run of one case."""

    def __init__(self, case: Case, simulation: Simulation, ledger: Ledger) -> None:
        self.case = case
        self.simulation = simulation
        self.world = ledger
        self.names = list(simulation.nodes)
        self.rows: Counter[str] = Counter()
        for name in self.names:
            self.begin(name)

    def begin(self, name: str) -> None:
        """One incarnation of a node."""
        bundle = cast(ActiveMessages, self.simulation.nodes[name].endpoint).allocate_bundle()
        for _ in range(self.case.endpoints):
            talker = SwarmEndpoint(self.world, bundle)
            self.simulation.spawn(name, talker.serve)
            self.simulation.spawn(name, talker.send)

    def start_again(self, number: int) -> None:
        """A NIC does, with all programs of its node."""
        name = self.names[number]
        self.rows.update(self.simulation.nodes[name].agent.firmware.counter_values())
        for task in self.simulation.programs(name):
            task.cancel()
        self.simulation.restart(name)
        self.world.starts_again(number)
        self.begin(name)

    def free(self) -> None:
        """The last endpoint of each node is freed."""
        for number in range(self.case.nodes):
            talker = self.world.talkers.pop((number, self.case.endpoints - 1))
            self.world.is_freed(talker.name)
            talker.endpoint.free()

    def through_the_faults(self) -> None:
        case, simulation = self.case, self.simulation
        links = [link.name for link in simulation.layout.links]
        events = [(time, 1, number) for time, number in case.restarts]
        if case.freed:
            events.append((case.freed, 0, 0))
        cuts = list(case.cuts)
        for time, is_restart, number in sorted(events):
            # A cable that is out then is put in again first.
            run_cuts(simulation, links, [cut for cut in cuts if cut.begin <= time])
            cuts = [cut for cut in cuts if cut.begin > time]
            simulation.run_until(max(time, simulation.now()))
            if is_restart:
                self.start_again(number)
            else:
                self.free()
        run_cuts(simulation, links, cuts)
        simulation.run_until(max(case.until, simulation.now()))
        for link in links:
            simulation.restore(link)
            simulation.change(link, DELAY_ONLY)

    def until_all_is_over(self, step: int, patience: int) -> None:
        """step: nanoseconds after which it looks first; then seldom and more seldom. Raises Violation."""
        simulation = self.simulation
        end = simulation.now() + patience
        simulation.run_until(simulation.now() + step)
        while unfinished := self.left():
            if simulation.now() > end:
                raise Violation("no progress on a healed network: " + "; ".join(unfinished[:20]))
            simulation.run_until(simulation.now() + step)
            step += step // 8

    def to_the_end(self) -> None:
        simulation = self.simulation
        self.until_all_is_over(MILLISECOND, TIMEOUT)
        # A peer that has owed replies for long is looked at again after the last one.
        simulation.run_until(
            simulation.now() + (SECOND // 10 if self.case.shape == CROSSBARS else 4 * Settings().keepalive)
        )
        if unfinished := self.left():
            raise Violation("it was over, and is not: " + "; ".join(unfinished))
        self.world.check()
        for node in simulation.nodes.values():
            if self.case.shape != CROSSBARS and node.agent.firmware.deadline is not None:
                raise Violation(f"{node.name}: a timer is set without a transfer in progress")
            self.rows.update(node.agent.firmware.counter_values())
        self.rows.update({f"case: {reason}": count for reason, count in self.world.unclear.items()})

    def left(self) -> list[str]:
        """Return a sentence for each operation in progress."""
        sentences = []
        for name, node in self.simulation.nodes.items():
            host, firmware = cast(ActiveMessages, node.endpoint), cast(Firmware, node.agent.firmware)
            sentences += [f"{name}: {sentence}" for sentence in (*host.driver.pending_work(), *firmware.pending_work())]
        for talker in self.world.talkers.values():
            sentences += talker.left()
        return sentences


def run(case: Case) -> Counter[str]:
    """Run a case; return its NICs' counters. Raises Violation."""
    ledger = Ledger(case)
    nics = plug(Settings(**dict(case.settings)), mapping=MAPPING, on_delivery=ledger.on_delivery)
    profile = replace(WITH_COSTS, doorbell=case.priced) if case.priced else IDEAL
    with Simulation(case.layout(), nics, profile=profile, seed=case.seed) as simulation:
        try:
            swarm_run = Run(case, simulation, ledger)
            with unwrapped():
                swarm_run.through_the_faults()
                swarm_run.to_the_end()
        except Violation:
            raise
        except MISTAKES as error:
            raise Violation(f"at {simulation.now()} ns: {type(error).__name__}: {error}") from error
        return swarm_run.rows


SWARM: Final = Swarm("python -m tests.sim.am2_swarm", draw, run, reduced_cases)

if __name__ == "__main__":
    sys.exit(SWARM.main(sys.argv[1:]))
