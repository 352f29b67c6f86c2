"""Lines of a worker's standard input, with a timeout for the controller.

The controller sends an empty line every `KEEPALIVE_INTERVAL` seconds. After `SILENCE` seconds without one, the worker
treats the controller as disconnected: sshd may take hours to notice that.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from typing import Final

KEEPALIVE_INTERVAL: Final = 0.5
"""Seconds between the controller's empty lines."""

SILENCE: Final = 5.0
"""Seconds without input after which the controller counts as disconnected."""

PROCEED: Final = "proceed"
STOP: Final = "stop"
"""Calls with which the controller answers a worker that waits at a barrier."""

INPUT: Final = "input"
"""Call with which the controller sends input to a program, or its terminal's size."""

_CHUNK: Final = 1 << 16


class RequestReader:
    """Reader of lines from a descriptor. silence: seconds without input after which the input counts as ended."""

    def __init__(self, descriptor: int, silence: float = SILENCE) -> None:
        self._descriptor = descriptor
        self._silence = silence
        self._last_received = time.monotonic()
        self._pending = b""
        self._ended = False

    def __iter__(self) -> Iterator[bytes]:
        """Yield non-empty lines, without their line feeds, as they arrive."""
        while True:
            line, feed, rest = self._pending.partition(b"\n")
            if feed:
                self._pending = rest
                if line:
                    yield line
            elif not self._receive(self._last_received + self._silence - time.monotonic()):
                return

    def fileno(self) -> int:
        return self._descriptor

    def is_open(self) -> bool:
        """Whether the controller is connected, as far as is known without waiting."""
        while self._receive(0):
            pass
        if time.monotonic() > self._last_received + self._silence:
            self._ended = True
        return not self._ended

    def has_line(self) -> bool:
        """Whether a non-empty line can be read without waiting."""
        self.is_open()
        self._pending = self._pending.lstrip(b"\n")
        return b"\n" in self._pending

    def _receive(self, timeout: float) -> bool:
        """Read more bytes; return False if none arrive within `timeout` seconds, or the input has ended."""
        if self._ended or not select.select([self._descriptor], [], [], max(timeout, 0))[0]:
            return False
        data = os.read(self._descriptor, _CHUNK)
        self._ended = not data
        self._pending += data
        self._last_received = time.monotonic()
        return bool(data)
