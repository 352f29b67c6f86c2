"""Warm parent of a run's node processes: forked from the process that starts the run, with everything imported, it forks
the nodes, reports the end of each at once, and ends when its channel is closed.

It does what a test or a command cannot do itself: it has one thread and no other descriptors; its memory, frozen for
garbage collection, stays shared with its children; it enters a cluster's user namespace and switches the NICs' offloads
off once, and restores them however the nodes end. If it dies before that, the starting process restores them.

It sends "forked" with a node's name and pid, and "ended" with its name and wait status. It receives "ask": let all nodes
report what they wait for; with a name, "kill", "pause" and "resume"; and "restart", with the name of a node that has ended
and its new end of a channel.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
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

from protocols.core.split_memory import SplitDriver
from testbed.errors import KernelError, TestbedError, reason_of
from testbed.kernel import daemons, namespaces, offloads, processes
from testbed.kernel.offloads import Offloads
from testbed.kernel.setns import enter_holder, is_inside
from testbed.runtime import event_log
from testbed.runtime.nodes.control_channel import Channel
from testbed.runtime.nodes.node_process import (
    QUESTION,
    answer_question,
    build_dilated_host,
    build_inline_nic,
    run_node,
)
from testbed.runtime.nodes.places import NodePlacement, Orders, ProgramNode
from testbed.runtime.nodes.run_progress import Progress
from testbed.runtime.shared import node_agents
from testbed.runtime.shared.workers import Worker, inboxes

NAME: Final = "testbed-nodes"
LOG: Final = "warm.log"

_SIGNALS: Final = {
    "ask": QUESTION, "kill": signal.SIGKILL, "pause": signal.SIGSTOP, "resume": signal.SIGCONT,
}  # fmt: skip

# CPython's allocator pools objects of at most _SMALL bytes by size, in steps of _STEP; larger ones are libc's, which cuts
# them from free memory. A bytes object has a header of _HEAD bytes.
_SMALL: Final = 512
_STEP: Final = 16
_LARGE: Final = 4096
_CUT: Final = 128
_HEAD: Final = 33
_FILL: Final = 1 << 18  # bytes for each size

_REHEARSALS: Final = 20
"""Empty programs to run, after which the interpreter has specialised the loop's code, which it does by writing into it."""


@dataclass(frozen=True, slots=True)
class _Child:
    """A node process, or the agent of a node's NIC."""

    name: str
    pid: int
    handle: int
    agent: bool = False


class _WarmParent:
    def __init__(
        self,
        orders: Orders,
        channel: Channel,
        ends: Mapping[str, Channel],
        logs: Path,
        cluster_directory: Path,
        progress: Progress,
    ) -> None:
        self._orders = orders
        self._channel = channel
        self._ends = dict(ends)
        self._logs = logs
        self._log = f"{str(logs).replace('%', '%%')}/%s.log"  # operations of Path would cost each node pages
        self._cluster_directory = cluster_directory
        self._progress = progress
        self._starts: Counter[str] = Counter()  # of each node
        self._directory = os.getcwd()
        self._children: dict[int, _Child] = {}
        self._open = {channel.fileno(), *(end.fileno() for end in ends.values())}
        """Descriptors that a node must close, but for its own."""
        self._ready = select.poll()

    def prepare(self) -> None:
        """Enter the cluster's user namespace, switch offloads off, and warm up. Raises KernelError where a node or its NIC
        is missing."""
        with contextlib.suppress(OSError):  # it was removed
            os.chdir(self._directory)
        self._orders = _entered(self._orders)
        try:
            if self._orders.ethertype:  # the kernel's protocols use offloads
                for placement in self._orders.places:
                    _switch_off(placement)
            self._warm_up()
        except BaseException:
            put_back(self._orders, self._cluster_directory)
            raise
        gc.collect()
        gc.freeze()
        self._filler = _filler()

    def _warm_up(self) -> None:
        """Do once what every node does, so that the memory it touches is shared."""
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        try:
            first = self._orders.places[0]
            self._rehearsed: object
            if first.model is not None:
                self._rehearsed = build_dilated_host(self._orders, "lo", first.model, 1, lambda host: host)
                return
            self._rehearsed = rehearsed = build_inline_nic(self._orders, "lo", first.adapter)
            driver = rehearsed[-1]
            for _ in range(_REHEARSALS):
                here = ProgramNode(first.name, first.adapter.number, self._orders.numbers, driver.loop)
                driver.loop.complete(_empty_program(here))
        except Exception as error:  # a protocol may raise anything
            raise TestbedError(f"no NIC can be built:\n{traceback.format_exc()}") from error

    def stay(self) -> None:
        signal.signal(QUESTION, answer_question)
        try:
            if self._orders.shared is not None:
                self._fork_agents(self._orders.shared)
            places = enumerate(self._orders.places)
            for name, pid in [(placement.name, self._fork(number, placement.name)) for number, placement in places]:
                self._register(name, pid)
            self._ready.register(self._channel.fileno(), select.POLLIN)
            while self._turn():
                pass
        finally:
            for child in [child for child in self._children.values() if processes.is_ending(child.pid)]:
                self._reap(child)  # a death that others noticed first is reported all the same
            for child in self._children.values():
                signal.pidfd_send_signal(child.handle, signal.SIGKILL)
            for child in self._children.values():
                os.waitpid(child.pid, 0)
            put_back(self._orders, self._cluster_directory)

    def _fork(self, number: int, name: str) -> int:
        self._starts[name] += 1
        pid = os.fork()
        if not pid:
            own = self._ends[name]
            for descriptor in self._open - {own.fileno()}:  # by number: touching each object would cost pages
                os.close(descriptor)
            run_node(self._orders, number, own, self._log % name, self._progress, self._starts[name])
        return pid

    def _register(self, name: str, pid: int) -> None:
        """Register a forked node process, only after all forks: every page written here is copied by those forked before."""
        self._open.remove(self._ends[name].fileno())
        self._ends[name].close()
        self._watch(_Child(name, pid, os.pidfd_open(pid)))
        self._send("forked", (name, pid))

    def _fork_agents(self, split_driver: SplitDriver) -> None:
        """Fork the agents of shared NICs and wait until they listen. Its node process notices one that does not."""
        queues = self._orders.queues
        first = [placement for placement in self._orders.places if placement.functions and not placement.function]
        pairs = {placement.on: inboxes(queues.count) for placement in first if queues.count > 1}
        for number in range(queues.count):  # in this order they join the fan-out
            waiting = []
            for placement in first:
                own = pairs.get(placement.on, [])
                worker = Worker(number, queues, tuple([writing for writing, _ in own]), own[number][1] if own else None)
                log = self._logs / f"{placement.on}.nic{number or ''}.log"
                pid, ready = node_agents.begin(self._orders, split_driver, placement, log, worker)
                self._watch(_Child(placement.on, pid, os.pidfd_open(pid), agent=True))
                waiting.append(ready)
            for ready in waiting:
                node_agents.listens(ready)
        for pair in itertools.chain.from_iterable(pairs.values()):
            for end in pair:
                end.close()

    def _watch(self, child: _Child) -> None:
        self._open.add(child.handle)
        self._children[child.handle] = child
        self._ready.register(child.handle, select.POLLIN)

    def _turn(self) -> bool:
        """Wait for events and process them; return False when the channel is closed."""
        for descriptor, _ in self._ready.poll():
            child = self._children.get(descriptor)
            if child is not None:
                self._reap(child)
                continue
            message, end = self._channel.receive_with_channel()
            if message is None:
                return False
            word, name = message
            if word == "restart" and end is not None:
                self._restart(str(name), end)
                continue
            for node in self._children.values():
                if (word == "ask" or node.name == name) and not node.agent:
                    signal.pidfd_send_signal(node.handle, _SIGNALS[word])
        return True

    def _restart(self, name: str, end: Channel) -> None:
        """Fork the process of a node that has ended again."""
        self._ends[name] = end
        self._open.add(end.fileno())
        number = [placement.name for placement in self._orders.places].index(name)
        self._register(name, self._fork(number, name))

    def _reap(self, child: _Child) -> None:
        _, status = os.waitpid(child.pid, 0)
        self._ready.unregister(child.handle)
        os.close(child.handle)
        self._open.remove(child.handle)
        del self._children[child.handle]
        code = os.waitstatus_to_exitcode(status)
        if child.agent:
            event_log.record(self._cluster_directory, "NIC agent died", node=child.name, pid=child.pid, code=code)
            return
        if status:
            event_log.record(self._cluster_directory, "node process died", node=child.name, pid=child.pid, code=code)
        self._send("ended", (child.name, status))

    def _send(self, word: str, data: object) -> None:
        with contextlib.suppress(ConnectionError):  # then the next turn is the last
            self._channel.send(word, data)


async def _empty_program(here: ProgramNode) -> int:
    """A program that waits for a moment: waiting has code of its own."""
    await here.loop.sleep(1000)
    return here.number


def _filler() -> list[bytes]:
    """Allocate objects that fill the holes in this process's memory, to be kept. Else each child would put its first objects
    into holes all over it, and copy every page that has one: 4 % of a node's memory, twice that where this process has had
    to compile modules."""
    sizes = [*range(_LARGE, _SMALL, -_CUT), *range(_SMALL, 2 * _STEP, -_STEP)]
    return [bytes(size - _HEAD) for size in sizes for _ in range(_FILL // size)]


def start(
    orders: Orders,
    channel: Channel,
    ends: Mapping[str, Channel],
    logs: Path,
    cluster_directory: Path,
    progress: Progress,
) -> processes.Identity:
    """Fork the warm parent, which forks the nodes. channel: the parent's end. ends: the nodes' ends, by name. logs: the
    directory of the nodes' output. cluster_directory: where events go. KernelError."""
    warm = _WarmParent(orders, channel, ends, logs, cluster_directory, progress)
    kept = [channel.fileno(), *(end.fileno() for end in ends.values())]
    return daemons.start(NAME, kept, warm.prepare, warm.stay, str(logs / LOG))


def put_back(orders: Orders, cluster_directory: Path) -> None:
    """Restore the offloads of the nodes' NICs, as far as the links allow it now. The process must have one thread and does
    not return to its namespaces. A failure is recorded as an event; 'testbed up' restores them then."""
    try:
        entered = _entered(orders)
        with orders.offloading() as wanted:
            for placement in entered.places:
                if placement.on in wanted:
                    _restore(placement, wanted[placement.on])
    except (TestbedError, OSError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else str(error)
        event_log.record(
            cluster_directory, "offloads left off", nodes=[placement.name for placement in orders.places], reason=reason
        )


def _entered(orders: Orders) -> Orders:
    """Enter the cluster's user namespace, if it has one; return the orders with the places as seen from there."""
    holder = orders.places[0].node_context.holder
    if not holder:
        return orders
    if not is_inside(holder):
        enter_holder(holder)
    inside = [replace(placement, node_context=replace(placement.node_context, holder=0)) for placement in orders.places]
    return replace(orders, places=tuple(inside))


def _switch_off(placement: NodePlacement) -> None:
    """Switch a NIC's offloads off, so that the kernel's frames on its interface are complete, as the firmware's are."""
    try:
        namespaces.enter(placement.node_context.namespace)
        if _offloads_of(placement):
            offloads.allow(placement.device, Offloads.NONE)
    except OSError as error:
        raise KernelError(f"{placement.name}: its NIC {placement.device} is unavailable: {reason_of(error)}") from error


def _restore(placement: NodePlacement, wanted: Offloads) -> None:
    with contextlib.suppress(OSError):  # the node is gone, and its NIC with it
        namespaces.enter(placement.node_context.namespace)
        taken = _offloads_of(placement)
        if taken is not None and taken < wanted:
            offloads.allow(placement.device, wanted)


def _offloads_of(placement: NodePlacement) -> Offloads | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as opened:
        return offloads.accepted(opened.fileno(), placement.device)
