"""News of a network namespace: that something about its interfaces or their filters has changed, the moment it has."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Final

from testbed.kernel import namespaces, syscalls

_GROUPS: Final = 1 | 8  # RTMGRP_LINK, RTMGRP_TC


class News:
    """Readable once an interface or a filter has come, gone or changed. What it was is to be looked up: news may be lost."""

    def __init__(self, namespace: str) -> None:
        """namespace: its path. OSError when it is not there."""
        handle = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with namespaces.staying():
                syscalls.setns(handle, syscalls.CLONE_NEWNET)
                kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
                self._socket = socket.socket(socket.AF_NETLINK, kind, socket.NETLINK_ROUTE)
        finally:
            os.close(handle)
        self._socket.bind((0, _GROUPS))

    @classmethod
    def of(cls, opened: int) -> News:
        """What somebody else has opened: its descriptor, which is the news's from now on."""
        news = cls.__new__(cls)
        news._socket = socket.socket(fileno=opened)
        return news

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def heard(self) -> bool:
        """Whether there was any since this was asked last."""
        any_news = False
        while True:
            try:
                self._socket.recv(1)
            except BlockingIOError:
                return any_news
            except OSError:  # ENOBUFS: more news than it can hold
                with contextlib.suppress(OSError):
                    self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            any_news = True
