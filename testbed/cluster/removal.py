"""Remove a cluster or its remains: processes, cgroups, namespace names, namespace holder and state, in this order."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from testbed.cluster.plan import namespace_names
from testbed.cluster.records.ownership import Mark
from testbed.cluster.records.state import LOCK_TIMEOUT, State, Store, names_locked
from testbed.errors import ConflictError, KernelError, UnreadableStateError
from testbed.kernel import cgroups, daemons, namespaces, processes
from testbed.kernel.filesystem import empty, remove_file
from testbed.kernel.userns import is_root
from testbed.runtime.relay.orders import RelayPaths
from testbed.runtime.supervision import end_all

GRACE = 1.0  # seconds that a node's processes get between SIGTERM and SIGKILL


def down(store: Store, name: str, grace: float = GRACE) -> None:
    """Take a cluster down: end its programs and remove everything made for it. Do nothing if there is no such cluster.

    Raises ConflictError if another command holds the cluster's lock for longer than `LOCK_TIMEOUT`, KernelError if programs
    survive, and the errors of `Store.read` except UnreadableStateError.
    """
    with store.locked(name, LOCK_TIMEOUT) as directory:
        state = None
        with contextlib.suppress(UnreadableStateError):
            state = store.read(name)
        if state is None and os.listdir(directory):  # unreadable, or dropped by an interrupted removal
            remove_unknown(store, name, grace)
        if state is not None:
            _record_removal(store, replace(state, owner=_remover(state)))
            remove(store, state, grace)
    tidy(store)
    if state is not None:
        end_holder(state)


def _record_removal(store: Store, state: State) -> None:
    """Record that a cluster is being removed.

    If the disk is full, remove the state file instead: after an interruption, `remove_unknown` finds the remaining objects
    by their marks.
    """
    try:
        store.write(replace(state, phase="removing"))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        store.drop(state.name)


def _remover(state: State) -> processes.Identity:
    """Return the owner during removal: this process. A held cluster keeps its owner, whose death also removes it."""
    return processes.identity() if state.lasting else state.owner


def remove(store: Store, state: State, grace: float = GRACE) -> None:
    """Remove a cluster whose lock is held. Objects without its mark stay, whatever their names.

    The state file is removed last, so that an interrupted or failed removal can be resumed, also by `garbage.collect`; the
    release of the lock removes the directory. Call `end_holder` afterwards for a held cluster: until then, its holder
    completes the removal if the cluster's owner dies.
    """
    if state.phase != "removing":
        _record_removal(store, state)
    _end_services(store.directory(state.name))
    if state.has_tunnels:
        _remove_tunnels(state)
    _remove_objects(store, state.name, state.inodes.values(), grace, named=state.lasting)
    if state.lasting:
        daemons.end(state.holder, namespace_names.HOLDER, state.name)
    empty(store.directory(state.name))


def _end_services(directory: Path) -> None:
    """End supervisor, relay and agents.

    They do not restart each other, since the orders are removed and the state is in phase "removing".
    """
    remove_file(RelayPaths(directory).orders)
    end_all(directory)


def _remove_tunnels(state: State) -> None:
    """Remove the tunnels to other machines.

    The kernel destroys a namespace some time after its name is removed, and the next cluster could not use its VXLAN ids
    until then.
    """
    from testbed.cluster.plan.veth_wiring import Wiring
    from testbed.kernel import netlink_messages, rtnl_dump
    from testbed.kernel.netlink import RouteSocket

    for key in sorted({key for key, _ in Wiring.from_datapaths(state.layout, state.datapaths).tunnels}):
        path = state.namespaces.get(key, "")
        if not _has_mark(path, state.name):  # never made, or removed by an earlier, interrupted removal
            continue
        with namespaces.inside(path), contextlib.closing(RouteSocket()) as route:
            tunnels = [interface.index for interface in rtnl_dump.interfaces(route) if interface.kind == "vxlan"]
            route.execute([netlink_messages.remove_link(index) for index in tunnels])


def end_holder(state: State) -> None:
    """End the namespace holder of a removed held cluster, and with it the namespaces."""
    if not state.lasting:
        daemons.end(state.holder, namespace_names.HOLDER, state.name)


def remove_unknown(store: Store, cluster: str, grace: float = GRACE) -> None:
    """Remove a cluster whose state is unreadable or missing: all objects with its mark. Its lock must be held."""
    _end_services(store.directory(cluster))
    _remove_objects(store, cluster, (), grace, named=True)
    daemons.end_all(namespace_names.HOLDER, cluster)
    empty(store.directory(cluster))


def _remove_objects(store: Store, cluster: str, inodes: Iterable[int], grace: float, *, named: bool) -> None:
    """End a cluster's programs, and remove its cgroups and namespace names. Raises KernelError if programs survive.

    inodes: inodes of the recorded namespaces. named: whether the namespaces may have names.
    """
    names = own_names(cluster) if named else []
    paths = [str(namespaces.NAMES / name) for name in names]
    named_inodes = {os.stat(path).st_ino for path in paths if namespaces.is_namespace(path)}
    end_programs(cluster, named_inodes | set(inodes), grace, store.hosts_file(cluster))
    end_groups(cgroups.groups_of(cluster))
    for name in names:
        namespaces.remove_name(name)


def end_groups(groups: Iterable[Path]) -> None:
    """End the processes in the cgroups of nodes, and remove the cgroups. Raises KernelError if some remain."""
    remaining = [group for group in groups if not cgroups.end(group)]
    if remaining:
        pids = {group.name: ", ".join(map(str, cgroups.members(group))) for group in remaining}
        reasons = [f"{name}: processes {text} do not end" if text else name for name, text in pids.items()]
        raise KernelError(f"cgroups cannot be removed: {'; '.join(reasons)}")


def own_names(cluster: str) -> list[str]:
    """List this cluster's names in /run/netns, recognised by the mark in the namespace.

    Name and inode are not sufficient: another program may have replaced the namespace by one that reuses the inode.
    """
    if not is_root():
        return []
    return [
        name for name in namespaces.names() if namespace_names.cluster_of(name) == cluster and is_ours(name, cluster)
    ]


def is_ours(name: str, cluster: str) -> bool:
    """Whether /run/netns/`name` is a namespace with this cluster's mark, or an unfinished name."""
    return namespaces.is_unfinished(name) or _has_mark(str(namespaces.NAMES / name), cluster)


def _has_mark(path: str, cluster: str) -> bool:
    try:
        mark = Mark.parse(namespaces.alias_of(path))
    except OSError:  # the namespace has just been removed
        return False
    return mark is not None and mark.cluster == cluster


def end_programs(cluster: str, inodes: Iterable[int], grace: float = GRACE, hosts: Path | None = None) -> None:
    """End the programs in a cluster's namespaces. Raises KernelError if some survive.

    inodes: inodes of the namespaces. An inode may have been reused: root checks the namespace's mark; an unprivileged user,
    who cannot enter the namespace, recognises the programs by the bind-mounted file `hosts`.
    """

    def belongs(path: str) -> bool:
        return is_root() and _has_mark(path, cluster)

    try:
        processes.end_all(processes.NamespaceProcesses(set(inodes), hosts, belongs), grace)
    except processes.SurvivorsError as error:
        raise KernelError(f"the programs of cluster {cluster} cannot be ended: {error}") from error


def remove_name(name: str) -> None:
    """Remove a named namespace and the processes in it."""
    path = str(namespaces.NAMES / name)
    if namespaces.is_namespace(path):
        end_programs(namespace_names.cluster_of(name), [os.stat(path).st_ino], GRACE)
    namespaces.remove_name(name)


def tidy(store: Store, timeout: float = 10) -> None:
    """Remove the directories that clusters share if they are empty. Do nothing if another command holds their lock for more
    than `timeout` seconds."""
    if is_root():
        with contextlib.suppress(ConflictError), names_locked(exclusive=True, timeout=timeout):
            namespaces.drop_empty_names()
    with contextlib.suppress(ConflictError), store.root_locked(timeout):
        store.drop_root()
