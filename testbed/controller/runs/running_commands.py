"""Running commands on nodes: started one after the other, followed to their end, and subject to a scenario's faults.

A node's process is here the set of processes that its commands have started, as far as they stay in their process
groups.
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

LISTENING: Final = 0.5
"""Seconds that a command gets to end, or to listen, before the next one is started."""

_GRACE: Final = 1.0  # s between SIGTERM and SIGKILL
_LOOK: Final = 0.005  # s between two checks for listening sockets
_MAX_SHOWN: Final = 2_000  # bytes of a log's end
_TRANSPORTS: Final[tuple[Literal["tcp"], Literal["udp"]]] = ("tcp", "udp")


@dataclass(slots=True)
class Command:
    """A command of a run. log: a file with its standard output and error. code: subprocess's return code; None while it
    runs. crashed: how often a scenario has killed it."""

    node: str
    text: str
    log: Path
    process: subprocess.Popen[str] = field(repr=False)
    begun: int
    ended: int = 0
    code: int | None = None
    crashed: int = 0

    def tail(self) -> str:
        """Return the end of its output."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _MAX_SHOWN))
            return file.read().decode(errors="replace").strip()

    def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


class RunningCommands:
    """Commands from their start to the end of the block, when all processes that they started have ended. Implements
    `scenarios.active.Programs`."""

    def __init__(self, cluster: RunningCluster, logs: Path) -> None:
        """logs: a directory for their output."""
        self.commands: Final[list[Command]] = []
        self._begun = 0
        self._cluster = cluster
        self._logs = logs
        self._ready = select.poll()
        self._waited: dict[int, Command] = {}  # by a descriptor of the process
        self._away: dict[str, list[Command]] = {}  # by node, killed commands that will be restarted
        self._due: list[tuple[int, int, Callable[[], object]]] = []  # a heap: time, sequence number, call
        self._orderly = itertools.count().__next__

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, commands: Sequence[tuple[str, str]]) -> None:
        """Start commands in this order, each once the one before listens on a port, has ended, or has had LISTENING
        seconds."""
        before: set[tuple[str, int]] = set()  # ports that were open in the last command's node already
        for node, text in commands:
            if self.commands:
                _await_listening(self.commands[-1], before)
            log = self._free(node)
            process, begun = self._process(node, text, log)
            self.commands.append(Command(node, text, log, process, begun))
            self._watch(self.commands[-1])
            before = _listening_ports(process.pid)
        self._begun = time.monotonic_ns()

    def wait(self, seconds: float) -> None:
        """Wait until all have ended. Raises CommandError as soon as one ends with a code other than 0,
        CommandTimeoutError."""
        deadline = time.monotonic() + seconds
        while self._waited or self._away:
            until = min(deadline, (self._begun + self._due[0][0]) / 1e9) if self._due else deadline
            for handle, _ in self._ready.poll(max(0.0, until - time.monotonic()) * 1000):
                command = self._over(handle)
                if command.code:
                    raise CommandError(command.node, [command.text], command.code, command.tail(), "")
            while self._due and self._begun + self._due[0][0] <= time.monotonic_ns():
                heapq.heappop(self._due)[2]()
            if time.monotonic() >= deadline and (self._waited or self._away):
                names = ", ".join(f"{left.node}: {left.text}" for left in self._left())
                raise CommandTimeoutError(f"after {seconds:g} s there still ran, and has been ended: {names}")

    def close(self) -> None:
        """End all that still run, first by SIGTERM."""
        deadline = time.monotonic() + _GRACE
        for number in (signal.SIGTERM, signal.SIGKILL):
            for command in self.commands:
                command.signal(number)
                command.signal(signal.SIGCONT)  # a paused process handles no other signal
            for command in self.commands:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    command.process.wait(max(0.0, deadline - time.monotonic()) if number == signal.SIGTERM else None)
        for handle in self._waited:
            os.close(handle)
        self._waited.clear()

    # What a scenario does

    @property
    def started(self) -> int:
        """When the last command was started, monotonic nanoseconds; the present until then."""
        return self._begun or time.monotonic_ns()

    @property
    def pids(self) -> Mapping[str, int]:
        """By node, the process ID of a command that runs there."""
        return {command.node: command.process.pid for command in self._waited.values()}

    def at(self, when: int, act: Callable[[], object]) -> None:
        """Schedule a call, nanoseconds after the last command's start: `wait` makes it, and its exception ends the wait."""
        heapq.heappush(self._due, (when, self._orderly(), act))

    def ranks_on(self, node: str) -> list[str]:
        """Return the node: commands have no ranks."""
        return [node]

    def has_ended(self, node: str) -> bool:
        """Whether no command runs on a node."""
        return not self._on(node)

    def crash(self, node: str, *, returns: bool = False) -> None:
        """Kill the commands of a node and wait for their end, which is no failure. returns: `restart` will be called,
        and `wait` waits for it."""
        killed = self._on(node)
        for handle, command in killed.items():
            command.signal(signal.SIGKILL)
            self._over(handle)
            command.crashed += 1
        if returns:
            self._away[node] = list(killed.values())

    def restart(self, node: str) -> None:
        """Start the commands that `crash` killed from the beginning; their logs are continued."""
        for command in self._away.pop(node):
            command.process, _ = self._process(node, command.text, command.log)
            command.code, command.ended = None, 0
            self._watch(command)

    def pause(self, node: str) -> None:
        """Stop the commands of a node until `resume`."""
        for command in self._on(node).values():
            command.signal(signal.SIGSTOP)

    def resume(self, node: str) -> None:
        for command in self._on(node).values():
            command.signal(signal.SIGCONT)

    def _on(self, node: str) -> dict[int, Command]:
        """Return the running commands of a node, by pidfd."""
        return {handle: command for handle, command in self._waited.items() if command.node == node}

    def _left(self) -> list[Command]:
        """Return the commands that have not ended, in the order in which they were started."""
        left = [*self._waited.values(), *(command for commands in self._away.values() for command in commands)]
        return [command for command in self.commands if command in left]

    def _process(self, node: str, text: str, log: Path) -> tuple[subprocess.Popen[str], int]:
        place = node_programs.node_context(Store(), self._cluster.state, node)
        with log.open("ab") as file:
            process = node_programs.start(
                place,
                ["sh", "-c", text],
                stdin=subprocess.DEVNULL,
                stdout=file.fileno(),
                stderr=file.fileno(),
                group=True,
            )
        return process, time.monotonic_ns()

    def _watch(self, command: Command) -> None:
        handle = os.pidfd_open(command.process.pid)
        self._waited[handle] = command
        self._ready.register(handle, select.POLLIN)

    def _over(self, handle: int) -> Command:
        """Note the end of a command's process, which has ended or is about to."""
        self._ready.unregister(handle)
        os.close(handle)
        command = self._waited.pop(handle)
        command.code = command.process.wait()
        command.ended = time.monotonic_ns()
        return command

    def _free(self, node: str) -> Path:
        """Return a free log file's path; several commands may run on one node."""
        count, path = 1, self._logs / f"{node}.log"
        while path.exists():
            count += 1
            path = self._logs / f"{node}-{count}.log"
        return path


def _await_listening(command: Command, before: set[tuple[str, int]]) -> None:
    """Wait until a command listens, as the next one may connect to it. before: ports on which others listen in its node,
    such as an sshd."""
    deadline = time.monotonic() + LISTENING
    pid = command.process.pid
    while time.monotonic() < deadline and state_of(pid) not in "XZ" and _listening_ports(pid) <= before:
        time.sleep(_LOOK)


def _listening_ports(pid: int) -> set[tuple[str, int]]:
    """Return the ports on which processes in its network namespace listen."""
    return {(transport, port) for transport in _TRANSPORTS for port in open_ports(pid, transport)}
