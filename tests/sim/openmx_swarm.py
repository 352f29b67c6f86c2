"""The swarm of Open-MX: random cases in the simulator, each first under faults, then on a healed network.

While faults last no message may be received twice, changed or out of order, and none may count as arrived that has not been
received. After the faults every operation must complete; where no connection has been closed, every message arrives. No
memory stays pinned, and no zombie and no timer is left. Where a NIC has receive queues, all frames of an endpoint are
handled by one core.

    python -m tests.sim.openmx_swarm 4711        repeat one case, and shrink it if it fails
    python -m tests.sim.openmx_swarm 0 1000      a range of them
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import permutations
from typing import Final, cast

import pytest

from protocols.core.memory import HostMemory
from protocols.core.profile import IDEAL
from protocols.openmx.driver_endpoint import Driver, DriverEndpoint
from protocols.openmx.endpoint import Endpoint
from protocols.openmx.host import Library, plug
from protocols.openmx.mx_names import Status
from protocols.openmx.mx_requests import Request
from protocols.openmx.profile import OPENMX_2009
from protocols.openmx.settings import Settings
from protocols.openmx.steering import HASHES
from testbed.controller.conformance.network_faults import (
    DELAY_ONLY,
    MICROSECOND,
    MILLISECOND,
    SECOND,
    layout_of,
    run_cuts,
)
from testbed.controller.conformance.trials import Swarm, Violation
from testbed.engine.sources import source
from testbed.nic.hosted import HostedNic, ReceiveQueue
from testbed.sim.sim_host import Prices
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation
from testbed.spec.placement import with_ranks
from tests.sim.openmx_swarm_cases import SENDS, Action, Case, draw, reduced_cases
from tests.sim.unwrapped_errors import unwrapped
from tests.unit.protocols.openmx_ledger import ANY_SOURCE, Ledger

TIMEOUT: Final = 60 * SECOND
"""Virtual time after the faults by which a case must have ended."""
KEY: Final = 0
"""Key of all endpoints, which a connection request must name."""
IN_FLIGHT: Final = 35 * MILLISECOND
"""Time after which the frames that were on slow links when the faults ended have arrived."""
FINAL_SIZE: Final = 8
"""Bytes of the messages that each endpoint sends to each other one at the end."""
PRODUCT_ERRORS: Final = (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors that the ledger, the driver and the library raise if something is wrong."""
CONNECT_FAILURES: Final = (Status.ENDPOINT_CLOSED, Status.ENDPOINT_UNREACHABLE, Status.BAD_SESSION, Status.BAD_ENDPOINT)
"""Statuses with which a connection attempt with the correct key may fail."""


class Run:
    """Run of one case. endpoints: the open endpoints, by number. begun: number of actions that each has begun. reset:
    endpoints that were closed or restarted: they have lost their messages' state, and frames do not distinguish a node's
    incarnations.
    """

    def __init__(self, case: Case, simulation: Simulation) -> None:
        self.case = case
        self.simulation = simulation
        self.ranks = list(simulation.nodes)
        self.ledger = Ledger(max([FINAL_SIZE, *[action.size for action in case.actions]]))
        self.endpoints: dict[int, Endpoint] = {}
        self.count = len(self.ranks) * case.per_rank
        self.actions = [[action for action in case.actions if action.end == end] for end in range(self.count)]
        self.begun = [0] * self.count
        self.open_receives: list[list[tuple[int, Request]]] = [[] for _ in range(self.count)]
        self.reset: set[int] = set()
        self.rows: Counter[str] = Counter()
        for end in range(self.count):
            expected = [action.end for action in case.actions if action.peer == end and action.kind in SENDS]
            source(case.seed, f"receives of {end}").shuffle(expected)
            self.start_program(end)
            self.simulation.spawn(self.ranks[case.rank_of(end)], self.receive_all, end, expected)

    def start_program(self, end: int) -> None:
        """Start an incarnation of an endpoint's program."""
        self.simulation.spawn(self.ranks[self.case.rank_of(end)], self.run_actions, end)

    # Programs

    async def run_actions(self, library: Library, node: SimNode, end: int) -> None:
        await node.sleep(self.case.late[end])
        self.open(library, end)
        for action in self.actions[end][self.begun[end] :]:
            await node.sleep(action.pause)
            self.begun[end] += 1
            await self.act(library, node, action)

    async def act(self, library: Library, node: SimNode, action: Action) -> None:
        end, kind = self.endpoints[action.end], action.kind
        if kind == "reopen":
            self.reset.add(action.end)
            end.close()
            await node.sleep(action.pause)
            self.open(library, action.end)
            return
        partner = end.partner(self.case.rank_of(action.peer), self.case.index_of(action.peer))
        if kind in SENDS:
            self.ledger.send(end, partner, (action.end, action.peer), action.size, synchronous=kind == "synchronous")
        elif kind == "disconnect":
            end.disconnect(partner)
        else:
            was_known = partner.is_connected or partner.connected is not None or action.peer == action.end
            status = await end.iconnect(partner, KEY + (kind == "stranger"))
            if kind == "connect" and status not in (Status.SUCCESS, *CONNECT_FAILURES) and not was_known:
                raise Violation(f"endpoint {action.end} cannot connect to {action.peer}: {status.name}")

    def open(self, library: Library, end: int) -> None:
        """Open or reopen an endpoint, and post the receives again that have not received a message."""
        self.endpoints[end] = opened_endpoint = library.open_endpoint(self.case.index_of(end), KEY)
        closed = [
            (origin, request) for origin, request in self.open_receives[end]
            if not request.done or request.result().status is Status.ENDPOINT_CLOSED
        ]  # fmt: skip
        self.open_receives[end] = []
        for origin, _ in closed:
            self.receive(opened_endpoint, end, origin)

    async def receive_all(self, _library: Library, node: SimNode, end: int, expected: list[int]) -> None:
        rng = source(self.case.seed, f"pauses of {end}")
        for origin in expected:
            while end not in self.endpoints or rng.random() < 0.3:
                await node.sleep(1 + rng.below(500 * MICROSECOND))
            if self.endpoints[end].is_open:
                self.receive(self.endpoints[end], end, origin)

    def receive(self, opened_endpoint: Endpoint, end: int, origin: int) -> None:
        expected = ANY_SOURCE if self.case.wild[end] else origin
        self.open_receives[end].append((origin, self.ledger.receive(opened_endpoint, end, expected)))

    # Faults

    def restart(self, number: int) -> None:
        """Restart a node with all its programs. Its endpoints' next incarnations take the remaining actions."""
        case, simulation = self.case, self.simulation
        name = simulation.layout.nodes[number].name
        for rank in simulation.hosts[name].ranks:
            self.rows.update(rank.agent.firmware.counter_values())
        for task in simulation.programs(name):
            task.cancel()
        simulation.restart(name)
        for end in range(self.count):
            if case.node_of(end) == number:
                self.reset.add(end)
                self.endpoints.pop(end, None)
                self.start_program(end)

    def run_faults(self) -> None:
        case, simulation = self.case, self.simulation
        links = [link.name for link in simulation.layout.links]
        cuts = list(case.cuts)
        for time, number in sorted(case.restarts):
            run_cuts(simulation, links, [cut for cut in cuts if cut.begin <= time])
            cuts = [cut for cut in cuts if cut.begin > time]
            simulation.run_until(max(time, simulation.now()))
            self.restart(number)
        run_cuts(simulation, links, cuts)
        simulation.run_until(max(case.until, simulation.now()))
        for link in links:
            simulation.restore(link)
            simulation.change(link, DELAY_ONLY)

    # End

    def run_to_end(self, timeout: int) -> None:
        """Run until every operation has completed. Raises Violation, at the latest after `timeout` ns."""
        end = self.simulation.now() + timeout
        step = max(4 * MILLISECOND, 8 * self.case.tick)
        while unfinished := self.pending_work():
            if self.simulation.now() > end:
                raise Violation("no progress on a healed network: " + "; ".join(unfinished[:20]))
            if not self.case.is_calm and not self._running_programs():
                self.send_to_all()
            self.simulation.run_until(self.simulation.now() + step)
            step += step // 4
        self.simulation.run_until(self.simulation.now() + 40 * self.case.tick + IN_FLIGHT)
        if unfinished := self.pending_work():
            raise Violation("operations after the end: " + "; ".join(unfinished))
        self.close_all()
        self.ledger.check(self.case.is_calm, lambda direction: bool(self.reset.intersection(direction)))

    def send_to_all(self) -> None:
        """Send from every endpoint to every other one: a disconnect does not notify the peer, so that only the next
        connection ends the peer's pending operations."""
        for origin, destination in permutations(range(self.count), 2):
            sender = self.endpoints[origin]
            partner = sender.partner(self.case.rank_of(destination), self.case.index_of(destination))
            sender.iconnect(partner, KEY)  # an action "stranger" may have failed the connection
            self.ledger.send(sender, partner, (origin, destination), FINAL_SIZE, synchronous=False)
            self.receive(self.endpoints[destination], destination, origin)

    def pending_work(self) -> list[str]:
        """Return a description of each operation in progress. Receives count only where every message must arrive."""
        pending = self._running_programs()
        for name, node in self.simulation.nodes.items():
            firmware = node.agent.firmware
            host = [
                sentence
                for sentence in node.agent.host.pending_work()
                if self.case.is_calm or not sentence.startswith("a receive")
            ]
            pending += [f"{name}: {sentence}" for sentence in (*host, *firmware.pending_work())]
            if not pending and firmware.deadline is not None:
                pending.append(f"{name}: a timer runs")
        return pending

    def _running_programs(self) -> list[str]:
        return [f"{task}" for name in self.simulation.hosts for task in self.simulation.programs(name) if not task.done]

    def close_all(self) -> None:
        """Close all endpoints. Raises Violation if memory, timers or zombies are left."""
        for end in self.endpoints.values():
            end.close()
        self.simulation.run_until(self.simulation.now() + 1)
        for name, node in self.simulation.nodes.items():
            pinned = len(cast(HostMemory, cast(Library, node.endpoint).memory))
            if pinned:
                raise Violation(f"{name} leaks {pinned} regions of memory")
            if node.agent.firmware.deadline is not None:
                raise Violation(f"{name}: a timer is set without a transfer in progress")
            self.rows.update(node.agent.firmware.counter_values())
        if zombies := sum(end._zombie_count for end in self.endpoints.values()):
            raise Violation(f"{zombies} zombies are left")


@contextmanager
def check_steering() -> Iterator[None]:
    """Check that all frames for an endpoint from the wire are handled by the same core. Raises Violation."""
    look_up, softirq = Driver.look_up, HostedNic._softirq
    cores: dict[DriverEndpoint, int] = {}
    is_from_wire = False

    def watched_softirq(nic: HostedNic, queue: ReceiveQueue) -> None:
        nonlocal is_from_wire
        is_from_wire = True
        softirq(nic, queue)
        is_from_wire = False

    def watched_look_up(driver: Driver, endpoint: DriverEndpoint) -> None:
        core = driver.work.core
        if is_from_wire and cores.setdefault(endpoint, core) != core:
            raise Violation(f"frames of endpoint {endpoint.index} are handled by cores {cores[endpoint]} and {core}")
        look_up(driver, endpoint)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HostedNic, "_softirq", watched_softirq)
        patch.setattr(Driver, "look_up", watched_look_up)
        yield


def run(case: Case, timeout: int = TIMEOUT) -> Counter[str]:
    """Run a case; return its NICs' counters. Raises Violation, at the latest after `timeout` ns on a healed network."""
    profile = replace(OPENMX_2009, receive_queues=case.queues) if case.queues else IDEAL
    layout = layout_of(case.shape, case.nodes)
    layout = with_ranks(layout, case.per_node, {node.name: OPENMX_2009.cores for node in layout.nodes})
    prices = Prices(profile, steering=HASHES)
    with (
        check_steering() if case.queues else nullcontext(),
        Simulation(layout, plug(Settings(**dict(case.settings))), profile=prices, seed=case.seed) as simulation,
    ):
        for link, impairment in zip(layout.links, case.links, strict=True):
            simulation.change(link.name, impairment)
        try:
            with unwrapped():
                swarm_run = Run(case, simulation)
                swarm_run.run_faults()
                swarm_run.run_to_end(timeout)
        except Violation:
            raise
        except PRODUCT_ERRORS as error:
            raise Violation(f"at {simulation.now()} ns: {type(error).__name__}: {error}") from error
        return swarm_run.rows


SWARM: Final = Swarm("python -m tests.sim.openmx_swarm", draw, run, reduced_cases)


if __name__ == "__main__":
    sys.exit(SWARM.main(sys.argv[1:]))
