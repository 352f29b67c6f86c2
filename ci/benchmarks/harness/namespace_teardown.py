"""Wait until the kernel has destroyed a set of network namespaces.

The calls that take a namespace down return long before the namespace is destroyed: a kernel worker (cleanup_net) destroys
it later, together with all others that are pending when the worker starts. The kernel does not report the end of that
work, so a fence detects it:

1. Before the tear-down an observer, in a separate namespace, gives each watched namespace an id
   (RTM_NEWNSID), and one to an empty namespace, the fence, which only a descriptor holds.
2. RTM_DELNSID of the last watched namespace shows that the worker has started to destroy it.
3. Then the fence is closed. There is one such worker, and its runs do not overlap. So the fence is destroyed by a later run,
   which starts when the run that destroys the last watched namespace has ended: devices are removed, the RCU barrier has
   passed, and memory is freed. RTM_DELNSID of the fence, sent at the start of the later run, marks the settled time.

A comparison with the tracepoints workqueue_execute_start and _end of cleanup_net has shown that the settled time is 0.1 to
0.8 ms after the end of the run that destroyed the last namespace.

The method costs an entry in a table and a message per namespace, equally for all contenders. Counting objects in
/proc/slabinfo instead would be wrong: it counts per-CPU slabs as full, and includes other programs' namespaces.
"""

import contextlib
import ctypes
import os
import socket
import struct
import time
from collections.abc import Iterator, Sequence

CLONE_NEWNET = 0x40000000
OWN_NAMESPACE = "/proc/thread-self/ns/net"

# <linux/rtnetlink.h>, <linux/net_namespace.h>, <linux/netlink.h>
RTM_NEWNSID, RTM_DELNSID = 88, 89
RTNLGRP_NSID = 28
NETNSA_NSID, NETNSA_FD = 1, 3
NLM_F_REQUEST, NLM_F_ACK = 1, 4
NLMSG_ERROR = 2
SOL_NETLINK, NETLINK_ADD_MEMBERSHIP = 270, 1
SO_RCVBUFFORCE = 33

HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
NSID_MESSAGE = struct.Struct("=IHHIIBxxxHHiHHi")  # header, rtgenmsg, two attributes of four bytes

libc = ctypes.CDLL(None, use_errno=True)


class NotSettledError(Exception):
    """The namespaces were not destroyed within the deadline."""


@contextlib.contextmanager
def new_namespace() -> Iterator[int]:
    """Run the body in a new network namespace. Yields a descriptor of the namespace, which the caller closes."""
    before = os.open(OWN_NAMESPACE, os.O_RDONLY)
    try:
        if libc.unshare(CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare of a network namespace")
        try:
            yield os.open(OWN_NAMESPACE, os.O_RDONLY)
        finally:
            if libc.setns(before, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns to the original network namespace")
    finally:
        os.close(before)


class Observer:
    """Reports when the watched namespaces are destroyed. Observes one tear-down at a time."""

    def __init__(self) -> None:
        with new_namespace() as namespace:
            os.close(namespace)  # the socket holds it
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
        self._socket.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, RTNLGRP_NSID)
        self._fence = self._fence_id = -1
        self._next_id = 0  # no id is reused, so that a late report is not mistaken for another
        self._watched: list[int] = []

    def close(self) -> None:
        self._close_fence()
        self._socket.close()

    def watch(self, paths: Sequence[str]) -> None:
        """Watch the namespaces at these paths: names in /run/netns, or descriptors below /proc."""
        self._close_fence()
        with new_namespace() as self._fence:
            self._fence_id = self._assign_id(self._fence)
        self._watched = []
        for path in paths:
            namespace = os.open(path, os.O_RDONLY)
            try:
                self._watched.append(self._assign_id(namespace))
            finally:
                os.close(namespace)

    def wait(self, deadline_seconds: float = 60.0) -> int:
        """Wait until all watched namespaces are destroyed; return the time, ns of CLOCK_MONOTONIC."""
        deadline = time.monotonic() + deadline_seconds
        missing = set(self._watched)
        while missing:
            missing.difference_update(self._destroyed(deadline))
        self._close_fence()
        while self._fence_id not in self._destroyed(deadline):
            pass
        return time.monotonic_ns()

    def _close_fence(self) -> None:
        if self._fence >= 0:
            os.close(self._fence)
            self._fence = -1

    def _assign_id(self, namespace: int) -> int:
        """Give a namespace an id."""
        nsid = self._next_id
        self._next_id += 1
        flags = NLM_F_REQUEST | NLM_F_ACK
        self._socket.send(
            NSID_MESSAGE.pack(
                NSID_MESSAGE.size, RTM_NEWNSID, flags, 0, 0, 0, 8, NETNSA_NSID, nsid, 8, NETNSA_FD, namespace
            )
        )
        answered = False
        while not answered:
            for kind, body in self._receive(time.monotonic() + 10):
                if kind == NLMSG_ERROR:
                    (error,) = struct.unpack_from("=i", body)
                    if error:
                        raise OSError(-error, "RTM_NEWNSID")
                    answered = True
        return nsid

    def _destroyed(self, deadline: float) -> list[int]:
        """Return the ids of the next namespaces that the kernel reports as destroyed."""
        destroyed = []
        for kind, body in self._receive(deadline):
            if kind == RTM_DELNSID:
                length, attribute, nsid = struct.unpack_from("=HHi", body, 4)
                if attribute == NETNSA_NSID and length == 8:
                    destroyed.append(nsid)
        return destroyed

    def _receive(self, deadline: float) -> list[tuple[int, bytes]]:
        """Receive the next messages; return the type and body of each. Raises NotSettledError at the deadline."""
        self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            data = self._socket.recv(1 << 16)
        except TimeoutError:
            raise NotSettledError("namespaces still exist: a process, a mount or a descriptor holds them") from None
        messages = []
        offset = 0
        while offset + HEADER.size <= len(data):
            length, kind, _, _, _ = HEADER.unpack_from(data, offset)
            messages.append((kind, data[offset + HEADER.size : offset + length]))
            offset += (length + 3) & ~3
        return messages
