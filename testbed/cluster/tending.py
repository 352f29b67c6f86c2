"""Processes that a steward tends: it starts those that are wanted, ends those that are not, and starts again those that die,
however they die. What happens to them are events of the cluster."""

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
from testbed.runtime import events

K = TypeVar("K", int, str)

_AGAIN: Final = 1_000_000_000  # ns until what failed is tried again
_QUICK_DEATHS: Final = 3  # so many may die within _AGAIN; then each waits for so long


class Kind(Protocol[K]):
    """What processes of one kind are. word: in events, "relay". wanted: by key, what each is to be; one that is to be
    something else is ended, and another one started."""

    word: str

    def wanted(self) -> Mapping[K, object]: ...

    def start(self, key: K) -> processes.Identity:
        """A child of this process, which does what it is for when this returns. Raises TestbedError, OSError."""
        ...

    def named(self, key: K) -> Mapping[str, object]:
        """What its events say of which one it is."""
        ...

    def seen(self, key: K) -> Mapping[str, int]:
        """Counts, looked at when one has died and when the next one goes on."""
        ...

    def missed(self, died: Mapping[str, int], back: Mapping[str, int]) -> Mapping[str, object]:
        """What its event says of the time between."""
        ...


class _Running(NamedTuple):
    """handle: the descriptor that tells of its end. what: it was to be."""

    identity: processes.Identity
    handle: int
    what: object


class Tended(Generic[K]):
    """All processes of one kind, by key."""

    def __init__(self, loop: Loop, directory: Path, kind: Kind[K]) -> None:
        """directory: the cluster's."""
        self._loop = loop
        self._directory = directory
        self._kind: Kind[K] = kind
        self._running: dict[K, _Running] = {}
        self._deaths: list[int] = []
        # Who has died -> when (wall clock), and what was seen then; until it is back.
        self._died: dict[K, tuple[int, Mapping[str, int]]] = {}

    @property
    def pids(self) -> Mapping[K, int]:
        return {key: one.identity.pid for key, one in self._running.items()}

    def look(self) -> None:
        """Do what is wanted now. Raises what starting one does."""
        wanted = self._kind.wanted()
        for key in sorted(key for key, one in self._running.items() if key not in wanted or one.what != wanted[key]):
            self._stop(key)
        self._died = {key: died for key, died in self._died.items() if key in wanted}  # what is unwanted leaves no gap
        for key in [key for key in wanted if key not in self._running]:
            self._start(key, wanted[key])

    def end(self) -> None:
        for key in list(self._running):
            self._stop(key)

    def _start(self, key: K, what: object) -> None:
        identity = self._kind.start(key)
        running = self._running[key] = _Running(identity, os.pidfd_open(identity.pid), what)
        self._loop.watch(running.handle, lambda now: self._has_died(key, now))
        if key in self._died:
            when, seen = self._died.pop(key)
            missed = self._kind.missed(seen, self._kind.seen(key))
            gap = [when, time.time_ns()]
            self._tell("restarted", key, pid=identity.pid, gap=gap, **missed)

    def _has_died(self, key: K, now: int) -> None:
        self._died[key] = time.time_ns(), self._kind.seen(key)
        self._tell("died", key, pid=self._let_go(key).identity.pid)
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
            self._tell("not restarted", key, reason=str(error))
            self._loop.at(now + _AGAIN, lambda later: self._restart(key, later))

    def _stop(self, key: K) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._running[key].handle, signal.SIGKILL)
        self._let_go(key)

    def _let_go(self, key: K) -> _Running:
        """Forget one that has ended, or is about to."""
        running = self._running.pop(key)
        self._loop.unwatch(running.handle)
        os.close(running.handle)
        os.waitpid(running.identity.pid, 0)
        return running

    def _tell(self, what: str, key: K, **facts: object) -> None:
        events.record(self._directory, f"{self._kind.word} {what}", **self._kind.named(key), **facts)
