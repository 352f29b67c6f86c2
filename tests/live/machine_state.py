"""Snapshots of the machine state that a cluster can change, compared before and after a test."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from testbed.kernel import cgroups, namespaces, processes
from tests.live import sandbox

DEADLINE = 10.0  # seconds until namespace holders of orphans have ended and the kernel has freed namespaces


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of the machine at one instant, as seen in the sandbox."""

    mounts: frozenset[str]
    files: frozenset[str]
    links: frozenset[str]
    groups: frozenset[str]
    settings: frozenset[str]
    processes: frozenset[str]
    descriptors: frozenset[str]
    namespaces: frozenset[int]

    def difference(self, other: Snapshot) -> str:
        """Return a line for each entry that was added or removed in `other`; empty if both are equal."""
        lines = []
        before, after = asdict(self), asdict(other)
        for kind in before:
            lines += [f"new in {kind}: {entry}" for entry in sorted(after[kind] - before[kind], key=str)]
            lines += [f"gone from {kind}: {entry}" for entry in sorted(before[kind] - after[kind], key=str)]
        return "\n".join(lines)


def snapshot() -> Snapshot:
    pids = sandbox.inhabitants() | _zombies()
    return Snapshot(
        mounts=_mounts(),
        files=_files(),
        links=frozenset(name for _, name in socket.if_nameindex()),
        groups=frozenset(str(path) for cluster in cgroups.clusters() for path in cgroups.groups_of(cluster)),
        settings=frozenset(f"{path} = {value}" for path, value in _settings()),
        processes=frozenset(_described(pid) for pid in pids),
        descriptors=_descriptors(),
        namespaces=frozenset(_namespaces(pids)),
    )


class Machine:
    """A snapshot to restore."""

    def __init__(self) -> None:
        self.before = snapshot()
        self.has_leftovers = False

    def assert_unchanged(self, what: str = "", deadline: float = DEADLINE) -> None:
        """Assert that the state is as before, at the latest after `deadline` seconds."""
        until = time.monotonic() + deadline
        while difference := self.before.difference(snapshot()):
            self.has_leftovers = time.monotonic() >= until
            assert not self.has_leftovers, f"{what or 'the machine has changed'}:\n{difference}"
            time.sleep(0.005)  # between two samples

    def clear(self) -> None:
        """Remove what a failed test has left, so that later tests do not fail too."""
        for entry in snapshot().processes - self.before.processes:
            with contextlib.suppress(OSError):
                os.kill(int(entry.split()[0]), signal.SIGKILL)
        for name in namespaces.names():
            if f"/run/netns/{name}" not in {entry.split()[0] for entry in self.before.files}:
                namespaces.remove_name(name)
        if not any("/run/netns-testbed" in entry for entry in self.before.files):
            shutil.rmtree("/run/netns-testbed", ignore_errors=True)
        with contextlib.suppress(OSError):
            namespaces.drop_empty_names()

    def assert_changed(self) -> None:
        assert self.before.difference(snapshot()), "the machine has not changed"


def eventually(condition: Callable[[], bool], what: str, deadline: float = DEADLINE) -> None:
    """Wait for a condition; fail if it is not met by the deadline."""
    until = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < until, f"condition not met within {deadline} s: {what}"
        time.sleep(0.005)  # between two samples


def _mounts() -> frozenset[str]:
    """Return the mounts without mount ids and peer group numbers, which are new each time."""
    actual = []
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        if " master:" in line and " - nsfs " in line:
            continue  # a namespace of the machine, whose mount propagates into the sandbox
        fields = [
            field.partition(":")[0] if field.startswith(("shared:", "master:")) else field for field in line.split()
        ]
        actual.append(" ".join(fields[2:]))
    return frozenset(actual)


def _files() -> frozenset[str]:
    actual = []
    for directory, below, files in os.walk("/run"):
        for name in below + files:
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                actual.append(f"{directory}/{name} {os.lstat(f'{directory}/{name}').st_mode:o}")
    return frozenset(actual)


def _settings() -> list[tuple[str, str]]:
    """Return the machine's network sysctls that no cluster may change."""
    base = Path("/proc/sys/net")
    paths = [
        *base.glob("ipv4/ip_forward"),
        *base.glob("ipv6/conf/*/forwarding"),
        *base.glob("ipv6/conf/*/disable_ipv6"),
        *base.glob("ipv6/conf/*/addr_gen_mode"),
        *base.glob("bridge/*"),
    ]
    return [(str(path), path.read_text().strip()) for path in paths]


def _descriptors() -> frozenset[str]:
    """Return this process's open descriptors, except for temporary files of the tests."""
    actual = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor of the listing
            continue
        if target.startswith(("net:", "mnt:", "/run", "socket:", "pipe:", "anon_inode:")):
            actual.append(f"{name} -> {target}")
    return frozenset(actual)


def _zombies() -> set[int]:
    """Return ended children that were not waited for."""
    me = str(os.getpid())
    actual = set()
    for pid in processes.all_pids():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] == "Z" and fields[1] == me:
            actual.add(pid)
    return actual


def _described(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
    except OSError:
        command = ""
    return f"{pid} {command[:120]}"


def _namespaces(pids: set[int]) -> set[int]:
    """Return the network namespaces that these processes are in or hold open, and the named ones."""
    actual = {processes.network_namespace_of(pid) for pid in pids}
    for pid in pids:
        try:
            targets = [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        actual |= {int(target[5:-1]) for target in targets if target.startswith("net:[")}
    for name in namespaces.names():
        try:
            actual.add(os.stat(namespaces.NAMES / name).st_ino)
        except OSError:
            continue
    return actual - {0}
