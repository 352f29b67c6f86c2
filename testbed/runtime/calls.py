"""Calls of commands to a cluster's relay, supervisor and agents: one JSON packet each for request and reply, on a Unix
socket.

The socket is addressed by its directory's descriptor, so that the length of the path does not matter.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from testbed.engine.loop import Loop
from testbed.errors import KernelError, TestbedError
from testbed.kernel.changes import announce

CALL_TIMEOUT: Final = 30.0
"""Seconds that a command waits for a reply."""

_MAX: Final = 160 * 1024  # bytes of a packet; the kernel's usual limit is 208 KiB, with its own overhead


class NotListeningError(Exception):
    """No process listens: it has ended or was never started."""


def call(path: Path, request: Mapping[str, object], timeout: float = CALL_TIMEOUT) -> dict[str, Any]:
    """Send a request to the listener at `path` and return its reply. Raises NotThereError, or KernelError with its
    error."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    with line:
        line.settimeout(timeout)
        try:
            with _near(path) as address:
                line.connect(address)
            line.send(json.dumps(request).encode())
            answer = line.recv(_MAX)
        except (FileNotFoundError, ConnectionError, BrokenPipeError) as error:
            raise NotListeningError(path) from error
        except TimeoutError as error:
            raise KernelError(f"no answer from the process at {path} after {timeout:g} s") from error
    if not answer:
        raise NotListeningError(path)
    reply: dict[str, Any] = json.loads(answer)
    if "error" in reply:
        raise KernelError(reply["error"])
    return reply


class PendingReply:
    """A reply that is not known yet. `complete` is called once."""

    def __init__(self) -> None:
        self._reply: Mapping[str, object] | None = None
        self._callback: Callable[[Mapping[str, object]], object] | None = None

    def complete(self, reply: Mapping[str, object]) -> None:
        self._reply = reply
        if self._callback is not None:
            self._callback(reply)

    def add_callback(self, callback: Callable[[Mapping[str, object]], object]) -> None:
        """Call `callback` with the reply as soon as it is known."""
        self._callback = callback
        if self._reply is not None:
            callback(self._reply)


class Listener:
    """Answers calls in a loop. answer(request) returns the reply or a `PendingReply`; TestbedError and OSError are sent
    as errors."""

    def __init__(
        self, loop: Loop, path: Path, answer: Callable[[Mapping[str, Any]], Mapping[str, object] | PendingReply]
    ) -> None:
        self._answer = answer
        self._loop = loop
        self._socket = listening(path)
        loop.watch(self._socket.fileno(), self._accept)

    def _accept(self, _now: int) -> None:
        try:
            line, _ = self._socket.accept()
        except BlockingIOError:
            return
        line.setblocking(False)

        def serve(_now: int) -> None:
            self._loop.unwatch(line.fileno())
            try:
                request = json.loads(line.recv(_MAX))
            except (OSError, ValueError):  # the caller has gone, or sent an invalid request
                line.close()
                return
            reply = self._answered(request)
            if isinstance(reply, PendingReply):
                reply.add_callback(send)
            else:
                send(reply)

        def send(reply: Mapping[str, object]) -> None:
            with line, contextlib.suppress(OSError):
                line.send(json.dumps(reply).encode())

        self._loop.watch(line.fileno(), serve)

    def _answered(self, request: Mapping[str, Any]) -> Mapping[str, object] | PendingReply:
        try:
            return self._answer(request)
        except (TestbedError, OSError, KeyError, TypeError) as error:
            return {"error": str(error) or repr(error)}


def listening(path: Path) -> socket.socket:
    """A non-blocking socket that listens for `call`. OSError."""
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # left by a killed predecessor
        with _near(path) as address:
            opened.bind(address)
        announce(f"bind {path}")
        opened.listen(16)
    except BaseException:
        opened.close()
        raise
    return opened


@contextlib.contextmanager
def _near(path: Path) -> Iterator[str]:
    """The path via its directory's descriptor, since a socket address has at most 107 bytes."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
