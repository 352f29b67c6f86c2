"""Network namespaces: created by system calls, named below /run/netns for ``ip netns``, or referred to only by a descriptor.

The owner's mark, the alias of the loopback interface, is set before the namespace gets a name. So a process that dies in
between leaves either nothing or a namespace that can be traced to its owner.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.kernel import syscalls
from testbed.kernel.changes import announce
from testbed.kernel.filesystem import make_directory, remove_directory, remove_file, write_setting
from testbed.kernel.mounts import mount_lines
from testbed.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from testbed.kernel.netlink import RouteSocket

NAMES = Path("/run/netns")
OWN_MOUNT = "netns-testbed"  # source of the testbed's tmpfs in /proc/self/mountinfo

# The sticky bit marks files and directories that testbed has created; it has no other effect on them.
MARK = stat.S_ISVTX

_THREAD_NAMESPACE = "/proc/thread-self/ns/net"

# A node has only the addresses of its layout: no router solicitations, autoconfiguration or link-local address. The
# reverse-path filter, which a new namespace inherits from the machine, would drop packets on asymmetric routes.
NODE_SETTINGS: Mapping[str, str] = {
    "/proc/sys/net/ipv4/conf/all/rp_filter": "0",
    "/proc/sys/net/ipv4/conf/default/rp_filter": "0",
    "/proc/sys/net/ipv6/conf/default/accept_ra": "0",
    "/proc/sys/net/ipv6/conf/default/autoconf": "0",
    "/proc/sys/net/ipv6/conf/default/addr_gen_mode": "1",
}
# Switch ports are not IP interfaces, and the machine's firewall must not filter frames that cross a switch.
WIRE_SETTINGS: Mapping[str, str] = {
    "/proc/sys/net/ipv6/conf/default/disable_ipv6": "1",
    "/proc/sys/net/bridge/bridge-nf-call-iptables": "0",
    "/proc/sys/net/bridge/bridge-nf-call-ip6tables": "0",
    "/proc/sys/net/bridge/bridge-nf-call-arptables": "0",
}


@dataclass(slots=True)
class OpenNamespace:
    """An open namespace: its descriptor, and a netlink socket that was opened in it."""

    descriptor: int
    route: RouteSocket

    def close(self) -> None:
        self.route.close()
        os.close(self.descriptor)


@contextmanager
def restore_namespace() -> Iterator[None]:
    """Return the calling thread to its original network namespace at the end of the block."""
    original = os.open(_THREAD_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        syscalls.setns(original, syscalls.CLONE_NEWNET)
        os.close(original)


def enter(path: str) -> None:
    """Move the calling thread into the network namespace at this path. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        syscalls.setns(handle, syscalls.CLONE_NEWNET)
    finally:
        os.close(handle)


@contextmanager
def inside(path: str) -> Iterator[None]:
    """Run the block in the network namespace at this path. Raises OSError."""
    with restore_namespace():
        enter(path)
        yield


def make(alias: str, settings: Mapping[str, str]) -> OpenNamespace:
    """Make a namespace, enter it, write the settings, and set the loopback interface up with this alias.

    Call it within `restore_namespace`. settings: path below /proc/sys -> value; those that this kernel does not have (IPv6
    compiled out, no bridge netfilter) are skipped.
    """
    from testbed.kernel import netlink_messages  # imports pyroute2
    from testbed.kernel.netlink import RouteSocket

    syscalls.unshare(syscalls.CLONE_NEWNET)
    for path, value in settings.items():
        try:
            write_setting(path, value)
        except FileNotFoundError:
            continue
    route = RouteSocket()
    try:
        route.execute([netlink_messages.set_up_with_alias(1, alias)], "netlink: loopback")
        return OpenNamespace(os.open(_THREAD_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC), route)
    except BaseException:
        route.close()
        raise


def give_name(name: str) -> None:
    """Name the calling thread's namespace /run/netns/`name`. Raises FileExistsError if the name is in use.

    A marked file without a mount is replaced: a process was killed while it made or removed that name.
    """
    path = NAMES / name
    if is_unfinished(name):
        remove_name(name)
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MARK | 0o444))
    try:
        announce(f"create {path}")
        syscalls.mount(_THREAD_NAMESPACE, str(path), flags=syscalls.MS_BIND)
    except BaseException:
        remove_name(name)
        raise


def open_path(path: str) -> OpenNamespace:
    """Open a namespace by its path: /run/netns/NAME, or a descriptor of another process below /proc."""
    from testbed.kernel.netlink import RouteSocket  # imported only if a socket is opened

    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with restore_namespace():
            syscalls.setns(descriptor, syscalls.CLONE_NEWNET)
            return OpenNamespace(descriptor, RouteSocket())
    except BaseException:
        os.close(descriptor)
        raise


def alias_of(path: str) -> str:
    """Return the alias of the loopback interface of the namespace at `path`; empty without an alias or a namespace. Raises
    OSError if the namespace is removed meanwhile."""
    if not is_namespace(path):
        return ""
    from testbed.kernel import rtnl_dump

    namespace = open_path(path)
    try:
        loopback = rtnl_dump.interface_named(namespace.route, "lo")
        return loopback.alias if loopback is not None else ""
    finally:
        namespace.close()


def is_namespace(path: str) -> bool:
    """Whether a namespace is mounted at `path`, not only a file made for it."""
    try:
        return os.stat(path).st_dev == os.stat(_THREAD_NAMESPACE).st_dev
    except OSError:
        return False


def is_unfinished(name: str) -> bool:
    """Whether /run/netns/`name` is a file that `give_name` created without a mount."""
    try:
        status = os.lstat(NAMES / name)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and bool(status.st_mode & MARK) and not is_namespace(str(NAMES / name))


def remove_name(name: str) -> None:
    """Remove a namespace's name; the kernel destroys the namespace if it has no other reference."""
    path = NAMES / name
    if is_namespace(str(path)):
        syscalls.umount(str(path))
    remove_file(path)


def names() -> list[str]:
    """List the names below /run/netns."""
    try:
        return sorted(os.listdir(NAMES))
    except OSError:
        return []


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of /proc/self/mountinfo. shared: whether mounts below it propagate to other mount namespaces."""

    target: str
    source: str
    shared: bool
    mount_id: int


def mounts() -> list[Mount]:
    """List the mounts of this process's mount namespace."""
    entries = []
    for line in mount_lines():
        head, _, tail = line.partition(" - ")
        fields = head.split(" ")
        target = fields[4].replace("\\040", " ")
        shared = any(field.startswith("shared:") for field in fields[6:])
        entries.append(Mount(target, tail.split(" ")[1], shared, int(fields[0])))
    return entries


def _mount_of_names() -> Mount:
    """Return the mount that contains /run/netns.

    It is identified by its id, since the mount with the longest matching target may be hidden below another one, such as a
    new /run. In a chroot, the mount may be missing in the list; then only its id is known.
    """
    handle = os.open(NAMES, os.O_PATH | os.O_CLOEXEC)
    try:
        info = dict(line.split(":\t") for line in Path(f"/proc/self/fdinfo/{handle}").read_text().splitlines())
    finally:
        os.close(handle)
    mount_id = int(info["mnt_id"])
    unlisted = Mount("", "", shared=False, mount_id=mount_id)
    return next((mount for mount in mounts() if mount.mount_id == mount_id), unlisted)


def names_ready() -> bool:
    """Whether /run/netns exists and is a shared mount, so that removed names disappear in mount namespaces that have a
    copy, or has names of another program."""
    try:
        mount = _mount_of_names()
        return mount.shared or (mount.source != OWN_MOUNT and bool(names()))
    except FileNotFoundError:  # never made, or just removed by another process
        return False


def make_names_ready() -> None:
    """Make /run/netns a shared mount as ``ip netns`` does, unless it is one already or has names of another program."""
    make_directory(NAMES, MARK | 0o755)
    mount = _mount_of_names()
    if mount.shared:
        return
    if mount.source != OWN_MOUNT or mount.target != str(NAMES):
        if names():  # of another program, which a mount would hide
            return
        syscalls.mount(OWN_MOUNT, str(NAMES), "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=755,size=1m")
    syscalls.mount("", str(NAMES), flags=syscalls.MS_SHARED)


def drop_empty_names() -> None:
    """Undo `make_names_ready` if there are no names. Mounts and directories of other programs stay."""
    if not NAMES.is_dir() or names():
        return
    mount = _mount_of_names()
    if mount.source == OWN_MOUNT and mount.target == str(NAMES):
        syscalls.umount(str(NAMES))
    if not names() and os.lstat(NAMES).st_mode & MARK:
        remove_directory(NAMES)
