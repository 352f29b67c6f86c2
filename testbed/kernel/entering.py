"""How a program gets to run in a node: the calls that a process makes on itself before it becomes the program."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from testbed.kernel import mounts, syscalls
from testbed.kernel.files import write_setting

_HOSTS: Final = Path("/etc/hosts")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a program in a node sees.

    namespace: the path of the node's network namespace. keeper: the process that holds the cluster's user and mount
    namespaces where it has its own (rootless), else 0. hosts: the file shown as /etc/hosts. files: further files to
    show, target -> source. directories: further ones that are there, empty and its own. cpus: the processors it may use,
    empty for all. group: its cgroup, None for none.
    """

    namespace: str
    host_name: str
    hosts: Path
    keeper: int = 0
    files: Mapping[str, Path] = field(default_factory=dict)
    directories: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    cpus: tuple[int, ...] = ()
    group: Path | None = None


def enter_keeper(keeper: int) -> None:
    """Enter the user and mount namespaces that a keeper holds, as its root; the process must have one thread."""
    handles = [
        (os.open(f"/proc/{keeper}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), kind)
        for name, kind in (
            ("user", syscalls.CLONE_NEWUSER),
            ("mnt", syscalls.CLONE_NEWNS),
            ("net", syscalls.CLONE_NEWNET),
        )
    ]
    directory = "/"
    with contextlib.suppress(OSError):  # somebody has removed the directory that we are in
        directory = os.getcwd()
    for handle, kind in handles:
        syscalls.setns(handle, kind)
        os.close(handle)
    with contextlib.suppress(OSError):  # it is not there in the new mount namespace: stay at its root
        os.chdir(directory)


def is_inside(keeper: int) -> bool:
    """Whether this process is in the user namespace that a keeper holds."""
    return os.stat("/proc/self/ns/user").st_ino == os.stat(f"/proc/{keeper}/ns/user").st_ino


def enter(surroundings: Surroundings) -> None:
    """Move the calling process into the node for good; it then has but to execute the program."""
    if surroundings.group is not None:
        write_setting(f"{surroundings.group}/cgroup.procs", "0")
    if surroundings.keeper:
        enter_keeper(surroundings.keeper)
    handle = os.open(surroundings.namespace, os.O_RDONLY | os.O_CLOEXEC)
    syscalls.setns(handle, syscalls.CLONE_NEWNET)
    os.close(handle)
    syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWUTS)
    mounts.leave_propagation()
    _show_sys(surroundings.group is not None)
    mounts.lay_file(surroundings.hosts, _HOSTS)
    for directory in surroundings.directories:
        mounts.lay_directory(Path(directory))
    for target, source in surroundings.files.items():
        mounts.lay_file(source, Path(target))
    syscalls.sethostname(surroundings.host_name)
    if surroundings.cpus:
        os.sched_setaffinity(0, surroundings.cpus)


def _show_sys(with_groups: bool) -> None:
    """Mount /sys anew: /sys/class/net shows the network namespace of whoever mounted it. In a limited node the groups are
    shown in it, where programs look for their limits; the machine's own mount, since a new one changes its options for all.

    A rootless mount may be refused (a container that hides parts of /sys): the program then sees the old one, as with any
    tool.
    """
    groups = os.open("/sys/fs/cgroup", os.O_PATH | os.O_CLOEXEC) if with_groups else None
    try:
        syscalls.mount("sysfs", "/sys", "sysfs", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
        if groups is not None:
            syscalls.mount(f"/proc/self/fd/{groups}", "/sys/fs/cgroup", flags=syscalls.MS_BIND | syscalls.MS_REC)
    except OSError:  # it is as it was
        pass
    finally:
        if groups is not None:
            os.close(groups)
