"""Contention on purpose: programs that use up a node's processor or fill its links.

Each is a process in its node's network namespace and group, so that the node's own limits count for it, that ``status``
shows it, and that it ends with the cluster. It pays for what it does: on a machine with few processors that is a part of
what a run measures.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from testbed.cluster import programs
from testbed.cluster.state import State, Store
from testbed.errors import DescriptionError, NotFoundError, Problem, UnsupportedError
from testbed.kernel import daemons, processes, syscalls
from testbed.kernel.entering import Surroundings, enter_keeper, is_inside
from testbed.kernel.files import write_setting
from testbed.kernel.processes import Identity

NAME: Final = "testbed-load"
PORT: Final = 9
"""UDP's discard service (RFC 863)."""

_PERIOD: Final = 10_000_000  # ns: of this time the processor is used for a share
_BURST: Final = 1_000_000  # ns: datagrams are sent in bursts of what is due in so long
_FRAME: Final = 1514  # bytes of a full Ethernet frame
_OVERHEAD: Final = {socket.AF_INET: 42, socket.AF_INET6: 62}  # bytes of Ethernet, IP and UDP headers
_SECOND: Final = 1_000_000_000


def use_processor(store: Store, state: State, nodes: Sequence[str], share: float, seconds: float) -> list[Identity]:
    """Use so much of the processors of each node: 0.5 is half of one, 2 is two whole ones."""
    if not 0 < share <= (os.cpu_count() or 1):
        raise DescriptionError("the load", [Problem("cpu", f"{share:.0%}", "more than 0% and at most all processors")])
    places = [programs.surroundings(store, state, node) for node in nodes]
    with _all_or_none() as started:
        for place in places:
            left = share
            while left > 0:
                part = min(left, 1.0)
                started.append(_start(store, state, place, partial(_burn, part, seconds)))
                left -= part
    return started


def send_traffic(
    store: Store, state: State, senders: Sequence[str], receiver: str, rate: int, seconds: float
) -> list[Identity]:
    """Let every sender send datagrams to the receiver at this rate, bit/s with their headers, without heeding what the
    network does to them. Whoever receives them discards them in its kernel."""
    address = programs.node_of(state, receiver).address
    if not address:
        raise NotFoundError(f"node {receiver} has no address to send to")
    routed = state.layout.routed()
    for sender in senders:
        if sender == receiver:
            raise DescriptionError("the load", [Problem("", f"{sender} to itself", "two nodes")])
        if sender in routed:
            raise UnsupportedError(f"{sender}: the kernel's datagrams have no routes through Myrinet's switches")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sink = programs.surroundings(store, state, receiver)
    places = [programs.surroundings(store, state, sender) for sender in senders]
    with _all_or_none() as started:
        started.append(_start(store, state, sink, partial(_wait, seconds), partial(_discard, family)))
        for place in places:
            started.append(_start(store, state, place, partial(_send, family, address, rate, seconds)))
    return started


@contextlib.contextmanager
def _all_or_none() -> Iterator[list[Identity]]:
    """What has been started, which nobody knows of yet, ends when not all of it can be."""
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
    place: Surroundings,
    run: Callable[[], None],
    first: Callable[[], None] = lambda: None,
) -> Identity:
    def prepare() -> None:
        if place.group is not None:
            write_setting(f"{place.group}/cgroup.procs", "0")
        if place.keeper and not is_inside(place.keeper):
            enter_keeper(place.keeper)
        handle = os.open(place.namespace, os.O_RDONLY | os.O_CLOEXEC)
        syscalls.setns(handle, syscalls.CLONE_NEWNET)
        os.close(handle)
        if place.cpus:
            os.sched_setaffinity(0, place.cpus)
        first()

    return daemons.start(NAME, (), prepare, run, str(store.directory(state.name) / "processes.log"))


def _ends(seconds: float) -> float:
    return time.monotonic_ns() + seconds * _SECOND if seconds else float("inf")


def _wait(seconds: float) -> None:
    time.sleep(seconds or 1e9)


def _burn(share: float, seconds: float) -> None:
    """Be busy for a share of every period, counted in our own processor time: another's does not make us do less."""
    end = _ends(seconds)
    due = time.monotonic_ns()
    while time.monotonic_ns() < end:
        begun = time.thread_time_ns()
        while time.thread_time_ns() - begun < share * _PERIOD:
            pass
        due += _PERIOD
        now = time.monotonic_ns()
        if due > now:
            time.sleep((due - now) / _SECOND)
        else:  # we did not get our share: what is lost is not made up for
            due = now


_sinks: list[socket.socket] = []


def _discard(family: socket.AddressFamily) -> None:
    """Have a socket that nobody reads: the kernel drops what does not fit, and sends no ICMP."""
    sink = socket.socket(family, socket.SOCK_DGRAM)
    sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    sink.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sink.bind(("", PORT))
    _sinks.append(sink)


def _send(family: socket.AddressFamily, address: str, rate: int, seconds: float) -> None:
    end = _ends(seconds)
    source = socket.socket(family, socket.SOCK_DGRAM)
    source.setblocking(False)
    source.connect((address, PORT))
    each = max(1, _FRAME * 8 * _SECOND // rate)  # ns from one datagram to the next
    datagram = bytes(_FRAME - _OVERHEAD[family])
    due = time.monotonic_ns()
    while (now := time.monotonic_ns()) < end:
        if due < now - 100 * _BURST:  # we were kept from running: what is lost is not made up for
            due = now
        while due <= now:
            with contextlib.suppress(OSError):  # the link is full, or down: the load does not care
                source.send(datagram)
            due += each
        time.sleep(max(_BURST, due - now) / _SECOND)
