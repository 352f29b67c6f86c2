"""Supervision of a cluster's services (relay processes, agents of shared NICs), by locks in the cluster's directory.

Each service, and the supervisor, holds a lock as long as it runs. The supervisor restarts services that die. Each service
also watches the supervisor, and starts a new one when the supervisor dies; the new supervisor finds the running services by
their locks and adopts them. If several are started, only one gets the lock: there are never two supervisors, and never
two relay processes that forward the same links.
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
from testbed.kernel.filesystem import names_in
from testbed.kernel.waiter import Timer
from testbed.lazy_dataclass import dataclass
from testbed.runtime import event_log

_LOCK_PREFIX: Final = "lock."
_SUPERVISOR_LOCK: Final = f"{_LOCK_PREFIX}supervisor"
_RETRY_INTERVAL: Final = 1_000_000_000  # ns between two attempts to start a supervisor


def supervisor_lock(directory: Path) -> Path:
    """Return the path of the supervisor's lock. directory: the cluster's directory."""
    return directory / _SUPERVISOR_LOCK


def service_lock(directory: Path, kind: str, key: object) -> Path:
    """Return the path of a service's lock. kind, key: "relay" and a process number, or "nic" and a node."""
    return directory / f"{_LOCK_PREFIX}{kind}.{key}"


def service_keys(directory: Path, kind: str) -> list[str]:
    """List the keys of the services of a kind that have a lock file."""
    prefix = f"{_LOCK_PREFIX}{kind}."
    return [name.removeprefix(prefix) for name in names_in(directory, prefix)]


def running_supervisor(directory: Path) -> processes.Identity | None:
    """Find the running supervisor of the cluster with this directory; return None if there is none."""
    pid = locks.holder(supervisor_lock(directory))
    return processes.identity(pid) if pid else None


def are_all_running(directory: Path, kind: str) -> bool:
    """Whether at least one service of this kind runs and none has died."""
    paths = [service_lock(directory, kind, key) for key in service_keys(directory, kind)]
    running = [path for path in paths if locks.holder(path)]
    return bool(running) and all(path in running or not locks.read_note(path) for path in paths)


def end_all(directory: Path) -> None:
    """End the supervisor and all services, and wait until none holds its lock.

    The orders and the state in the directory must already be removed, or changed so that no service is needed; otherwise a
    service that is just starting would continue.
    """
    while True:
        paths = [supervisor_lock(directory), *(directory / name for name in names_in(directory, _LOCK_PREFIX))]
        running = [path for path in paths if locks.holder(path)]
        if not running:
            return
        for path in running:
            if (pid := locks.holder(path)) and pid != os.getpid():
                processes.end(processes.identity(pid))
                locks.clear(path)


@dataclass(frozen=True, slots=True)
class Death:
    """Death of a supervisor, noticed by a service. when: wall clock, nanoseconds. code: exit code, as in `subprocess`; None:
    unknown, since the service is not the supervisor's parent."""

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
    """Supervision of the supervisor by a service, which calls `advance` whenever `fileno` is readable."""

    def __init__(self, directory: Path, command: Sequence[str]) -> None:
        """directory: the cluster's directory. command: command line that starts a supervisor; the fields of a `Death` are
        appended to it."""
        self._directory = directory
        self._lock = supervisor_lock(directory)
        self._command = command
        self._epoll = select.epoll()
        self._retry_timer = Timer()
        self._epoll.register(self._retry_timer.fileno(), select.EPOLLIN)
        self._watched: tuple[int, int] | None = None  # pid and pidfd
        self._next_start = 0  # earliest time of the next attempt, monotonic nanoseconds
        self._death = Death(os.getppid(), time.time_ns())
        self._last_reason = ""
        self._watch_supervisor()

    def fileno(self) -> int:
        return self._epoll.fileno()

    def advance(self) -> None:
        """Handle the end of the watched process, the supervisor or one that was started to become it; or retry the start."""
        if self._watched is not None:
            pid, pidfd = self._watched
            if not processes.wait_for_end(pidfd, 0):
                return
            self._watched = None
            self._epoll.unregister(pidfd)
            os.close(pidfd)
            code = None
            with contextlib.suppress(ChildProcessError):
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if locks.read_note(self._lock):  # a supervisor that ends as intended clears its note
                self._death = Death(pid, time.time_ns(), code)
            elif code and not locks.holder(self._lock):
                self._record_failure(f"the started process ended with code {code}")
        self._watch_supervisor()

    def _watch_supervisor(self) -> None:
        """Watch the running supervisor, or start one. Raises SystemExit if the cluster is gone."""
        supervisor = locks.holder_pidfd(self._lock) or self._start()
        self._retry_timer.set(0 if supervisor is not None else self._next_start)
        if supervisor is not None:
            self._watched = supervisor
            self._epoll.register(supervisor[1], select.EPOLLIN)

    def _start(self) -> tuple[int, int] | None:
        """Start a supervisor in a new interpreter, since a fork would keep this process's resources. Return pid and pidfd,
        or None if the start fails or is not due."""
        if not self._lock.exists():
            raise SystemExit("the cluster is gone")
        now = time.monotonic_ns()
        if now < self._next_start:
            return None
        self._next_start = now + _RETRY_INTERVAL
        paths = os.pathsep.join(path for path in sys.path if path)
        arguments = [*self._command, *self._death.to_arguments()]
        try:
            pid = os.posix_spawn(arguments[0], arguments, {**os.environ, "PYTHONPATH": paths})
        except OSError as error:
            self._record_failure(reason_of(error))
            return None
        return pid, os.pidfd_open(pid)  # the pid of a child is not reused before waitpid

    def _record_failure(self, reason: str) -> None:
        """Record a failure as an event, unless the last one had the same reason."""
        if reason != self._last_reason:
            event_log.record_if_possible(self._directory, "supervisor not restarted", reason=reason)
            self._last_reason = reason
