"""Processes: identities that survive the reuse of pids, the processes of a cluster, and reliable termination."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Final, Literal

from testbed.kernel.changes import announce
from testbed.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """Unique identity of a process: boot id, inode of the pid namespace, pid there, and start time in clock ticks."""

    boot: str
    pid_namespace: int
    pid: int
    start: int

    def __str__(self) -> str:
        return f"{self.boot}:{self.pid_namespace}:{self.pid}:{self.start}"

    @classmethod
    def parse(cls, text: str) -> Identity:
        """Parse the result of str(); ValueError for anything else."""
        boot, namespace, pid, start = text.split(":")
        return cls(boot, int(namespace), int(pid), int(start))

    @property
    def here(self) -> bool:
        """Whether this boot and this pid namespace are ours, so that `alive` can tell."""
        return self.boot == boot_id() and self.pid_namespace == pid_namespace()

    @property
    def alive(self) -> bool:
        """Whether the process runs. A zombie does not: it holds no resources."""
        return self.here and _start_time(self.pid) == self.start


@cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _stat(pid: int) -> list[str]:
    """Read the fields of a process from its state on (proc_pid_stat(5)); those of a dead one where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X", "0"]


def _start_time(pid: int) -> int:
    """Read when a process started, in clock ticks after boot; -1 when it does not run."""
    fields = _stat(pid)
    return -1 if fields[0] in "ZX" else int(fields[19])


def state_of(pid: int) -> str:
    """Return a process's state as in proc(5): "T" is stopped, "Z" a zombie, "X" is gone."""
    return _stat(pid)[0]


_EXITING = 0x4  # PF_EXITING


def is_ending(pid: int) -> bool:
    """Whether a process has ended or is exiting: it closes its descriptors, and its parent has not waited for it yet."""
    fields = _stat(pid)
    return fields[0] in "ZX" or bool(int(fields[6]) & _EXITING)


def identity(pid: int = 0) -> Identity:
    """Return the identity of a process, by default our own."""
    pid = pid or os.getpid()
    return Identity(boot_id(), pid_namespace(), pid, _start_time(pid))


def all_pids() -> list[int]:
    """List the pids of all visible processes."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def network_namespace_of(pid: int) -> int:
    """Return the inode of a process's network namespace; 0 when it is gone or we may not read it."""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return 0


def _identity_of(file: str | Path) -> tuple[int, int] | None:
    """Return device and inode of a file; None when it is not there or we may not read it."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino


Belongs = Callable[[str], bool]

_MAX_SCANS = 20


class NamespaceProcesses:
    """The processes in some network namespaces (inodes), and those that came from there and went elsewhere: descendants of
    one that stayed, and processes that still have the cluster's `hosts` as /etc/hosts.

    belongs(path): whether the namespace there is the intended one. The kernel reuses a namespace's inode as soon as it is
    free: where that may have happened, `belongs` must check. From then on we hold the namespace.
    """

    def __init__(self, namespaces: Collection[int], hosts: Path | None = None, belongs: Belongs | None = None) -> None:
        self._wanted = set(namespaces)
        self._hosts = _identity_of(hosts) if hosts is not None else None
        self._belongs = belongs
        self._held: dict[int, int] = {}

    def __enter__(self) -> NamespaceProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._held.values():
            os.close(handle)
        self._held.clear()

    def scan(self, on_found: Callable[[int], None] | None = None) -> list[int]:
        """List the pids, the newest first; found_one(pid) is called as soon as a process is found."""
        found: set[int] = set()
        seen = {os.getpid()}
        for _ in range(_MAX_SCANS):
            # A process that forks and ends all the time can escape a scan: only a scan during which no process has forked
            # is complete. On a busy machine there is none; then many scans of the new processes must do.
            newest = _newest()
            present = set(all_pids())
            for pid in sorted(present - seen, reverse=True):
                if self._is_in(pid) or self._sees_hosts(pid):
                    found.add(pid)
                    if on_found is not None:
                        on_found(pid)
            seen |= present
            if found or newest == _newest():
                break
        return sorted(_with_descendants(found, seen) - {os.getpid()}, reverse=True)

    def _is_in(self, pid: int) -> bool:
        inode = network_namespace_of(pid)
        if inode not in self._wanted or inode in self._held:
            return inode in self._held
        try:
            handle = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # it has ended
            return False
        if os.fstat(handle).st_ino == inode and (self._belongs is None or self._belongs(f"/proc/self/fd/{handle}")):
            self._held[inode] = handle
            return True
        os.close(handle)
        return False

    def _sees_hosts(self, pid: int) -> bool:
        return self._hosts is not None and _identity_of(f"/proc/{pid}/root/etc/hosts") == self._hosts


def _with_descendants(found: set[int], pids: set[int]) -> set[int]:
    if not found:
        return found
    parents = {pid: int(_stat(pid)[1]) for pid in pids}
    grown = set(found)
    while more := {pid for pid in pids if parents[pid] in grown} - grown:
        grown |= more
    return grown


def _newest() -> str:
    """Return the pid of the process that was made last."""
    return Path("/proc/loadavg").read_text().split()[-1]


def inside(namespaces: Collection[int]) -> list[int]:
    """List the processes in these network namespaces (inodes), which must exist, and those that came from there."""
    with NamespaceProcesses(namespaces) as members:
        return members.scan()


class SurvivorsError(Exception):
    """Processes that did not end although they were killed (blocked in the kernel)."""

    def __init__(self, pids: list[int]) -> None:
        self.pids = pids
        super().__init__(f"processes {', '.join(map(str, pids))} do not end")


def end_all(members: NamespaceProcesses, grace: float, timeout: float = 10.0) -> int:
    """End every inhabitant: SIGTERM, `grace` seconds to comply, then SIGKILL until none is left.

    Return how many were found. Raises SurvivorsError after `timeout` seconds of killing.
    """
    ended: set[int] = set()
    with members:
        if grace > 0 and (first := members.scan()):
            ended.update(first)
            _signal_and_wait(first, signal.SIGTERM, grace)
        deadline = time.monotonic() + timeout
        # Repeatedly: a process may fork between the scan and the signal. One that forks and ends all the time is gone when
        # a scan is over, and must be killed as soon as it is found.
        while remaining := members.scan(_kill):
            ended.update(remaining)
            if time.monotonic() > deadline:
                raise SurvivorsError(remaining)
            _signal_and_wait(remaining, signal.SIGKILL, max(0.0, deadline - time.monotonic()))
    return len(ended)


def wait_for_end(handle: int, seconds: float | None = None) -> bool:
    """Wait until the process behind a pidfd has ended; False when `seconds` passed first."""
    waiting = select.poll()
    waiting.register(handle, select.POLLIN)
    return bool(waiting.poll(None if seconds is None else seconds * 1000))


def wait_until_gone(process: Identity) -> None:
    """Wait for the end of a process that is about to end by itself."""
    if process.alive:
        with contextlib.suppress(ProcessLookupError), _handle(process.pid) as handle:
            if process.alive:
                wait_for_end(handle)
    if process.here:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)  # where it is our own child


def end(process: Identity) -> None:
    """Kill one process, if it still runs, and wait until it has ended."""
    if not process.alive:
        return
    with contextlib.suppress(ProcessLookupError), _handle(process.pid) as handle:
        if process.alive:  # the number still means the same process now that we hold it
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            announce(f"SIGKILL {process.pid}")
            wait_for_end(handle)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process.pid, 0)  # where it is our own child


@contextlib.contextmanager
def _handle(pid: int) -> Iterator[int]:
    """Hold a pidfd. ProcessLookupError."""
    handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        os.close(handle)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError), _handle(pid) as handle:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        announce(f"SIGKILL {pid}")


def _signal_and_wait(pids: Collection[int], number: signal.Signals, seconds: float) -> None:
    """Send a signal to processes and wait until all have ended, at most `seconds`."""
    waiting = select.poll()
    handles = {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            handles[handle] = pid
            waiting.register(handle, select.POLLIN)
    try:
        for handle, pid in handles.items():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
                announce(f"{number.name} {pid}")
        deadline = time.monotonic() + seconds
        remaining = set(handles)
        while remaining and (rest := deadline - time.monotonic()) > 0:
            for handle, _ in waiting.poll(rest * 1000):
                waiting.unregister(handle)
                remaining.discard(handle)
    finally:
        for handle in handles:
            os.close(handle)


_OPEN: Final = {"tcp": "0A", "udp": "07"}
"""The state of a listening TCP or an unconnected UDP socket, in hexadecimal (include/net/tcp_states.h)."""


def open_ports(pid: int | str, transport: Literal["tcp", "udp"]) -> set[int]:
    """Return the ports with a listening TCP or an unconnected UDP socket, of both IP versions; none where the process has
    gone. pid: a number or "self"."""
    ports = set[int]()
    for table in (transport, f"{transport}6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                _, local, _, state = line.split()[:4]
                if state == _OPEN[transport]:
                    ports.add(int(local.rpartition(":")[2], 16))
    return ports
