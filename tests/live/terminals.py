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

TIMEOUT = 30.0  # s for something to be shown, on a machine that others use as well
_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[()][A-Z0-9]|[=>])")


class Terminal:
    """Ends its program with the block, if it has not ended."""

    def __init__(self, command: Sequence[str], size: tuple[int, int] = (80, 24), **more: str) -> None:
        """size: columns and lines. more: more of the environment."""
        self._mine, self._its = pty.openpty()
        self.resize(*size)
        self.before = termios.tcgetattr(self._its)
        node_context: Mapping[str, str] = {**os.environ, "TERM": "xterm-256color", **more}
        self.process = subprocess.Popen(
            command,
            stdin=self._its,
            stdout=self._its,
            stderr=self._its,
            env=node_context,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # whose keys send signals
        )
        self.raw = ""
        self._seen = 0  # of `raw`, what was waited for before

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._mine)
        os.close(self._its)

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self._its, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def press(self, keys: str) -> None:
        """Type keys; `shows` then ignores the output that came before."""
        self._read(0)
        self._seen = len(self.raw)
        os.write(self._mine, keys.encode())

    def shows(self, text: str) -> None:
        """Wait until it has been shown since the last key."""
        deadline = time.monotonic() + TIMEOUT
        while text not in (shown := _ESCAPES.sub("", self.raw[self._seen :])):
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} was not shown within {TIMEOUT} s, but {shown[-2000:]!r}"
            self._read(left)

    def ends(self) -> int:
        """Wait for the end of the program; its code. Its terminal must be as it was before."""
        deadline = time.monotonic() + TIMEOUT
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "it has not ended"
            self._read(0.1)
        self._read(0)
        assert termios.tcgetattr(self._its) == self.before
        return self.process.returncode

    def _read(self, seconds: float) -> None:
        """Read the available output, waiting up to `seconds` for its first byte."""
        while select.select([self._mine], [], [], seconds)[0]:
            with contextlib.suppress(OSError):
                self.raw += os.read(self._mine, 65536).decode(errors="replace")
            seconds = 0
