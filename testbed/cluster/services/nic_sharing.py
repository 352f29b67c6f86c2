"""Sharing of a running cluster's NICs: the request is recorded in the state, and the supervisor runs the agents."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from testbed.cluster import lifecycle
from testbed.cluster.faults.fault_injection import run_in_user_namespace
from testbed.cluster.faults.injections import Injection
from testbed.cluster.records.state import SharedNics, State, Store
from testbed.errors import ConflictError, KernelError, NotFoundError
from testbed.runtime import event_log
from testbed.runtime.calls import NotListeningError, call
from testbed.runtime.shared.standing_agent import nic_configs, query_socket
from testbed.runtime.supervision import running_supervisor

_REPORT_TIMEOUT: Final = 2.0  # s for all agents together
_POLL_INTERVAL: Final = 0.05  # s


def share(store: Store, name: str, nics: SharedNics) -> State:
    """Share every node's first NIC among host processes until `stop` is called or the owner ends.

    Raises NotFoundError if the cluster does not exist or has no NICs, UnsupportedError if NICs of the protocol cannot be
    shared this way, ConflictError if the NICs are shared already, ConflictError or KernelError if a NIC is unavailable, and
    the other errors of `lifecycle.alter`.
    """
    if not nic_configs(store.choose(name).layout, nics.protocol, nics.functions, nics.spin):
        raise NotFoundError(f"no node of cluster {name} has a NIC")

    def begin(before: State) -> SharedNics:
        if before.nics is not None and before.nics.owner.is_alive:
            raise ConflictError(f"the NICs of cluster {name} are shared already, by process {before.nics.owner.pid}")
        return nics

    state = run_in_user_namespace(store, name, partial(lifecycle.alter, store, name, _unchanged, begin)).state
    event_log.record(
        store.directory(name), "NICs shared", protocol=nics.protocol, functions=nics.functions, owner=nics.owner.pid
    )
    return state


def stop(store: Store, name: str, nics: SharedNics) -> None:
    """End the sharing: the agents end, and transfers in progress are lost. Does nothing if the sharing has ended already."""
    state = store.read(name)
    if state is None or state.nics != nics:
        return

    def end(before: State) -> SharedNics | None:
        return None if before.nics == nics else before.nics

    with contextlib.suppress(NotFoundError):  # the cluster is being taken down
        run_in_user_namespace(store, name, partial(lifecycle.alter, store, name, _unchanged, end))
        event_log.record(store.directory(name), "NICs shared no more")


def keep_supervised(store: Store, name: str, nics: SharedNics, stop_descriptor: int) -> None:
    """Restart the supervisor whenever it ends, until `stop_descriptor` becomes readable.

    Raises NotFoundError if the cluster is taken down, ConflictError if its NICs are no longer shared, and the errors of
    `lifecycle.alter` for a supervisor that cannot be started, except ConflictError.
    """
    while True:
        state = store.read(name)
        if state is None:
            raise NotFoundError(f"cluster {name} has been taken down")
        if state.nics != nics:
            raise ConflictError(f"the NICs of cluster {name} are no longer shared")
        supervisor = running_supervisor(store.directory(name))
        if supervisor is not None:
            if _wait_for_end(supervisor.pid, stop_descriptor):
                return
            continue
        poll = select.poll()
        poll.register(stop_descriptor, select.POLLIN)
        if poll.poll(_POLL_INTERVAL * 1000):
            return
        with contextlib.suppress(NotFoundError, ConflictError):  # the cluster is locked, or being taken down; try again
            run_in_user_namespace(store, name, partial(lifecycle.alter, store, name, _unchanged))


def _wait_for_end(pid: int, stop_descriptor: int) -> bool:
    """Wait for the end of a process; return True if `stop_descriptor` becomes readable."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.register(stop_descriptor, select.POLLIN)
        return stop_descriptor in [descriptor for descriptor, _ in poll.poll()]
    finally:
        os.close(pidfd)


def _unchanged(state: State) -> tuple[Injection, ...]:
    return state.injected


def read_reports(store: Store, state: State) -> Mapping[str, Mapping[str, Any] | None]:
    """Query the report of each node's NIC agent (see `SharedAgent`), by node; None for an agent that does not answer. Empty
    if the NICs are not shared."""
    if state.nics is None:
        return {}
    directory = store.directory(state.name)
    reports_by_node: dict[str, Mapping[str, Any] | None] = {}
    deadline = time.monotonic() + _REPORT_TIMEOUT
    for node in state.layout.nodes:
        if node.nics:
            reports_by_node[node.name] = None
            with contextlib.suppress(NotListeningError, KernelError):
                remaining = max(0.1, deadline - time.monotonic())
                reports_by_node[node.name] = call(query_socket(directory, node.name), {"do": "report"}, remaining)
    return reports_by_node
