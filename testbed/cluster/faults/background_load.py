"""Background load: programs that use up a node's processor or fill its links.

Each program is a process in its node's network namespace and cgroup: it is subject to the node's limits, listed by
``testbed status``, and ends with the cluster. It uses real processor time, which affects measurements on machines with few
processors.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from testbed.cluster.access import node_programs
from testbed.cluster.plan import namespace_names
from testbed.cluster.records.state import State, Store
from testbed.errors import DescriptionError, NotFoundError, Problem, UnsupportedError
from testbed.kernel import daemons, namespaces, processes
from testbed.kernel.filesystem import write_setting
from testbed.kernel.processes import Identity
from testbed.kernel.setns import NodeContext, enter_holder, is_inside

PORT: Final = 9
"""Port of the discard service (RFC 863)."""

_PERIOD: Final = 10_000_000  # ns; the processor is busy for a share of each period
_BURST: Final = 1_000_000  # ns; minimum time between two bursts of due datagrams
_FRAME_SIZE: Final = 1514  # bytes of a full Ethernet frame without its FCS
_OVERHEAD: Final = {socket.AF_INET: 42, socket.AF_INET6: 62}  # bytes of Ethernet, IP and UDP headers
_SECOND: Final = 1_000_000_000


def use_processor(store: Store, state: State, nodes: Sequence[str], share: float, seconds: float) -> list[Identity]:
    """Use up processor time on each node; return the started programs.

    share: 0.5 is half of a processor, 2 is two processors. seconds: duration; 0: without end. Raises DescriptionError for a
    share that is not positive or exceeds the machine's processors, NotFoundError for an unknown node.
    """
    processors = os.cpu_count() or 1
    if not 0 < share <= processors:
        expected = f"more than 0% and at most {processors:.0%}, the machine's processors"
        raise DescriptionError("the load", [Problem("cpu", f"{share:.0%}", expected)])
    contexts = [node_programs.node_context(store, state, node) for node in nodes]
    with _all_or_none() as started:
        for node_context in contexts:
            remaining = share
            while remaining > 0:
                processor_share = min(remaining, 1.0)
                started.append(_start(store, state, node_context, partial(_burn, processor_share, seconds)))
                remaining -= processor_share
    return started


def send_traffic(
    store: Store, state: State, senders: Sequence[str], receiver: str, rate: int, seconds: float
) -> list[Identity]:
    """Send datagrams from every sender to the receiver, whose kernel discards them; return the started programs.

    rate: of each sender, bit/s including headers. seconds: duration; 0: without end. There is no congestion control. In a
    cluster on several machines, only programs on this machine's nodes are started. Raises NotFoundError for an unknown node
    or a receiver without an address, DescriptionError for a rate of 0 or a sender that is the receiver, UnsupportedError
    for senders on networks that the kernel's datagrams cannot cross.
    """
    if rate <= 0:
        raise DescriptionError("the load", [Problem("rate", f"{rate} bit/s", "a rate of more than 0")])
    elsewhere = {node.name: node for node in state.layout.nodes_elsewhere()}
    address = (elsewhere.get(receiver) or node_programs.node_of(state, receiver)).address
    if not address:
        raise NotFoundError(f"node {receiver} has no address to send to")
    framed = state.layout.framed_nodes()
    for sender in senders:
        if sender == receiver:
            raise DescriptionError("the load", [Problem("", f"{sender} to itself", "two nodes")])
        if sender in framed:
            raise UnsupportedError(f"{sender}: {framed[sender].refusal}")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    contexts = [node_programs.node_context(store, state, sender) for sender in senders if sender not in elsewhere]
    with _all_or_none() as started:
        if receiver not in elsewhere:
            sink = node_programs.node_context(store, state, receiver)
            started.append(_start(store, state, sink, partial(_wait, seconds), partial(_discard, family)))
        for node_context in contexts:
            started.append(_start(store, state, node_context, partial(_send, family, address, rate, seconds)))
    return started


@contextlib.contextmanager
def _all_or_none() -> Iterator[list[Identity]]:
    """End the programs of the yielded list if the block fails: they are not recorded yet."""
    started: list[Identity] = []
    try:
        yield started
    except BaseException:
        for program in started:
            processes.end(program)
        raise


def _start(
    store: Store,
    state: State,
    node_context: NodeContext,
    run: Callable[[], None],
    set_up: Callable[[], None] = lambda: None,
) -> Identity:
    """Start a program in a node. set_up: called in the node before the start is reported; its errors are raised here."""

    def prepare() -> None:
        if node_context.group is not None:
            write_setting(f"{node_context.group}/cgroup.procs", "0")
        if node_context.holder and not is_inside(node_context.holder):
            enter_holder(node_context.holder)
        namespaces.enter(node_context.namespace)
        if node_context.cpus:
            os.sched_setaffinity(0, node_context.cpus)
        set_up()

    return daemons.start(
        namespace_names.LOAD, (), prepare, run, str(store.directory(state.name) / "processes.log"), state.name
    )


def _end_time(seconds: float) -> float:
    """Return the time at which a load ends, monotonic nanoseconds."""
    return time.monotonic_ns() + seconds * _SECOND if seconds else float("inf")


def _wait(seconds: float) -> None:
    time.sleep(seconds or 1e9)


def _burn(share: float, seconds: float) -> None:
    """Compute for a share of every period, measured in processor time, so that a short preemption does not reduce the
    share. Time missed by a longer one is not made up for."""
    end = _end_time(seconds)
    due = time.monotonic_ns()
    while time.monotonic_ns() < end:
        start = time.thread_time_ns()
        while time.thread_time_ns() - start < share * _PERIOD:
            pass
        due += _PERIOD
        now = time.monotonic_ns()
        if due > now:
            time.sleep((due - now) / _SECOND)
        else:  # preempted beyond the period's end: do not catch up
            due = now


_sinks: list[socket.socket] = []
"""Sockets of `_discard`, which stay open until this process ends."""


def _discard(family: socket.AddressFamily) -> None:
    """Open a socket that is never read, so that the kernel drops the datagrams and sends no ICMP errors."""
    sink = socket.socket(family, socket.SOCK_DGRAM)
    sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    sink.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sink.bind(("", PORT))
    _sinks.append(sink)


def _send(family: socket.AddressFamily, address: str, rate: int, seconds: float) -> None:
    end = _end_time(seconds)
    source = socket.socket(family, socket.SOCK_DGRAM)
    source.setblocking(False)
    source.connect((address, PORT))
    interval = max(1, _FRAME_SIZE * 8 * _SECOND // rate)  # ns from one datagram to the next
    datagram = bytes(_FRAME_SIZE - _OVERHEAD[family])
    due = time.monotonic_ns()
    while (now := time.monotonic_ns()) < end:
        if due < now - 100 * _BURST:  # preempted: do not catch up
            due = now
        while due <= now:
            with contextlib.suppress(OSError):  # the link is full or down
                source.send(datagram)
            due += interval
        time.sleep(max(_BURST, due - now) / _SECOND)
