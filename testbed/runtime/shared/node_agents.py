"""Shared NICs in a run of host programs: an agent beside each node process, and the node process's side.

The agents are children of the warm parent, as the node processes are. They start before these and end after them.
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
from testbed.kernel.daemons import write_output_to
from testbed.runtime.nodes.places import NodePlacement, Orders
from testbed.runtime.shared.agent import Offer, SharedAgent
from testbed.runtime.shared.attachment import Attachment, HostDriver
from testbed.runtime.shared.workers import ALONE, Worker

_LISTENS: Final = b"\n"


class NodesNic:
    """A node process's side of its shared NIC. Counts are the agent's at the last `update_counts`."""

    def __init__(self, orders: Orders, split_driver: SplitDriver, device: str, function: int = 0) -> None:
        """Raises AttachError."""
        count = orders.queues.count
        self._has_workers = count > 1
        self._attachment = Attachment(device, orders.ethertype, split_driver, function // count, function % count)
        self.adapter: Final = self._attachment.adapter
        self.host: Final = self._attachment.host
        self.driver: Final = HostDriver(self._attachment, self.host, orders.spin)
        self.busy = False
        self.received = self.dropped = self.unsent = self.down = self.cpu = self.kept = 0
        self._counted: dict[str, int] = {}

    def attach(self, host: Host) -> None:
        """Set the host library that gets the completions, before the first one."""
        self.driver.set_host(host)

    def update_counts(self) -> None:
        """Update the counts. Raises NicGoneError."""
        report = self._attachment.report()
        self._counted = dict(report["counted"])
        if self._has_workers:
            self._counted |= {"worker_taken": int(report["taken"]), "worker_handed_over": int(report["handed_over"])}
        self.received, self.unsent, self.down, self.cpu = (
            int(report[name]) for name in ("taken", "unsent", "down", "cpu")
        )
        self.kept = int(report["kept"])
        self.dropped = int(report["dropped"]) + int(report["overflowed"])  # from the wire, and between functions

    def counted(self) -> dict[str, int]:
        """Return the firmware's counters at the last `update_counts`. Of a NIC with several workers also the frames that its
        worker has taken from the wire, and those of them that were another one's."""
        return self._counted

    def oversized_sentences(self) -> list[str]:
        """Return nothing: the agent reports lost frames in `waiting`."""
        return []

    def waiting(self) -> list[str]:
        """Return sentences about what the NIC waits for. Raises NicGoneError."""
        return self._attachment.waiting()


def begin(
    orders: Orders, split_driver: SplitDriver, placement: NodePlacement, log: Path, worker: Worker = ALONE
) -> tuple[int, int]:
    """Fork the agent of a node's NIC, or one of its workers; return its pid, and a descriptor that is readable when it
    listens or has ended. log: the file for the agent's error.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    try:
        parent = os.getppid()
        syscalls.end_with_parent(signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before the signal was set
            os._exit(1)
        _close_others({writing, *worker.descriptors})
        syscalls.name_process(f"nic {placement.on}")
        write_output_to(os.fspath(log))
        if orders.queues.bound:
            os.sched_setaffinity(0, {orders.queues.processor(worker.number)})
        elif placement.cpu >= 0 and len(placement.functions) == 1:
            os.sched_setaffinity(0, {placement.cpu})
        namespaces.enter(placement.node_context.namespace)
        offer = Offer(
            split_driver, orders.ethertype, placement.device, placement.functions, spin=orders.spin, mtus=orders.mtus,
            worker=worker,
        )  # fmt: skip
        agent = SharedAgent(offer)
        os.write(writing, _LISTENS)
        os.close(writing)
        agent.run()
    except BaseException:  # noqa: BLE001  none of the parent's code may run on in the child
        sys.stderr.write(traceback.format_exc())
    finally:
        sys.stderr.flush()
        os._exit(1)


def _close_others(kept: set[int]) -> None:
    """Close all descriptors but those and the standard ones."""
    begin = 3
    for descriptor in sorted(kept):
        os.closerange(begin, descriptor)
        begin = descriptor + 1
    os.closerange(begin, 1 << 20)


def listens(ready: int) -> bool:
    """Wait for the descriptor of `begin`, and close it; return whether the agent listens. Its log says why not."""
    try:
        return bool(os.read(ready, len(_LISTENS)))
    finally:
        os.close(ready)
