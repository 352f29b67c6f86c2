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

    namespace: path of the node's network namespace. host_name: the node's name. hosts: the file to bind over /etc/hosts.
    holder: pid of the process that holds a rootless cluster's user and mount namespaces; 0: none. files: further files to
    bind, target -> source. private_directories: directories to bind, target -> source, outer before inner ones.
    directories: paths at which each program gets a new empty directory. environment: additional variables. cpus: the
    processors that the program may use; empty: all. group: path of the node's cgroup; None: no limits.
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
    """Enter the user, mount and network namespaces of a namespace holder, as their root. holder: its pid. The process must
    have one thread."""
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
    with contextlib.suppress(OSError):  # it may not exist in the new mount namespace: stay at the root
        os.chdir(directory)


def is_inside(holder: int) -> bool:
    """Whether this process is in the user namespace of a namespace holder. holder: its pid."""
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
    """Mount a new /sys, whose /sys/class/net lists the interfaces of this process's network namespace.

    with_groups: whether to bind the machine's cgroup mount into it, where programs in a node with limits read them. A new
    mount of cgroup2 would change the options of the machine's mount.

    The kernel may refuse the mount to an unprivileged user (in a container that hides parts of /sys); the program then sees
    the old /sys.
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
