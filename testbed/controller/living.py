"""A workload on NICs in namespaces."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from testbed.cluster.running import RunningCluster
from testbed.controller.agents import agents
from testbed.controller.executing import Execution, Plan, names_of, one_rank
from testbed.controller.folders import Part
from testbed.runtime.nodes.places import Here
from testbed.runtime.sockets.protocol import KernelProtocol

if TYPE_CHECKING:
    from protocols.core.firmware import Host


def live(cluster: RunningCluster, plan: Plan, part: Part) -> Execution:
    """Run the workload on all nodes of a cluster that is up.

    Raises ProgramError with the node's name and a traceback, NodeDiedError, and StuckError where programs have not ended
    within plan.timeout, or nothing has got any further for plan.patience.
    """
    layout = cluster.state.layout
    names = names_of(layout, plan.chosen)
    protocol = plan.protocol
    addresses = [node.address for node in layout.nodes]
    if plan.history:
        part.history.mkdir(exist_ok=True)

    async def rank(endpoint: Host, here: Here) -> object:
        if isinstance(protocol, KernelProtocol):
            await protocol.connect(endpoint, here.loop, addresses)
        return await one_rank(plan, part, names, here.number, protocol.device(endpoint), WallClock(here))

    programs = dict.fromkeys(names, rank)
    spin = 0 if isinstance(protocol, KernelProtocol) else None
    with agents(cluster, protocol.plug, protocol.ethertype, programs, spin=spin, logs=part.logs) as run:
        with contextlib.ExitStack() as stack:
            for beside in plan.beside:
                stack.enter_context(beside.live(cluster, run))
            outcome = run.wait(plan.timeout, patience=plan.patience)
        counted = {name: report.counted for name, report in outcome.reports.items()}
    return Execution(outcome.results, counted, outcome.verdict)


class WallClock:
    """A node's `Clock`."""

    __slots__ = ("_loop", "cpu", "now", "sleep", "spawn")

    def __init__(self, here: Here) -> None:
        self._loop = here.loop
        self.now = time.monotonic_ns
        self.cpu = time.process_time_ns
        self.sleep = here.loop.sleep
        self.spawn = here.loop.spawn

    async def compute(self, nanoseconds: int) -> None:
        """Counted in our own processor time: what another process takes does not make the work less."""
        used = time.thread_time_ns
        end = used() + nanoseconds
        while used() < end:
            pass
