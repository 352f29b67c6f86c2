"""Supervised processes: start the required ones, end the others, and restart those that die.

A new supervisor adopts the processes that its predecessor started. Deaths and restarts are recorded as events of the
cluster.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from testbed.engine.loop import Loop
from testbed.errors import TestbedError
from testbed.kernel import processes
from testbed.runtime import event_log

K = TypeVar("K", int, str)

_RETRY_INTERVAL: Final = 1_000_000_000  # ns until a failed start is retried
# Number of immediate restarts of all processes of a kind within _RETRY_INTERVAL; later ones are delayed.
_MAX_QUICK_RESTARTS: Final = 3


class FormerProcess(NamedTuple):
    """A process that a previous supervisor started. identity: None if it has died since. specification: the one with which
    it was started, see `Kind.required`."""

    identity: processes.Identity | None
    specification: object


class Kind(Protocol[K]):
    """A kind of supervised process. word: its name in events, such as "relay"."""

    word: str

    def required(self) -> Mapping[K, object]:
        """Return key -> specification of the required processes. A process with another specification is replaced."""
        ...

    def former(self) -> Mapping[K, FormerProcess]:
        """Return the processes that a previous supervisor started and did not end."""
        ...

    def start(self, key: K) -> processes.Identity:
        """Start a child process that is ready for service when this returns. Raises TestbedError, OSError."""
        ...

    def clean_up(self, key: K) -> None:
        """Clean up after a process that was ended on purpose, or died and is not to be restarted."""
        ...

    def event_fields(self, key: K) -> Mapping[str, object]:
        """Return the fields that identify the process in events."""
        ...

    def read_counts(self, key: K) -> Mapping[str, int]:
        """Read the counts for `losses`; called when a process has died and when its successor has started."""
        ...

    def losses(self, at_death: Mapping[str, int], at_restart: Mapping[str, int]) -> Mapping[str, object]:
        """Return the fields of the restart event that report the losses between death and restart."""
        ...


class _Running(NamedTuple):
    """A running process. specification: the one with which it was started, see `Kind.required`."""

    identity: processes.Identity
    pidfd: int
    specification: object


class SupervisedProcesses(Generic[K]):
    """All supervised processes of one kind, by key."""

    def __init__(self, loop: Loop, directory: Path, kind: Kind[K]) -> None:
        """directory: the cluster's."""
        self._loop = loop
        self._directory = directory
        self._kind: Kind[K] = kind
        self._running: dict[K, _Running] = {}
        self._deaths: list[int] = []  # times of recent deaths, on the loop's clock
        # Key -> time of death (wall clock, ns) and counts then, of processes that have died and not been restarted.
        self._dead: dict[K, tuple[int, Mapping[str, int]]] = {}

    @property
    def pids(self) -> Mapping[K, int]:
        """Pids of the running processes, by key."""
        return {key: process.identity.pid for key, process in self._running.items()}

    def adopt(self) -> None:
        """Adopt the processes that a previous supervisor started."""
        for key, (identity, specification) in self._kind.former().items():
            if identity is not None:
                with contextlib.suppress(ProcessLookupError):
                    self._watch(key, _Running(identity, os.pidfd_open(identity.pid), specification))
                    if identity.is_alive:
                        continue
                    self._reap(key)
            self._dead[key] = time.time_ns(), self._kind.read_counts(key)
            self._record("died", key)

    def reconcile(self) -> None:
        """Start missing processes, and end those that are not required or have another specification. Raises the errors of
        `Kind.start`."""
        required = self._kind.required()
        for key in sorted(
            key
            for key, process in self._running.items()
            if key not in required or process.specification != required[key]
        ):
            self._stop(key)
        for key in self._dead.keys() - required.keys():
            del self._dead[key]
            self._kind.clean_up(key)
        for key in [key for key in required if key not in self._running]:
            self._start(key, required[key])

    def end(self) -> None:
        """End all processes."""
        for key in list(self._running):
            with contextlib.suppress(OSError):  # of the cleaning up, as on a read-only disk
                self._stop(key)

    def _start(self, key: K, specification: object) -> None:
        identity = self._kind.start(key)
        self._watch(key, _Running(identity, os.pidfd_open(identity.pid), specification))
        if key in self._dead:
            died_at, counts = self._dead.pop(key)
            losses = self._kind.losses(counts, self._kind.read_counts(key))
            gap = [died_at, time.time_ns()]
            self._record("restarted", key, pid=identity.pid, gap=gap, **losses)

    def _watch(self, key: K, running: _Running) -> None:
        self._running[key] = running
        self._loop.watch(running.pidfd, lambda now: self._on_death(key, now))

    def _on_death(self, key: K, now: int) -> None:
        counts: Mapping[str, int] = {}
        with contextlib.suppress(TestbedError, OSError):
            counts = self._kind.read_counts(key)
        self._dead[key] = time.time_ns(), counts
        pid = self._running[key].identity.pid
        code = self._reap(key)
        self._record("died", key, pid=pid, **({} if code is None else {"code": code}))
        self._deaths = [*(earlier for earlier in self._deaths if now - earlier < _RETRY_INTERVAL), now]
        if len(self._deaths) <= _MAX_QUICK_RESTARTS:
            self._restart(key, now)
        else:
            self._loop.at(now + _RETRY_INTERVAL, lambda later: self._restart(key, later))

    def _restart(self, key: K, now: int) -> None:
        try:
            required = self._kind.required()
            if key not in self._running and key in required:
                self._start(key, required[key])
        except (TestbedError, OSError) as error:
            self._record("not restarted", key, reason=str(error))
            self._loop.at(now + _RETRY_INTERVAL, lambda later: self._restart(key, later))

    def _stop(self, key: K) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._running[key].pidfd, signal.SIGKILL)
        self._reap(key)
        self._kind.clean_up(key)

    def _reap(self, key: K) -> int | None:
        """Wait for the end of a process that has ended or is ending; return its exit code, or None if it is not a child of
        this process."""
        running = self._running.pop(key)
        self._loop.unwatch(running.pidfd)
        processes.wait_for_end(running.pidfd)
        os.close(running.pidfd)
        try:
            return os.waitstatus_to_exitcode(os.waitpid(running.identity.pid, 0)[1])
        except ChildProcessError:
            return None

    def _record(self, verb: str, key: K, **attributes: object) -> None:
        fields = self._kind.event_fields(key)
        event_log.record_if_possible(self._directory, f"{self._kind.word} {verb}", **fields, **attributes)
