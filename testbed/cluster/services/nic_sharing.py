"""Share the NICs of a running cluster: record the request in its state, let the supervisor run the agents, read their
reports."""

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
from testbed.runtime.shared.standing_agent import offers, socket_of
from testbed.runtime.supervision import running_supervisor

_ANSWER: Final = 2.0  # s that agents have to report
_POLL_INTERVAL: Final = 0.05  # s


def share(store: Store, name: str, nics: SharedNics) -> State:
    """Share every node's first NIC among host processes until `stop` or the end of the owner.

    Raises NotFoundError, UnsupportedError if the protocol cannot be shared this way, ConflictError if the NICs are
    shared already, KernelError if one is unavailable.
    """
    if not offers(store.choose(name).layout, nics.protocol, nics.functions, nics.spin):
        raise NotFoundError(f"no node of cluster {name} has a NIC")

    def begin(before: State) -> SharedNics:
        if before.nics is not None and before.nics.owner.is_alive:
            raise ConflictError(f"the NICs of cluster {name} are shared already, by process {before.nics.owner.pid}")
        return nics

    state = run_in_user_namespace(store, name, partial(lifecycle.alter, store, name, _as_injected, begin)).state
    facts = {"protocol": nics.protocol, "functions": nics.functions}
    event_log.record(store.directory(name), "NICs shared", **facts, owner=nics.owner.pid)
    return state


def stop(store: Store, name: str, nics: SharedNics) -> None:
    """End the sharing: the agents end, and transfers under way are lost. Do nothing if it has ended already."""
    state = store.read(name)
    if state is None or state.nics != nics:
        return

    def end(before: State) -> SharedNics | None:
        return None if before.nics == nics else before.nics

    with contextlib.suppress(NotFoundError):  # it is being taken down
        run_in_user_namespace(store, name, partial(lifecycle.alter, store, name, _as_injected, end))
        event_log.record(store.directory(name), "NICs shared no more")


def tend(store: Store, name: str, nics: SharedNics, until: int) -> None:
    """Restart the supervisor whenever it ends, until the descriptor `until` becomes readable.

    Raises NotFoundError if the cluster is taken down, ConflictError if its NICs are no longer shared.
    """
    while True:
        state = store.read(name)
        if state is None:
            raise NotFoundError(f"cluster {name} has been taken down")
        if state.nics != nics:
            raise ConflictError(f"the NICs of cluster {name} are shared no more")
        supervisor = running_supervisor(store.directory(name))
        if supervisor is not None:
            if _until_end_of(supervisor.pid, until):
                return
            continue
        waiting = select.poll()
        waiting.register(until, select.POLLIN)
        if waiting.poll(_POLL_INTERVAL * 1000):
            return
        with contextlib.suppress(NotFoundError, ConflictError):  # busy, or being taken down
            run_in_user_namespace(store, name, partial(lifecycle.alter, store, name, _as_injected))


def _until_end_of(pid: int, until: int) -> bool:
    """Wait for the end of a process; return True if `until` became readable first."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        waiting = select.poll()
        waiting.register(handle, select.POLLIN)
        waiting.register(until, select.POLLIN)
        return until in [descriptor for descriptor, _ in waiting.poll()]
    finally:
        os.close(handle)


def _as_injected(state: State) -> tuple[Injection, ...]:
    return state.injected


def reports(store: Store, state: State) -> Mapping[str, Mapping[str, Any] | None]:
    """The report of each node's NIC agent (see `SharedAgent`), None if it does not answer; empty if NICs are not
    shared."""
    if state.nics is None:
        return {}
    directory, found = store.directory(state.name), dict[str, Mapping[str, Any] | None]()
    deadline = time.monotonic() + _ANSWER
    for node in state.layout.nodes:
        if node.nics:
            found[node.name] = None
            with contextlib.suppress(NotListeningError, KernelError):
                remaining = max(0.1, deadline - time.monotonic())
                found[node.name] = call(socket_of(directory, node.name), {"do": "report"}, remaining)
    return found
