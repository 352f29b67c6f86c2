"""Transitions of a cluster from one state to another: what is written before, carried out, and rolled back.

The state file is written before the first operation and contains everything that may come to exist, so that a change that
is killed half-way can be repaired or removed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

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
from testbed.cluster.records.state import SharedNics, State, Store, file_source, names_locked, shared_devices
from testbed.cluster.services import namespace_holder, relay_client
from testbed.errors import KernelError, TestbedError
from testbed.kernel import cgroups, namespaces
from testbed.kernel.filesystem import make_directory, remove_file, write_in_place
from testbed.kernel.processes import Identity
from testbed.lazy_dataclass import dataclass
from testbed.spec.layout import Asked, Layout

Progress = Callable[[int, int], None]  # operations done, operations in total


def silent(done: int, total: int) -> None:
    """Show no progress."""


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The state that a cluster is to reach.

    owner: the requesting process; unless the cluster is lasting, it ends with this process. holder: the process that
    already holds its namespaces (rootless). asked: the requested datapath of impaired links. log: the file to which the
    relay writes fates, or empty.
    """

    name: str
    layout: Layout
    origin: str
    lasting: bool
    owner: Identity
    holder: Identity | None = None
    asked: Asked = "auto"
    log: str = ""


def running_state(state: State, owner: Identity) -> DesiredState:
    """The desired state that matches a running cluster."""
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
    )


def still_shared(state: State) -> SharedNics | None:
    """How the cluster's NICs are shared; None once the owner of the sharing has ended."""
    return state.nics if state.nics is not None and state.nics.owner.is_alive else None


def intended_state(
    desired: DesiredState, before: State | None, injected: tuple[Injection, ...], decisions: Decisions
) -> State:
    """The state to write before the first operation: it contains everything that may come to exist."""
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
        previous=before.layout if before else None,
        asked=desired.asked,
        log=desired.log,
        injected=injected,
        issued=before.issued if before else 0,
        datapaths={link: service.datapath for link, service in decisions.link_services.items() if service.spliced},
        notes=decisions.notes,
        nics=still_shared(before) if before else None,
    )


def _base_directory(origin: str) -> Path:
    """The directory that relative paths in a description refer to: its file's, or the working directory."""
    return Path(origin).parent if os.path.isfile(origin) else Path.cwd()


def decided(store: Store, desired: DesiredState, injected: tuple[Injection, ...]) -> Decisions:
    """How the links of a desired state are carried; raises as `decide`."""
    texts = relay_client.known_texts(store, desired.name)
    return decide(desired.layout, injected, desired.asked, _base_directory(desired.origin), desired.log, texts)


def has_named_namespaces(desired: DesiredState) -> bool:
    """Whether namespaces get names. A held cluster gets them only in its holder's mount namespace, which hides them."""
    return desired.lasting or desired.holder is not None


def namespace_keys(layout: Layout) -> list[str]:
    return [namespace_names.WIRE, *(node.name for node in layout.nodes)]


@contextmanager
def open_executor(desired: DesiredState) -> Iterator[NetlinkExecutor]:
    def alias(key: str) -> str:
        return str(Mark(desired.name, key, desired.lasting, desired.owner))

    with NetlinkExecutor(desired.name, alias, named=has_named_namespaces(desired)) as executor:
        executor.make_space(len(desired.layout.nodes) + 1)
        yield executor


def existing_state(executor: NetlinkExecutor, desired: DesiredState, before: State | None) -> ExistingState:
    """Read the cluster's kernel objects: those with its mark, even if the state does not list them."""
    if before is None:
        return ExistingState()
    if has_named_namespaces(desired):
        found = {namespace_names.key_of(name): str(namespaces.NAMES / name) for name in removal.own_names(desired.name)}
    else:
        found = dict(before.namespaces)  # held by the namespace holder
    for key, path in found.items():
        if namespaces.is_namespace(path):
            executor.paths[key] = path
            executor.inodes[key] = os.stat(path).st_ino
    layouts = [layout for layout in (before.layout, before.previous) if layout is not None]
    return ExistingState(
        executor.contents(list(executor.paths)),
        _limits(desired),
        frozenset((node.name, nic.name) for layout in layouts for node in layout.nodes for nic in node.nics),
        {node.name: node for node in before.layout.nodes},
        recorded_datapaths(before),
    )


def recorded_datapaths(state: State) -> LinkServices:
    """How the links were carried, as far as known: a file that they need may be gone."""
    with suppress(TestbedError):
        return decide(state.layout, state.injected, state.asked, _base_directory(state.origin)).link_services
    return {}


def _limits(desired: DesiredState) -> dict[str, tuple[float, int]]:
    """The limits in the kernel, by node. Where the kernel rounds a requested limit, the requested one is returned."""
    wished = {node.name: (node.cpu_share, node.memory) for node in desired.layout.nodes}
    found = {}
    for group in cgroups.groups_of(desired.name):
        node = cgroups.node_of(group)
        limits = cgroups.limits(group)
        found[node] = wished[node] if node in wished and limits == cgroups.rounded(*wished[node]) else limits
    return found


def carry_out(
    store: Store,
    desired: DesiredState,
    state: State,
    before: State | None,
    decisions: Decisions,
    progress: Progress,
    holder_client: namespace_holder.HolderClient | None = None,
) -> tuple[list[Operation], State]:
    store.write(state)
    _write_places(store, state)
    _drop_unfinished(before)
    _end_programs_of_lost_nodes(before)
    with open_executor(desired) as executor:
        existing, whole = existing_state(executor, desired, before), shared_devices(desired.layout, state.nics)
        operations = plan(desired.layout, existing, decisions.link_services, decisions.files, whole)
        replugging = relay_client.Replugging(store, executor, before, state, decisions.orders)
        with _names_ready() if has_named_namespaces(desired) else nullcontext():
            last = _ending(operations, len(operations), (AwaitCarrier, Divert))
            removing = _ending(operations, last, RemoveDevice)
            taps = [at for at, operation in enumerate(operations) if isinstance(operation, Undivert) and operation.tap]
            late = min([removing, *taps])
            executor.apply(operations[:late], lambda done: progress(done, len(operations)))
            replugging.release()
            executor.apply(operations[late:last], lambda done: progress(late + done, len(operations)))
        paths, holder = executor.paths, state.holder
        if holder_client is not None:
            holder = holder_client.identity
            paths = holder_client.hold(executor.descriptors())
        state = replace(state, phase="up", namespaces=paths, inodes=executor.inodes, holder=holder, previous=None)
        relay_client.engage(store, state, decisions.orders)
        executor.apply(operations[last:], lambda done: progress(last + done, len(operations)))
        replugging.tell(executor.early, executor.lost)
    store.write(state)
    return operations, state


def _ending(operations: list[Operation], end: int, kind: type[object] | tuple[type[object], ...]) -> int:
    """The index at which the uninterrupted run of operations of a kind that ends at `end` begins."""
    while end and isinstance(operations[end - 1], kind):
        end -= 1
    return end


def _drop_unfinished(before: State | None) -> None:
    """Remove names that a killed change had begun to make or remove; the plan sees no namespace there."""
    for path in before.namespaces.values() if before else ():
        name = os.path.basename(path)
        if path == str(namespaces.NAMES / name) and namespaces.is_unfinished(name):
            namespaces.remove_name(name)


def _end_programs_of_lost_nodes(before: State | None) -> None:
    """End programs of nodes whose namespace name was removed: they would run on unseen beside the new namespace."""
    inodes = before.inodes if before else {}
    lost = {
        inode for key, inode in inodes.items() if before and not is_namespace_at(before.namespaces.get(key, ""), inode)
    }
    if before and lost:
        removal.end_programs(before.name, lost)


def is_namespace_at(path: str, inode: int) -> bool:
    return namespaces.is_namespace(path) and os.stat(path).st_ino == inode


def roll_back(store: Store, state: State, before: State | None, error: BaseException) -> None:
    """Restore the previous state after a failure, or remove the cluster if there was none."""
    try:
        if before is None:
            removal.remove(store, state, grace=0)
            return
        desired = running_state(before, state.owner)
        decisions = decided(store, desired, before.injected)
        halfway = replace(
            before, namespaces=state.namespaces, previous=state.layout, phase="changing", datapaths=state.datapaths
        )
        # If this is killed as well, the state must still list everything that may exist.
        intent = intended_state(desired, before, before.injected, decisions)
        intent = replace(intent, namespaces=state.namespaces, previous=state.layout)
        carry_out(store, desired, intent, halfway, decisions, silent)
    except (TestbedError, OSError) as second:
        raise KernelError(
            f"{str(error) or 'interrupted'}\nand what it left could not be rolled back: {second}\n"
            f"'testbed down --name {state.name}' removes it"
        ) from error


@contextmanager
def _names_ready() -> Iterator[None]:
    """Keep /run/netns set up while names are being made; a concurrent `down`, also of a cluster under another state root,
    may try to remove it."""
    while True:
        if not namespaces.names_ready():
            with names_locked(exclusive=True):
                if not namespaces.names_ready():
                    namespaces.make_names_ready()
        with names_locked(exclusive=False):
            if namespaces.names_ready():
                yield
                return


def _write_places(store: Store, state: State) -> None:
    """Write the files that programs in the nodes see."""
    directory = store.directory(state.name)
    _write_readable(directory / "hosts", _hosts(state.layout))
    for node in state.layout.nodes:
        for target, content in node.files.items():
            source = directory / file_source(node.name, target)
            for above in (source.parent.parent, source.parent):
                make_directory(above)
            _write_readable(source, content)
    wanted = {file_source(node.name, target) for node in state.layout.nodes for target in node.files}
    for found in sorted(directory.glob("files/*/*")):
        if str(found.relative_to(directory)) not in wanted:
            remove_file(found)  # programs that have it bind-mounted keep its content


def _write_readable(path: Path, content: str) -> None:
    """Write a file that programs of all users in the nodes can read, whatever the caller's umask is."""
    write_in_place(path, content)
    path.chmod(0o644)


def _hosts(layout: Layout) -> str:
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    for node in layout.part.nodes if layout.part is not None else layout.nodes:
        addresses = [address.partition("/")[0] for nic in node.nics for address in nic.addresses]
        first = {":" in address: address for address in reversed(addresses)}  # one IPv4 and one IPv6 address
        lines += [f"{address} {node.name}" for address in first.values()]
    return "\n".join(lines) + "\n"
