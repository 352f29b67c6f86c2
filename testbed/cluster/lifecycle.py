"""Bring clusters up, converge and change them. `removal` takes them down."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.cluster import removal
from testbed.cluster.faults import cuts
from testbed.cluster.faults.injections import Injection, follow
from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.draft import Existing
from testbed.cluster.plan.host_requirements import check_supported
from testbed.cluster.plan.link_decisions import Decisions, decide
from testbed.cluster.plan.netlink_executor import NetlinkExecutor, taken
from testbed.cluster.plan.operations import AwaitCarrier, Divert, Operation, RemoveDevice, Undivert
from testbed.cluster.plan.planner import plan
from testbed.cluster.plan.treatments import Treatments
from testbed.cluster.records.ownership import Mark
from testbed.cluster.records.state import PATIENCE, SharedNics, State, Store, file_source, shared_devices
from testbed.cluster.services import namespace_holder, relay_client
from testbed.errors import ConflictError, KernelError, NotFoundError, TestbedError, reason_of
from testbed.kernel import cgroups, daemons, namespaces, processes, rtnl_dump
from testbed.kernel.filesystem import make_directory, remove_file, write_in_place
from testbed.kernel.processes import Identity
from testbed.kernel.signals import undisturbed
from testbed.runtime import event_log
from testbed.spec.layout import Layout

if TYPE_CHECKING:
    from testbed.kernel.datapaths import Asked

Progress = Callable[[int, int], None]  # operations done, operations in total


def silent(done: int, total: int) -> None:
    """Show no progress."""


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The state that a cluster is to reach.

    owner: the requesting process; unless the cluster is lasting, it ends with this process. keeper: the process that
    already holds its namespaces (rootless). asked: the requested datapath of impaired links. log: the file to which the
    relay writes fates, or empty.
    """

    name: str
    layout: Layout
    origin: str
    lasting: bool
    owner: Identity
    keeper: Identity | None = None
    asked: Asked = "auto"
    log: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The resulting state, and the operations that led to it (in a dry run: that would)."""

    state: State
    operations: tuple[Operation, ...]


def up(
    store: Store,
    wish: DesiredState,
    *,
    replace_other: bool = False,
    dry_run: bool = False,
    progress: Progress = silent,
) -> Outcome:
    """Bring a cluster up, or converge the cluster of that name to the layout.

    The change succeeds completely or is rolled back; KernelError names the operation that failed and why. Raises
    ConflictError if the name belongs to a cluster of another file and `replace_other` is not set.
    """
    check_supported(wish.layout)
    with (
        _guard(store, wish, dry_run=dry_run) as guard,
        _tidied_after_failure(store),
        store.locked(wish.name, PATIENCE),
    ):
        known = store.read(wish.name) is not None
        before = _usable(store, wish, replace_other=replace_other, dry_run=dry_run)
        _refuse_taken_names(wish, known)
        injected = follow(before.layout, wish.layout, before.injected) if before else ()
        decisions = decide(
            wish.layout, injected, wish.asked, _base(wish.origin), wish.log, relay_client.known_texts(store, wish.name)
        )
        state = _intent(wish, before, injected, decisions)
        if dry_run:
            with _workshop(wish) as workshop:
                existing, whole = _existing(workshop, wish, before), shared_devices(wish.layout, state.nics)
                operations = plan(wish.layout, existing, decisions.treatments, decisions.files, whole)
            return Outcome(state, tuple(operations))
        try:
            operations, state = _carry_out(store, wish, state, before, decisions, progress, guard)
        except BaseException as error:
            with undisturbed():
                _roll_back(store, state, before, error)
            if isinstance(error, OSError):
                raise KernelError(f"cluster {wish.name} could not be brought up: {reason_of(error)}") from error
            raise
        _tell_of_dropped(store, before, injected)
    return Outcome(state, tuple(operations))


def _tell_of_dropped(store: Store, before: State | None, kept: tuple[Injection, ...]) -> None:
    """Record an event for each injection that was dropped with the last of its links."""
    if before is None:
        return
    numbers = {injection.number for injection in kept}
    for one in before.injected:
        if one.number not in numbers:
            reason = "the description has its links no more"
            event_log.record(store.directory(before.name), "heal", number=one.number, what=one.what, reason=reason)


def still_shared(state: State) -> SharedNics | None:
    """How the cluster's NICs are shared; None once the owner of the sharing has ended."""
    return state.nics if state.nics is not None and state.nics.owner.alive else None


def alter(store: Store, name: str, edit: Edit, share: Share = still_shared) -> Outcome:
    """Inject into a running cluster, or heal it: `edit` maps the state to its new injections.

    share: maps the state to its new NIC sharing. An exception from either cancels the change. A change that cannot be
    carried out leaves everything as before. Raises NotFoundError, ConflictError, KernelError, and as `decide`.
    """
    with store.locked(name, PATIENCE):
        before = store.choose(name)
        if before.ended:
            raise NotFoundError(before.ended)
        if before.abandoned or before.phase not in ("up", "changing"):
            raise ConflictError(f"cluster {name} is not up: 'testbed status' says what is the matter")
        wish = _as_it_is(before, before.owner)
        injected = edit(before)
        issued = max([before.issued, *(injection.number for injection in injected)])
        decisions = decide(
            wish.layout, injected, wish.asked, _base(wish.origin), wish.log, relay_client.known_texts(store, wish.name)
        )
        state = replace(_intent(wish, before, injected, decisions), issued=issued, nics=share(before))
        try:
            if state.nics != before.nics:
                operations, state = _carry_out(store, wish, state, before, decisions, silent)
            elif (cables := _cables_alone(store, state, before, decisions)) is not None:
                operations, state = _settled(store, state, decisions, cables)
            elif _relay_alone(before, decisions):
                store.write(state)
                operations, state = _settled(store, state, decisions, [])
            else:
                operations, state = _carry_out(store, wish, state, before, decisions, silent)
        except BaseException as error:
            with undisturbed():
                _roll_back(store, state, before, error)
            if isinstance(error, OSError):
                raise KernelError(f"cluster {name} could not be changed: {reason_of(error)}") from error
            raise
    return Outcome(state, tuple(operations))


def _as_it_is(state: State, owner: Identity) -> DesiredState:
    """The desired state that matches a running cluster."""
    named = state.namespaces.get(namespace_names.WIRE, "").startswith(f"{namespaces.NAMES}/")
    return DesiredState(
        state.name,
        state.layout,
        state.origin,
        state.lasting,
        owner,
        state.keeper if named else None,
        state.asked,
        state.log,
    )


Edit = Callable[[State], tuple[Injection, ...]]
Share = Callable[[State], SharedNics | None]


def heal(store: Store, name: str, *numbers: int) -> tuple[Injection, ...]:
    """Lift these injections, or all if no numbers are given; return those lifted."""
    lifted: list[Injection] = []

    def without(state: State) -> tuple[Injection, ...]:
        lifted[:] = [one for one in state.injected if not numbers or one.number in numbers]
        return tuple(one for one in state.injected if one not in lifted)

    alter(store, name, without)
    for injection in lifted:
        for program in injection.programs:
            daemons.end(program, namespace_names.LOAD, name)
        links = sorted(injection.links)
        event_log.record(store.directory(name), "heal", number=injection.number, what=injection.what, links=links)
    return tuple(lifted)


def stop_sharing(store: Store, name: str) -> None:
    """End the sharing of NICs whose owner has ended."""
    alter(store, name, lambda state: state.injected)


def _settled(
    store: Store, state: State, decisions: Decisions, operations: list[Operation]
) -> tuple[list[Operation], State]:
    """Finish a change after its kernel operations, if it had any: engage the relay, write the state."""
    state = replace(state, phase="up", previous=None)
    relay_client.engage(store, state, decisions.orders)
    store.write(state)
    return operations, state


def _cables_alone(store: Store, intent: State, before: State, decisions: Decisions) -> list[Operation] | None:
    """Apply a change that only pulls or plugs cables; return its operations.

    None if more has to change, or an interrupted change needs repair.
    """
    if before.phase != "up" or intent.datapaths != before.datapaths:
        return None
    links, path = cuts.moved(before.injected, intent.injected), before.namespaces.get(namespace_names.WIRE, "")
    if not links or not _is_at(path, before.inodes.get(namespace_names.WIRE, 0)):
        return None
    with NetlinkExecutor(before.name, lambda key: key, named=False) as workshop:
        workshop.paths[namespace_names.WIRE] = path
        route = workshop.open(namespace_names.WIRE).route
        operations = cuts.operations(before.layout, decisions.treatments, links, partial(rtnl_dump.named, route))
        if operations is not None:
            store.write(intent)
            workshop.apply(operations, lambda _: None)
        return operations


def _relay_alone(before: State, decisions: Decisions) -> bool:
    """Whether the relay carries all impaired links before and after, so that the kernel state stays unchanged."""
    after = {link: treatment.datapath for link, treatment in decisions.treatments.items() if treatment.spliced}
    return (
        after == dict(before.datapaths)
        and set(after.values()) <= {"relay"}
        and _down(before) == {link for link, treatment in decisions.treatments.items() if treatment.down}
        and _in_pieces(_treatments(before)) == _in_pieces(decisions.treatments)
    )


def _in_pieces(treatments: Treatments) -> dict[str, tuple[bool, bool]]:
    """The directions on which the senders' offloads stay on."""
    return {link: treatment.pieces for link, treatment in treatments.items() if any(treatment.pieces)}


def _down(state: State) -> set[str]:
    return {link for injection in state.injected for link in injection.down}


def _base(origin: str) -> Path:
    """The directory that relative paths in a description refer to: its file's, or the working directory."""
    return Path(origin).parent if os.path.isfile(origin) else Path.cwd()


def _usable(store: Store, wish: DesiredState, *, replace_other: bool, dry_run: bool) -> State | None:
    """The existing cluster of that name if it can be converged, else None."""
    state = store.read(wish.name)
    if state is None:
        return None
    if not state.abandoned:
        if not state.lasting:
            raise ConflictError(f"cluster {wish.name} belongs to the running process {state.owner.pid}")
        if wish.keeper is not None and state.keeper != wish.keeper:
            raise ConflictError(f"cluster {wish.name} has just been brought up by another command: try again")
        if not wish.lasting:
            raise ConflictError(f"cluster {wish.name} is up from {state.origin} and stays: choose another name")
        if state.origin == wish.origin:
            return state
        if not replace_other:
            raise ConflictError(
                f"cluster {wish.name} is up from {state.origin}, not from {wish.origin}: "
                "give this one another name with --name, or replace that one with --replace"
            )
    if not dry_run:
        removal.remove(store, state)
        removal.let_go(state)
    return None


def _by_name(wish: DesiredState) -> bool:
    """Whether namespaces get names. A held cluster gets them only in its holder's mount namespace, which hides them."""
    return wish.lasting or wish.keeper is not None


def _refuse_taken_names(wish: DesiredState, known: bool) -> None:
    """Raise ConflictError, before anything is created, if a name that the cluster needs is taken.

    known: the cluster had a state; then objects with its mark are its own, or would have been removed first (dry run).
    """
    if not _by_name(wish):
        return
    there = set(namespaces.names())
    for key in _keys(wish.layout):
        name = namespace_names.namespace(wish.name, key)
        if name in there and not (known and removal.is_ours(name, wish.name)):
            raise ConflictError(taken(name))


def _keys(layout: Layout) -> list[str]:
    return [namespace_names.WIRE, *(node.name for node in layout.nodes)]


def _intent(wish: DesiredState, before: State | None, injected: tuple[Injection, ...], decisions: Decisions) -> State:
    """The state to write before the first operation: it contains everything that may come to exist."""
    keys = _keys(wish.layout) if _by_name(wish) else []
    paths = {key: str(namespaces.NAMES / namespace_names.namespace(wish.name, key)) for key in keys}
    return State(
        name=wish.name,
        origin=wish.origin,
        phase="changing" if before else "building",
        lasting=wish.lasting,
        owner=wish.owner,
        layout=wish.layout,
        namespaces={**(before.namespaces if before else {}), **paths},
        inodes=before.inodes if before else {},
        created=before.created if before else int(time.time()),
        keeper=wish.keeper or (before.keeper if before else None),
        previous=before.layout if before else None,
        asked=wish.asked,
        log=wish.log,
        injected=injected,
        issued=before.issued if before else 0,
        datapaths={link: one.datapath for link, one in decisions.treatments.items() if one.spliced},
        notes=decisions.notes,
        nics=still_shared(before) if before else None,
    )


@contextmanager
def _workshop(wish: DesiredState) -> Iterator[NetlinkExecutor]:
    def alias(key: str) -> str:
        return str(Mark(wish.name, key, wish.lasting, wish.owner))

    with NetlinkExecutor(wish.name, alias, named=_by_name(wish)) as workshop:
        workshop.make_space(len(wish.layout.nodes) + 1)
        yield workshop


def _existing(workshop: NetlinkExecutor, wish: DesiredState, before: State | None) -> Existing:
    """Read the cluster's kernel objects: those that bear its mark, whatever the state says."""
    if before is None:
        return Existing()
    if _by_name(wish):
        found = {namespace_names.key_of(name): str(namespaces.NAMES / name) for name in removal.own_names(wish.name)}
    else:
        found = dict(before.namespaces)  # held by the keeper
    for key, path in found.items():
        if namespaces.is_namespace(path):
            workshop.paths[key] = path
            workshop.inodes[key] = os.stat(path).st_ino
    layouts = [layout for layout in (before.layout, before.previous) if layout is not None]
    return Existing(
        workshop.contents(list(workshop.paths)),
        _limits(wish),
        frozenset((node.name, nic.name) for layout in layouts for node in layout.nodes for nic in node.nics),
        {node.name: node for node in before.layout.nodes},
        _treatments(before),
    )


def _treatments(state: State) -> Treatments:
    """How the links were carried, as far as known: a file that they need may be gone."""
    with suppress(TestbedError):
        return decide(state.layout, state.injected, state.asked, _base(state.origin)).treatments
    return {}


def _limits(wish: DesiredState) -> dict[str, tuple[float, int]]:
    """The limits in the kernel, by node. Where the kernel rounds a requested limit, the requested one is returned."""
    wished = {node.name: (node.cpu_share, node.memory) for node in wish.layout.nodes}
    found = {}
    for group in cgroups.of_cluster(wish.name):
        node = cgroups.node_of(group)
        limits = cgroups.limits(group)
        found[node] = wished[node] if node in wished and limits == cgroups.kept(*wished[node]) else limits
    return found


@contextmanager
def _guard(store: Store, wish: DesiredState, *, dry_run: bool) -> Iterator[namespace_holder.Guard | None]:
    """Start the holder of a held cluster before the first change; end it if the cluster does not come up."""
    if _by_name(wish) or dry_run:
        yield None
        return
    guard = namespace_holder.guard(store.root, wish.name)
    try:
        yield guard
    except BaseException:
        processes.end(guard.identity)
        raise
    finally:
        guard.close()


def _carry_out(
    store: Store,
    wish: DesiredState,
    state: State,
    before: State | None,
    decisions: Decisions,
    progress: Progress,
    guard: namespace_holder.Guard | None = None,
) -> tuple[list[Operation], State]:
    store.write(state)
    _write_places(store, state)
    _drop_unfinished(before)
    _end_programs_of_lost_nodes(before)
    with _workshop(wish) as workshop:
        existing, whole = _existing(workshop, wish, before), shared_devices(wish.layout, state.nics)
        operations = plan(wish.layout, existing, decisions.treatments, decisions.files, whole)
        replugging = relay_client.Replugging(store, workshop, before, state, decisions.orders)
        with _names_ready(store) if _by_name(wish) else nullcontext():
            last = _ending(operations, len(operations), (AwaitCarrier, Divert))
            removing = _ending(operations, last, RemoveDevice)
            taps = [at for at, operation in enumerate(operations) if isinstance(operation, Undivert) and operation.tap]
            late = min([removing, *taps])
            workshop.apply(operations[:late], lambda done: progress(done, len(operations)))
            replugging.release()
            workshop.apply(operations[late:last], lambda done: progress(late + done, len(operations)))
        paths, holder = workshop.paths, state.keeper
        if guard is not None:
            holder = guard.identity
            paths = guard.hold(workshop.descriptors())
        state = replace(state, phase="up", namespaces=paths, inodes=workshop.inodes, keeper=holder, previous=None)
        relay_client.engage(store, state, decisions.orders)
        workshop.apply(operations[last:], lambda done: progress(last + done, len(operations)))
        replugging.tell(workshop.early, workshop.lost)
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
    lost = {inode for key, inode in inodes.items() if before and not _is_at(before.namespaces.get(key, ""), inode)}
    if before and lost:
        removal.end_programs(before.name, lost)


def _is_at(path: str, inode: int) -> bool:
    return namespaces.is_namespace(path) and os.stat(path).st_ino == inode


def _roll_back(store: Store, state: State, before: State | None, error: BaseException) -> None:
    """Restore the previous state after a failure, or remove the cluster if there was none."""
    try:
        if before is None:
            removal.remove(store, state, grace=0)
            return
        wish = _as_it_is(before, state.owner)
        decisions = decide(
            before.layout,
            before.injected,
            before.asked,
            _base(before.origin),
            before.log,
            relay_client.known_texts(store, before.name),
        )
        halfway = replace(
            before, namespaces=state.namespaces, previous=state.layout, phase="changing", datapaths=state.datapaths
        )
        # If this is killed as well, the state must still list everything that may exist.
        intent = _intent(wish, before, before.injected, decisions)
        intent = replace(intent, namespaces=state.namespaces, previous=state.layout)
        _carry_out(store, wish, intent, halfway, decisions, silent)
    except (TestbedError, OSError) as second:
        raise KernelError(
            f"{str(error) or 'interrupted'}\nand what it left could not be rolled back: {second}\n"
            f"'testbed down --name {state.name}' removes it"
        ) from error


@contextmanager
def _tidied_after_failure(store: Store) -> Iterator[None]:
    """After a failure, once the lock is released, remove the shared directories if they are empty."""
    try:
        yield
    except BaseException:
        with suppress(TestbedError):  # report the original failure
            removal.tidy(store)
        raise


def _write_places(store: Store, state: State) -> None:
    """Write the files that programs in the nodes see."""
    directory = store.directory(state.name)
    write_in_place(directory / "hosts", _hosts(state.layout))
    for node in state.layout.nodes:
        for target, content in node.files.items():
            source = directory / file_source(node.name, target)
            for above in (source.parent.parent, source.parent):
                make_directory(above)
            write_in_place(source, content)
    wanted = {file_source(node.name, target) for node in state.layout.nodes for target in node.files}
    for found in sorted(directory.glob("files/*/*")):
        if str(found.relative_to(directory)) not in wanted:
            remove_file(found)  # programs that have it bind-mounted keep its content


def _hosts(layout: Layout) -> str:
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    for node in layout.nodes:
        addresses = [address.partition("/")[0] for nic in node.nics for address in nic.addresses]
        first = {":" in address: address for address in reversed(addresses)}  # one IPv4 and one IPv6 address
        lines += [f"{address} {node.name}" for address in first.values()]
    return "\n".join(lines) + "\n"


@contextmanager
def _names_ready(store: Store) -> Iterator[None]:
    """Keep /run/netns set up while names are being made; a concurrent `down` may try to remove it."""
    while True:
        if not namespaces.names_ready():
            with store.root_locked(exclusive=True):
                if not namespaces.names_ready():
                    namespaces.make_names_ready()
        with store.root_locked(exclusive=False):
            if namespaces.names_ready():
                yield
                return
