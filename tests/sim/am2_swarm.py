"""The swarm of AM-II: random cases in the simulator, each first under faults, then on a healed network.

Every case has more endpoints than frames, so that endpoints are paged. Safety must hold during the faults; after them,
every request must be handled once and replied to, or be returned with a true reason; all credits are back, and no channel
or slot is in use.

    python -m tests.sim.am2_swarm 4711        repeat one case, and shrink it if it fails
    python -m tests.sim.am2_swarm 0 1000      run a range of cases
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
"""Virtual time after the faults within which a case must end."""
WITH_COSTS: Final = Profile(
    "round numbers", post=500, write_rate=1_000_000_000, translate=300, notice=200, interrupt=5_000,
    receive=2_000, ring=1_000, tick=500, send=1_500, transfer=200, show=300, fetch=800, fetch_rate=1_000_000_000, store=900,
    store_rate=1_000_000_000, receive_ring=64,
)  # fmt: skip
MAPPING: Final = MapperSettings(
    ports=8, timeout=MILLISECOND, watch=20 * MILLISECOND, stagger=5 * MILLISECOND, rumour=50 * MILLISECOND,
    patience=200 * MILLISECOND,
)  # fmt: skip
PROTOCOL_ERRORS: Final = (
    ActiveMessageError,
    ArithmeticError,
    AssertionError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Errors that firmware and host library raise for an inconsistent state."""


class Run:
    """Run of one case."""

    def __init__(self, case: Case, simulation: Simulation, ledger: Ledger) -> None:
        self.case = case
        self.simulation = simulation
        self.ledger = ledger
        self.names = list(simulation.nodes)
        self.rows: Counter[str] = Counter()
        for name in self.names:
            self.start_programs(name)

    def start_programs(self, name: str) -> None:
        """Start the programs of a node's incarnation."""
        bundle = cast(ActiveMessages, self.simulation.nodes[name].endpoint).allocate_bundle()
        for _ in range(self.case.endpoints):
            endpoint = SwarmEndpoint(self.ledger, bundle)
            self.simulation.spawn(name, endpoint.until_freed(endpoint.serve))
            self.simulation.spawn(name, endpoint.until_freed(endpoint.send))

    def restart(self, number: int) -> None:
        """Restart a NIC with all programs of its node."""
        name = self.names[number]
        self.rows.update(self.simulation.nodes[name].agent.firmware.counter_values())
        for task in self.simulation.programs(name):
            task.cancel()
        self.simulation.restart(name)
        self.ledger.on_restart(number)
        self.start_programs(name)

    def free_endpoints(self) -> None:
        """Free the last endpoint of each node."""
        for number in range(self.case.nodes):
            endpoint = self.ledger.endpoints.pop((number, self.case.endpoints - 1))
            self.ledger.on_freed(endpoint.name)
            endpoint.endpoint.free()

    def run_faults(self) -> None:
        case, simulation = self.case, self.simulation
        links = [link.name for link in simulation.layout.links]
        events = [(time, 1, number) for time, number in case.restarts]
        if case.freed:
            events.append((case.freed, 0, 0))
        cuts = list(case.cuts)
        for time, is_restart, number in sorted(events):
            # Earlier cuts are restored first.
            run_cuts(simulation, links, [cut for cut in cuts if cut.begin <= time])
            cuts = [cut for cut in cuts if cut.begin > time]
            simulation.run_until(max(time, simulation.now()))
            if is_restart:
                self.restart(number)
            else:
                self.free_endpoints()
        run_cuts(simulation, links, cuts)
        simulation.run_until(max(case.until, simulation.now()))
        for link in links:
            simulation.restore(link)
            simulation.change(link, DELAY_ONLY)

    def run_until_done(self, step: int, timeout: int) -> None:
        """Run until all requests have ended. step: ns until the first check; later intervals grow. Raises Violation."""
        simulation = self.simulation
        end = simulation.now() + timeout
        simulation.run_until(simulation.now() + step)
        while unfinished := self.pending():
            if simulation.now() > end:
                raise Violation("no progress on a healed network: " + "; ".join(unfinished[:20]))
            simulation.run_until(simulation.now() + step)
            step += step // 8

    def run_to_the_end(self) -> None:
        simulation = self.simulation
        self.run_until_done(MILLISECOND, TIMEOUT)
        # A peer that has owed replies for long is looked at again after the last one.
        simulation.run_until(
            simulation.now() + (SECOND // 10 if self.case.shape == CROSSBARS else 4 * Settings().keepalive)
        )
        if unfinished := self.pending():
            raise Violation("not finished although all requests have ended: " + "; ".join(unfinished))
        self.ledger.check()
        for node in simulation.nodes.values():
            if self.case.shape != CROSSBARS and node.agent.firmware.deadline is not None:
                raise Violation(f"{node.name}: a timer is set without a transfer in progress")
            self.rows.update(node.agent.firmware.counter_values())
        self.rows.update({f"case: {reason}": count for reason, count in self.ledger.unclear.items()})

    def pending(self) -> list[str]:
        """Return a sentence for each operation in progress."""
        sentences = []
        for name, node in self.simulation.nodes.items():
            host, firmware = cast(ActiveMessages, node.endpoint), cast(Firmware, node.agent.firmware)
            sentences += [f"{name}: {sentence}" for sentence in (*host.driver.pending_work(), *firmware.pending_work())]
        for endpoint in self.ledger.endpoints.values():
            sentences += endpoint.pending()
        return sentences


def run(case: Case) -> Counter[str]:
    """Run a case; return its NICs' counters. Raises Violation."""
    ledger = Ledger(case)
    nics = plug(Settings(**dict(case.settings)), mapper_settings=MAPPING, on_delivery=ledger.on_delivery)
    profile = replace(WITH_COSTS, doorbell=case.doorbell_cost) if case.doorbell_cost else IDEAL
    with Simulation(case.layout(), nics, profile=profile, seed=case.seed) as simulation:
        try:
            swarm_run = Run(case, simulation, ledger)
            with unwrapped():
                swarm_run.run_faults()
                swarm_run.run_to_the_end()
        except Violation:
            raise
        except PROTOCOL_ERRORS as error:
            raise Violation(f"at {simulation.now()} ns: {type(error).__name__}: {error}") from error
        return swarm_run.rows


SWARM: Final = Swarm("python -m tests.sim.am2_swarm", draw, run, reduced_cases)

if __name__ == "__main__":
    sys.exit(SWARM.main(sys.argv[1:]))
