"""Shared NICs in a run of host programs: the agents of the nodes' NICs, and the NIC as a node process uses it.

The agents are children of the warm parent, like the node processes. They start before the node processes and end after them.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Final

from protocols.core.firmware import Host
from protocols.core.split_memory import SplitDriver
from testbed.kernel import namespaces, syscalls
from testbed.kernel.children import fork
from testbed.kernel.daemons import write_output_to
from testbed.runtime.nodes.run_orders import NodePlacement, RunOrders
from testbed.runtime.shared.agent import NicConfig, SharedAgent
from testbed.runtime.shared.attachment import Attachment, HostDriver
from testbed.runtime.shared.workers import SINGLE_WORKER, Worker

_READY: Final = b"\n"


class SharedNodeNic:
    """A node's shared NIC, for its node process. The counts are those of the agent at the last `update_counts`."""

    def __init__(self, orders: RunOrders, split_driver: SplitDriver, device: str, function: int = 0) -> None:
        """Attach to a function of the NIC. function: index among all functions of the NIC. Raises AttachError."""
        count = orders.queues.count
        self._has_workers = count > 1
        self._attachment = Attachment(device, orders.ethertype, split_driver, function // count, function % count)
        self.adapter: Final = self._attachment.adapter
        self.host: Final = self._attachment.host
        self.driver: Final = HostDriver(self._attachment, self.host, orders.spin)
        self.busy = False
        self.received = self.dropped = self.unsent = self.down = self.cpu = self.frames_waiting = 0
        self._counted: dict[str, int] = {}

    def attach(self, host: Host) -> None:
        """Set the host library that gets the completions. Call it before the first completion."""
        self.driver.set_host(host)

    def update_counts(self) -> None:
        """Update the counts by a query of the agent. Raises the errors of `Attachment.report`."""
        report = self._attachment.report()
        self._counted = dict(report["counted"])
        if self._has_workers:
            self._counted |= {"worker_taken": int(report["taken"]), "worker_handed_over": int(report["handed_over"])}
        self.received, self.unsent, self.down, self.cpu = (
            int(report[name]) for name in ("taken", "unsent", "down", "cpu")
        )
        self.frames_waiting = int(report["kept"])
        self.dropped = int(report["dropped"]) + int(report["overflowed"])  # from the wire, and between functions

    def counter_values(self) -> dict[str, int]:
        """Return the firmware's counters at the last `update_counts`. A NIC with several workers also counts the frames that
        its worker has received from the wire, and those of them that were handed over to another worker."""
        return self._counted

    def oversized_sentences(self) -> list[str]:
        """Return an empty list: `pending_work` includes the agent's sentences about oversized frames."""
        return []

    def pending_work(self) -> list[str]:
        """Return sentences about what the NIC waits for. Raises the errors of `Attachment.report`."""
        return self._attachment.pending_work()


def fork_agent(
    orders: RunOrders, split_driver: SplitDriver, placement: NodePlacement, log: Path, worker: Worker = SINGLE_WORKER
) -> tuple[int, int]:
    """Fork the agent of a node's NIC, or one of its workers; return its pid, and a pipe for `wait_for_agent`. placement: a
    placement on this node. log: file for the agent's error."""
    reading, writing = os.pipe()
    pid = fork()
    if pid:
        os.close(writing)
        return pid, reading
    try:
        parent = os.getppid()
        syscalls.end_with_parent(signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before the signal was set
            os._exit(1)
        _close_others({writing, *worker.descriptors})
        syscalls.name_process(f"nic {placement.node_name}")
        write_output_to(os.fspath(log))
        if orders.queues.bound:
            os.sched_setaffinity(0, {orders.queues.processor(worker.number)})
        elif placement.cpu >= 0 and len(placement.functions) == 1:
            os.sched_setaffinity(0, {placement.cpu})
        namespaces.enter(placement.node_context.namespace)
        config = NicConfig(
            split_driver, orders.ethertype, placement.device, placement.functions, spin=orders.spin, mtus=orders.mtus,
            worker=worker,
        )  # fmt: skip
        agent = SharedAgent(config)
        os.write(writing, _READY)
        os.close(writing)
        agent.run()
    except BaseException:  # noqa: BLE001  the child must not return into the parent's code
        sys.stderr.write(traceback.format_exc())
    finally:
        sys.stderr.flush()
        os._exit(1)


def _close_others(kept: set[int]) -> None:
    """Close all descriptors except these and the standard ones."""
    start = 3
    for descriptor in sorted(kept):
        os.closerange(start, descriptor)
        start = descriptor + 1
    os.closerange(start, 1 << 20)


def wait_for_agent(ready_pipe: int) -> bool:
    """Wait until an agent listens or has ended, and close the pipe. Return whether the agent listens; otherwise its log
    contains the error. ready_pipe: pipe that `fork_agent` has returned."""
    try:
        return bool(os.read(ready_pipe, len(_READY)))
    finally:
        os.close(ready_pipe)
