"""Commands that are given on the screen: each is `testbed` itself, called as a user would, beside what is shown.

So they take the same options, say the same sentences and roll the same things back, and none holds up the screen. They are
carried out one after the other.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Final

_CALL: Final = "import sys; sys.argv[0] = 'testbed'; from testbed.cli.main import main; main()"


@dataclass(frozen=True, slots=True)
class Done:
    """What a command said, in a line."""

    message: str
    failed: bool


@dataclass(slots=True)
class _Running:
    process: subprocess.Popen[bytes]
    handle: int
    said: IO[bytes]


class Commands:
    """Of one cluster."""

    def __init__(self) -> None:
        self._waiting: deque[Sequence[str]] = deque()
        self._running: _Running | None = None

    def descriptors(self) -> list[int]:
        """What can be read when a command has ended."""
        return [self._running.handle] if self._running is not None else []

    def start(self, words: Sequence[str]) -> None:
        """As soon as those before it have ended."""
        self._waiting.append(words)
        self._go_on()

    def done(self) -> Done:
        """What the one that has ended said; waits for it."""
        running = self._running
        assert running is not None
        code = running.process.wait()
        os.close(running.handle)
        running.said.seek(0)
        text = running.said.read().decode(errors="replace")
        running.said.close()
        self._running = None
        self._go_on()
        return Done(_line(text, failed=bool(code)), bool(code))

    def finish(self) -> None:
        """Wait for all: nothing that was asked for is lost."""
        while self._running is not None:
            self.done()

    def _go_on(self) -> None:
        if self._running is not None or not self._waiting:
            return
        said = tempfile.TemporaryFile()  # noqa: SIM115  it is closed when its command has ended
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _CALL, *self._waiting.popleft()],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the screen
        )
        self._running = _Running(process, os.pidfd_open(process.pid), said)


def _line(text: str, *, failed: bool) -> str:
    """All of it in one line; of what went wrong without how the command is called."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not failed:
        return "; ".join(lines)
    errors = [line for line in lines if line.startswith("Error: ")]
    return errors[-1].removeprefix("Error: ") if errors else " ".join(lines).removeprefix("testbed: ")
