"""Processes: identities that stay unique when pids are reused, the processes of a cluster, and reliable termination."""

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
from testbed.kernel.filesystem import read_kernel_file
from testbed.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """Unique identity of a process: boot id, inode of the pid namespace, pid there, and start time in clock ticks.

    start: since boot; -1 if the process had ended when its identity was read.
    """

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
    def is_local(self) -> bool:
        """Whether the process is of this boot and this pid namespace, so that `is_alive` can be determined."""
        return self.boot == boot_id() and self.pid_namespace == pid_namespace()

    @property
    def is_hidden(self) -> bool:
        """Whether the process is of this boot and of another pid namespace, so that it may be alive without being
        visible."""
        return self.boot == boot_id() and self.pid_namespace != pid_namespace()

    @property
    def is_alive(self) -> bool:
        """Whether the process runs. False for a zombie, which holds no resources, and for a process that is not local."""
        return self.start >= 0 and self.is_local and _start_time(self.pid) == self.start


@cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _stat(pid: int) -> list[str]:
    """Read the fields of /proc/PID/stat from the state on (proc_pid_stat(5)). Without a process, return those of a dead
    one."""
    try:
        # A process's name may contain any bytes, and is truncated to 15 bytes even within a character.
        return read_kernel_file(f"/proc/{pid}/stat").rpartition(")")[2].split()
    except OSError:
        return ["X", "0"]


def _start_time(pid: int) -> int:
    """Read the start time of a process, in clock ticks since boot; -1 if it does not run."""
    fields = _stat(pid)
    return -1 if fields[0] in "ZX" else int(fields[19])


def state_of(pid: int) -> str:
    """Return a process's state as in proc_pid_stat(5): "T" is stopped, "Z" is a zombie, "X" is dead or does not exist."""
    return _stat(pid)[0]


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal, or waits in vfork(2) for a child that is: it stops only after that."""
    state = state_of(pid)
    if state != "D":
        return state == "T"
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has ended, or the kernel has no such file
        return False
    return any(state_of(int(child)) == "T" for child in children)


_SESSION = 3  # index of the session in `_stat`
_EXITING = 0x4  # PF_EXITING


def is_ending(pid: int) -> bool:
    """Whether a process has ended or is exiting, such as one that still closes its descriptors."""
    fields = _stat(pid)
    return fields[0] in "ZX" or bool(int(fields[6]) & _EXITING)


def identity(pid: int = 0) -> Identity:
    """Return the identity of a process. pid: 0: this process."""
    pid = pid or os.getpid()
    return Identity(boot_id(), pid_namespace(), pid, _start_time(pid))


def all_pids() -> list[int]:
    """List the pids of all visible processes."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def network_namespace_of(pid: int) -> int:
    """Return the inode of a process's network namespace; 0 if the process does not exist or permission is denied."""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return 0


def _identity_of(file: str | Path) -> tuple[int, int] | None:
    """Return device and inode of a file; None if it does not exist or permission is denied."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino


NamespaceTest = Callable[[str], bool]
"""Function that returns whether the namespace at a path is the intended one."""

_MAX_SCANS = 20


class NamespaceProcesses:
    """The processes in network namespaces, and processes that have left them: descendants of members, and processes whose
    /etc/hosts is still the cluster's.

    namespaces: inodes of the namespaces. hosts: the cluster's hosts file; None: /etc/hosts is not compared. belongs: called
    with the path of a namespace that has one of these inodes, which the kernel may have reused; None: they are not reused.
    Accepted namespaces are kept open until the end of the ``with`` block.
    """

    def __init__(
        self, namespaces: Collection[int], hosts: Path | None = None, belongs: NamespaceTest | None = None
    ) -> None:
        self._inodes = set(namespaces)
        self._hosts = _identity_of(hosts) if hosts is not None else None
        self._belongs = belongs
        self._handles: dict[int, int] = {}

    def __enter__(self) -> NamespaceProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()

    def scan(self, on_found: Callable[[int], None] | None = None) -> list[int]:
        """List the pids of the members except this process, the highest first. on_found: called with each pid as soon as it
        is found, except those of descendants that have left the namespaces."""
        pids: set[int] = set()
        checked = {os.getpid()}
        for _ in range(_MAX_SCANS):
            # A process that forks and exits repeatedly can escape a scan: only a scan during which no process has forked is
            # complete. A busy machine may not allow such a scan, so the number of scans is limited.
            newest = _newest()
            present = set(all_pids())
            for pid in sorted(present - checked, reverse=True):
                if self._is_member(pid) or self._sees_hosts(pid):
                    pids.add(pid)
                    if on_found is not None:
                        on_found(pid)
            checked |= present
            if pids or newest == _newest():
                break
        return sorted(_with_descendants(pids, checked) - {os.getpid()}, reverse=True)

    def _is_member(self, pid: int) -> bool:
        inode = network_namespace_of(pid)
        if inode not in self._inodes or inode in self._handles:
            return inode in self._handles
        try:
            handle = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # the process has ended
            return False
        if os.fstat(handle).st_ino == inode and (self._belongs is None or self._belongs(f"/proc/self/fd/{handle}")):
            self._handles[inode] = handle
            return True
        os.close(handle)
        return False

    def _sees_hosts(self, pid: int) -> bool:
        return self._hosts is not None and _identity_of(f"/proc/{pid}/root/etc/hosts") == self._hosts


def _with_descendants(ancestors: set[int], pids: set[int]) -> set[int]:
    """Return these processes and those among `pids` that descend from them."""
    if not ancestors:
        return ancestors
    parents = {pid: int(_stat(pid)[1]) for pid in pids}
    members = set(ancestors)
    while children := {pid for pid in pids if parents[pid] in members} - members:
        members |= children
    return members


def _newest() -> str:
    """Return the pid of the newest process, as text."""
    return Path("/proc/loadavg").read_text().split()[-1]


def inside(namespaces: Collection[int]) -> list[int]:
    """List the processes in these network namespaces, and processes that have left them. namespaces: inodes of existing
    namespaces."""
    with NamespaceProcesses(namespaces) as members:
        return members.scan()


class SurvivorsError(Exception):
    """Processes that do not end after SIGKILL, since they are blocked in the kernel."""

    def __init__(self, pids: list[int]) -> None:
        self.pids = pids
        super().__init__(f"processes {', '.join(map(str, pids))} do not end")


def end_all(members: NamespaceProcesses, grace: float, timeout: float = 10.0) -> int:
    """End all member processes: SIGTERM, and after `grace` seconds SIGKILL until none remains. Return their number.

    Raises SurvivorsError if processes remain `timeout` seconds after the first SIGKILL.
    """
    ended: set[int] = set()
    with members:
        if grace > 0 and (first := members.scan()):
            ended.update(first)
            _signal_and_wait(first, signal.SIGTERM, grace)
        deadline = time.monotonic() + timeout
        # Repeated, since a process may fork between the scan and the signal. A process that forks and exits repeatedly would
        # have exited by the end of the scan, so each process is killed as soon as it is found.
        while remaining := members.scan(_kill):
            ended.update(remaining)
            if time.monotonic() > deadline:
                raise SurvivorsError(remaining)
            _signal_and_wait(remaining, signal.SIGKILL, max(0.0, deadline - time.monotonic()))
    return len(ended)


def end_session(leader: int, timeout: float = 10.0) -> None:
    """Kill a child that leads a session, the session's processes and all their descendants.

    Returns when none is left, or after `timeout` seconds, since a process may be blocked in the kernel.
    """
    deadline = time.monotonic() + timeout
    while (remaining_time := deadline - time.monotonic()) > 0:
        stats = {pid: _stat(pid) for pid in all_pids()}
        sessions = {pid for pid, fields in stats.items() if len(fields) > _SESSION and int(fields[_SESSION]) == leader}
        members = _with_descendants(sessions, {*stats})
        if not (running := {pid for pid in members if pid in stats and stats[pid][0] not in "ZX"}):
            return
        _signal_and_wait(running, signal.SIGKILL, remaining_time)


def wait_for_end(handle: int, seconds: float | None = None) -> bool:
    """Wait until the process of a pidfd has ended; return False after `seconds`. None: no limit."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


def wait_until_gone(process: Identity) -> None:
    """Wait for the end of a process that is about to end by itself."""
    if process.is_alive:
        with contextlib.suppress(ProcessLookupError), _handle(process.pid) as handle:
            if process.is_alive:
                wait_for_end(handle)
    if process.is_local:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)  # reap it if it is a child of this process


def end(process: Identity) -> None:
    """Kill a process if it still runs, and wait until it has ended."""
    if not process.is_alive:
        return
    with contextlib.suppress(ProcessLookupError), _handle(process.pid) as handle:
        if process.is_alive:  # the pidfd is of this process, not of a later one with its pid
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            announce(f"SIGKILL {process.pid}")
            wait_for_end(handle)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process.pid, 0)  # reap it if it is a child of this process


@contextlib.contextmanager
def _handle(pid: int) -> Iterator[int]:
    """Hold a pidfd of a process. Raises ProcessLookupError."""
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
    """Send a signal to processes, and wait until all have ended, at most `seconds`."""
    poll = select.poll()
    handles = {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            handles[handle] = pid
            poll.register(handle, select.POLLIN)
    try:
        for handle, pid in handles.items():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
                announce(f"{number.name} {pid}")
        deadline = time.monotonic() + seconds
        remaining = set(handles)
        while remaining and (remaining_time := deadline - time.monotonic()) > 0:
            for handle, _ in poll.poll(remaining_time * 1000):
                poll.unregister(handle)
                remaining.discard(handle)
    finally:
        for handle in handles:
            os.close(handle)


_OPEN: Final = {"tcp": "0A", "udp": "07"}
"""States of listening TCP and of unconnected UDP sockets, in hexadecimal (include/net/tcp_states.h)."""


def open_ports(pid: int | str, transport: Literal["tcp", "udp"]) -> set[int]:
    """Return the ports with a listening TCP or an unconnected UDP socket, of both IP versions, in a process's network
    namespace; none if the process does not exist. pid: a number or "self"."""
    ports = set[int]()
    for table in (transport, f"{transport}6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                _, local, _, state = line.split()[:4]
                if state == _OPEN[transport]:
                    ports.add(int(local.rpartition(":")[2], 16))
    return ports
