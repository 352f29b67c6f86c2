"""Commands started by keys. Each is a separate `testbed` process, with the options, messages and rollback of the command
line. They run one after the other, while the screen is still updated.
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

_ENTRY_CODE: Final = "import sys; sys.argv[0] = 'testbed'; from testbed.cli.main import main; main()"


def own_command(words: Sequence[str]) -> list[str]:
    """Return the command line that runs `testbed` with these arguments, by this interpreter."""
    return [sys.executable, "-P", "-c", _ENTRY_CODE, *words]


def summarize(output: str, *, failed: bool) -> str:
    """Join the output of a command to one line; of a failed command only the error, without the usage."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if not failed:
        return "; ".join(lines)
    errors = [line for line in lines if line.startswith("Error: ")]
    return errors[-1].removeprefix("Error: ") if errors else " ".join(lines).removeprefix("testbed: ")


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Result of a command. message: its output in one line."""

    message: str
    failed: bool


@dataclass(slots=True)
class _Running:
    process: subprocess.Popen[bytes]
    handle: int
    output: IO[bytes]


class Commands:
    """Queue of commands for one cluster."""

    def __init__(self) -> None:
        self._queue: deque[Sequence[str]] = deque()
        self._running: _Running | None = None

    def descriptors(self) -> list[int]:
        """Return the descriptor that becomes readable when the running command has ended; none if no command runs."""
        return [self._running.handle] if self._running is not None else []

    def start(self, words: Sequence[str]) -> None:
        """Queue a command; it runs when the previous commands have ended."""
        self._queue.append(words)
        self._advance()

    def wait(self) -> CommandResult:
        """Wait for the running command, start the next one, and return the result."""
        running = self._running
        assert running is not None
        code = running.process.wait()
        os.close(running.handle)
        running.output.seek(0)
        output = running.output.read().decode(errors="replace")
        running.output.close()
        self._running = None
        self._advance()
        return CommandResult(summarize(output, failed=bool(code)), bool(code))

    def finish(self) -> None:
        """Wait for all commands."""
        while self._running is not None:
            self.wait()

    def _advance(self) -> None:
        """Start the next command if none is running."""
        if self._running is not None or not self._queue:
            return
        output = tempfile.TemporaryFile()  # noqa: SIM115  closed when the command has ended
        process = subprocess.Popen(
            own_command(self._queue.popleft()),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that Ctrl-C reaches only the screen
        )
        self._running = _Running(process, os.pidfd_open(process.pid), output)
