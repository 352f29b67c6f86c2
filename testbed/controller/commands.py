"""Commands on nodes of a live cluster, as a run: all started, followed to the end, their output in files."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from testbed.cluster import programs
from testbed.cluster.programs import CommandError, CommandTimeoutError
from testbed.cluster.running import RunningCluster
from testbed.cluster.state import Store
from testbed.controller.checking import baseline, verdict
from testbed.controller.executing import Follow
from testbed.controller.recording import kept
from testbed.controller.verdicts import Verdict
from testbed.controller.whereabouts import find
from testbed.errors import UnsupportedError

if TYPE_CHECKING:
    from testbed.spec.model import Description

LISTENING: Final = 0.5
"""Seconds that a command gets to end, or to listen, before the next one is started."""

_GRACE: Final = 1.0  # s between SIGTERM and SIGKILL
_LOOK: Final = 0.005  # s between two looks at what listens
_SHOWN: Final = 2_000  # bytes of a log's end
_LISTENS, _BOUND = "0A", "07"  # states in /proc/net/tcp and /proc/net/udp


@dataclass(slots=True)
class Command:
    """One on its way. log: a file with its standard output and error. code: as subprocess tells it."""

    node: str
    text: str
    log: Path
    process: subprocess.Popen[str] = field(repr=False)
    begun: int
    ended: int = 0
    code: int | None = None

    def tail(self) -> str:
        """The end of what it has said."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _SHOWN))
            return file.read().decode(errors="replace").strip()


@dataclass(frozen=True, slots=True)
class CommandsResult:
    """folder: None unless output was given; then the logs are gone."""

    cluster: str
    commands: Sequence[Command]
    verdict: Verdict
    folder: Path | None


def run_commands(
    cluster: str | Path | Description | RunningCluster,
    commands: Sequence[tuple[str, str]],
    *,
    mode: str = "live",
    output: str | Path | None = None,
    timeout: float = 60.0,
    follow: Follow = lambda _: None,
) -> CommandsResult:
    """Run shell commands in nodes until all have ended: ``[("n1", "iperf3 -s -1"), ("n2", "iperf3 -c n1")]``.

    They are started in this order, each when the one before listens on a port, has ended, or has had LISTENING seconds for
    it. Raises CommandError as soon as one ends with another code than 0, CommandTimeoutError after timeout seconds; the
    others are ended then, with all that they have started. UnsupportedError in the simulation.
    """
    if mode != "live":
        raise UnsupportedError("commands run in namespaces: they belong to live; in sim only programs on NICs do")
    where = find(cluster, mode, None)
    asked = {
        "kind": "commands", "cluster": where.name, "origin": where.origin, "mode": mode, "timeout": timeout,
        "workload": "commands", "protocol": "", "commands": [list(one) for one in commands],
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        place = output or stack.enter_context(tempfile.TemporaryDirectory(prefix="testbed-run-"))
        folder = stack.enter_context(kept(Path(place), asked, where))
        with where.ready(follow, folder) as running:
            assert running is not None
            for node, _ in commands:
                running[node]  # says which there are
            follow(f"{len(commands)} commands on {where.name}")
            before = baseline(running)
            part = folder.part(1, 1)
            with _ended() as started:
                for node, text in commands:
                    if started:
                        _await_listening(started[-1])
                    started.append(_start(running, node, text, _free(part.logs, node)))
                try:
                    _follow(started, time.monotonic() + timeout, timeout)
                finally:
                    for one in started:
                        took = (one.ended or time.monotonic_ns()) - one.begun
                        folder.rows.write({"node": one.node, "command": one.text, "code": one.code, "took_ns": took})
            judged = verdict(running, before)
        folder.done(verdict=judged, results=[], counted=[])
    kept_in = Path(output).absolute() if output is not None else None
    return CommandsResult(where.name, started, judged, kept_in)


def _free(logs: Path, node: str) -> Path:
    """A log's place; several commands may run on one node."""
    count, path = 1, logs / f"{node}.log"
    while path.exists():
        count += 1
        path = logs / f"{node}-{count}.log"
    return path


def _start(cluster: RunningCluster, node: str, text: str, log: Path) -> Command:
    place = programs.surroundings(Store(), cluster.state, node)
    with log.open("wb") as file:
        process = programs.start(
            place, ["sh", "-c", text], stdin=subprocess.DEVNULL, stdout=file.fileno(), stderr=file.fileno(), group=True
        )
    return Command(node, text, log, process, time.monotonic_ns())


def _follow(commands: Sequence[Command], deadline: float, timeout: float) -> None:
    """Wait for all to end."""
    with contextlib.ExitStack() as stack:
        ready = select.poll()
        waited: dict[int, Command] = {}
        for one in commands:
            if one.process.poll() is not None:
                _end(one)
                continue
            handle = os.pidfd_open(one.process.pid)
            stack.callback(os.close, handle)
            waited[handle] = one
            ready.register(handle, select.POLLIN)
        while waited:
            found = ready.poll(max(0.0, deadline - time.monotonic()) * 1000)
            if not found:
                names = ", ".join(f"{one.node}: {one.text}" for one in waited.values())
                raise CommandTimeoutError(f"after {timeout:g} s there still ran, and has been ended: {names}")
            for handle, _ in found:
                ready.unregister(handle)
                _end(waited.pop(handle))


def _end(command: Command) -> None:
    """It has ended. Raises CommandError where it has failed."""
    command.code = command.process.wait()
    command.ended = time.monotonic_ns()
    if command.code:
        raise CommandError(command.node, [command.text], command.code, command.tail(), "")


@contextlib.contextmanager
def _ended() -> Iterator[list[Command]]:
    """Whatever the commands have started has ended after the block."""
    started: list[Command] = []
    try:
        yield started
    finally:
        deadline = time.monotonic() + _GRACE
        for number in (signal.SIGTERM, signal.SIGKILL):
            for one in started:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(one.process.pid, number)
            for one in started:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    one.process.wait(max(0.0, deadline - time.monotonic()) if number == signal.SIGTERM else None)


def _await_listening(command: Command) -> None:
    """The next one may want to call it."""
    deadline = time.monotonic() + LISTENING
    while time.monotonic() < deadline and command.process.poll() is None and not _listens(command.process.pid):
        time.sleep(_LOOK)


def _listens(pid: int) -> bool:
    """Whether anything in its network namespace does."""
    for name, state in (("tcp", _LISTENS), ("tcp6", _LISTENS), ("udp", _BOUND), ("udp6", _BOUND)):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
            if any(line.split()[3] == state for line in lines):
                return True
    return False
