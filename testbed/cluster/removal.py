"""Removing a cluster, or what is left of one: its processes, namespaces, groups, keeper and state, in this order."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from testbed.cluster import names
from testbed.cluster.ownership import Mark
from testbed.cluster.state import PATIENCE, State, Store
from testbed.errors import ConflictError, KernelError, UnreadableStateError
from testbed.kernel import cgroups, namespaces, processes
from testbed.kernel.files import empty
from testbed.kernel.userns import is_root

GRACE = 1.0  # seconds that a node's processes get between SIGTERM and SIGKILL


def down(store: Store, name: str, grace: float = GRACE) -> None:
    """Take a cluster down: end its programs, remove everything that was made for it."""
    with store.locked(name, PATIENCE):
        try:
            state = store.read(name)
        except UnreadableStateError:
            state = None
            remove_unknown(store, name, grace)
        if state is not None:
            store.write(replace(state, phase="removing", owner=_remover(state)))
            remove(store, state, grace)
    tidy(store)
    if state is not None:
        let_go(state)


def _remover(state: State) -> processes.Identity:
    """Who is the owner from now on: a held cluster keeps its own, whose death ends the cluster anyway."""
    return processes.identity() if state.lasting else state.owner


def remove(store: Store, state: State, grace: float = GRACE) -> None:
    """Remove a cluster; its lock must be held. What is not the cluster's own is left alone, whatever its name.

    The state goes last: whoever kills this half-way leaves enough for the next to go on. Its directory is removed with the
    lock, and the keeper of a held cluster by `let_go` after that: it does the rest if its process dies before.
    """
    if state.steward is not None:
        processes.end(state.steward)  # first: it would start the relay again
    _remove_objects(store, state.name, state.inodes.values(), grace, named=state.lasting)
    if state.keeper is not None and state.lasting:
        processes.end(state.keeper)
    empty(store.directory(state.name))


def let_go(state: State) -> None:
    """End the keeper of a held cluster that has been removed, and with it the namespaces."""
    if state.keeper is not None and not state.lasting:
        processes.end(state.keeper)


def remove_unknown(store: Store, cluster: str, grace: float = GRACE) -> None:
    """Remove what bears the mark of a cluster whose state cannot be read; its lock must be held."""
    _remove_objects(store, cluster, (), grace, named=True)
    empty(store.directory(cluster))


def _remove_objects(store: Store, cluster: str, inodes: Iterable[int], grace: float, *, named: bool) -> None:
    """Programs, groups, and, where the cluster's namespaces have names, these. inodes: those that were recorded."""
    ours = own_names(cluster) if named else []
    paths = [str(namespaces.NAMES / name) for name in ours]
    there = {os.stat(path).st_ino for path in paths if namespaces.is_namespace(path)}
    end_programs(cluster, there | set(inodes), grace, store.hosts(cluster))
    for group in cgroups.of_cluster(cluster):
        cgroups.end(group)
    for name in ours:
        namespaces.remove_name(name)


def own_names(cluster: str) -> list[str]:
    """The names in /run/netns that are this cluster's. They are known by the mark in the namespace: neither the name nor
    the inode would do, for somebody may have taken ours away and made another, which gets the same inode."""
    if not is_root():
        return []
    return [name for name in namespaces.names() if names.cluster_of(name) == cluster and is_ours(name, cluster)]


def is_ours(name: str, cluster: str) -> bool:
    """Whether /run/netns/`name`, a name that this cluster would use, was made by testbed for it, or was never finished."""
    return namespaces.is_unfinished(name) or _bears_mark(str(namespaces.NAMES / name), cluster)


def _bears_mark(path: str, cluster: str) -> bool:
    try:
        mark = Mark.parse(namespaces.alias_of(path))
    except OSError:  # it has just ended
        return False
    return mark is not None and mark.cluster == cluster


def end_programs(cluster: str, inodes: Iterable[int], grace: float = GRACE, hosts: Path | None = None) -> None:
    """End the programs in a cluster's namespaces, given by their inodes; KernelError when some do not end.

    An inode may be another namespace's by now. As root we ask the namespace itself whether it bears the cluster's mark; an
    ordinary user cannot look into one, but there every program of ours is known by `hosts`.
    """

    def belongs(path: str) -> bool:
        return is_root() and _bears_mark(path, cluster)

    try:
        processes.end_all(processes.Inhabitants(set(inodes), hosts, belongs), grace)
    except processes.SurvivorsError as error:
        raise KernelError(f"the programs of cluster {cluster} cannot be ended: {error}") from error


def remove_name(name: str, grace: float = GRACE) -> None:
    """Remove one namespace that has a name, with the processes in it."""
    path = str(namespaces.NAMES / name)
    if namespaces.is_namespace(path):
        end_programs(names.cluster_of(name), [os.stat(path).st_ino], grace)
    namespaces.remove_name(name)


def tidy(store: Store) -> None:
    """Remove the places that clusters share when nothing is left in them."""
    with contextlib.suppress(ConflictError), store.root_locked(exclusive=True, patience=10):
        if is_root():
            namespaces.drop_empty_names()
        store.drop_root()
