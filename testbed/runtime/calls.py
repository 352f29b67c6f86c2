"""Requests of commands to a cluster's relay, supervisor and NIC agents on Unix sockets. Request and reply are one packet
each, which contains a JSON object. An object that is too long for a packet is in a memfd, which is passed with the packet:
a relay never waits until a caller has read a part of its reply.

A socket is addressed through a descriptor of its directory, so that the length of its path does not matter.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from testbed.engine.loop import Loop
from testbed.errors import KernelError, TestbedError
from testbed.kernel.changes import announce

CALL_TIMEOUT: Final = 30.0
"""Seconds that a command waits for a reply."""

_RETRY_INTERVAL: Final = 0.01  # s between attempts to connect while too many callers wait
_MAX_PACKET: Final = 160 * 1024  # bytes; the kernel's default limit is 208 KiB, which includes its own overhead
_IN_FILE: Final = b"memfd"  # the packet with a memfd; not JSON


class NotListeningError(Exception):
    """No process listens on the socket: it has ended or was never started."""


def call(path: Path, request: Mapping[str, object], timeout: float = CALL_TIMEOUT) -> dict[str, Any]:
    """Send a request to the listener at `path` and return its reply. timeout: seconds.

    Raises NotListeningError; KernelError after the timeout, or with the error that the listener reports.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    with connection:
        connection.settimeout(timeout)
        try:
            with _socket_address(path) as address:
                _connect(connection, address, time.monotonic() + timeout)
            _send(connection, request)
            packet = _receive(connection)
        except (FileNotFoundError, ConnectionError) as error:
            raise NotListeningError(path) from error
        except TimeoutError as error:
            raise KernelError(f"no answer from the process at {path} after {timeout:g} s") from error
    if not packet:
        raise NotListeningError(path)
    reply: dict[str, Any] = json.loads(packet)
    if "error" in reply:
        raise KernelError(reply["error"])
    return reply


def _connect(connection: socket.socket, address: str, deadline: float) -> None:
    """Connect to a listener. deadline: as in `time.monotonic`. Raises TimeoutError, OSError."""
    while True:
        try:
            connection.connect(address)
            return
        except BlockingIOError as error:  # the listener's queue is full; a Unix socket does not wait for room
            if time.monotonic() >= deadline:
                raise TimeoutError from error
            time.sleep(_RETRY_INTERVAL)


def _send(connection: socket.socket, document: Mapping[str, object]) -> None:
    """Send a JSON object of any length as one packet. Raises OSError."""
    text = json.dumps(document).encode()
    if len(text) <= _MAX_PACKET:
        connection.send(text)
        return
    with open(os.memfd_create("call", os.MFD_CLOEXEC), "wb") as file:
        file.write(text)
        file.flush()
        socket.send_fds(connection, [_IN_FILE], [file.fileno()])


def _receive(connection: socket.socket) -> bytes:
    """Receive the text of a JSON object from `_send`; empty if the other end is closed. Raises OSError."""
    packet, descriptors, _, _ = socket.recv_fds(connection, _MAX_PACKET, 1, socket.MSG_CMSG_CLOEXEC)
    if not descriptors:
        return packet
    with open(descriptors[0], "rb") as file:
        file.seek(0)  # the offset is shared with the sender's descriptor
        return file.read()


class PendingReply:
    """A reply that a handler completes later. `complete` must be called once."""

    def __init__(self) -> None:
        self._reply: Mapping[str, object] | None = None
        self._callback: Callable[[Mapping[str, object]], object] | None = None

    def complete(self, reply: Mapping[str, object]) -> None:
        """Set the reply and pass it to the callback, if one is set."""
        self._reply = reply
        if self._callback is not None:
            self._callback(reply)

    def add_callback(self, callback: Callable[[Mapping[str, object]], object]) -> None:
        """Call `callback` with the reply as soon as it is complete."""
        self._callback = callback
        if self._reply is not None:
            callback(self._reply)


class Listener:
    """Handles requests in a loop.

    handler: called with each request; returns the reply or a `PendingReply`. A TestbedError, OSError, KeyError or TypeError
    that it raises is sent as the reply's error.
    """

    def __init__(
        self, loop: Loop, path: Path, handler: Callable[[Mapping[str, Any]], Mapping[str, object] | PendingReply]
    ) -> None:
        self._handler = handler
        self._loop = loop
        self._socket = listen(path)
        loop.watch(self._socket.fileno(), self._accept)

    def _accept(self, _now: int) -> None:
        try:
            connection, _ = self._socket.accept()
        except BlockingIOError:
            return
        connection.setblocking(False)

        def serve(_now: int) -> None:
            self._loop.unwatch(connection.fileno())
            try:
                request = json.loads(_receive(connection))
            except (OSError, ValueError):  # the caller has ended, or its request is not JSON
                connection.close()
                return
            reply = self._reply_to(request)
            if isinstance(reply, PendingReply):
                reply.add_callback(send)
            else:
                send(reply)

        def send(reply: Mapping[str, object]) -> None:
            with connection, contextlib.suppress(OSError):
                _send(connection, reply)

        self._loop.watch(connection.fileno(), serve)

    def _reply_to(self, request: Mapping[str, Any]) -> Mapping[str, object] | PendingReply:
        try:
            return self._handler(request)
        except (TestbedError, OSError, KeyError, TypeError) as error:
            return {"error": str(error) or repr(error)}


def listen(path: Path) -> socket.socket:
    """Open a non-blocking socket that listens for `call` at `path`. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # left by a killed predecessor
        with _socket_address(path) as address:
            listener.bind(address)
        announce(f"bind {path}")
        listener.listen(16)
    except BaseException:
        listener.close()
        raise
    return listener


@contextlib.contextmanager
def _socket_address(path: Path) -> Iterator[str]:
    """Provide an address for `path` through a descriptor of its directory: a socket address has at most 107 bytes."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
