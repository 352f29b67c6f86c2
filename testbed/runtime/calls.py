"""How commands talk to a cluster's relay, steward and agents: one request and one answer, each one packet of JSON on a Unix
socket.

The socket is reached through its directory's descriptor, so that a long path does not matter.
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

PATIENCE: Final = 30.0
"""Seconds that a command waits for an answer."""

_MOST: Final = 160 * 1024  # bytes of a packet; the kernel's usual limit is 208 KiB, with its own overhead


class NotThereError(Exception):
    """Nobody listens: the process has ended or was never started."""


def call(path: Path, request: Mapping[str, object], patience: float = PATIENCE) -> dict[str, Any]:
    """Ask whoever listens at `path`. NotThereError; KernelError with what went wrong there."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    with line:
        line.settimeout(patience)
        try:
            with _near(path) as address:
                line.connect(address)
            line.send(json.dumps(request).encode())
            answer = line.recv(_MOST)
        except (FileNotFoundError, ConnectionError, BrokenPipeError) as error:
            raise NotThereError(path) from error
        except TimeoutError as error:
            raise KernelError(f"no answer from the process at {path} after {patience:g} s") from error
    if not answer:
        raise NotThereError(path)
    said: dict[str, Any] = json.loads(answer)
    if "error" in said:
        raise KernelError(said["error"])
    return said


class Later:
    """An answer that is not known yet. Whoever gives it says it with `tell`, once."""

    def __init__(self) -> None:
        self._said: Mapping[str, object] | None = None
        self._hearer: Callable[[Mapping[str, object]], object] | None = None

    def tell(self, said: Mapping[str, object]) -> None:
        self._said = said
        if self._hearer is not None:
            self._hearer(said)

    def hear(self, hearer: Callable[[Mapping[str, object]], object]) -> None:
        """Be called with the answer, now if it is known."""
        self._hearer = hearer
        if self._said is not None:
            hearer(self._said)


class Listener:
    """Answers calls from within a loop. answer(request) returns what is said, or will be; a TestbedError or OSError is
    told."""

    def __init__(
        self, loop: Loop, path: Path, answer: Callable[[Mapping[str, Any]], Mapping[str, object] | Later]
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
                request = json.loads(line.recv(_MOST))
            except (OSError, ValueError):  # a caller that is gone, or talks nonsense
                line.close()
                return
            said = self._said(request)
            if isinstance(said, Later):
                said.hear(tell)
            else:
                tell(said)

        def tell(said: Mapping[str, object]) -> None:
            with line, contextlib.suppress(OSError):
                line.send(json.dumps(said).encode())

        self._loop.watch(line.fileno(), serve)

    def _said(self, request: Mapping[str, Any]) -> Mapping[str, object] | Later:
        try:
            return self._answer(request)
        except (TestbedError, OSError, KeyError, TypeError) as error:
            return {"error": str(error) or repr(error)}


def listening(path: Path) -> socket.socket:
    """A socket to which one can connect by `call`, and which does not wait. OSError."""
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # a predecessor's that was killed
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
    """The path by way of its directory's descriptor: an address of a socket has at most 107 bytes."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
