"""User namespaces for rootless clusters: an unprivileged user is root there, with a mount namespace and a private
/run/netns."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from testbed.errors import PermissionDeniedError
from testbed.kernel import mounts, namespaces, syscalls
from testbed.kernel.children import in_child
from testbed.kernel.setns import enter_holder

T = TypeVar("T")


def is_root() -> bool:
    """Whether this process is root of its user namespace, with CAP_NET_ADMIN and CAP_SYS_ADMIN there."""
    effective = 0
    for line in Path("/proc/self/status").read_text(errors="replace").split("\n"):  # the process name may not be UTF-8
        if line.startswith("CapEff:"):
            effective = int(line.split()[1], 16)
    cap_net_admin, cap_sys_admin = 12, 21
    return os.geteuid() == 0 and bool(effective >> cap_net_admin & 1) and bool(effective >> cap_sys_admin & 1)


def become_namespace_root() -> None:
    """Move the calling process, which must have one thread, into new user, mount and network namespaces, as their root.

    Raises PermissionDeniedError if the machine forbids it, OSError if a private /run/netns cannot be mounted.
    """
    user, group = os.geteuid(), os.getegid()
    try:
        syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
        mounts.make_slave()
    except OSError as error:
        raise PermissionDeniedError(refusal(error)) from error
    if not namespaces.NAMES.is_dir():
        mounts.make_writable(namespaces.NAMES)
    own = namespaces.OWN_MOUNT
    syscalls.mount(own, str(namespaces.NAMES), "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=755")
    syscalls.mount("", str(namespaces.NAMES), flags=syscalls.MS_SHARED)


def become_user(user: int, group: int) -> None:
    """Move the calling process, root of a user namespace, into a child namespace in which it has its user's uid and gid and
    no privileges. Raises OSError."""
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    Path("/proc/self/uid_map").write_text(f"{user} 0 1")
    Path("/proc/self/gid_map").write_text(f"{group} 0 1")


# path of a setting, the value that forbids user namespaces, the assignment that allows them
_SETTINGS = (
    ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=15000"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)


def refusal(error: OSError) -> str:
    """Return a message with the reason why an unprivileged user cannot make a user namespace here, and the remedy."""
    start = "this machine does not let an unprivileged user make a user namespace"
    for path, forbidding, assignment in _SETTINGS:
        try:
            value = Path(path).read_text().strip()
        except OSError:
            continue
        if value == forbidding:
            return f"{start} ({Path(path).name} is {value}): run as root, or have root run 'sysctl -w {assignment}'"
    if error.errno in (errno.ENOSPC, errno.EUSERS):
        return f"{start}: there are too many already (user.max_user_namespaces)"
    return f"{start} ({error.strerror}; a chroot, a container or a security module may forbid it): run as root"


def call_inside(holder: int, function: Callable[[], T]) -> T:
    """Call a function in a child process that has entered the namespaces of a holder; return its result or raise its error,
    see `in_child`. holder: pid of the namespace holder."""

    def inside() -> T:
        enter_holder(holder)
        return function()

    return in_child(inside)
