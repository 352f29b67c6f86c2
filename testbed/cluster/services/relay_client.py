"""Client of a cluster's relay, for commands that change links or read the relay's report."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from testbed.cluster.faults.injections import shorten_rule
from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.netlink_executor import NetlinkExecutor
from testbed.cluster.plan.veth_wiring import all_free_ends, taps, wire_ends
from testbed.cluster.records.state import State, Store
from testbed.errors import KernelError
from testbed.kernel import locks
from testbed.kernel.filesystem import remove_file
from testbed.kernel.processes import wait_until_gone
from testbed.kernel.rtnl_dump import counters
from testbed.runtime import event_log
from testbed.runtime.calls import CALL_TIMEOUT, NotListeningError, call
from testbed.runtime.relay.orders import Orders, RelayPaths
from testbed.runtime.supervision import running_supervisor, supervisor_lock

_MAX_PROCESSES: Final = 4
_POLL_INTERVAL: Final = 0.01  # s


class DatapathChange:
    """The relay's part in a change of links' datapaths, and the count of frames that the change loses.

    Create it before the first operation of the change: from then on, the relay forwards frames of the links that leave it
    without impairment, and delivers those in flight early. Call `record_events` after the last operation.
    """

    def __init__(
        self, store: Store, executor: NetlinkExecutor, before: State | None, after: State, orders: Orders
    ) -> None:
        self._directory = store.directory(after.name)
        self._executor = executor
        before_datapaths = before.datapaths if before is not None else {}
        self._links = [] if before is None else _differing(before_datapaths, after.datapaths)
        self._before, self._after = before_datapaths, after.datapaths
        self._ends = {
            link.name: set(ends) for link, ends in zip(after.layout.links, wire_ends(after.layout), strict=True)
        }
        free = all_free_ends(after.layout)
        # The kernel counts even IP frames that the relay receives as unclaimed, so taps are only read until it listens.
        self._taps = {
            link: taps(*free[link])
            for link in self._links
            if before_datapaths.get(link) != "relay" and all(free.get(link, ("",)))
        }
        self._leaving = _leaving(self._directory, orders)
        self._early: dict[str, int] = {}
        self._call("pass through")
        drainable = [link for link, datapath in before_datapaths.items() if datapath in ("netem", "tc")]
        self._lost = self._read_lost({*self._ends_of([*self._links, *drainable]), *self._tap_names()})
        self._lost_at_release: dict[str, int] = {}

    def release(self) -> None:
        """Make the relay forward the frames that are still in the sockets of leaving links, and release the links.

        Call it when frames of these links take another path, before any of their interfaces is removed and before the
        relay listens on other interfaces.
        """
        self._call("release")
        self._lost_at_release = self._read_lost(self._tap_names())

    def _call(self, command: str) -> None:
        """Send a command about the leaving links to the relay's processes; note the frames that they deliver early."""
        for number, links in self._leaving.items():
            with contextlib.suppress(NotListeningError):
                reply = call(RelayPaths(self._directory).socket(number), {"do": command, "links": links})
                for link, early in reply["early"].items():
                    self._early[link] = self._early.get(link, 0) + early

    def record_events(self, early: Mapping[str, int], lost: Mapping[str, int]) -> None:
        """Record an event for each link: its old and new datapath, and the numbers of frames lost and delivered early.

        early, lost: link -> number of frames that left a qdisc early, or were lost in it.
        """
        links = sorted({*self._links, *early, *lost})
        after = self._read_lost(self._ends_of(links))
        for link in links:
            ends, tap_names = self._ends.get(link, ()), self._taps.get(link, ())
            event_log.record(
                self._directory,
                "replugged",
                link=link,
                before=self._before.get(link, "direct"),
                after=self._after.get(link, "direct"),
                lost=_increase(self._lost, after, ends)
                + _increase(self._lost, self._lost_at_release, tap_names)
                + lost.get(link, 0),
                early=self._early.get(link, 0) + early.get(link, 0),
            )

    def _ends_of(self, links: Iterable[str]) -> set[str]:
        return {end for link in links for end in self._ends.get(link, ())}

    def _tap_names(self) -> set[str]:
        return {name for names in self._taps.values() for name in names}

    def _read_lost(self, names: Collection[str]) -> dict[str, int]:
        """Read the number of frames lost at each of these interfaces of the wire namespace: those that no protocol accepted,
        and those that could not be sent."""
        if not names:
            return {}
        counters_by_name = counters(self._executor.open(namespace_names.WIRE).route, names)
        return {name: counts.rx_unclaimed + counts.tx_dropped for name, counts in counters_by_name.items()}


def _increase(before: Mapping[str, int], after: Mapping[str, int], names: Iterable[str]) -> int:
    """Return the sum of the increases of these interfaces' counts. A new interface starts at 0."""
    return sum(max(0, after[name] - before.get(name, 0)) for name in names if name in after)


def _differing(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    return sorted(link for link in {*before, *after} if before.get(link) != after.get(link))


def _leaving(directory: Path, orders: Orders) -> dict[int, list[str]]:
    """Return the links that the relay forwards now but not under the new orders, by the number of the relay process."""
    current = RelayPaths(directory).read_orders()
    if current is None:
        return {}
    names = {link.name for link in orders.links}
    leaving: dict[int, list[str]] = {}
    for link in current.links:
        if link.name not in names:
            leaving.setdefault(current.process_of(link), []).append(link.name)
    return leaving


def _process_count() -> int:
    """Return the number of relay processes for this machine: two processors are left to the communicating programs."""
    return max(1, min(_MAX_PROCESSES, len(os.sched_getaffinity(0)) - 2))


def engage(store: Store, state: State, orders: Orders, before: State | None = None) -> None:
    """Write the orders and make the relay and the supervisor apply them; when this returns, they are in force.

    The state, including its injections, must be written. before: the state before a change of injections alone. Raises
    KernelError with the relay's reason, and the errors of `supervisor.ensure`.
    """
    paths = RelayPaths(store.directory(state.name))
    current = paths.read_orders()
    orders = replace(orders, processes=current.processes if current is not None else _process_count())
    if orders.links:
        if current != orders:
            paths.write_orders(orders)
    elif current is not None:
        remove_file(paths.orders)
    timed = any(injection.until for injection in state.injected)
    is_needed = orders.links or timed or state.nics is not None or state.has_tunnels
    if not (is_needed or current is not None or running_supervisor(paths.directory)):
        return
    from testbed.cluster.services import (
        supervisor,  # imports the relay's code, which a cluster without impairments does not need
    )

    if not supervisor.is_needed(state, orders):
        ending = supervisor.ensure(store, state)  # makes a running one read the state and end
        if ending is not None:
            wait_until_gone(ending)
        return
    numbers = orders.numbers()
    if not (
        before is not None
        and current is not None
        and (current.numbers(), _heal_times(before)) == (numbers, _heal_times(state))
        and locks.holder(supervisor_lock(paths.directory))
    ):
        supervisor.ensure(store, state)
    for number in numbers:  # even unchanged orders: an interface may have been recreated
        _load_orders(paths.socket(number), lambda: supervisor.ensure(store, state))


def _heal_times(state: State) -> list[int]:
    """Return the times at which injections heal by themselves."""
    return [injection.until for injection in state.injected if injection.until]


def _load_orders(socket: Path, restart: Callable[[], object]) -> None:
    """Make a relay process load its orders. restart: restarts the relay if its process does not listen. Raises KernelError
    with the relay's reason."""
    deadline = time.monotonic() + CALL_TIMEOUT
    while True:
        with contextlib.suppress(NotListeningError):
            call(socket, {"do": "load"})
            return
        if time.monotonic() > deadline:
            raise KernelError("the relay ends repeatedly: 'testbed events' shows the reason")
        time.sleep(_POLL_INTERVAL)  # until the supervisor notices that the process has ended
        restart()


def report(store: Store, state: State) -> dict[str, Any] | None:
    """Read the relay's current report; None if there is no relay or one of its processes does not listen. Raises KernelError
    if a process listens and does not answer.

    Links, modelled switches and idle rules of all processes are merged. "processes" lists the other values of each process;
    "pid" is that of the first process, "begun" and "time" are the latest, "processor" is the sum.
    """
    paths = RelayPaths(store.directory(state.name))
    orders = paths.read_orders()
    merged: dict[str, Any] = {"processes": [], "links": {}, "switches": {}, "idle_rules": []}
    for number in orders.numbers() if orders is not None else ():
        try:
            call(paths.socket(number), {"do": "report"})
        except NotListeningError:
            return None
        process_report = paths.read_report(number)
        merged["links"].update(process_report.pop("links"))
        merged["switches"].update(process_report.pop("switches"))
        merged["idle_rules"] += process_report.pop("idle_rules")
        merged["processes"].append(process_report)
    reports = merged["processes"]
    if not reports:
        return None
    used, spun = (sum(process["processor"][key] for process in reports) for key in ("used", "spun"))
    return {
        **merged,
        "pid": reports[0]["pid"],
        "begun": max(process["begun"] for process in reports),
        "time": max(process["time"] for process in reports),
        "processor": {"used": used, "spun": spun},
    }


def known_texts(store: Store, name: str) -> Mapping[str, str]:
    """Return the texts of the tables and traces in the relay's orders, by their paths in the impairments."""
    orders = RelayPaths(store.directory(name)).read_orders()
    return orders.files if orders is not None else {}


def idle_rules(store: Store, state: State, numbers: Sequence[int] = ()) -> list[str]:
    """Return a message for each injected rule that has not decided any frame's fate. numbers: of the injections; empty:
    all."""
    relay_report = report(store, state) if any(injection.rules for injection in state.injected) else None
    if relay_report is None:
        return []
    decided: dict[str, int] = {}
    for link in relay_report["links"].values():
        for direction in link.values():
            for name, rule in direction["rules"].items():
                if not numbers or int(name.partition(".")[0]) in numbers:
                    key = f"{name.partition('.')[0]}: {rule['text']}"
                    decided[key] = decided.get(key, 0) + rule["decided"]
    return [f"rule {shorten_rule(text.partition(': ')[2])!r} of {text.partition(': ')[0]} has decided no frame's fate"
            for text, count in decided.items() if not count]  # fmt: skip
