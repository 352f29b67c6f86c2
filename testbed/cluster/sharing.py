"""Sharing the NICs of a cluster that is up: from a wish in its state to agents that its steward tends, and what they say."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from testbed.cluster import lifecycle
from testbed.cluster.injecting import as_whoever_may
from testbed.cluster.injections import Injection
from testbed.cluster.shared_nics import SharedNics
from testbed.cluster.state import State, Store
from testbed.errors import ConflictError, KernelError, NotFoundError
from testbed.runtime import events
from testbed.runtime.calls import NotThereError, call
from testbed.runtime.shared.standing import offers, socket_of

_ANSWER: Final = 2.0  # s for an agent to say how it is
_MOMENT: Final = 0.05  # s


def share(store: Store, name: str, nics: SharedNics) -> State:
    """Every node's first NIC takes host processes from here on, until `stop` or the end of the owner.

    Raises NotFoundError, UnsupportedError for what cannot be shared so, ConflictError where the NICs are shared already,
    KernelError where one cannot be had.
    """
    if not offers(store.choose(name).layout, nics.protocol, nics.functions, nics.spin):
        raise NotFoundError(f"no node of cluster {name} has a NIC")

    def begin(before: State) -> SharedNics:
        if before.nics is not None and before.nics.owner.alive:
            raise ConflictError(f"the NICs of cluster {name} are shared already, by process {before.nics.owner.pid}")
        return nics

    state = as_whoever_may(store, name, partial(lifecycle.alter, store, name, _as_injected, begin)).state
    facts = {"protocol": nics.protocol, "functions": nics.functions}
    events.record(store.directory(name), "NICs shared", **facts, owner=nics.owner.pid)
    return state


def stop(store: Store, name: str, nics: SharedNics) -> None:
    """End what `share` has begun: the agents, and with them whatever was under way. Nothing where it has ended."""
    state = store.read(name)
    if state is None or state.nics != nics:
        return

    def end(before: State) -> SharedNics | None:
        return None if before.nics == nics else before.nics

    with contextlib.suppress(NotFoundError):  # it is being taken down
        as_whoever_may(store, name, partial(lifecycle.alter, store, name, _as_injected, end))
        events.record(store.directory(name), "NICs shared no more")


def tend(store: Store, name: str, nics: SharedNics, until: int) -> None:
    """Have the steward started again whenever it ends, until the descriptor `until` can be read. Raises NotFoundError when
    the cluster is taken down, ConflictError when its NICs are shared no more."""
    while True:
        state = store.read(name)
        if state is None:
            raise NotFoundError(f"cluster {name} has been taken down")
        if state.nics != nics:
            raise ConflictError(f"the NICs of cluster {name} are shared no more")
        if state.steward is not None and state.steward.alive:
            if _until_end_of(state.steward.pid, until):
                return
            continue
        waiting = select.poll()
        waiting.register(until, select.POLLIN)
        if waiting.poll(_MOMENT * 1000):
            return
        with contextlib.suppress(NotFoundError, ConflictError):  # somebody else is at work on it, or takes it down
            as_whoever_may(store, name, partial(lifecycle.alter, store, name, _as_injected))


def _until_end_of(pid: int, until: int) -> bool:
    """Wait for the end of a process; True where `until` came first."""
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
    """By node what the agent of its NIC says of itself and of frames (see `SharedAgent`), None where it does not answer.
    Empty where NICs are not shared."""
    if state.nics is None:
        return {}
    directory, found = store.directory(state.name), dict[str, Mapping[str, Any] | None]()
    deadline = time.monotonic() + _ANSWER
    for node in state.layout.nodes:
        if node.nics:
            found[node.name] = None
            with contextlib.suppress(NotThereError, KernelError):
                left = max(0.1, deadline - time.monotonic())
                found[node.name] = call(socket_of(directory, node.name), {"do": "report"}, left)
    return found
