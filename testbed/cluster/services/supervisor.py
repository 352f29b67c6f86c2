"""The supervisor: a process per cluster, in its wire namespace, that runs only while it is needed.

- It keeps the relay and the agents of shared NICs running: when one dies, it starts a replacement and records the gap as
  an event.
- It heals timed injections, and ends the sharing of NICs when the process that requested it ends.
- It monitors the other machines of a cluster on several machines.

The relay and the agents survive the supervisor. When it dies, they start a new one (`runtime.supervision`), which adopts
them and records the gap as an event. The supervisor ends when it is no longer needed, with the namespace holder if the
cluster has one, and with the cluster. Commands call it while they hold the cluster's lock.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from testbed.cluster.plan import namespace_names
from testbed.cluster.records.state import State, Store
from testbed.cluster.services.machine_watch import MachineWatch
from testbed.cluster.services.service_kinds import LOG, Agents, RelayProcesses
from testbed.cluster.services.services import SupervisedProcesses
from testbed.engine.loop import Loop
from testbed.errors import ConflictError, KernelError, TestbedError
from testbed.json_text import check_of
from testbed.kernel import daemons, locks, namespaces, processes
from testbed.kernel.netlink import RouteSocket
from testbed.kernel.waiter import Waiter
from testbed.runtime import event_log
from testbed.runtime.calls import CALL_TIMEOUT, Listener, NotListeningError, call
from testbed.runtime.relay.orders import Orders, RelayPaths
from testbed.runtime.supervision import Death, end_all, supervisor_lock

SOCKET: Final = "supervisor"

_POLL_INTERVAL: Final = 0.01  # s
_RETRY_INTERVAL: Final = 1_000_000_000  # ns until a failed action is retried


def is_needed(state: State, orders: Orders) -> bool:
    """Whether a cluster needs a supervisor."""
    if state.phase == "removing":
        return False
    timed = any(injection.until for injection in state.injected)
    return bool(orders.links) or state.nics is not None or timed or state.has_tunnels


def ensure(store: Store, state: State) -> processes.Identity | None:
    """Ensure that a supervisor runs, has read the current state, and runs the required relay and agents; return its
    identity.

    If nothing needs a supervisor, a running one ends, and the result is its identity, or None if none runs.

    The cluster's lock must be held, and its state and orders be written. Raises the errors of `RelayProcesses.start` and
    `Agents.start`, and KernelError if the supervisor does not answer.
    """
    directory = store.directory(state.name)
    orders = RelayPaths(directory).read_orders() or Orders(0)
    deadline = time.monotonic() + CALL_TIMEOUT
    while True:
        with contextlib.suppress(NotListeningError):
            return processes.Identity.parse(call(directory / SOCKET, {"do": "look"})["supervisor"])
        if not locks.holder(supervisor_lock(directory)):
            if not is_needed(state, orders):
                end_all(directory)  # services of a killed supervisor
                return None
            locks.make(supervisor_lock(directory))
            # Imports and checks are made before the fork, once for all supervisors and relays that this process starts.
            if orders.links:
                import_module("testbed.runtime.relay.process")
            for document in (State, Orders):
                check_of(document)
            supervisor = _Supervisor(store, state)
            with contextlib.suppress(locks.LockedError):
                return daemons.start(
                    namespace_names.SUPERVISOR, (), supervisor.prepare, supervisor.run, str(directory / LOG)
                )
        # A supervisor is just starting or ending.
        if time.monotonic() > deadline:
            raise KernelError(f"the supervisor of cluster {state.name} does not answer")
        time.sleep(_POLL_INTERVAL)


def main(arguments: Sequence[str]) -> None:
    """Run a supervisor that a service has started after the death of the previous one.

    arguments: see `service_kinds.supervisor_command` and `Supervision`.
    """
    root, cluster, *death = arguments
    store = Store(Path(root))
    if not supervisor_lock(store.directory(cluster)).exists() or (state := store.read(cluster)) is None:
        return
    supervisor = _Supervisor(store, state, Death.from_arguments(death))
    daemons.become(namespace_names.SUPERVISOR, supervisor.prepare, supervisor.run, str(store.directory(cluster) / LOG))


class _Supervisor:
    """The supervisor. Its process is forked after construction; the other methods run in it."""

    def __init__(self, store: Store, state: State, death: Death | None = None) -> None:
        """death: of the previous supervisor, if a service has noticed it and started this one."""
        self._store = store
        self._cluster = state.name
        self._wire = state.namespaces[namespace_names.WIRE]
        self._holder = state.holder
        self._death = death
        self._paths = RelayPaths(store.directory(state.name))
        self._owner: tuple[processes.Identity, int] | None = None  # of shared NICs, with its pidfd

    def prepare(self) -> None:
        """Take the lock, adopt running services and start missing ones.

        Raises LockedError if a supervisor already runs, ConflictError if nothing needs one, and the errors of
        `RelayProcesses.start` and `Agents.start`.
        """
        directory = self._paths.directory
        self._lock = locks.Lock(supervisor_lock(directory))
        death = self._previous_death()
        if death is not None:
            code = {} if death.code is None else {"code": death.code}
            event_log.record_if_possible(directory, "supervisor died", pid=death.pid, **code)
        self._lock.note(str(processes.identity()))
        self._adopt_services()
        try:
            if not self._reconcile():
                raise ConflictError(f"nothing needs a supervisor of cluster {self._cluster}")
        except BaseException as error:
            # A supervisor started by a service leaves the services running on failure: another attempt follows.
            if self._death is None or isinstance(error, ConflictError):
                self._relay.end()
                self._agents.end()
            self._lock.release()
            raise
        Listener(self._loop, directory / SOCKET, self._handle)
        if death is not None:
            gap = [death.when, time.time_ns()]
            services = [*self._relay.pids.values(), *self._agents.pids.values()]
            event_log.record_if_possible(directory, "supervisor restarted", pid=os.getpid(), gap=gap, services=services)

    def _previous_death(self) -> Death | None:
        """Return the death of the previous supervisor; None if it released the lock when it ended."""
        if not self._lock.previous_note:
            return None
        pid = processes.Identity.parse(self._lock.previous_note).pid
        if self._death is not None and self._death.pid == pid:
            return self._death
        return Death(pid, self._death.when if self._death is not None else time.time_ns())

    def _adopt_services(self) -> None:
        """Enter the wire namespace and adopt the running services."""
        self._loop = Loop(Waiter())
        directory = self._paths.directory
        # A supervisor that a service has started is in the service's namespace, not in the machine's. Opening that of init
        # needs root, as does a cluster on several machines.
        machine_namespace = "/proc/1/ns/net"
        if self._death is None:
            machine_namespace = f"/proc/self/fd/{os.open('/proc/self/ns/net', os.O_RDONLY | os.O_CLOEXEC)}"
        self._machines = MachineWatch(self._loop, directory, machine_namespace)
        namespaces.enter(self._wire)
        self._relay = SupervisedProcesses(
            self._loop, directory, RelayProcesses(self._store, self._cluster, RouteSocket())
        )
        self._agents = SupervisedProcesses(self._loop, directory, Agents(self._store, self._cluster))
        self._heal_timer = self._loop.timer(self._heal)
        self._relay.adopt()
        self._agents.adopt()
        if self._holder is not None and self._holder.is_alive:
            pidfd = os.pidfd_open(self._holder.pid)
            self._loop.watch(pidfd, lambda _: self._end_with_holder())

    def run(self) -> None:
        """Supervise until the supervisor is no longer needed; then release the lock."""
        self._loop.run()
        self._lock.release()

    def _end_with_holder(self) -> None:
        event_log.record_if_possible(
            self._paths.directory, "namespace holder died", pid=self._holder.pid if self._holder is not None else 0
        )
        self._end()

    def _end(self) -> None:
        self._relay.end()
        self._agents.end()
        self._loop.stop()

    def _handle(self, request: Mapping[str, Any]) -> Mapping[str, object]:
        if request["do"] != "look":
            return {"error": f"unknown supervisor command {request['do']!r}"}
        if not self._reconcile():
            # Reply before ending; later callers start another supervisor.
            self._loop.at(self._loop.now(), lambda _: self._end())
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._paths.directory / SOCKET)
        return {"supervisor": str(processes.identity())}

    def _reconcile(self) -> bool:
        """Read and apply the state and the orders; return whether they need a supervisor."""
        state = self._store.read(self._cluster)
        orders = self._paths.read_orders() or Orders(0)
        if state is None or (self._holder is not None and not self._holder.is_alive):
            return False
        self._relay.reconcile()
        self._agents.reconcile()
        self._machines.watch(state.layout)
        self._watch_owner(state.nics.owner if state.nics is not None else None)
        ends = [injection.until for injection in state.injected if injection.until]
        self._heal_timer.set(min(ends) if ends else None)
        return is_needed(state, orders)

    # Timed injections, and the sharing of NICs

    def _heal(self, now: int) -> None:
        """Heal the injections whose end has come; retry after `_RETRY_INTERVAL` if that fails."""
        try:
            state = self._store.read(self._cluster)
            injected = state.injected if state is not None else ()
            due = [injection.number for injection in injected if 0 < injection.until <= now]
            if not due:
                self._reconcile()
                return
        except (TestbedError, OSError):  # the state cannot be read, or a service cannot be started
            self._heal_timer.set(now + _RETRY_INTERVAL)
            return

        def heal() -> None:
            from testbed.cluster import lifecycle

            for number in due:
                lifecycle.heal(self._store, self._cluster, number)

        def on_failure(now: int) -> None:
            event_log.record_if_possible(self._paths.directory, "not healed", numbers=due)
            self._heal_timer.set(now + _RETRY_INTERVAL)

        self._run_in_child("testbed-healer", heal, on_failure)

    def _watch_owner(self, owner: processes.Identity | None) -> None:
        """Watch the owner of the NIC sharing."""
        if self._owner is not None:
            if owner == self._owner[0]:
                return
            self._loop.unwatch(self._owner[1])
            os.close(self._owner[1])
            self._owner = None
        if owner is None:
            return
        try:
            pidfd = os.pidfd_open(owner.pid)
        except ProcessLookupError:
            self._loop.at(self._loop.now(), self._stop_sharing)
            return
        self._owner = owner, pidfd

        def on_end(now: int) -> None:
            self._watch_owner(None)
            self._stop_sharing(now)

        self._loop.watch(pidfd, on_end)
        if not owner.is_alive:  # it died before the pidfd was opened, and its pid may have been reused
            self._loop.at(self._loop.now(), on_end)

    def _stop_sharing(self, _now: int) -> None:
        """End the sharing of NICs after its owner has ended."""

        def stop() -> None:
            from testbed.cluster import lifecycle

            lifecycle.stop_sharing(self._store, self._cluster)

        def on_failure(now: int) -> None:
            event_log.record_if_possible(self._paths.directory, "NICs are still shared")
            self._loop.at(now + _RETRY_INTERVAL, self._stop_sharing)

        self._run_in_child("testbed-nics", stop, on_failure)

    def _run_in_child(self, name: str, act: Callable[[], None], on_failure: Callable[[int], object]) -> None:
        """Run `act` in a child process, since it waits for the cluster's lock. on_failure: called with the loop's time if
        the child fails or cannot be started."""
        try:
            child = daemons.start(name, (), lambda: None, act, str(self._paths.directory / LOG))
        except (TestbedError, OSError):  # for example, since the log cannot be opened
            on_failure(self._loop.now())
            return
        pidfd = os.pidfd_open(child.pid)

        def on_end(now: int) -> None:
            self._loop.unwatch(pidfd)
            os.close(pidfd)
            _, status = os.waitpid(child.pid, 0)
            if status:
                on_failure(now)

        self._loop.watch(pidfd, on_end)


if __name__ == "__main__":
    main(sys.argv[1:])
