"""Shell commands on nodes: start them one after the other, wait for their end, and apply the faults of a scenario.

Faults of a node act on all processes that its commands have started and that stay in their process groups.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from testbed.cluster.access import node_programs
from testbed.cluster.access.node_programs import CommandError, CommandTimeoutError
from testbed.cluster.records.state import Store
from testbed.cluster.running_cluster import RunningCluster
from testbed.kernel.processes import open_ports, state_of

LISTEN_TIMEOUT: Final = 0.5
"""Seconds to wait for a command to listen on a port, or to end, before the next one is started."""

_GRACE: Final = 1.0  # s between SIGTERM and SIGKILL
_POLL_INTERVAL: Final = 0.005  # s, of checks for listening sockets
_MAX_TAIL: Final = 2_000  # bytes of the end of a log that an error shows
_TRANSPORTS: Final[tuple[Literal["tcp"], Literal["udp"]]] = ("tcp", "udp")


@dataclass(slots=True)
class Command:
    """A command of a run. log: file with its standard output and error. started, ended: monotonic nanoseconds; ended is 0
    while it runs. code: `Popen.returncode`. crashed: number of times that a scenario has killed it."""

    node: str
    text: str
    log: Path
    process: subprocess.Popen[str] = field(repr=False)
    started: int
    ended: int = 0
    code: int | None = None
    crashed: int = 0

    def tail(self) -> str:
        """Return the end of the log."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _MAX_TAIL))
            return file.read().decode(errors="replace").strip()

    def signal(self, number: int) -> None:
        """Send a signal to the process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


class RunningCommands:
    """Commands that run until the end of the block, which ends the processes in their process groups. Implements
    `scenarios.active.Programs`."""

    def __init__(self, cluster: RunningCluster, logs: Path) -> None:
        """logs: directory for the output of commands."""
        self.commands: Final[list[Command]] = []
        self._start_time = 0
        self._cluster = cluster
        self._logs = logs
        self._poll = select.poll()
        self._by_pidfd: dict[int, Command] = {}  # commands that run
        self._to_restart: dict[str, list[Command]] = {}  # by node, killed commands that will be restarted
        self._scheduled: list[tuple[int, int, Callable[[], object]]] = []  # a heap: time, sequence number, call
        self._next_number = itertools.count().__next__

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, commands: Sequence[tuple[str, str]]) -> None:
        """Start commands in this order. Each waits until the previous one listens on a port or has ended, for at most
        LISTEN_TIMEOUT."""
        open_before: set[tuple[str, int]] = set()  # ports that were open in the previous command's node already
        for node, text in commands:
            if self.commands:
                _await_listening(self.commands[-1], open_before)
            log = self._new_log(node)
            process, started = self._start_process(node, text, log)
            self.commands.append(Command(node, text, log, process, started))
            self._watch(self.commands[-1])
            open_before = _listening_ports(process.pid)
        self._start_time = time.monotonic_ns()

    def wait(self, seconds: float) -> None:
        """Wait until all commands have ended, also those that are to be restarted, and make the scheduled calls meanwhile.
        Raises CommandError when one exits with a code other than 0, CommandTimeoutError after `seconds`, and the errors of
        scheduled calls."""
        deadline = time.monotonic() + seconds
        while self._by_pidfd or self._to_restart:
            until = min(deadline, (self._start_time + self._scheduled[0][0]) / 1e9) if self._scheduled else deadline
            for pidfd, _ in self._poll.poll(max(0.0, until - time.monotonic()) * 1000):
                command = self._reap(pidfd)
                if command.code:
                    raise CommandError(command.node, [command.text], command.code, command.tail(), "")
            while self._scheduled and self._start_time + self._scheduled[0][0] <= time.monotonic_ns():
                heapq.heappop(self._scheduled)[2]()
            if time.monotonic() >= deadline and (self._by_pidfd or self._to_restart):
                names = ", ".join(f"{command.node}: {command.text}" for command in self._unfinished())
                raise CommandTimeoutError(f"commands did not end within {seconds:g} s and were killed: {names}")

    def close(self) -> None:
        """End the process groups of all commands by SIGTERM and, at the latest _GRACE later, by SIGKILL."""
        deadline = time.monotonic() + _GRACE
        for number in (signal.SIGTERM, signal.SIGKILL):
            for command in self.commands:
                command.signal(number)
                command.signal(signal.SIGCONT)  # a stopped process handles SIGTERM only when it continues
            for command in self.commands:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    command.process.wait(max(0.0, deadline - time.monotonic()) if number == signal.SIGTERM else None)
        for pidfd in self._by_pidfd:
            os.close(pidfd)
        self._by_pidfd.clear()

    # Actions of a scenario

    @property
    def start_time(self) -> int:
        """When the last command was started, monotonic nanoseconds; the current time until then."""
        return self._start_time or time.monotonic_ns()

    @property
    def pids(self) -> Mapping[str, int]:
        """The process ID of a running command, by node."""
        return {command.node: command.process.pid for command in self._by_pidfd.values()}

    def at(self, when: int, act: Callable[[], object]) -> None:
        """Schedule a call within `wait`. when: nanoseconds after the last command's start. An exception of the call ends
        `wait`."""
        heapq.heappush(self._scheduled, (when, self._next_number(), act))

    def ranks_on(self, node: str) -> list[str]:
        """Return the node itself, as commands have no ranks."""
        return [node]

    def has_ended(self, node: str) -> bool:
        """Whether no command runs on a node."""
        return not self._running_on(node)

    def crash(self, node: str, *, restarts: bool = False) -> None:
        """Kill the commands of a node and reap them; `wait` does not raise for them. restarts: `restart` will be called,
        and `wait` waits for the restarted commands."""
        killed = self._running_on(node)
        for pidfd, command in killed.items():
            command.signal(signal.SIGKILL)
            self._reap(pidfd)
            command.crashed += 1
        if restarts:
            self._to_restart[node] = list(killed.values())

    def restart(self, node: str) -> None:
        """Restart the commands that `crash` killed; their output is appended to their logs."""
        for command in self._to_restart.pop(node):
            command.process, _ = self._start_process(node, command.text, command.log)
            command.code, command.ended = None, 0
            self._watch(command)

    def pause(self, node: str) -> None:
        """Stop the commands of a node until `resume`."""
        for command in self._running_on(node).values():
            command.signal(signal.SIGSTOP)

    def resume(self, node: str) -> None:
        for command in self._running_on(node).values():
            command.signal(signal.SIGCONT)

    def _running_on(self, node: str) -> dict[int, Command]:
        """Return the running commands of a node, by pidfd."""
        return {pidfd: command for pidfd, command in self._by_pidfd.items() if command.node == node}

    def _unfinished(self) -> list[Command]:
        """Return the commands that run or will be restarted, in the order in which they were started."""
        unfinished = [*self._by_pidfd.values()]
        unfinished += [command for commands in self._to_restart.values() for command in commands]
        return [command for command in self.commands if command in unfinished]

    def _start_process(self, node: str, text: str, log: Path) -> tuple[subprocess.Popen[str], int]:
        context = node_programs.node_context(Store(), self._cluster.state, node)
        with log.open("ab") as file:
            process = node_programs.start(
                context,
                ["sh", "-c", text],
                stdin=subprocess.DEVNULL,
                stdout=file.fileno(),
                stderr=file.fileno(),
                group=True,
            )
        return process, time.monotonic_ns()

    def _watch(self, command: Command) -> None:
        pidfd = os.pidfd_open(command.process.pid)
        self._by_pidfd[pidfd] = command
        self._poll.register(pidfd, select.POLLIN)

    def _reap(self, pidfd: int) -> Command:
        """Reap a command's process, which has ended or is about to, and record its end."""
        self._poll.unregister(pidfd)
        os.close(pidfd)
        command = self._by_pidfd.pop(pidfd)
        command.code = command.process.wait()
        command.ended = time.monotonic_ns()
        return command

    def _new_log(self, node: str) -> Path:
        """Return a path for a log that does not exist yet; a node may run several commands."""
        count, path = 1, self._logs / f"{node}.log"
        while path.exists():
            count += 1
            path = self._logs / f"{node}-{count}.log"
        return path


def _await_listening(command: Command, open_before: set[tuple[str, int]]) -> None:
    """Wait until a command listens on a port, as the next command may connect to it, or has ended. open_before: ports on
    which others listen in its node, such as an sshd."""
    deadline = time.monotonic() + LISTEN_TIMEOUT
    pid = command.process.pid
    while time.monotonic() < deadline and state_of(pid) not in "XZ" and _listening_ports(pid) <= open_before:
        time.sleep(_POLL_INTERVAL)


def _listening_ports(pid: int) -> set[tuple[str, int]]:
    """Return the ports on which processes in its network namespace listen."""
    return {(transport, port) for transport in _TRANSPORTS for port in open_ports(pid, transport)}
