"""Garbage collection: remove clusters that have lost their owner, and nothing else.

Skipped are clusters that another command is changing, clusters that depend on a process of another pid namespace, and
clusters whose owner is of another boot or pid namespace while processes run in namespaces with their recorded inodes: the
owner may be alive in the other pid namespace, and after another boot the inodes are those of other namespaces.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from testbed.cluster import removal
from testbed.cluster.plan import namespace_names
from testbed.cluster.records.ownership import Mark, collect_temporary
from testbed.cluster.records.state import Store
from testbed.errors import ConflictError, OtherPidNamespaceError, TestbedError, UnreadableStateError, reason_of
from testbed.kernel import cgroups, namespaces, processes
from testbed.kernel.userns import is_root


@dataclass(frozen=True, slots=True)
class Finding:
    """Result for an inspected object. what: kind and name of the object. reason: why the object was removed or kept."""

    what: str
    removed: bool
    reason: str


def collect(store: Store) -> list[Finding]:
    """Remove everything that has lost its owner; report all inspected objects, except those in normal use."""
    findings: list[Finding] = []
    for name in store.names():
        findings += _collect_cluster(store, name)
    if is_root():
        cluster_names = set(store.names())
        findings += _collect_named_namespaces(cluster_names)
        findings += _collect_unnamed_namespaces(cluster_names)
        findings += _collect_groups(store)
    findings += [
        Finding(f"directory {path}", True, f"process {owner.pid} that made it has ended")
        for path, owner in collect_temporary()
    ]
    removal.tidy(store)
    return findings


def _collect_cluster(store: Store, name: str) -> Iterator[Finding]:
    what = f"cluster {name}"
    try:
        with store.locked(name, timeout=0):
            try:
                state = store.read(name)
            except UnreadableStateError:
                state = None
            if state is None:
                removal.remove_unknown(store, name)
                yield Finding(what, True, "its state is missing or unreadable")
            elif not state.abandoned:
                if state.phase == "changing":
                    remedy = "'testbed up'" if state.lasting else "the next change by its owner"
                    yield Finding(what, False, f"a change of it was interrupted: {remedy} repairs it")
            elif not state.owner.is_local and processes.inside(set(state.inodes.values())):
                yield Finding(
                    what, False, f"it was made in another {_foreign_scope(state.owner)} and processes run in it"
                )
            else:
                removal.remove(store, state)
                removal.end_holder(state)
                yield Finding(what, True, f"its owner, process {state.owner.pid}, has ended")
    except OtherPidNamespaceError as error:
        yield Finding(what, False, str(error))
    except ConflictError:
        yield Finding(what, False, "another testbed command is changing it")
    except (TestbedError, OSError) as error:  # continue with the other clusters
        yield Finding(what, False, f"it cannot be removed: {reason_of(error) if isinstance(error, OSError) else error}")


def _foreign_scope(owner: processes.Identity) -> str:
    """Return what a process of another boot or pid namespace does not share with this one."""
    return "boot" if owner.boot != processes.boot_id() else "pid namespace"


def _collect_named_namespaces(cluster_names: set[str]) -> Iterator[Finding]:
    """Remove the testbed's names in /run/netns whose cluster has no state."""
    for name in namespaces.names():
        if namespace_names.cluster_of(name) in cluster_names:
            continue
        what = f"network namespace {name}"
        if namespaces.is_unfinished(name):
            namespaces.remove_name(name)
            yield Finding(what, True, "it was not completely made, and its cluster has no state")
            continue
        path = str(namespaces.NAMES / name)
        try:
            mark, inode = Mark.parse(namespaces.alias_of(path)), os.stat(path).st_ino
        except OSError:  # another process has just removed it
            continue
        if mark is None:
            continue
        if mark.owner.is_alive:
            yield Finding(what, False, f"its cluster has no state, but process {mark.owner.pid} that made it is alive")
        elif not mark.owner.is_local and processes.inside([inode]):
            yield Finding(what, False, f"it was made in another {_foreign_scope(mark.owner)} and processes run in it")
        else:
            removal.remove_name(name)
            yield Finding(what, True, "its cluster has no state")


def _collect_unnamed_namespaces(cluster_names: set[str]) -> Iterator[Finding]:
    """Remove unnamed namespaces that programs keep alive after the owner of their cluster has ended."""
    inspected = {os.stat("/proc/self/ns/net").st_ino}
    for pid in processes.all_pids():
        inode = processes.network_namespace_of(pid)
        if inode in inspected or not inode:
            continue
        inspected.add(inode)
        mark = Mark.parse(_alias_at(pid))
        if (
            mark is None
            or mark.lasting
            or mark.cluster in cluster_names
            or mark.owner.is_alive
            or not mark.owner.is_local
        ):
            continue
        removal.end_programs(mark.cluster, [inode])
        yield Finding(
            f"programs in {mark.cluster}:{mark.key}", True, f"process {mark.owner.pid} that made it has ended"
        )


def _alias_at(pid: int) -> str:
    try:
        return namespaces.alias_of(f"/proc/{pid}/ns/net")
    except OSError:  # the process has ended, or permission is denied
        return ""


def _collect_groups(store: Store) -> Iterator[Finding]:
    """Remove control groups whose cluster has no state.

    A group does not record its creator, so processes in a group are not ended; programs in nodes were ended with their
    namespace.
    """
    for cluster in sorted(cgroups.clusters() - set(store.names())):
        if any(
            namespace_names.cluster_of(name) == cluster for name in namespaces.names()
        ):  # skipped and reported by _collect_named_namespaces
            continue
        with contextlib.suppress(TestbedError), store.locked(cluster, timeout=0):  # another command may be creating it
            if store.read(cluster) is not None:
                continue
            for group in cgroups.groups_of(cluster):
                is_removed = cgroups.remove(group)
                reason = "its cluster has no state" + ("" if is_removed else ", but processes run in it")
                yield Finding(f"cgroup {group.name}", is_removed, reason)
