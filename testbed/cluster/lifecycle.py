"""Bring clusters up, converge and change them. `removal` takes them down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from testbed.cluster import removal
from testbed.cluster.faults import cuts
from testbed.cluster.faults.injections import Injection, follow_layout
from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.host_requirements import check_supported
from testbed.cluster.plan.kernel_operations import Operation
from testbed.cluster.plan.link_decisions import Decisions
from testbed.cluster.plan.netlink_executor import name_taken_message
from testbed.cluster.plan.planner import plan
from testbed.cluster.records.state import LOCK_TIMEOUT, SharedNics, State, Store, shared_devices
from testbed.cluster.services import namespace_holder, relay_client
from testbed.cluster.transitions import (
    DesiredState,
    Progress,
    apply_change,
    current_sharing,
    decide_links,
    existing_state,
    has_named_namespaces,
    intended_state,
    namespace_keys,
    no_progress,
    open_executor,
    roll_back,
    running_state,
)
from testbed.errors import ConflictError, KernelError, NotFoundError, TestbedError, reason_of
from testbed.kernel import daemons, namespaces, processes
from testbed.kernel.children import signals_blocked
from testbed.lazy_dataclass import dataclass
from testbed.runtime import event_log


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """Result of a change.

    operations: the executed kernel operations; of a dry run, those that would be executed. There may be none, since the
    relay applies impairments. changed: whether the cluster was up with another layout.
    """

    state: State
    operations: tuple[Operation, ...]
    changed: bool = False


def up(
    store: Store,
    desired: DesiredState,
    *,
    replace_other: bool = False,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> ApplyResult:
    """Bring a cluster up, or converge the running cluster of that name to the layout.

    replace_other: remove a cluster of that name from another file first. dry_run: plan only. progress: called after each
    operation. The change succeeds completely or is rolled back. Raises UnsupportedError and the errors of `decide_links`
    before anything changes; ConflictError if the name belongs to another cluster that may not be replaced, or another
    command is changing the cluster; KernelError with the operation that failed and the reason.
    """
    check_supported(desired.layout, desired.asked)
    with (
        _started_holder(store, desired, dry_run=dry_run) as holder_client,
        _tidy_on_failure(store),
        store.locked(desired.name, LOCK_TIMEOUT),
    ):
        has_state = store.read(desired.name) is not None
        before = _state_to_converge(store, desired, replace_other=replace_other, dry_run=dry_run)
        _refuse_taken_names(desired, has_state)
        injected = follow_layout(before.layout, desired.layout, before.injected) if before else ()
        decisions = decide_links(store, desired, injected)
        state = intended_state(desired, before, injected, decisions)
        changed = before is not None and before.layout != desired.layout
        if dry_run:
            with open_executor(desired) as executor:
                existing, no_gso = existing_state(executor, desired, before), shared_devices(desired.layout, state.nics)
                operations = plan(desired.layout, existing, decisions.link_services, decisions.files, no_gso)
            return ApplyResult(state, tuple(operations), changed)
        try:
            operations, state = apply_change(store, desired, state, before, decisions, progress, holder_client)
        except BaseException as error:
            with signals_blocked():
                roll_back(store, state, before, error)
            if isinstance(error, OSError):
                raise KernelError(f"cluster {desired.name} could not be brought up: {reason_of(error)}") from error
            raise
        _record_dropped_injections(store, before, injected)
    return ApplyResult(state, tuple(operations), changed)


def _record_dropped_injections(store: Store, before: State | None, kept: tuple[Injection, ...]) -> None:
    """Record an event for each injection all of whose links were removed. kept: the injections that remain."""
    if before is None:
        return
    numbers = {injection.number for injection in kept}
    for dropped in before.injected:
        if dropped.number not in numbers:
            reason = "the description no longer has its links"
            event_log.record_if_possible(
                store.directory(before.name), "heal", number=dropped.number, what=dropped.what, reason=reason
            )


def alter(store: Store, name: str, edit: InjectionEdit, share: SharingEdit = current_sharing) -> ApplyResult:
    """Change the injections or the NIC sharing of a running cluster.

    edit: maps the state to its new injections. share: maps the state to its new NIC sharing; by default, the sharing ends
    if its owner has. An exception from either cancels the change. A change that fails is rolled back. Raises NotFoundError
    if the cluster does not exist or has ended, ConflictError if it is not up or another command is changing it, KernelError,
    and the errors of `decide_links`.
    """
    store.existing_name(name)  # raises for an unknown cluster, whose directory the lock would create
    with store.locked(name, LOCK_TIMEOUT):
        before = store.choose(name)
        if before.end_reason:
            raise NotFoundError(before.end_reason)
        if before.abandoned or before.phase not in ("up", "changing"):
            raise ConflictError(f"cluster {name} is not up: 'testbed status' shows the reason")
        desired = running_state(before, before.owner, before.layout)
        injected = edit(before)
        issued = max([before.issued, *(injection.number for injection in injected)])
        decisions = decide_links(store, desired, injected)
        state = replace(intended_state(desired, before, injected, decisions), issued=issued, nics=share(before))
        try:
            if state.nics != before.nics:
                operations, state = apply_change(store, desired, state, before, decisions, no_progress)
            elif (cables := cuts.apply_alone(store, state, before, decisions)) is not None:
                operations, state = _finish(store, before, state, decisions, cables)
            elif cuts.is_relay_only(store, before, decisions):
                store.write(state)
                operations, state = _finish(store, before, state, decisions, [])
            else:
                operations, state = apply_change(store, desired, state, before, decisions, no_progress)
        except BaseException as error:
            with signals_blocked():
                roll_back(store, state, before, error)
            if isinstance(error, OSError):
                raise KernelError(f"cluster {name} could not be changed: {reason_of(error)}") from error
            raise
    return ApplyResult(state, tuple(operations))


InjectionEdit = Callable[[State], tuple[Injection, ...]]
"""Maps a state to its new injections."""

SharingEdit = Callable[[State], SharedNics | None]
"""Maps a state to its new NIC sharing."""


def heal(store: Store, name: str, *numbers: int) -> tuple[Injection, ...]:
    """Lift the injections with these numbers, or all if none is given; return them. Numbers that are not in force are
    ignored. Raises the errors of `alter`."""
    lifted: list[Injection] = []

    def lift(state: State) -> tuple[Injection, ...]:
        lifted[:] = [injection for injection in state.injected if not numbers or injection.number in numbers]
        return tuple(injection for injection in state.injected if injection not in lifted)

    alter(store, name, lift)
    for injection in lifted:
        for program in injection.programs:
            daemons.end(program, namespace_names.LOAD, name)
        links = sorted(injection.links)
        event_log.record_if_possible(
            store.directory(name), "heal", number=injection.number, what=injection.what, links=links
        )
    return tuple(lifted)


def stop_sharing(store: Store, name: str) -> None:
    """End the sharing of NICs after its owner has ended. Raises the errors of `alter`."""
    # `current_sharing`, the default of `share`, drops it.
    alter(store, name, lambda state: state.injected)


def _state_to_converge(store: Store, desired: DesiredState, *, replace_other: bool, dry_run: bool) -> State | None:
    """Return the state of the cluster of that name if it can be converged; None if there is none, or it is abandoned or to
    be replaced: then it is removed, except in a dry run. Raises ConflictError, and the errors of `decide_links`."""
    state = store.read(desired.name)
    if state is None:
        return None
    if not state.abandoned:
        if not state.lasting:
            raise ConflictError(f"cluster {desired.name} belongs to the running process {state.owner.pid}")
        if desired.holder is not None and state.holder != desired.holder:
            raise ConflictError(f"cluster {desired.name} has just been brought up by another command: try again")
        if not desired.lasting:
            raise ConflictError(f"cluster {desired.name} is up from {state.origin} and stays: choose another name")
        if state.origin == desired.origin:
            return state
        if not replace_other:
            raise ConflictError(
                f"cluster {desired.name} is up from {state.origin}, not from {desired.origin}: "
                "give this one another name with --name, or replace that one with --replace"
            )
        decide_links(store, desired, ())  # raises its errors before the other cluster is removed
    if not dry_run:
        removal.remove(store, state)
        removal.end_holder(state)
    return None


def _refuse_taken_names(desired: DesiredState, has_state: bool) -> None:
    """Raise ConflictError, before anything is created, if the name of a namespace is taken.

    has_state: whether the cluster had a state. Namespaces with its mark are then its own, or, in a dry run, would have been
    removed first.
    """
    if not has_named_namespaces(desired):
        return
    existing = set(namespaces.names())
    for key in namespace_keys(desired.layout):
        name = namespace_names.namespace(desired.name, key)
        if name in existing and not (has_state and removal.is_ours(name, desired.name)):
            raise ConflictError(name_taken_message(name))


@contextmanager
def _started_holder(
    store: Store, desired: DesiredState, *, dry_run: bool
) -> Iterator[namespace_holder.HolderClient | None]:
    """Start the namespace holder of a held cluster before the first change; end it if the block fails. Yield None for other
    clusters and in a dry run."""
    if has_named_namespaces(desired) or dry_run:
        yield None
        return
    holder_client = namespace_holder.start_holder(store.root, desired.name)
    try:
        yield holder_client
    except BaseException:
        processes.end(holder_client.identity)
        raise
    finally:
        holder_client.close()


@contextmanager
def _tidy_on_failure(store: Store) -> Iterator[None]:
    """Remove the shared directories, if they are empty, after a failure and the release of the lock."""
    try:
        yield
    except BaseException:
        with suppress(TestbedError):  # report the original failure
            removal.tidy(store)
        raise


def _finish(
    store: Store, before: State, state: State, decisions: Decisions, operations: list[Operation]
) -> tuple[list[Operation], State]:
    """Finish a change after its kernel operations: make the relay apply it, and write the state. Return the operations
    and the resulting state."""
    state = replace(state, phase="up", previous=None)
    relay_client.engage(store, state, decisions.orders, before)
    store.write(state)
    return operations, state
