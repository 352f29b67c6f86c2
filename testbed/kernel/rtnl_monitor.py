"""Route-netlink monitor of a network namespace: notifications of changes of its interfaces and their filters."""

from __future__ import annotations

import contextlib
import socket
from typing import Final

from testbed.kernel import namespaces

_GROUPS: Final = 1 | 8  # RTMGRP_LINK, RTMGRP_TC


class Monitor:
    """A socket that becomes readable when an interface or a filter is added, removed or changed.

    Notifications may be lost, so their contents are not read: dump the namespace again to find the change.
    """

    def __init__(self, namespace: str) -> None:
        """namespace: path of the namespace. Raises OSError if it does not exist."""
        with namespaces.inside(namespace):
            kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            self._socket = socket.socket(socket.AF_NETLINK, kind, socket.NETLINK_ROUTE)
        self._socket.bind((0, _GROUPS))

    @classmethod
    def from_descriptor(cls, descriptor: int) -> Monitor:
        """Make a monitor of a socket that another process has opened; the monitor owns the descriptor."""
        monitor = cls.__new__(cls)
        monitor._socket = socket.socket(fileno=descriptor)
        return monitor

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def drain(self) -> bool:
        """Discard all notifications; return whether there were any."""
        has_changed = False
        while True:
            try:
                self._socket.recv(1)
            except BlockingIOError:
                return has_changed
            except OSError:  # ENOBUFS: more notifications than the buffer holds
                with contextlib.suppress(OSError):
                    self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            has_changed = True
