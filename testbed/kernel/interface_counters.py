"""Counters of all interfaces of a network namespace, cheap enough to read every second.

`rtnl_dump.interfaces` takes about 40 us for each interface, since it reads all attributes. This module reads only the
counters (RTM_GETSTATS, since Linux 4.7); a `Monitor` shows when names and states must be read again. For a namespace that
this process cannot enter, a child process opens the sockets and passes them.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from testbed.kernel import namespaces
from testbed.kernel.children import in_child
from testbed.kernel.netlink import (
    RTM_GETQDISC,
    TC_H_ROOT,
    TC_MESSAGE,
    TCA_STATS2,
    TCA_STATS_QUEUE,
    RouteSocket,
    attributes,
    nested,
)
from testbed.kernel.rtnl_monitor import Monitor
from testbed.kernel.setns import enter_holder

_STATS_MESSAGE = struct.Struct("=BxHII")  # struct if_stats_msg: family, padding, index, tables
_LINK_64 = struct.Struct("=8Q")  # rx/tx packets, rx/tx bytes, rx/tx errors, rx/tx dropped
_QUEUE = struct.Struct("=5I")  # qlen, backlog, drops, requeues, overlimits
_RTM_GETSTATS: Final = 94
_IFLA_STATS_LINK_64: Final = 1


class InterfaceCounters(NamedTuple):
    """Counters of an interface since its creation. rx_dropped, tx_dropped: frames dropped by the kernel."""

    rx_frames: int
    tx_frames: int
    rx_bytes: int
    tx_bytes: int
    rx_dropped: int
    tx_dropped: int


def read_counters(route: RouteSocket) -> dict[int, InterfaceCounters]:
    """Read the counters of all interfaces, by index."""
    body = _STATS_MESSAGE.pack(0, 0, 0, 1 << (_IFLA_STATS_LINK_64 - 1))
    counters = {}
    for entry in route.dump(_RTM_GETSTATS, body):
        _, _, index, _ = _STATS_MESSAGE.unpack_from(entry)
        value = attributes(entry[_STATS_MESSAGE.size :]).get(_IFLA_STATS_LINK_64)
        if value is not None:
            rx, tx, rx_bytes, tx_bytes, _, _, rx_dropped, tx_dropped = _LINK_64.unpack_from(value)
            counters[index] = InterfaceCounters(rx, tx, rx_bytes, tx_bytes, rx_dropped, tx_dropped)
    return counters


def read_queue_drops(route: RouteSocket) -> Mapping[int, int]:
    """Read the numbers of frames that the qdiscs of interfaces have dropped, by index: queue overflows and netem's
    losses."""
    drops: dict[int, int] = {}
    for entry in route.dump(RTM_GETQDISC, bytes(TC_MESSAGE.size)):
        _, index, _, parent, _ = TC_MESSAGE.unpack_from(entry)
        queue_statistics = nested(entry[TC_MESSAGE.size :], TCA_STATS2, TCA_STATS_QUEUE)
        # The drops of a root qdisc include those of the qdiscs below it.
        if parent == TC_H_ROOT and queue_statistics is not None:
            drops[index] = drops.get(index, 0) + _QUEUE.unpack_from(queue_statistics)[2]
    return drops


class CounterSockets(NamedTuple):
    """Sockets in a namespace: for requests, and for notifications of changes."""

    route: RouteSocket
    monitor: Monitor

    def close(self) -> None:
        self.route.close()
        self.monitor.close()


def open_sockets(path: str, holder: int = 0) -> CounterSockets:
    """Open the sockets of a namespace. path: path of the namespace, in the mount namespace of the holder, if any. holder:
    pid of the namespace holder; 0: none. Raises OSError if the namespace does not exist."""
    if not holder:
        return _open_in(path)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        in_child(partial(_send_sockets, path, holder, theirs))
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 2, socket.MSG_CMSG_CLOEXEC)
        route, monitor = descriptors
        return CounterSockets(RouteSocket(route), Monitor.from_descriptor(monitor))


def _open_in(path: str) -> CounterSockets:
    namespace = namespaces.open_path(path)
    os.close(namespace.descriptor)
    try:
        return CounterSockets(namespace.route, Monitor(path))
    except BaseException:
        namespace.route.close()
        raise


def _send_sockets(path: str, holder: int, connection: socket.socket) -> None:
    enter_holder(holder)
    sockets = _open_in(path)
    socket.send_fds(connection, [b"\n"], [sockets.route.fileno(), sockets.monitor.fileno()])
