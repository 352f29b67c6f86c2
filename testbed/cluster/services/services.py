"""Processes under supervision: start those that are wanted, end those that are not, restart those that die.

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

_AGAIN: Final = 1_000_000_000  # ns until a failed start is retried
_QUICK_DEATHS: Final = 3  # restarts at once within _AGAIN; further ones are delayed by _AGAIN


class FormerProcess(NamedTuple):
    """A process that a previous supervisor started. identity: None if it has died since. what: the specification it was
    started with."""

    identity: processes.Identity | None
    what: object


class Kind(Protocol[K]):
    """A kind of supervised process.

    word: its name in events, such as "relay". wanted: key -> specification; a process with another specification is
    ended and replaced.
    """

    word: str

    def wanted(self) -> Mapping[K, object]: ...

    def known(self) -> Mapping[K, FormerProcess]:
        """The processes that a previous supervisor started and did not end."""
        ...

    def start(self, key: K) -> processes.Identity:
        """Start a child process that is ready for service when this returns. Raises TestbedError, OSError."""
        ...

    def forget(self, key: K) -> None:
        """Clean up after a process that was ended on purpose, or died and is not to be restarted."""
        ...

    def named(self, key: K) -> Mapping[str, object]:
        """The fields that identify the process in events."""
        ...

    def seen(self, key: K) -> Mapping[str, int]:
        """Counts, read when a process has died and when its successor has started."""
        ...

    def missed(self, died: Mapping[str, int], back: Mapping[str, int]) -> Mapping[str, object]:
        """The fields of the restart event that report what was lost in between."""
        ...


class _Running(NamedTuple):
    """A running process. handle: its pidfd. what: the specification it was started with."""

    identity: processes.Identity
    handle: int
    what: object


class SupervisedProcesses(Generic[K]):
    """All supervised processes of one kind, by key."""

    def __init__(self, loop: Loop, directory: Path, kind: Kind[K]) -> None:
        """directory: the cluster's."""
        self._loop = loop
        self._directory = directory
        self._kind: Kind[K] = kind
        self._running: dict[K, _Running] = {}
        self._deaths: list[int] = []
        # Key of a dead process -> time of death (wall clock) and counts then; until it is back.
        self._died: dict[K, tuple[int, Mapping[str, int]]] = {}

    @property
    def pids(self) -> Mapping[K, int]:
        return {key: process.identity.pid for key, process in self._running.items()}

    def adopt(self) -> None:
        """Adopt the processes that a previous supervisor started."""
        for key, (identity, what) in self._kind.known().items():
            if identity is not None:
                with contextlib.suppress(ProcessLookupError):
                    self._watch(key, _Running(identity, os.pidfd_open(identity.pid), what))
                    if identity.is_alive:
                        continue
                    self._reap(key)
            self._died[key] = time.time_ns(), self._kind.seen(key)
            self._record("died", key)

    def reconcile(self) -> None:
        """Start and end processes as wanted. Raises as `Kind.start`."""
        wanted = self._kind.wanted()
        for key in sorted(
            key for key, process in self._running.items() if key not in wanted or process.what != wanted[key]
        ):
            self._stop(key)
        for key in self._died.keys() - wanted.keys():  # an unwanted process leaves no gap
            del self._died[key]
            self._kind.forget(key)
        for key in [key for key in wanted if key not in self._running]:
            self._start(key, wanted[key])

    def end(self) -> None:
        for key in list(self._running):
            self._stop(key)

    def _start(self, key: K, what: object) -> None:
        identity = self._kind.start(key)
        self._watch(key, _Running(identity, os.pidfd_open(identity.pid), what))
        if key in self._died:
            when, seen = self._died.pop(key)
            missed = self._kind.missed(seen, self._kind.seen(key))
            gap = [when, time.time_ns()]
            self._record("restarted", key, pid=identity.pid, gap=gap, **missed)

    def _watch(self, key: K, running: _Running) -> None:
        self._running[key] = running
        self._loop.watch(running.handle, lambda now: self._has_died(key, now))

    def _has_died(self, key: K, now: int) -> None:
        self._died[key] = time.time_ns(), self._kind.seen(key)
        pid = self._running[key].identity.pid
        code = self._reap(key)
        self._record("died", key, pid=pid, **({} if code is None else {"code": code}))
        self._deaths = [*(then for then in self._deaths if now - then < _AGAIN), now]
        if len(self._deaths) <= _QUICK_DEATHS:
            self._restart(key, now)
        else:
            self._loop.at(now + _AGAIN, lambda later: self._restart(key, later))

    def _restart(self, key: K, now: int) -> None:
        wanted = self._kind.wanted()
        if key in self._running or key not in wanted:
            return
        try:
            self._start(key, wanted[key])
        except (TestbedError, OSError) as error:
            self._record("not restarted", key, reason=str(error))
            self._loop.at(now + _AGAIN, lambda later: self._restart(key, later))

    def _stop(self, key: K) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._running[key].handle, signal.SIGKILL)
        self._reap(key)
        self._kind.forget(key)

    def _reap(self, key: K) -> int | None:
        """Wait for a process that has ended or is about to; return its exit code if it was our child."""
        running = self._running.pop(key)
        self._loop.unwatch(running.handle)
        processes.wait_for_end(running.handle)
        os.close(running.handle)
        try:
            return os.waitstatus_to_exitcode(os.waitpid(running.identity.pid, 0)[1])
        except ChildProcessError:
            return None

    def _record(self, what: str, key: K, **facts: object) -> None:
        event_log.record(self._directory, f"{self._kind.word} {what}", **self._kind.named(key), **facts)
