"""Jobs: commands of `testbed` that the page has started, with their output.

A command that changes the cluster waits for those before it, as in a shell; captures run beside them until they end or are
stopped.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
import subprocess
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from testbed.cli.consoles import printable
from testbed.cli.screen.key_commands import outcome, own_command
from testbed.cli.web.page_parts import JSON

_LASTING: Final = ("capture",)
"""Commands that may run for long; they change nothing."""

_KEPT: Final = 20  # jobs, beside those that are under way
_LINES: Final = 200  # of output of each
_AT_ONCE: Final = 1 << 16  # bytes of output


@dataclass(slots=True, eq=False)
class Job:
    """A command. name: the viewer's, for its answer. message: its outcome as a line."""

    number: int
    words: Sequence[str]
    name: str = ""
    state: Literal["waiting", "running", "done", "failed"] = "waiting"
    message: str = ""
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LINES))
    process: asyncio.subprocess.Process | None = None

    @property
    def is_lasting(self) -> bool:
        return self.words[0] in _LASTING

    def to_json(self) -> JSON:
        return {
            "number": self.number,
            "name": self.name,
            "command": printable(f"testbed {shlex.join(self.words)}"),
            "state": self.state,
            "message": printable(self.message),
            "lines": list(self.lines) if self.is_lasting else [],
            "stoppable": self.is_lasting and self.state == "running",
        }


class Jobs:
    """All jobs of the view. changed: called when what `to_json` returns has changed."""

    def __init__(self, changed: Callable[[], None], ended: Callable[[], None]) -> None:
        """ended: called when a command that may have changed the cluster has ended."""
        self._changed = changed
        self._ended = ended
        self._turn = asyncio.Lock()
        self._jobs: list[Job] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = 0

    def to_json(self) -> JSON:
        """Return the jobs, the latest first."""
        return [job.to_json() for job in reversed(self._jobs)]

    def start(self, words: Sequence[str], name: str = "") -> None:
        """Start a command, or queue it. name: an identifier that its job carries."""
        job = self._add(words, name)
        task = asyncio.create_task(self._run(job) if job.is_lasting else self._run_in_turn(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._changed()

    def refuse(self, command: str, name: str, reason: str) -> None:
        """Record a command that is not run, as one that has failed."""
        job = self._add([command], name)
        job.state, job.message = "failed", reason
        self._changed()

    def stop(self, number: int) -> None:
        """Interrupt a lasting command as Ctrl-C would."""
        for job in self._jobs:
            if job.number == number and job.is_lasting and job.process is not None and job.process.returncode is None:
                job.process.send_signal(signal.SIGINT)

    async def finish(self) -> None:
        """Interrupt what lasts, and wait for all others: none is lost."""
        while self._tasks:
            for job in self._jobs:
                self.stop(job.number)
            await asyncio.wait(self._tasks, timeout=0.5)

    def _add(self, words: Sequence[str], name: str) -> Job:
        """Add a job, and forget the oldest that have ended."""
        self._started += 1
        ended = [job for job in self._jobs if job.state in ("done", "failed")]
        forgotten = ended[: max(0, len(self._jobs) - _KEPT + 1)]
        job = Job(self._started, words, name)
        self._jobs = [*(kept for kept in self._jobs if kept not in forgotten), job]
        return job

    async def _run_in_turn(self, job: Job) -> None:
        async with self._turn:
            await self._run(job)
        self._ended()

    async def _run(self, job: Job) -> None:
        job.state = "running"
        job.process = process = await asyncio.create_subprocess_exec(
            *own_command(job.words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C must reach the view only
        )
        self._changed()
        assert process.stdout is not None
        decoder = getincrementaldecoder("utf-8")(errors="replace")
        while data := await process.stdout.read(_AT_ONCE):
            before = job.lines.pop() if job.lines else ""  # it may be incomplete
            job.lines.extend((before + printable(decoder.decode(data))).split("\n"))
            self._changed()
        code = await process.wait()
        job.state = "failed" if code else "done"
        job.message = _last(job) if job.is_lasting and not code else outcome("\n".join(job.lines), failed=bool(code))
        self._changed()


def _last(job: Job) -> str:
    return next((line for line in reversed(job.lines) if line.strip()), "")
