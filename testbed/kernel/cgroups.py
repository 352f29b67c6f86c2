"""CPU shares and memory limits of nodes, by cgroup v2.

Nodes' groups are directly below the root of the hierarchy, whose cgroup.subtree_control has the controllers that groups may
use. That file also affects how all other processes share the CPUs, so it is never changed here; the error message names the
command that changes it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from testbed.kernel.changes import announce
from testbed.kernel.filesystem import make_directory, remove_directory, write_setting
from testbed.kernel.mounts import mount_lines
from testbed.lazy_dataclass import dataclass

PREFIX = "netns-testbed."

# Microseconds. A group may use its quota of processor time in each period. The kernel allows no quota below a
# millisecond and no period above a second, so a small share needs a long period.
_PERIOD = 100_000  # the kernel's default
_MAX_PERIOD = 1_000_000
_MIN_QUOTA = 1_000
_MIN_SHARE = _MIN_QUOTA / _MAX_PERIOD  # cores

_KILL_TIMEOUT = 5.0  # seconds within which killed processes must end


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """The cgroup v2 hierarchy. path: mount point. controllers: those that the kernel has. enabled: those that groups
    may use."""

    path: Path
    controllers: frozenset[str]
    enabled: frozenset[str]


def hierarchy() -> Hierarchy | None:
    """Return the mounted cgroup v2 hierarchy, if any."""
    for line in mount_lines():
        before, _, after = line.partition(" - ")
        if after.split(" ")[0] == "cgroup2":
            path = Path(before.split(" ")[4])
            return Hierarchy(
                path, _read_words(path / "cgroup.controllers"), _read_words(path / "cgroup.subtree_control")
            )
    return None


def _read_words(path: Path) -> frozenset[str]:
    """Read the words in a file; empty if it cannot be read."""
    try:
        return frozenset(path.read_text().split())
    except OSError:
        return frozenset()


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Reason why controllers are not available, and a remedy, both as phrases for users."""

    reason: str
    remedy: str


def unavailable(needed: frozenset[str]) -> Unavailable | None:
    """Return why groups of nodes cannot use these controllers on this machine; None if they can."""
    tree = hierarchy()
    boot = "boot with systemd.unified_cgroup_hierarchy=1 (Debian and Ubuntu have it since 2021)"
    if tree is None:
        return Unavailable("cgroup version 2 is not mounted on this machine", boot)
    where = f"cgroup version 2 on this machine ({tree.path})"
    if absent := needed - tree.controllers:
        return Unavailable(f"{where} has no {_and_no(absent)} controller", boot)
    if not os.access(tree.path, os.W_OK):
        if os.statvfs(tree.path).f_flag & os.ST_RDONLY:
            return Unavailable(f"{where} is mounted read-only", f"'mount -o remount,rw {tree.path}' as root")
        return Unavailable(f"{where} is not writable for this user", "run as root")
    if withheld := needed - tree.enabled:
        added = " ".join(f"+{name}" for name in sorted(withheld))
        return Unavailable(
            f"{where} enables no {_and_no(withheld)} controller for groups",
            f"have root run 'echo {added} >{tree.path}/cgroup.subtree_control', which testbed does not do by itself "
            "because it affects all processes of this machine",
        )
    return None


def _and_no(controllers: frozenset[str]) -> str:
    return " and no ".join(sorted(controllers))


def refusal(cpu_share: float, memory: int) -> str:
    """Return why this machine cannot enforce these limits; empty if it can. cpu_share: cores. memory: bytes. 0: no limit."""
    if 0 < cpu_share < _MIN_SHARE:
        return f"the smallest CPU share that the kernel can enforce is {_MIN_SHARE:g} cores"
    needed = frozenset(name for name, value in (("cpu", cpu_share), ("memory", memory)) if value)
    missing = unavailable(needed) if needed else None
    return f"{missing.reason}: {missing.remedy}" if missing else ""


def group(cluster: str, node: str) -> Path:
    """Return the path of a node's group. Raises FileNotFoundError without cgroup v2, see `refusal`."""
    tree = hierarchy()
    if tree is None:
        raise FileNotFoundError("cgroup version 2 is not mounted")
    return tree.path / f"{PREFIX}{cluster}.{node}"


def make(path: Path, cpu_share: float, memory: int) -> None:
    """Make a node's group, or change its limits. cpu_share: cores. memory: bytes. 0: no limit.

    A node with a memory limit gets no swap, so that the limit has the same effect on machines with and without swap.
    """
    make_directory(path)
    settings = {
        "cpu.max": "{} {}".format(*_quota(cpu_share)) if cpu_share else "max",
        "memory.max": str(memory) if memory else "max",
        "memory.swap.max": "0" if memory else "max",
    }
    for name, value in settings.items():
        if (path / name).exists():  # a controller that is not enabled was not requested; see `refusal`
            write_setting(f"{path}/{name}", value)


def _quota(cpu_share: float) -> tuple[int, int]:
    period = _PERIOD if cpu_share * _PERIOD >= _MIN_QUOTA else _MAX_PERIOD
    return round(cpu_share * period), period


def limits(path: Path) -> tuple[float, int]:
    """Read a group's limits from the kernel: cores and bytes; 0: no limit."""
    quota, _, period = _setting(path / "cpu.max").partition(" ")
    memory = _setting(path / "memory.max")
    return (0.0 if quota == "max" else int(quota) / int(period)), (0 if memory == "max" else int(memory))


def rounded(cpu_share: float, memory: int) -> tuple[float, int]:
    """Round limits (cores, bytes) as the kernel does: to whole microseconds in a period, and to whole pages."""
    quota, period = _quota(cpu_share)
    page = os.sysconf("SC_PAGE_SIZE")
    return quota / period, memory // page * page


def _setting(path: Path) -> str:
    """Read a limit; "max", no limit, if the controller is not enabled."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return "max"


def add_processes(path: Path, pids: list[int]) -> None:
    """Move running processes to a group. Memory that they have already allocated is not charged to it."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            write_setting(f"{path}/cgroup.procs", str(pid))


def members(path: Path) -> list[int]:
    """List the processes in a group and in its subgroups."""
    pids = []
    for directory in _tree(path):
        with contextlib.suppress(OSError):
            pids += [int(line) for line in (directory / "cgroup.procs").read_text().split()]
    return pids


def _tree(path: Path) -> list[Path]:
    """List a group and its subgroups, the deepest first."""
    return [Path(directory) for directory, _, _ in os.walk(path, topdown=False)]


def remove(path: Path) -> bool:
    """Remove a group and its subgroups; return whether it no longer exists. False if it has processes."""
    deadline = time.monotonic() + _KILL_TIMEOUT
    while not all(remove_directory(directory) for directory in _tree(path)):
        # A process may occupy its group for a short time after its parent was notified of its end.
        if members(path) or time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return not path.exists()


def end(path: Path) -> bool:
    """Kill the processes in a group, and remove the group; return False if a process remains.

    A program that has left its node's namespaces can only be found by its group.
    """
    deadline = time.monotonic() + _KILL_TIMEOUT
    while (remaining := members(path)) and time.monotonic() < deadline:
        for pid in remaining:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                announce(f"SIGKILL {pid}")
        time.sleep(0.005)
    return remove(path)


def groups_of(cluster: str) -> list[Path]:
    """List the existing groups of a cluster's nodes; empty if this process may not change groups."""
    return [path for path in _all_groups() if _cluster_and_node(path)[0] == cluster]


def node_of(path: Path) -> str:
    """Return the name of a group's node."""
    return _cluster_and_node(path)[1]


def clusters() -> set[str]:
    """Return the names of the clusters that have groups."""
    return {_cluster_and_node(path)[0] for path in _all_groups()}


def _all_groups() -> list[Path]:
    tree = hierarchy()
    if tree is None or not os.access(tree.path, os.W_OK):
        return []
    return sorted(tree.path.glob(f"{PREFIX}*.*"))


def _cluster_and_node(path: Path) -> tuple[str, str]:
    cluster, _, node = path.name.removeprefix(PREFIX).partition(".")
    return cluster, node
