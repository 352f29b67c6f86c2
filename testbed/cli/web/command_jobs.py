"""Jobs: `testbed` commands started by the page, with their output.

Commands that change the cluster run one after the other; captures run in parallel with them until they end or are stopped.
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
from testbed.cli.screen.key_commands import own_command, summarize
from testbed.cli.web.page_parts import JSON

_LASTING: Final = ("capture",)
"""Commands that may run for long; they do not change the cluster."""

_MAX_JOBS: Final = 20  # including those in progress
_MAX_LINES: Final = 200  # lines of output that a job stores
_READ_BYTES: Final = 1 << 16


@dataclass(slots=True, eq=False)
class Job:
    """A command. words: arguments of `testbed`. name: identifier chosen by the viewer. message: result in one line. lines:
    last lines of its output. process: None until it has started."""

    number: int
    words: Sequence[str]
    name: str = ""
    state: Literal["waiting", "running", "done", "failed"] = "waiting"
    message: str = ""
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_LINES))
    process: asyncio.subprocess.Process | None = None

    @property
    def is_lasting(self) -> bool:
        name = self.words[1] if self.words[0] == "machines" else self.words[0]
        return name in _LASTING

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
    """All jobs of the view."""

    def __init__(self, on_change: Callable[[], None], on_end: Callable[[], None]) -> None:
        """on_change: called when the result of `to_json` has changed. on_end: called when a command that may have changed
        the cluster has ended."""
        self._on_change = on_change
        self._on_end = on_end
        self._lock = asyncio.Lock()
        self._jobs: list[Job] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = 0

    def to_json(self) -> JSON:
        """Return the jobs, the latest first."""
        return [job.to_json() for job in reversed(self._jobs)]

    def start(self, words: Sequence[str], name: str = "") -> None:
        """Start a command, or queue it. name: identifier of its job."""
        job = self._add(words, name)
        task = asyncio.create_task(self._run(job) if job.is_lasting else self._run_in_turn(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._on_change()

    def refuse(self, command: str, name: str, reason: str) -> None:
        """Add a failed job for a command that is rejected."""
        job = self._add([command], name)
        job.state, job.message = "failed", reason
        self._on_change()

    def stop(self, number: int) -> None:
        """Interrupt a lasting command as Ctrl-C would."""
        for job in self._jobs:
            if job.number == number and job.is_lasting and job.process is not None and job.process.returncode is None:
                job.process.send_signal(signal.SIGINT)

    async def finish(self) -> None:
        """Interrupt the lasting commands, and wait for all commands."""
        while self._tasks:
            for job in self._jobs:
                self.stop(job.number)
            await asyncio.wait(self._tasks, timeout=0.5)

    def _add(self, words: Sequence[str], name: str) -> Job:
        """Add a job, and remove the oldest ended jobs."""
        self._started += 1
        ended = [job for job in self._jobs if job.state in ("done", "failed")]
        removed = ended[: max(0, len(self._jobs) - _MAX_JOBS + 1)]
        job = Job(self._started, words, name)
        self._jobs = [*(old for old in self._jobs if old not in removed), job]
        return job

    async def _run_in_turn(self, job: Job) -> None:
        async with self._lock:
            await self._run(job)
        self._on_end()

    async def _run(self, job: Job) -> None:
        job.state = "running"
        job.process = process = await asyncio.create_subprocess_exec(
            *own_command(job.words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that Ctrl-C reaches only the view
        )
        self._on_change()
        assert process.stdout is not None
        decoder = getincrementaldecoder("utf-8")(errors="replace")
        while data := await process.stdout.read(_READ_BYTES):
            last_line = job.lines.pop() if job.lines else ""  # it may be incomplete
            job.lines.extend((last_line + printable(decoder.decode(data))).split("\n"))
            self._on_change()
        code = await process.wait()
        job.state = "failed" if code else "done"
        job.message = (
            _last_line(job) if job.is_lasting and not code else summarize("\n".join(job.lines), failed=bool(code))
        )
        self._on_change()


def _last_line(job: Job) -> str:
    return next((line for line in reversed(job.lines) if line.strip()), "")
