"""Garbage: what is left of clusters that have lost their owner, and nothing else.

A cluster that another command is at work on is left alone, and so is what belongs to another boot or another pid
namespace while processes live in it: whether its owner lives cannot be told from here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from testbed.cluster import names, removal, temporary
from testbed.cluster.ownership import Mark
from testbed.cluster.state import Store
from testbed.errors import ConflictError, TestbedError, UnreadableStateError
from testbed.kernel import cgroups, namespaces, processes
from testbed.kernel.userns import is_root


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: what it is, whether it was removed, and why or why not."""

    what: str
    removed: bool
    reason: str


def collect(store: Store) -> list[Finding]:
    """Remove what has lost its owner; everything looked at and not simply in use is reported."""
    found: list[Finding] = []
    for name in store.names():
        found += _cluster(store, name)
    if is_root():
        known = set(store.names())
        found += _named_namespaces(known)
        found += _held_namespaces(known)
        found += _groups(store)
    found += [
        Finding(f"directory {path}", True, f"process {owner.pid} that made it has ended")
        for path, owner in temporary.collect()
    ]
    removal.tidy(store)
    return found


def _cluster(store: Store, name: str) -> Iterator[Finding]:
    what = f"cluster {name}"
    try:
        with store.locked(name, patience=0):
            try:
                state = store.read(name)
            except UnreadableStateError:
                state = None
            if state is None:
                removal.remove_unknown(store, name)
                yield Finding(what, True, "it has no state that can be read")
            elif not state.abandoned:
                if state.phase == "changing":
                    yield Finding(what, False, "a change of it was left half-way: 'testbed up' puts it right")
            elif not state.owner.here and processes.inside(set(state.inodes.values())):
                yield Finding(what, False, f"it was made in another {_elsewhere(state.owner)} and processes live in it")
            else:
                removal.remove(store, state)
                removal.let_go(state)
                yield Finding(what, True, f"its owner, process {state.owner.pid}, has ended")
    except ConflictError:
        yield Finding(what, False, "another testbed command is at work on it")


def _elsewhere(owner: processes.Identity) -> str:
    return "boot" if owner.boot != processes.boot_id() else "pid namespace"


def _named_namespaces(known: set[str]) -> Iterator[Finding]:
    """Names of ours in /run/netns whose cluster has no state any more."""
    for name in namespaces.names():
        if names.cluster_of(name) in known:
            continue
        what = f"network namespace {name}"
        if namespaces.is_unfinished(name):
            namespaces.remove_name(name)
            yield Finding(what, True, "it was never finished and its cluster has no state")
            continue
        path = str(namespaces.NAMES / name)
        mark = Mark.parse(namespaces.alias_of(path))
        if mark is None:
            continue
        inode = os.stat(path).st_ino
        if mark.owner.alive:
            yield Finding(what, False, f"its cluster has no state, but process {mark.owner.pid} that made it lives")
        elif not mark.owner.here and processes.inside([inode]):
            yield Finding(what, False, f"it was made in another {_elsewhere(mark.owner)} and processes live in it")
        else:
            removal.remove_name(name)
            yield Finding(what, True, "its cluster has no state")


def _held_namespaces(known: set[str]) -> Iterator[Finding]:
    """Namespaces without a name, of clusters that should have ended with their process, kept by programs in them."""
    seen = {os.stat("/proc/self/ns/net").st_ino}
    for pid in processes.everyone():
        inode = processes.network_namespace_of(pid)
        if inode in seen or not inode:
            continue
        seen.add(inode)
        mark = Mark.parse(_alias_at(pid))
        if mark is None or mark.lasting or mark.cluster in known or mark.owner.alive or not mark.owner.here:
            continue
        removal.end_programs(mark.cluster, [inode])
        yield Finding(
            f"programs in {mark.cluster}:{mark.key}", True, f"process {mark.owner.pid} that made it has ended"
        )


def _alias_at(pid: int) -> str:
    try:
        return namespaces.alias_of(f"/proc/{pid}/ns/net")
    except OSError:  # it has just ended, or is not ours to look into
        return ""


def _groups(store: Store) -> Iterator[Finding]:
    """Groups of nodes whose cluster has no state any more. A group does not say who made it, so nothing that runs in one is
    ended here; what runs in a node has been ended with its namespace."""
    for cluster in sorted(cgroups.clusters() - set(store.names())):
        if any(names.cluster_of(name) == cluster for name in namespaces.names()):  # left alone, with the reason given
            continue
        with contextlib.suppress(TestbedError), store.locked(cluster, patience=0):  # it may just be coming up
            if store.read(cluster) is not None:
                continue
            for group in cgroups.of_cluster(cluster):
                gone = cgroups.remove(group)
                reason = "its cluster has no state" + ("" if gone else ", but processes live in it")
                yield Finding(f"cgroup {group.name}", gone, reason)
