"""The warm parent of a run's node processes: forked from the process that starts the run, with everything imported, it
forks the nodes, sees each of them end at that moment, and ends with its last hearer.

It stands between for what a test or a command cannot do for itself: it has one thread and no descriptor too many; its
memory, set aside from garbage collection, stays shared with all that it forks; a cluster's user namespace is entered and
a NIC's offloads are switched once, and put back however the nodes end. If it does not come to that, whoever started it
puts them back.

It tells "forked" with a node's name and process number, "ended" with its name and wait status. It is told "ask": have all
nodes say what they wait for; with a name, "kill", "pause" and "resume"; and "restart", with a name and the node's new end,
for one that has ended.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from protocols.core.apart import Apart
from testbed.errors import KernelError, TestbedError, reason_of
from testbed.kernel import daemons, offloads, processes, syscalls
from testbed.kernel.entering import enter_keeper, is_inside
from testbed.kernel.offloads import Offloads
from testbed.runtime import events
from testbed.runtime.nodes.channel import Channel
from testbed.runtime.nodes.node import QUESTION, asked, live, made
from testbed.runtime.nodes.places import Orders, Place
from testbed.runtime.nodes.progress import Progress
from testbed.runtime.shared import serving

NAME: Final = "testbed-nodes"
LOG: Final = "warm.log"

_SIGNALS: Final = {
    "ask": QUESTION, "kill": signal.SIGKILL, "pause": signal.SIGSTOP, "resume": signal.SIGCONT,
}  # fmt: skip

# Of CPython's allocator: objects of at most so many bytes lie side by side by their size in such steps; bytes have a head.
# Above that, they are of libc's, which cuts them from what is free.
_SMALL: Final = 512
_STEP: Final = 16
_LARGE: Final = 4096
_CUT: Final = 128
_HEAD: Final = 33
_FILL: Final = 1 << 18  # bytes for each size


@dataclass(frozen=True, slots=True)
class _Child:
    """A node process, or the agent of a node's NIC."""

    name: str
    pid: int
    handle: int
    agent: bool = False


class _Warm:
    def __init__(
        self, orders: Orders, channel: Channel, ends: Mapping[str, Channel], logs: Path, told: Path, progress: Progress
    ) -> None:
        self._orders = orders
        self._channel = channel
        self._ends = dict(ends)
        self._logs = logs
        self._log = f"{str(logs).replace('%', '%%')}/%s.log"  # a path's own operations would cost each node pages
        self._told = told
        self._progress = progress
        self._starts: Counter[str] = Counter()  # of each node
        self._directory = os.getcwd()
        self._children: dict[int, _Child] = {}
        self._open = {channel.fileno(), *(end.fileno() for end in ends.values())}
        """What no node may keep, unless it is its own."""
        self._ready = select.poll()

    def prepare(self) -> None:
        """Raises KernelError where a node or its NIC is not there."""
        with contextlib.suppress(OSError):  # somebody has removed it
            os.chdir(self._directory)
        self._orders = _entered(self._orders)
        try:
            for place in self._orders.places if self._orders.ethertype else ():  # the kernel's own protocols keep them
                _switch_off(place)
            self._warm_up()
        except BaseException:
            put_back(self._orders, self._told)
            raise
        gc.collect()
        gc.freeze()
        self._filled = _filled()

    def _warm_up(self) -> None:
        """Have done once what every node does: what it leaves in memory is shared."""
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        try:
            self._rehearsed = made(self._orders, "lo", self._orders.places[0].adapter)
        except Exception as error:  # a protocol may raise anything; told as every TestbedError is
            raise TestbedError(f"no NIC can be built:\n{traceback.format_exc()}") from error

    def stay(self) -> None:
        signal.signal(QUESTION, asked)
        try:
            if self._orders.shared is not None:
                self._begin_agents(self._orders.shared)
            places = enumerate(self._orders.places)
            for name, pid in [(place.name, self._fork(number, place.name)) for number, place in places]:
                self._forked(name, pid)
            self._ready.register(self._channel.fileno(), select.POLLIN)
            while self._turn():
                pass
        finally:
            for child in self._children.values():
                signal.pidfd_send_signal(child.handle, signal.SIGKILL)
            for child in self._children.values():
                os.waitpid(child.pid, 0)
            put_back(self._orders, self._told)

    def _fork(self, number: int, name: str) -> int:
        self._starts[name] += 1
        pid = os.fork()
        if not pid:
            own = self._ends[name]
            for descriptor in self._open - {own.fileno()}:  # by number: to look at each object would cost pages
                os.close(descriptor)
            live(self._orders, number, own, self._log % name, self._progress, self._starts[name])
        return pid

    def _forked(self, name: str, pid: int) -> None:
        """See to a node process. Not between the forks of several: what is written here, each that was forked before has to
        itself from then on."""
        self._open.remove(self._ends[name].fileno())
        self._ends[name].close()
        self._watch(_Child(name, pid, os.pidfd_open(pid)))
        self._tell("forked", (name, pid))

    def _begin_agents(self, apart: Apart) -> None:
        """Of shared NICs; all of them listen when this returns. One that does not is found out by its node process."""
        begun = []
        for place in self._orders.places:
            pid, ready = serving.begin(self._orders, apart, place, _go_to, self._logs / f"{place.name}.nic.log")
            self._watch(_Child(place.name, pid, os.pidfd_open(pid), agent=True))
            begun.append(ready)
        for ready in begun:
            serving.listens(ready)

    def _watch(self, child: _Child) -> None:
        self._open.add(child.handle)
        self._children[child.handle] = child
        self._ready.register(child.handle, select.POLLIN)

    def _turn(self) -> bool:
        """Wait for something and do it; whether anybody wants us still."""
        for descriptor, _ in self._ready.poll():
            child = self._children.get(descriptor)
            if child is not None:
                self._bury(child)
                continue
            said, end = self._channel.hear_with()
            if said is None:
                return False
            word, name = said
            if word == "restart" and end is not None:
                self._restart(str(name), end)
                continue
            for other in self._children.values():
                if (word == "ask" or other.name == name) and not other.agent:
                    signal.pidfd_send_signal(other.handle, _SIGNALS[word])
        return True

    def _restart(self, name: str, end: Channel) -> None:
        """A node that has ended begins again."""
        self._ends[name] = end
        self._open.add(end.fileno())
        number = [place.name for place in self._orders.places].index(name)
        self._forked(name, self._fork(number, name))

    def _bury(self, child: _Child) -> None:
        _, status = os.waitpid(child.pid, 0)
        self._ready.unregister(child.handle)
        os.close(child.handle)
        self._open.remove(child.handle)
        del self._children[child.handle]
        code = os.waitstatus_to_exitcode(status)
        if child.agent:
            events.record(self._told, "NIC agent died", node=child.name, pid=child.pid, code=code)
            return
        if status:
            events.record(self._told, "node process died", node=child.name, pid=child.pid, code=code)
        self._tell("ended", (child.name, status))

    def _tell(self, word: str, data: object) -> None:
        with contextlib.suppress(ConnectionError):  # then the next turn is the last
            self._channel.tell(word, data)


def _filled() -> list[bytes]:
    """What fills the holes in this process's memory, as long as it is kept. Else each child would put its first objects into
    holes all over it, and have every page that has one to itself: 4 % of a node's memory, twice that where this process
    has had modules to compile."""
    sizes = [*range(_LARGE, _SMALL, -_CUT), *range(_SMALL, 2 * _STEP, -_STEP)]
    return [bytes(size - _HEAD) for size in sizes for _ in range(_FILL // size)]


def start(
    orders: Orders, channel: Channel, ends: Mapping[str, Channel], logs: Path, told: Path, progress: Progress
) -> processes.Identity:
    """Fork the warm parent; it forks the nodes. channel: its end of what it hears by; ends: the nodes' ends, by name. logs:
    the directory of the nodes' output. told: the cluster's directory, for events. KernelError."""
    warm = _Warm(orders, channel, ends, logs, told, progress)
    kept = [channel.fileno(), *(end.fileno() for end in ends.values())]
    return daemons.start(NAME, kept, warm.prepare, warm.stay, str(logs / LOG))


def put_back(orders: Orders, told: Path) -> None:
    """Let the nodes' NICs have offloads again, where links allow it by now. For a process of one thread that need not come
    back to its namespaces. What cannot be put back is an event; 'testbed up' does it then."""
    try:
        entered = _entered(orders)
        with orders.offloading() as wanted:
            for place in entered.places:
                if place.name in wanted:
                    _raise(place, wanted[place.name])
    except (TestbedError, OSError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else str(error)
        events.record(told, "offloads left off", nodes=[place.name for place in orders.places], reason=reason)


def _entered(orders: Orders) -> Orders:
    """Be inside the cluster's user namespace, where it has one. The same places, as they are seen from there."""
    keeper = orders.places[0].surroundings.keeper
    if not keeper:
        return orders
    if not is_inside(keeper):
        enter_keeper(keeper)
    inside = [replace(place, surroundings=replace(place.surroundings, keeper=0)) for place in orders.places]
    return replace(orders, places=tuple(inside))


def _switch_off(place: Place) -> None:
    """A NIC's offloads: the kernel's frames on its interface are whole, as the firmware's are."""
    try:
        _go_to(place)
        if _taken(place):
            offloads.allow(place.device, Offloads.NONE)
    except OSError as error:
        raise KernelError(f"{place.name}: its NIC {place.device} cannot be had: {reason_of(error)}") from error


def _raise(place: Place, wanted: Offloads) -> None:
    with contextlib.suppress(OSError):  # the node is gone, and its NIC with it
        _go_to(place)
        taken = _taken(place)
        if taken is not None and taken < wanted:
            offloads.allow(place.device, wanted)


def _taken(place: Place) -> Offloads | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as opened:
        return offloads.taken(opened.fileno(), place.device)


def _go_to(place: Place) -> None:
    handle = os.open(place.surroundings.namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        syscalls.setns(handle, syscalls.CLONE_NEWNET)
    finally:
        os.close(handle)
