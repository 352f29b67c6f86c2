"""Transitions of a cluster from one state to another: recording, application and rollback.

The state file is written before the first operation and lists all objects that the change may make, so that an interrupted
change can be repaired or removed.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from testbed.cluster import removal
from testbed.cluster.faults.injections import Injection
from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.draft import ExistingState
from testbed.cluster.plan.kernel_operations import AwaitCarrier, Divert, Operation, RemoveDevice, Undivert
from testbed.cluster.plan.link_decisions import Decisions, decide
from testbed.cluster.plan.link_services import LinkServices
from testbed.cluster.plan.netlink_executor import NetlinkExecutor
from testbed.cluster.plan.planner import plan
from testbed.cluster.records.ownership import Mark
from testbed.cluster.records.state import (
    SharedNics,
    State,
    Store,
    directory_source,
    file_source,
    names_locked,
    shared_devices,
)
from testbed.cluster.services import namespace_holder, relay_client
from testbed.errors import KernelError, TestbedError
from testbed.kernel import cgroups, namespaces
from testbed.kernel.filesystem import make_directory, remove_file, write_in_place
from testbed.kernel.processes import Identity
from testbed.lazy_dataclass import dataclass
from testbed.spec.layout import ConfiguredDatapath, Layout, Node

Progress = Callable[[int, int], None]  # operations done, operations in total

_WORLD_READABLE: Final = 0o644
"""Mode of files that programs of any user in the nodes can read."""


def no_progress(done: int, total: int) -> None:
    """Ignore progress."""


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The desired state of a cluster.

    lasting: whether the cluster stays until it is taken down; otherwise it ends with `owner`, the requesting process.
    holder: the process that already holds its namespaces (rootless). asked: the requested datapath of impaired links. log:
    the file to which the relay writes fates, or empty. keeps_settings: as for `plan`.
    """

    name: str
    layout: Layout
    origin: str
    lasting: bool
    owner: Identity
    holder: Identity | None = None
    asked: ConfiguredDatapath = "auto"
    log: str = ""
    keeps_settings: bool = False


def running_state(state: State, owner: Identity, applied: Layout) -> DesiredState:
    """Return the desired state that matches a running cluster.

    owner: the process that will own it. applied: the layout of the last change, which may have failed.
    """
    named = state.namespaces.get(namespace_names.WIRE, "").startswith(f"{namespaces.NAMES}/")
    return DesiredState(
        state.name,
        state.layout,
        state.origin,
        state.lasting,
        owner,
        state.holder if named else None,
        state.asked,
        state.log,
        keeps_settings=state.phase == "up" and state.layout == applied,
    )


def current_sharing(state: State) -> SharedNics | None:
    """Return the sharing of the cluster's NICs; None if there is none, or its owner has ended."""
    return state.nics if state.nics is not None and state.nics.owner.is_alive else None


def intended_state(
    desired: DesiredState, before: State | None, injected: tuple[Injection, ...], decisions: Decisions
) -> State:
    """Return the state to write before the first operation: it lists all objects that the change may make."""
    keys = namespace_keys(desired.layout) if has_named_namespaces(desired) else []
    paths = {key: str(namespaces.NAMES / namespace_names.namespace(desired.name, key)) for key in keys}
    return State(
        name=desired.name,
        origin=desired.origin,
        phase="changing" if before else "building",
        lasting=desired.lasting,
        owner=desired.owner,
        layout=desired.layout,
        namespaces={**(before.namespaces if before else {}), **paths},
        inodes=before.inodes if before else {},
        created=before.created if before else int(time.time()),
        holder=desired.holder or (before.holder if before else None),
        previous=before.layout if before and before.layout != desired.layout else None,
        asked=desired.asked,
        log=desired.log,
        injected=injected,
        issued=before.issued if before else 0,
        datapaths={
            link: service.datapath for link, service in decisions.link_services.items() if not service.is_direct
        },
        notes=decisions.notes,
        nics=current_sharing(before) if before else None,
    )


def _base_directory(origin: str) -> Path:
    """Return the directory to which relative paths in a description refer: its file's, or the working directory.

    The working directory is returned as ".", since `Path.cwd` would fail after its removal.
    """
    return Path(origin).parent if os.path.isfile(origin) else Path()


def decide_links(store: Store, desired: DesiredState, injected: tuple[Injection, ...]) -> Decisions:
    """Decide the services of a desired state's links. Raises the errors of `decide`."""
    texts = relay_client.known_texts(store, desired.name)
    return decide(desired.layout, injected, desired.asked, _base_directory(desired.origin), desired.log, texts)


def has_named_namespaces(desired: DesiredState) -> bool:
    """Whether namespaces get names in /run/netns: the machine's for a lasting cluster of root, that of the holder's mount
    namespace for a rootless cluster."""
    return desired.lasting or desired.holder is not None


def namespace_keys(layout: Layout) -> list[str]:
    """Return the keys of a cluster's namespaces: the wire namespace's, then one for each node."""
    return [namespace_names.WIRE, *(node.name for node in layout.nodes)]


@contextmanager
def open_executor(desired: DesiredState) -> Iterator[NetlinkExecutor]:
    """Open an executor for changes to a desired state; close it at the end of the block."""

    def alias(key: str) -> str:
        return str(Mark(desired.name, key, desired.lasting, desired.owner))

    with NetlinkExecutor(desired.name, alias, named=has_named_namespaces(desired)) as executor:
        executor.make_space(len(desired.layout.nodes) + 1)
        yield executor


def existing_state(executor: NetlinkExecutor, desired: DesiredState, before: State | None) -> ExistingState:
    """Read the cluster's kernel objects: those with its mark, even if the state does not list them. before: the recorded
    state, or None."""
    if before is None:
        return ExistingState()
    if has_named_namespaces(desired):
        paths = {namespace_names.key_of(name): str(namespaces.NAMES / name) for name in removal.own_names(desired.name)}
    else:
        paths = dict(before.namespaces)  # in the namespace holder
    for key, path in paths.items():
        if namespaces.is_namespace(path):
            executor.paths[key] = path
            executor.inodes[key] = os.stat(path).st_ino
    layouts = [layout for layout in (before.layout, before.previous) if layout is not None]
    return ExistingState(
        executor.contents(list(executor.paths)),
        _limits(desired),
        frozenset((node.name, nic.name) for layout in layouts for node in layout.nodes for nic in node.nics),
        {node.name: node for node in before.layout.nodes},
        _recorded_services(before),
    )


def _recorded_services(state: State) -> LinkServices:
    """Derive the services of a recorded state's links if the kernel impairs any, otherwise none. None either if a file
    that the impairments need is missing."""
    if {"netem", "tc"}.isdisjoint(state.datapaths.values()):
        return {}
    with suppress(TestbedError):
        return decide(state.layout, state.injected, state.asked, _base_directory(state.origin)).link_services
    return {}


def _limits(desired: DesiredState) -> dict[str, tuple[float, int]]:
    """Read the nodes' cgroup limits (processor share, memory), by node.

    Limits that equal the desired ones after the kernel's rounding are returned unrounded.
    """
    desired_limits = {node.name: (node.cpu_share, node.memory) for node in desired.layout.nodes}
    limits_by_node = {}
    for group in cgroups.groups_of(desired.name):
        node, limits = cgroups.node_of(group), cgroups.limits(group)
        is_desired = node in desired_limits and limits == cgroups.rounded(*desired_limits[node])
        limits_by_node[node] = desired_limits[node] if is_desired else limits
    return limits_by_node


def apply_change(
    store: Store,
    desired: DesiredState,
    state: State,
    before: State | None,
    decisions: Decisions,
    progress: Progress,
    holder_client: namespace_holder.HolderClient | None = None,
) -> tuple[list[Operation], State]:
    """Apply a change and write its states; return the operations and the resulting state.

    state: the intended state, see `intended_state`. before: the recorded state, or None. progress: called after each
    operation. holder_client: receives the descriptors of namespaces without names.
    """
    store.write(state)
    _write_node_files(store, state)
    _remove_unfinished_names(before)
    _end_programs_of_lost_nodes(before)
    with open_executor(desired) as executor:
        existing, no_gso = existing_state(executor, desired, before), shared_devices(desired.layout, state.nics)
        operations = plan(
            desired.layout,
            existing,
            decisions.link_services,
            decisions.files,
            no_gso,
            keeps_settings=desired.keeps_settings,
        )
        datapath_change = relay_client.DatapathChange(store, executor, before, state, decisions.orders)
        with _kept_names_directory() if has_named_namespaces(desired) else nullcontext():
            # The final operations divert frames to the relay, and so follow `engage`. Before interfaces are removed and
            # diversions of taps are ended, the relay forwards the frames in its sockets.
            divert_at = _start_of_final(operations, len(operations), (AwaitCarrier, Divert))
            remove_at = _start_of_final(operations, divert_at, RemoveDevice)
            taps = [at for at, operation in enumerate(operations) if isinstance(operation, Undivert) and operation.tap]
            release_at = min([remove_at, *taps])
            executor.apply(operations[:release_at], lambda done: progress(done, len(operations)))
            datapath_change.release()
            executor.apply(operations[release_at:divert_at], lambda done: progress(release_at + done, len(operations)))
        paths, holder = executor.paths, state.holder
        if holder_client is not None:
            holder = holder_client.identity
            paths = holder_client.hold(executor.descriptors())
        state = replace(state, phase="up", namespaces=paths, inodes=executor.inodes, holder=holder, previous=None)
        relay_client.engage(store, state, decisions.orders)
        executor.apply(operations[divert_at:], lambda done: progress(divert_at + done, len(operations)))
        executor.await_link_watch(operations)
        datapath_change.record_events(executor.early, executor.lost)
    store.write(state)
    return operations, state


def _start_of_final(operations: list[Operation], end: int, kind: type[object] | tuple[type[object], ...]) -> int:
    """Return the index at which the final operations of a kind, before index `end`, start."""
    while end and isinstance(operations[end - 1], kind):
        end -= 1
    return end


def _remove_unfinished_names(before: State | None) -> None:
    """Remove names that an interrupted change had started to make or remove; no namespace is mounted on them."""
    for path in before.namespaces.values() if before else ():
        name = os.path.basename(path)
        if path == str(namespaces.NAMES / name) and namespaces.is_unfinished(name):
            namespaces.remove_name(name)


def _end_programs_of_lost_nodes(before: State | None) -> None:
    """End programs of nodes whose namespace name was removed: they would continue to run in a namespace without a name."""
    inodes = before.inodes if before else {}
    lost = {
        inode for key, inode in inodes.items() if before and not is_namespace_at(before.namespaces.get(key, ""), inode)
    }
    if before and lost:
        removal.end_programs(before.name, lost)


def is_namespace_at(path: str, inode: int) -> bool:
    """Whether a namespace with this inode is mounted on a path."""
    return namespaces.is_namespace(path) and os.stat(path).st_ino == inode


def roll_back(store: Store, state: State, before: State | None, error: BaseException) -> None:
    """Restore the previous state after a failed change, or remove the cluster if there was none.

    state: the intended state of the change. error: why it failed. Raises KernelError if the rollback fails, too.
    """
    try:
        if before is None:
            removal.remove(store, state, grace=0)
            return
        desired = running_state(before, state.owner, state.layout)
        decisions = decide_links(store, desired, before.injected)
        halfway = replace(
            before, namespaces=state.namespaces, previous=state.layout, phase="changing", datapaths=state.datapaths
        )
        # If the rollback is interrupted as well, the state must still list all objects that may exist.
        intent = intended_state(desired, before, before.injected, decisions)
        intent = replace(intent, namespaces=state.namespaces, previous=state.layout)
        apply_change(store, desired, intent, halfway, decisions, no_progress)
    except (TestbedError, OSError) as rollback_error:
        raise KernelError(
            f"{str(error) or 'interrupted'}\nand the change could not be rolled back: {rollback_error}\n"
            f"'testbed down --name {state.name}' removes the cluster"
        ) from error


@contextmanager
def _kept_names_directory() -> Iterator[None]:
    """Set up /run/netns, and keep it for the duration of the block, in which names are made.

    A concurrent `down`, even of a cluster under another state root, would remove it while it is empty.
    """
    while True:
        if not namespaces.names_ready():
            with names_locked(exclusive=True):
                if not namespaces.names_ready():
                    namespaces.make_names_ready()
        with names_locked(exclusive=False):
            if namespaces.names_ready():
                yield
                return


def _write_node_files(store: Store, state: State) -> None:
    """Write the files that programs in the nodes see, and make their private directories; remove files of earlier layouts.

    A private directory stays until the cluster is removed, since running programs may have it mounted.
    """
    directory = store.directory(state.name)
    write_in_place(directory / "hosts", _hosts(state.layout), _WORLD_READABLE)
    for node in state.layout.nodes:
        for target, content in node.files.items():
            source = directory / file_source(node.name, target)
            for parent in (source.parent.parent, source.parent):
                make_directory(parent)
            write_in_place(source, content, _WORLD_READABLE)
        for target in node.private_directories:
            _make_private_directory(directory / directory_source(node.name, target), node, target)
    sources = {file_source(node.name, target) for node in state.layout.nodes for target in node.files}
    for path in sorted(directory.glob("files/*/*")):
        if str(path.relative_to(directory)) not in sources:
            remove_file(path)  # programs that have it bind-mounted keep its content


def _make_private_directory(source: Path, node: Node, target: str) -> None:
    """Make the directory that programs see at `target`, with the mode of the machine's directory, unless it exists.

    Mount points for the node's files and private directories in it are made now: later, the node's programs may have put
    symbolic links there.
    """
    for parent in (source.parent.parent, source.parent):
        make_directory(parent)
    if not make_directory(source):
        return
    source.chmod(stat.S_IMODE(os.stat(target).st_mode) if os.path.isdir(target) else 0o755)
    prefix = f"{target}/"
    for inner in node.private_directories:
        if inner.startswith(prefix):
            (source / inner.removeprefix(prefix)).mkdir(parents=True, exist_ok=True)
    for inner in node.files:
        if inner.startswith(prefix):
            mount_point = source / inner.removeprefix(prefix)
            mount_point.parent.mkdir(parents=True, exist_ok=True)
            mount_point.touch()


def _hosts(layout: Layout) -> str:
    """Return the content of the nodes' /etc/hosts."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    for node in layout.part.nodes if layout.part is not None else layout.nodes:
        addresses = [address.partition("/")[0] for nic in node.nics for address in nic.addresses]
        first = {":" in address: address for address in reversed(addresses)}  # one IPv4 and one IPv6 address
        lines += [f"{address} {node.name}" for address in first.values()]
    return "\n".join(lines) + "\n"
