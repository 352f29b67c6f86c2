"""Entry of a process into a node: the calls that it makes on itself before it executes a program."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Final

from testbed.kernel import mounts, namespaces, syscalls
from testbed.kernel.filesystem import write_setting
from testbed.lazy_dataclass import dataclass

_HOSTS: Final = "/etc/hosts"


@dataclass(frozen=True, slots=True)
class NodeContext:
    """Environment of a program in a node.

    namespace: the path of the node's network namespace. holder: the pid of the namespace holder of a rootless cluster's
    user and mount namespaces, else 0. hosts: the file bound over /etc/hosts. files: further files to bind, target ->
    source. private_directories: directories to bind, target -> source, an outer one before those in it. directories:
    paths of further directories, empty for each program. cpus: the processors it may use, empty for
    all. group: its cgroup, None for none.
    """

    namespace: str
    host_name: str
    hosts: str
    holder: int = 0
    files: Mapping[str, str] = field(default_factory=dict)
    private_directories: Mapping[str, str] = field(default_factory=dict)
    directories: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    cpus: tuple[int, ...] = ()
    group: Path | None = None


def enter_holder(holder: int) -> None:
    """Enter the user, mount and network namespaces of a namespace holder (pid), as their root; the process must have one
    thread."""
    handles = [
        (os.open(f"/proc/{holder}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), kind)
        for name, kind in (
            ("user", syscalls.CLONE_NEWUSER),
            ("mnt", syscalls.CLONE_NEWNS),
            ("net", syscalls.CLONE_NEWNET),
        )
    ]
    directory = "/"
    with contextlib.suppress(OSError):  # the working directory may have been removed
        directory = os.getcwd()
    for handle, kind in handles:
        syscalls.setns(handle, kind)
        os.close(handle)
    with contextlib.suppress(OSError):  # where the new mount namespace does not have it, stay at its root
        os.chdir(directory)


def is_inside(holder: int) -> bool:
    """Whether this process is in the user namespace of a namespace holder (pid)."""
    return os.stat("/proc/self/ns/user").st_ino == os.stat(f"/proc/{holder}/ns/user").st_ino


def enter(node_context: NodeContext) -> None:
    """Move the calling process into the node permanently; the caller then executes the program."""
    if node_context.group is not None:
        write_setting(f"{node_context.group}/cgroup.procs", "0")
    if node_context.holder:
        enter_holder(node_context.holder)
    namespaces.enter(node_context.namespace)
    syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWUTS)
    mounts.make_slave()
    _show_sys(node_context.group is not None)
    for target, source in node_context.private_directories.items():
        mounts.bind_directory(source, target)
    mounts.bind_file(node_context.hosts, _HOSTS)
    for directory in node_context.directories:
        mounts.mount_directory(Path(directory))
    for target, source in node_context.files.items():
        mounts.bind_file(source, target)
    syscalls.sethostname(node_context.host_name)
    if node_context.cpus:
        os.sched_setaffinity(0, node_context.cpus)


def _show_sys(with_groups: bool) -> None:
    """Mount a new /sys: /sys/class/net shows the network namespace of the mounting process.

    In a limited node, where programs look for their limits, the machine's own cgroup mount is bound into it: a new one
    would change its options for all.

    A rootless mount may be refused (a container that hides parts of /sys): the program then sees the old /sys.
    """
    groups = os.open("/sys/fs/cgroup", os.O_PATH | os.O_CLOEXEC) if with_groups else None
    try:
        syscalls.mount("sysfs", "/sys", "sysfs", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
        if groups is not None:
            syscalls.mount(f"/proc/self/fd/{groups}", "/sys/fs/cgroup", flags=syscalls.MS_BIND | syscalls.MS_REC)
    except OSError:  # the old /sys stays
        pass
    finally:
        if groups is not None:
            os.close(groups)
