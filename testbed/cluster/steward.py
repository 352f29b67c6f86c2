"""The steward: one small process per cluster, there only while something needs it, in the cluster's wire namespace.

- It keeps the relay running: when that dies, however it dies, it starts another one with the same orders, and the gap
  is an event.
- It heals what was injected for a time only.

It ends when nothing needs it any more, with the keeper of a cluster that has one, and with the cluster, whose programs
in the wire namespace are ended like those in the nodes. Commands call it; they hold the cluster's lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from testbed.cluster import names
from testbed.cluster.carrying import Healing
from testbed.cluster.state import State, Store
from testbed.engine.loop import Loop
from testbed.errors import KernelError, TestbedError
from testbed.kernel import daemons, processes, syscalls
from testbed.kernel.netlink import RouteSocket
from testbed.kernel.survey import interfaces
from testbed.kernel.waiting import Waiter
from testbed.runtime import events
from testbed.runtime.calls import PATIENCE, Listener, NotThereError, call
from testbed.runtime.orders import Orders, Places
from testbed.runtime.process import Process

NAME: Final = "testbed-steward"
RELAY_NAME: Final = "testbed-relay"
SOCKET: Final = "steward"
LOG: Final = "processes.log"
LOCK: Final = "steward.lock"

_MOMENT: Final = 0.01  # s
_AGAIN: Final = 1_000_000_000  # ns until what failed is tried again
_QUICK_DEATHS: Final = 3  # so many relays may die within _AGAIN of their start; then each waits for so long


def needed(state: State, orders: Orders) -> bool:
    return bool(orders.links) or any(injection.until for injection in state.injected)


def ensure(store: Store, state: State, healing: Healing) -> processes.Identity | None:
    """Have a steward that has looked at what there is, and a relay that runs if it has orders. Which one it is, whatever
    the state says: whoever started it may have been killed before he wrote that down. It ends when nothing needs it, and
    then there may be None.

    The cluster's lock must be held, and its state and orders be written. healing(store, cluster, number): heals one
    injection. Raises what the relay says when it cannot have its orders in force.
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
    steward = _Steward(store, state, healing)
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


class _Relay(NamedTuple):
    """A process of the relay that runs, and the descriptor that tells of its end."""

    identity: processes.Identity
    handle: int


class _Steward:
    """Its life, in its process."""

    def __init__(self, store: Store, state: State, healing: Healing) -> None:
        self._store = store
        self._cluster = state.name
        self._wire = state.namespaces[names.WIRE]
        self._keeper = state.keeper
        self._healing = healing
        self._places = Places(store.directory(state.name))
        self._relays: dict[int, _Relay] = {}
        self._deaths: list[int] = []
        # Process of the relay -> when it died (wall clock), and what `_read_unheard` found then; until it is back.
        self._died: dict[int, tuple[int, dict[str, int]]] = {}

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
        self._route = RouteSocket()
        self._loop = Loop(Waiter())
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
        for number in list(self._relays):
            self._stop_relay(number)
        self._loop.stop()

    def _answer(self, request: Mapping[str, Any]) -> Mapping[str, object]:
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
        wanted = {number for number in range(orders.processes) if orders.share(number).links}
        for number in sorted(self._relays.keys() - wanted):
            self._stop_relay(number)
        for number in sorted(wanted - self._relays.keys()):
            self._start_relay(number)
        self._died.clear()  # a process that is not wanted any more leaves no gap
        ends = [injection.until for injection in state.injected if injection.until]
        self._alarm.set(min(ends) if ends else None)
        return needed(state, orders)

    # The relay's processes

    def _start_relay(self, number: int) -> None:
        made: list[Process] = []

        def prepare() -> None:
            syscalls.end_with_parent(signal.SIGKILL)
            made.append(Process(self._places, number))
            made[0].prepare()

        log = str(self._places.directory / LOG)
        identity = daemons.start(RELAY_NAME, (), prepare, lambda: made[0].run(), log)
        relay = self._relays[number] = _Relay(identity, os.pidfd_open(identity.pid))
        self._loop.watch(relay.handle, lambda now: self._relay_died(number, now))
        if number in self._died:
            died, before = self._died.pop(number)
            unheard = self._read_unheard(number)
            events.record(
                self._places.directory,
                "relay restarted",
                pid=identity.pid,
                gap=[died, time.time_ns()],
                lost=sum(max(0, count - before[end]) for end, count in unheard.items() if end in before),
                also_lost="what the one that died held and what waited in its sockets",
            )

    def _relay_died(self, number: int, now: int) -> None:
        self._died[number] = time.time_ns(), self._read_unheard(number)
        relay = self._let_relay_go(number)
        events.record(self._places.directory, "relay died", pid=relay.identity.pid)
        self._deaths = [*(then for then in self._deaths if now - then < _AGAIN), now]
        if len(self._deaths) <= _QUICK_DEATHS:
            self._restart(number, now)
        else:
            self._loop.at(now + _AGAIN, lambda later: self._restart(number, later))

    def _restart(self, number: int, now: int) -> None:
        orders = self._places.read_orders() or Orders(0)
        if number in self._relays or not orders.share(number).links:
            return
        try:
            self._start_relay(number)
        except (TestbedError, OSError) as error:
            events.record(self._places.directory, "relay not restarted", reason=str(error))
            self._loop.at(now + _AGAIN, lambda later: self._restart(number, later))

    def _stop_relay(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._relays[number].handle, signal.SIGKILL)
        self._let_relay_go(number)

    def _let_relay_go(self, number: int) -> _Relay:
        """Forget a process of the relay that has ended, or is about to."""
        relay = self._relays.pop(number)
        self._loop.unwatch(relay.handle)
        os.close(relay.handle)
        os.waitpid(relay.identity.pid, 0)
        return relay

    def _read_unheard(self, number: int) -> dict[str, int]:
        """By free end of this process's links, the frames that came in and that no protocol took. It rises with every
        frame for another's address, carried or not: it tells something only between a relay's end and the next one's
        beginning."""
        orders = self._places.read_orders() or Orders(0)
        ends = {end for link in orders.share(number).links for end in (link.a, link.b)}
        return {one.name: one.counters.rx_unclaimed for one in interfaces(self._route) if one.name in ends}

    # What was injected for a time

    def _heal(self, now: int) -> None:
        """Heal what has lasted long enough, in a process of its own: it waits for the cluster's lock."""
        state = self._store.read(self._cluster)
        due = [one.number for one in state.injected if 0 < one.until <= now] if state is not None else []
        if not due:
            self._look()
            return

        def heal() -> None:
            for number in due:
                self._healing(self._store, self._cluster, number)

        child = daemons.start("testbed-healer", (), lambda: None, heal, str(self._places.directory / LOG))
        handle = os.pidfd_open(child.pid)

        def healed(now: int) -> None:
            self._loop.unwatch(handle)
            os.close(handle)
            _, status = os.waitpid(child.pid, 0)
            if status:
                events.record(self._places.directory, "not healed", numbers=due)
                self._alarm.set(now + _AGAIN)

        self._loop.watch(handle, healed)
