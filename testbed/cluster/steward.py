"""The steward: one small process per cluster, there only while something needs it, in the cluster's wire namespace.

- It keeps the relay running, and the agents of shared NICs: when one dies, however it dies, it starts another one in its
  place, and the gap is an event.
- It heals what was injected for a time only, and ends the sharing of NICs with the process whose wish it was.

It ends when nothing needs it any more, with the keeper of a cluster that has one, and with the cluster, whose programs
in the wire namespace are ended like those in the nodes. Commands call it; they hold the cluster's lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from testbed.cluster import names
from testbed.cluster.carrying import Duties
from testbed.cluster.state import State, Store
from testbed.cluster.tended import LOG, Agents, RelayProcesses
from testbed.cluster.tending import Tended
from testbed.engine.loop import Loop
from testbed.errors import KernelError
from testbed.kernel import daemons, processes, syscalls
from testbed.kernel.netlink import RouteSocket
from testbed.kernel.waiting import Waiter
from testbed.runtime import events
from testbed.runtime.calls import PATIENCE, Listener, NotThereError, call
from testbed.runtime.orders import Orders, Places

NAME: Final = "testbed-steward"
SOCKET: Final = "steward"
LOCK: Final = "steward.lock"

_MOMENT: Final = 0.01  # s
_AGAIN: Final = 1_000_000_000  # ns until what failed is tried again


def needed(state: State, orders: Orders) -> bool:
    return bool(orders.links) or state.nics is not None or any(injection.until for injection in state.injected)


def ensure(store: Store, state: State, duties: Duties) -> processes.Identity | None:
    """Have a steward that has looked at what there is, and a relay and agents that run as they are wanted. Which one it is,
    whatever the state says: whoever started it may have been killed before he wrote that down. It ends when nothing needs
    it, and then there may be None.

    The cluster's lock must be held, and its state and orders be written. Raises what the relay says when it cannot have its
    orders in force, and what keeps a NIC from being shared.
    """
    directory = store.directory(state.name)
    orders = Places(directory).read_orders() or Orders(0)
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(NotThereError):
            return processes.Identity.parse(call(directory / SOCKET, {"do": "look"})["steward"])
        if not _is_one(directory):
            break
        # One that is just beginning or ending, whoever started it: two would carry every frame twice.
        if time.monotonic() > deadline:
            raise KernelError(f"the steward of cluster {state.name} does not answer")
        time.sleep(_MOMENT)
    if not needed(state, orders):
        return None
    steward = _Steward(store, state, duties)
    return daemons.start(NAME, (), steward.prepare, steward.run, str(directory / LOG))


def _is_one(directory: Path) -> bool:
    """Whether there is a steward: each holds the lock for its life."""
    lock = _open_lock(directory)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _open_lock(directory: Path) -> int:
    return os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


class _Steward:
    """Its life, in its process."""

    def __init__(self, store: Store, state: State, duties: Duties) -> None:
        self._store = store
        self._cluster = state.name
        self._wire = state.namespaces[names.WIRE]
        self._keeper = state.keeper
        self._duties = duties
        self._places = Places(store.directory(state.name))
        self._owner: tuple[processes.Identity, int] | None = None  # of shared NICs, and what tells of its end

    def prepare(self) -> None:
        """KernelError when there is a steward already, or nothing needs one any more."""
        self._lock = _open_lock(self._places.directory)  # until we end
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise KernelError(f"cluster {self._cluster} has a steward already") from error
        wire = os.open(self._wire, os.O_RDONLY | os.O_CLOEXEC)
        syscalls.setns(wire, syscalls.CLONE_NEWNET)
        os.close(wire)
        self._loop = Loop(Waiter())
        directory = self._places.directory
        self._relay = Tended(self._loop, directory, RelayProcesses(self._places, RouteSocket()))
        self._agents = Tended(self._loop, directory, Agents(self._store, self._cluster))
        self._alarm = self._loop.timer(self._heal)
        if self._keeper is not None:
            handle = os.pidfd_open(self._keeper.pid)
            self._loop.watch(handle, lambda _: self._end())
        if not self._look():
            raise KernelError(f"nothing needs a steward of cluster {self._cluster}")
        Listener(self._loop, self._places.directory / SOCKET, self._answer)

    def run(self) -> None:
        self._loop.run()

    def _end(self) -> None:
        self._relay.end()
        self._agents.end()
        self._loop.stop()

    def _answer(self, request: Mapping[str, Any]) -> Mapping[str, object]:
        if request["do"] == "agents":
            return {"agents": dict(self._agents.pids)}
        if request["do"] != "look":
            return {"error": f"the steward does not know how to {request['do']}"}
        if not self._look():
            # The caller hears of it before we are gone; who comes after that starts another one.
            self._loop.at(self._loop.now(), lambda _: self._end())
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._places.directory / SOCKET)
        return {"steward": str(processes.identity())}

    def _look(self) -> bool:
        """Do what the state and the orders ask for; whether they ask for anything."""
        state = self._store.read(self._cluster)
        orders = self._places.read_orders() or Orders(0)
        if state is None:
            return False
        self._relay.look()
        self._agents.look()
        self._watch_owner(state.nics.owner if state.nics is not None else None)
        ends = [injection.until for injection in state.injected if injection.until]
        self._alarm.set(min(ends) if ends else None)
        return needed(state, orders)

    # What lasts for a time

    def _heal(self, now: int) -> None:
        """Heal what has lasted long enough."""
        state = self._store.read(self._cluster)
        due = [one.number for one in state.injected if 0 < one.until <= now] if state is not None else []
        if not due:
            self._look()
            return

        def heal() -> None:
            for number in due:
                self._duties.heal(self._store, self._cluster, number)

        def failed(now: int) -> None:
            events.record(self._places.directory, "not healed", numbers=due)
            self._alarm.set(now + _AGAIN)

        self._apart("testbed-healer", heal, failed)

    def _watch_owner(self, owner: processes.Identity | None) -> None:
        """Of shared NICs."""
        if self._owner is not None:
            if owner == self._owner[0]:
                return
            self._loop.unwatch(self._owner[1])
            os.close(self._owner[1])
            self._owner = None
        if owner is None:
            return
        try:
            handle = os.pidfd_open(owner.pid)
        except ProcessLookupError:
            self._loop.at(self._loop.now(), self._stop_sharing)
            return
        self._owner = owner, handle

        def ended(now: int) -> None:
            self._watch_owner(None)
            self._stop_sharing(now)

        self._loop.watch(handle, ended)
        if not owner.alive:  # it died before we could watch it, and the number may be another's by now
            self._loop.at(self._loop.now(), ended)

    def _stop_sharing(self, _now: int) -> None:
        """The process whose wish it was has ended."""

        def stop() -> None:
            self._duties.stop_sharing(self._store, self._cluster)

        def failed(now: int) -> None:
            events.record(self._places.directory, "NICs are still shared")
            self._loop.at(now + _AGAIN, self._stop_sharing)

        self._apart("testbed-nics", stop, failed)

    def _apart(self, name: str, act: Callable[[], None], failed: Callable[[int], object]) -> None:
        """In a process of its own: it waits for the cluster's lock."""
        child = daemons.start(name, (), lambda: None, act, str(self._places.directory / LOG))
        handle = os.pidfd_open(child.pid)

        def ended(now: int) -> None:
            self._loop.unwatch(handle)
            os.close(handle)
            _, status = os.waitpid(child.pid, 0)
            if status:
                failed(now)

        self._loop.watch(handle, ended)
