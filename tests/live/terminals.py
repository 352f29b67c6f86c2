"""Program in a pseudo-terminal: tests type keys and wait for output."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

TIMEOUT = 30.0  # seconds until output appears, on a shared machine
_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[()][A-Z0-9]|[=>])")


class Terminal:
    """A program in a pseudo-terminal, killed at the end of the block if it is still running."""

    def __init__(self, command: Sequence[str], size: tuple[int, int] = (80, 24), **environment: str) -> None:
        """size: columns and lines. environment: additional variables."""
        self._master, self._slave = pty.openpty()
        self.resize(*size)
        self.before = termios.tcgetattr(self._slave)
        variables: Mapping[str, str] = {**os.environ, "TERM": "xterm-256color", **environment}
        self.process = subprocess.Popen(
            command,
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            env=variables,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that control keys send signals
        )
        self.raw = ""
        self._offset = 0  # in `raw`: start of the output since the last key

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
        os.close(self._slave)

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def press(self, keys: str) -> None:
        """Type keys; `wait_for` then ignores earlier output."""
        self._read(0)
        self._offset = len(self.raw)
        os.write(self._master, keys.encode())

    def wait_for(self, text: str) -> None:
        """Wait until the output since the last key contains the text."""
        deadline = time.monotonic() + TIMEOUT
        while text not in (shown := _ESCAPES.sub("", self.raw[self._offset :])):
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} was not shown within {TIMEOUT} s, but {shown[-2000:]!r}"
            self._read(left)

    def wait_for_exit(self) -> int:
        """Wait for the program's end and return its exit code. It must have restored the terminal's settings."""
        deadline = time.monotonic() + TIMEOUT
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"the program has not ended within {TIMEOUT} s"
            self._read(0.1)
        self._read(0)
        assert termios.tcgetattr(self._slave) == self.before
        return self.process.returncode

    def _read(self, seconds: float) -> None:
        """Read the available output, waiting up to `seconds` for its first byte."""
        while select.select([self._master], [], [], seconds)[0]:
            with contextlib.suppress(OSError):
                self.raw += os.read(self._master, 65536).decode(errors="replace")
            seconds = 0
