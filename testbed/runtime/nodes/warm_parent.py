"""Warm parent of a run's node processes. The process that starts the run forks it, with everything imported. It forks the
node processes, reports the end of each at once, and ends when its channel is closed.

The process that starts the run, a test or a command, may have threads and other descriptors; the warm parent has one thread
and no other descriptors. Its memory, frozen for garbage collection, stays shared with its children. It enters the cluster's
user namespace and switches the NICs' offloads off once for all nodes, and restores them however the node processes end. If
it dies before that, the starting process restores them.

It sends "forked" with a node's name and pid, and "ended" with a node's name and a wait status. It receives "ask", which
makes all nodes report what they wait for; "kill", "pause" and "resume" with a node's name; and "restart" with the name
of a node whose process has ended, and an end of the node's new channel.
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
from testbed.kernel.children import fork
from testbed.kernel.offloads import Offloads
from testbed.kernel.setns import enter_holder, is_inside
from testbed.runtime import event_log
from testbed.runtime.nodes.control_channel import Channel
from testbed.runtime.nodes.node_process import (
    STATE_QUERY,
    build_dilated_host,
    build_inline_nic,
    on_state_query,
    run_node,
)
from testbed.runtime.nodes.run_orders import NodePlacement, ProgramNode, RunOrders
from testbed.runtime.nodes.run_progress import Progress
from testbed.runtime.shared import node_agents
from testbed.runtime.shared.workers import Worker, make_inboxes

NAME: Final = "testbed-nodes"
LOG: Final = "warm.log"

_SIGNALS: Final = {
    "ask": STATE_QUERY, "kill": signal.SIGKILL, "pause": signal.SIGSTOP, "resume": signal.SIGCONT,
}  # fmt: skip

# CPython's allocator pools objects of at most _MAX_POOLED bytes by size, in steps of _POOL_STEP; libc cuts larger objects
# from its free memory. A bytes object has a header of _BYTES_HEADER bytes.
_MAX_POOLED: Final = 512
_POOL_STEP: Final = 16
_MAX_FILLER: Final = 4096
_FILLER_STEP: Final = 128
_BYTES_HEADER: Final = 33
_BYTES_PER_SIZE: Final = 1 << 18

_WARM_UP_PROGRAMS: Final = 20
"""Number of empty programs to run. After them the interpreter has specialised the loop's code, which it does by writing
to the memory that holds the code."""


@dataclass(frozen=True, slots=True)
class _Child:
    """A node process, or the agent of a node's NIC. name: name of the placement or, for an agent, of the node."""

    name: str
    pid: int
    pidfd: int
    is_agent: bool = False


class _WarmParent:
    def __init__(
        self,
        orders: RunOrders,
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
        self._log = f"{str(logs).replace('%', '%%')}/%s.log"  # operations of Path would copy pages in each node
        self._cluster_directory = cluster_directory
        self._progress = progress
        self._starts: Counter[str] = Counter()  # by node
        self._directory = os.getcwd()
        self._children: dict[int, _Child] = {}  # by pidfd
        self._open = {channel.fileno(), *(end.fileno() for end in ends.values())}
        """Descriptors that a node process must close, except its own."""
        self._poll = select.poll()

    def prepare(self) -> None:
        """Enter the cluster's user namespace, switch offloads off, and warm up. Raises KernelError if a node or its NIC is
        missing, TestbedError if no NIC can be built."""
        with contextlib.suppress(OSError):  # the directory was removed
            os.chdir(self._directory)
        self._orders = _enter_user_namespace(self._orders)
        try:
            if self._orders.ethertype:  # the kernel's protocols use offloads
                for placement in self._orders.placements:
                    _switch_off(placement)
            self._warm_up()
        except BaseException:
            restore_offloads(self._orders, self._cluster_directory)
            raise
        gc.collect()
        gc.freeze()
        self._filler = _filler()

    def _warm_up(self) -> None:
        """Build a NIC and run programs, as every node process does, so that the memory for it is shared."""
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        try:
            first = self._orders.placements[0]
            self._warm_up_nic: object  # kept, so that its memory is not allocated again
            if first.model is not None:
                self._warm_up_nic = build_dilated_host(self._orders, "lo", first.model, 1, lambda host: host)
                return
            self._warm_up_nic = parts = build_inline_nic(self._orders, "lo", first.adapter)
            driver = parts[-1]
            for _ in range(_WARM_UP_PROGRAMS):
                node = ProgramNode(first.name, first.adapter.number, self._orders.numbers, driver.loop)
                driver.loop.complete(_empty_program(node))
        except Exception as error:  # a protocol may raise anything
            raise TestbedError(f"no NIC can be built:\n{traceback.format_exc()}") from error

    def run(self) -> None:
        """Fork the agents and the node processes, and serve until the channel is closed; then kill the processes that still
        run, and restore the offloads."""
        signal.signal(STATE_QUERY, on_state_query)
        try:
            if self._orders.shared is not None:
                self._fork_agents(self._orders.shared)
            names = [placement.name for placement in self._orders.placements]
            for name, pid in [(name, self._fork(number, name)) for number, name in enumerate(names)]:
                self._register(name, pid)
            self._poll.register(self._channel.fileno(), select.POLLIN)
            while self._handle_events():
                pass
        finally:
            for child in [child for child in self._children.values() if processes.is_ending(child.pid)]:
                self._reap(child)  # reports deaths that have not been handled yet
            for child in self._children.values():
                signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
            for child in self._children.values():
                os.waitpid(child.pid, 0)
            restore_offloads(self._orders, self._cluster_directory)

    def _fork(self, number: int, name: str) -> int:
        """Fork a node process; return its pid. number: index of its placement."""
        self._starts[name] += 1
        pid = fork()
        if not pid:
            end = self._ends[name]
            for descriptor in self._open - {
                end.fileno()
            }:  # not by Channel.close: touching the objects would copy pages
                os.close(descriptor)
            run_node(self._orders, number, end, self._log % name, self._progress, self._starts[name])
        return pid

    def _register(self, name: str, pid: int) -> None:
        """Register a forked node process. Call it after all forks: every page written here is copied for those forked
        before."""
        self._open.remove(self._ends[name].fileno())
        self._ends[name].close()
        self._watch(_Child(name, pid, os.pidfd_open(pid)))
        self._send("forked", (name, pid))

    def _fork_agents(self, split_driver: SplitDriver) -> None:
        """Fork the agents of shared NICs, and wait until they listen. If one does not, its node process reports that."""
        queues = self._orders.queues
        nics = [placement for placement in self._orders.placements if placement.functions and not placement.function]
        inboxes_by_node = {placement.node_name: make_inboxes(queues.count) for placement in nics if queues.count > 1}
        for number in range(queues.count):  # workers must join the fan-out group in this order
            ready_pipes = []
            for placement in nics:
                inboxes = inboxes_by_node.get(placement.node_name, [])
                inbox = inboxes[number][1] if inboxes else None
                worker = Worker(number, queues, tuple([writing for writing, _ in inboxes]), inbox)
                log = self._logs / f"{placement.node_name}.nic{number or ''}.log"
                pid, ready_pipe = node_agents.fork_agent(self._orders, split_driver, placement, log, worker)
                self._watch(_Child(placement.node_name, pid, os.pidfd_open(pid), is_agent=True))
                ready_pipes.append(ready_pipe)
            for ready_pipe in ready_pipes:
                node_agents.wait_for_agent(ready_pipe)
        for pair in itertools.chain.from_iterable(inboxes_by_node.values()):
            for end in pair:
                end.close()

    def _watch(self, child: _Child) -> None:
        self._open.add(child.pidfd)
        self._children[child.pidfd] = child
        self._poll.register(child.pidfd, select.POLLIN)

    def _handle_events(self) -> bool:
        """Wait for events and handle them; return False when the channel is closed."""
        for descriptor, _ in self._poll.poll():
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
            for child in self._children.values():
                if (word == "ask" or child.name == name) and not child.is_agent:
                    signal.pidfd_send_signal(child.pidfd, _SIGNALS[word])
        return True

    def _restart(self, name: str, end: Channel) -> None:
        """Fork a new process for a node whose process has ended. end: the new process's end of its channel."""
        self._ends[name] = end
        self._open.add(end.fileno())
        number = [placement.name for placement in self._orders.placements].index(name)
        self._register(name, self._fork(number, name))

    def _reap(self, child: _Child) -> None:
        _, status = os.waitpid(child.pid, 0)
        self._poll.unregister(child.pidfd)
        os.close(child.pidfd)
        self._open.remove(child.pidfd)
        del self._children[child.pidfd]
        code = os.waitstatus_to_exitcode(status)
        if child.is_agent:
            event_log.record_if_possible(
                self._cluster_directory, "NIC agent died", node=child.name, pid=child.pid, code=code
            )
            return
        if status:
            event_log.record_if_possible(
                self._cluster_directory, "node process died", node=child.name, pid=child.pid, code=code
            )
        self._send("ended", (child.name, status))

    def _send(self, word: str, data: object) -> None:
        with contextlib.suppress(ConnectionError):  # the channel is closed: `run` ends next
            self._channel.send(word, data)


async def _empty_program(node: ProgramNode) -> int:
    """Wait for a microsecond, so that the code for waiting is warmed up, too."""
    await node.loop.sleep(1000)
    return node.number


def _filler() -> list[bytes]:
    """Allocate objects that fill the holes in this process's memory; the caller keeps them. Otherwise each child would
    allocate its first objects in these holes, and so copy every page with a hole: 4 % of a node's memory, and 8 % if this
    process has had to compile modules."""
    sizes = [
        *range(_MAX_FILLER, _MAX_POOLED, -_FILLER_STEP),
        *range(_MAX_POOLED, 2 * _POOL_STEP, -_POOL_STEP),
    ]
    return [bytes(size - _BYTES_HEADER) for size in sizes for _ in range(_BYTES_PER_SIZE // size)]


def start(
    orders: RunOrders,
    channel: Channel,
    ends: Mapping[str, Channel],
    logs: Path,
    cluster_directory: Path,
    progress: Progress,
) -> processes.Identity:
    """Fork the warm parent, which forks the node processes. channel: the warm parent's end of its channel. ends: by
    placement, the node processes' ends of their channels. logs: the directory for the nodes' output. cluster_directory: the
    cluster's directory, for events. Raises KernelError."""
    parent = _WarmParent(orders, channel, ends, logs, cluster_directory, progress)
    inherited = [channel.fileno(), *(end.fileno() for end in ends.values())]
    return daemons.start(NAME, inherited, parent.prepare, parent.run, str(logs / LOG))


def restore_offloads(orders: RunOrders, cluster_directory: Path) -> None:
    """Restore the offloads of the nodes' NICs, as far as the links allow that now. The calling process must have one thread,
    and stays in the namespaces that this enters. A failure is recorded as an event; the next 'testbed up' restores the
    offloads."""
    try:
        entered = _enter_user_namespace(orders)
        with orders.offloading() as allowed:
            for placement in entered.placements:
                if placement.node_name in allowed:
                    _restore(placement, allowed[placement.node_name])
    except (TestbedError, OSError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else str(error)
        event_log.record_if_possible(
            cluster_directory,
            "offloads left off",
            nodes=[placement.name for placement in orders.placements],
            reason=reason,
        )


def _enter_user_namespace(orders: RunOrders) -> RunOrders:
    """Enter the cluster's user namespace, if it has one; return the orders with placements relative to it."""
    holder = orders.placements[0].node_context.holder
    if not holder:
        return orders
    if not is_inside(holder):
        enter_holder(holder)
    inside = [
        replace(placement, node_context=replace(placement.node_context, holder=0)) for placement in orders.placements
    ]
    return replace(orders, placements=tuple(inside))


def _switch_off(placement: NodePlacement) -> None:
    """Switch a NIC's offloads off, so that the kernel's own frames on the interface are segmented and have checksums,
    like the firmware's."""
    try:
        namespaces.enter(placement.node_context.namespace)
        if _offloads_of(placement):
            offloads.allow(placement.device, Offloads.NONE)
    except OSError as error:
        raise KernelError(f"NIC {placement.device} of {placement.name} is unavailable: {reason_of(error)}") from error


def _restore(placement: NodePlacement, allowed: Offloads) -> None:
    with contextlib.suppress(OSError):  # the node was removed, and its NIC with it
        namespaces.enter(placement.node_context.namespace)
        present = _offloads_of(placement)
        if present is not None and present < allowed:
            offloads.allow(placement.device, allowed)


def _offloads_of(placement: NodePlacement) -> Offloads | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as opened:
        return offloads.accepted(opened.fileno(), placement.device)
