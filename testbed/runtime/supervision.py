"""Supervision of a cluster's services (relay processes, agents of shared NICs), by locks in the cluster's directory.

Each service, and the supervisor, holds a lock for its lifetime. The supervisor restarts services that die. Each service
also watches the supervisor and starts a new one when it dies, which finds the running services by their locks and
adopts them. If several are started, only one gets the lock; so there are never two supervisors, and never two processes
that carry the same links.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from testbed.errors import reason_of
from testbed.kernel import locks, processes
from testbed.kernel.waiter import Timer
from testbed.lazy_dataclass import dataclass
from testbed.runtime import event_log

_PREFIX: Final = "lock."
_SUPERVISOR: Final = f"{_PREFIX}supervisor"
_PAUSE: Final = 1_000_000_000  # ns between two attempts to start a supervisor


def supervisor_lock(directory: Path) -> Path:
    return directory / _SUPERVISOR


def service_lock(directory: Path, kind: str, key: object) -> Path:
    """The lock of a service. kind, key: "relay" and a number, or "nic" and a node."""
    return directory / f"{_PREFIX}{kind}.{key}"


def service_keys(directory: Path, kind: str) -> list[str]:
    """The keys of a kind of services that have a lock."""
    prefix = f"{_PREFIX}{kind}."
    return sorted(path.name.removeprefix(prefix) for path in directory.glob(f"{prefix}*"))


def running_supervisor(directory: Path) -> processes.Identity | None:
    """The running supervisor of the cluster with this directory, if any."""
    pid = locks.holder(supervisor_lock(directory))
    return processes.identity(pid) if pid else None


def all_run(directory: Path, kind: str) -> bool:
    """Whether there are services of a kind and none of them has died."""
    paths = [service_lock(directory, kind, key) for key in service_keys(directory, kind)]
    running = [path for path in paths if locks.holder(path)]
    return bool(running) and all(path in running or not locks.read_note(path) for path in paths)


def end_all(directory: Path) -> None:
    """End the supervisor and all services for good.

    The files in the directory must already tell them that nothing needs them, since one may just be starting.
    """
    while True:
        paths = [supervisor_lock(directory), *sorted(directory.glob(f"{_PREFIX}*"))]
        running = [path for path in paths if locks.holder(path)]
        if not running:
            return
        for path in running:
            if (pid := locks.holder(path)) and pid != os.getpid():
                processes.end(processes.identity(pid))
                locks.clear(path)


@dataclass(frozen=True, slots=True)
class Death:
    """The death of a supervisor, as seen by a service. when: wall clock, nanoseconds. code: as in subprocess; only
    known to its parent."""

    pid: int
    when: int
    code: int | None = None

    def to_arguments(self) -> list[str]:
        return [str(self.pid), str(self.when), "" if self.code is None else str(self.code)]

    @classmethod
    def from_arguments(cls, arguments: Sequence[str]) -> Death:
        pid, when, code = arguments
        return cls(int(pid), int(when), int(code) if code else None)


class Supervision:
    """A service's watch on its supervisor. `look` must be called whenever `fileno` is readable."""

    def __init__(self, directory: Path, command: Sequence[str]) -> None:
        """directory: the cluster's. command: starts a supervisor; the fields of a `Death` are appended."""
        self._directory = directory
        self._lock = supervisor_lock(directory)
        self._command = command
        self._ready = select.epoll()
        self._again = Timer()
        self._ready.register(self._again.fileno(), select.EPOLLIN)
        self._watched: tuple[int, int] | None = None  # pid and pidfd
        self._next = 0  # earliest time of the next start
        self._death = Death(os.getppid(), time.time_ns())
        self._told = ""
        self._follow()

    def fileno(self) -> int:
        return self._ready.fileno()

    def advance(self) -> None:
        """Handle the end of the supervisor, or of a process that was to become one, or retry to start one."""
        if self._watched is not None:
            pid, handle = self._watched
            if not processes.wait_for_end(handle, 0):
                return
            self._watched = None
            self._ready.unregister(handle)
            os.close(handle)
            code = None
            with contextlib.suppress(ChildProcessError):
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if locks.read_note(self._lock):  # it died without a regular end
                self._death = Death(pid, time.time_ns(), code)
            elif code and not locks.holder(self._lock):
                self._tell(f"what was to become one ended with code {code}")
        self._follow()

    def _follow(self) -> None:
        """Watch the running supervisor, or start one. SystemExit if the cluster is gone."""
        found = locks.holder_pidfd(self._lock) or self._start()
        self._again.set(0 if found is not None else self._next)
        if found is not None:
            self._watched = found
            self._ready.register(found[1], select.EPOLLIN)

    def _start(self) -> tuple[int, int] | None:
        """Start a supervisor in a new interpreter, since a fork would keep this process's resources; None if that fails
        or is not due."""
        if not self._lock.exists():
            raise SystemExit("the cluster is gone")
        now = time.monotonic_ns()
        if now < self._next:
            return None
        self._next = now + _PAUSE
        paths = os.pathsep.join(path for path in sys.path if path)
        arguments = [*self._command, *self._death.to_arguments()]
        try:
            pid = os.posix_spawn(arguments[0], arguments, {**os.environ, "PYTHONPATH": paths})
        except OSError as error:
            self._tell(reason_of(error))
            return None
        return pid, os.pidfd_open(pid)  # our child: its pid is not reused before waitpid

    def _tell(self, reason: str) -> None:
        """Record a failure, but not the same reason twice in a row."""
        if reason != self._told:
            event_log.record(self._directory, "supervisor not restarted", reason=reason)
            self._told = reason
