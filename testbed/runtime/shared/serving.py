"""Shared NICs in a run of host programs: an agent beside each node process, and what such a process has for a NIC.

The agents are the warm parent's children, as the node processes are. They begin before these and end after them.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

from protocols.core.apart import Apart
from protocols.core.firmware import Host
from testbed.kernel import syscalls
from testbed.runtime.nodes.places import Orders, Place
from testbed.runtime.shared.agent import Offer, SharedAgent
from testbed.runtime.shared.attached import Attachment, HostDriver

_LISTENS: Final = b"\n"


class NodesNic:
    """What a node process has for a NIC that is shared: the counts are its agent's, from the last `look` on."""

    def __init__(self, orders: Orders, apart: Apart, device: str) -> None:
        """Raises AttachError."""
        self._attachment = Attachment(device, orders.ethertype, apart)
        self.adapter: Final = self._attachment.adapter
        self.host: Final = self._attachment.host
        self.driver: Final = HostDriver(self._attachment, self.host, orders.spin)
        self.busy = False
        self.taken = self.dropped = self.unsent = self.down = self.cpu = self.kept = 0
        self._counted: dict[str, int] = {}

    def attach(self, host: Host) -> None:
        """To which host library completions are told, before the first one."""
        self.driver.tell(host)

    def look(self) -> None:
        """Bring the counts up to date. Raises NicGoneError."""
        told = self._attachment.report()
        self._counted = dict(told["counted"])
        self.taken, self.unsent, self.down, self.cpu = (int(told[name]) for name in ("taken", "unsent", "down", "cpu"))
        self.kept = int(told["kept"])
        self.dropped = int(told["dropped"]) + int(told["overflowed"])  # from the wire, and between functions

    def counted(self) -> dict[str, int]:
        """The firmware's, up to the last look."""
        return self._counted

    def waiting(self) -> list[str]:
        """What the NIC waits for. Raises NicGoneError."""
        return self._attachment.waiting()


def begin(orders: Orders, apart: Apart, place: Place, go_to: Callable[[Place], None], log: Path) -> tuple[int, int]:
    """Fork the agent of a node's NIC: its number, and a descriptor that can be read when it listens or has ended.

    go_to: enters the node's network namespace. Why it has ended stands in the log.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    try:
        parent = os.getppid()
        syscalls.end_with_parent(signal.SIGKILL)
        if os.getppid() != parent:  # it ended before that
            os._exit(1)
        os.closerange(3, writing)
        os.closerange(writing + 1, 1 << 20)
        syscalls.name_process(f"nic {place.name}")
        written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        for standard in (1, 2):
            os.dup2(written, standard)
        os.close(written)
        if place.cpu >= 0:
            os.sched_setaffinity(0, {place.cpu})
        go_to(place)
        offer = Offer(apart, orders.ethertype, place.device, (place.adapter,), spin=orders.spin)
        agent = SharedAgent(offer)
        os.write(writing, _LISTENS)
        os.close(writing)
        agent.run()
    except BaseException:  # noqa: BLE001  the last line of a process
        sys.stderr.write(traceback.format_exc())
    finally:
        sys.stderr.flush()
        os._exit(1)


def listens(ready: int) -> bool:
    """Wait for what `begin` has given: whether it listens. Why one does not stands in its log."""
    try:
        return bool(os.read(ready, len(_LISTENS)))
    finally:
        os.close(ready)
