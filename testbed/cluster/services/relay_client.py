"""The client side of a cluster's relay, for commands that change its links."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.netlink_executor import NetlinkExecutor
from testbed.cluster.plan.veth_wiring import all_free_ends, taps, wire_ends
from testbed.cluster.records.state import State, Store
from testbed.errors import KernelError
from testbed.kernel.filesystem import remove_file, replace_file
from testbed.kernel.processes import wait_until_gone
from testbed.kernel.rtnl_dump import interfaces
from testbed.runtime import event_log
from testbed.runtime.calls import CALL_TIMEOUT, NotListeningError, call
from testbed.runtime.relay.orders import Orders, RelayPaths
from testbed.runtime.supervision import running_supervisor

_MAX_PROCESSES: Final = 4
_POLL_INTERVAL: Final = 0.01  # s


class Replugging:
    """Links that change their datapath: created before the first operation of a change; records events after the last.

    Links that leave the relay are passed through without impairment from the start; frames that it held are delivered
    early.
    """

    def __init__(
        self, store: Store, executor: NetlinkExecutor, before: State | None, after: State, orders: Orders
    ) -> None:
        self._directory = store.directory(after.name)
        self._executor = executor
        before_datapaths = before.datapaths if before is not None else {}
        self._links = [] if before is None else _differing(before_datapaths, after.datapaths)
        self._had, self._have = before_datapaths, after.datapaths
        self._ends = {
            link.name: set(ends) for link, ends in zip(after.layout.links, wire_ends(after.layout), strict=True)
        }
        free = all_free_ends(after.layout)
        # The kernel also counts IP frames that the relay receives as unclaimed, so patch counts are meaningful only before.
        self._patches = {
            link: taps(*free[link])
            for link in self._links
            if before_datapaths.get(link) != "relay" and all(free.get(link, ("",)))
        }
        self._leaving = _leaving(self._directory, orders)
        self._early: dict[str, int] = {}
        self._ask("pass through")
        self._lost = self._read_lost() if self._links else {}
        self._released: dict[str, int] = {}

    def release(self) -> None:
        """Let the relay forward the frames still in its sockets for leaving links, and release the links.

        Called after their frames take another path, before any of their interfaces is removed and before the relay
        listens on others.
        """
        self._ask("release")
        if self._links:
            self._released = self._read_lost()

    def _ask(self, what: str) -> None:
        for number, links in self._leaving.items():
            with contextlib.suppress(NotListeningError):
                answer = call(RelayPaths(self._directory).socket(number), {"do": what, "links": links})
                for link, early in answer["early"].items():
                    self._early[link] = self._early.get(link, 0) + early

    def tell(self, early: Mapping[str, int], lost: Mapping[str, int]) -> None:
        """Record an event for each link: its old and new datapath, and how many frames were lost or delivered early.

        early, lost: link -> frames that waited in the kernel.
        """
        links = sorted({*self._links, *early, *lost})
        after = self._read_lost() if links else {}
        for link in links:
            ends, patch = self._ends.get(link, ()), self._patches.get(link, ())
            event_log.record(
                self._directory,
                "replugged",
                link=link,
                before=self._had.get(link, "direct"),
                after=self._have.get(link, "direct"),
                lost=_rise(self._lost, after, ends) + _rise(self._lost, self._released, patch) + lost.get(link, 0),
                early=self._early.get(link, 0) + early.get(link, 0),
            )

    def _read_lost(self) -> dict[str, int]:
        """Per wire-side interface, the frames that arrived unclaimed plus those that could not be sent."""
        found = interfaces(self._executor.open(namespace_names.WIRE).route)
        return {interface.name: interface.counters.rx_unclaimed + interface.counters.tx_dropped for interface in found}


def _rise(before: Mapping[str, int], after: Mapping[str, int], ends: Iterable[str]) -> int:
    """The sum of increases of these interfaces' counts. A new interface starts at 0."""
    return sum(max(0, after[end] - before.get(end, 0)) for end in ends if end in after)


def _differing(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    return sorted(link for link in {*before, *after} if before.get(link) != after.get(link))


def _leaving(directory: Path, orders: Orders) -> dict[int, list[str]]:
    """The links that the relay carries now but not by the new orders, by the number of its process."""
    known = RelayPaths(directory).read_orders()
    restore_namespace = {link.name for link in orders.links}
    leaving: dict[int, list[str]] = {}
    for link in known.links if known is not None else ():
        if known is not None and link.name not in restore_namespace:
            leaving.setdefault(known.process_of(link), []).append(link.name)
    return leaving


def _processes() -> int:
    """The number of relay processes on this machine: two processors are left to the communicating programs."""
    return max(1, min(_MAX_PROCESSES, len(os.sched_getaffinity(0)) - 2))


def engage(store: Store, state: State, orders: Orders) -> None:
    """Put the orders in force before returning.

    The state, including its injections, must be written.
    """
    places = RelayPaths(store.directory(state.name))
    known = places.read_orders()
    orders = replace(orders, processes=known.processes if known is not None else _processes())
    if orders.links:
        if known != orders:
            replace_file(places.orders, orders.to_json())
    elif known is not None:
        remove_file(places.orders)
    timed = any(injection.until for injection in state.injected)
    wanted = orders.links or timed or state.nics is not None or state.has_tunnels
    if not (wanted or known is not None or running_supervisor(places.directory)):
        return
    from testbed.cluster.services import (
        supervisor,  # imports the relay's code, which a cluster without impairments does not need
    )

    if not supervisor.needed(state, orders):
        leaving = supervisor.ensure(store, state)  # it reads the state and ends
        if leaving is not None:
            wait_until_gone(leaving)
        return
    supervisor.ensure(store, state)
    for number in range(orders.processes):  # even unchanged orders: a free end may be a new interface
        if orders.share(number).links:
            _load(places.socket(number), lambda: supervisor.ensure(store, state))


def _load(socket: Path, start_again: Callable[[], object]) -> None:
    """Make a relay process load its orders. KernelError carries the relay's reason."""
    deadline = time.monotonic() + CALL_TIMEOUT
    while True:
        with contextlib.suppress(NotListeningError):
            call(socket, {"do": "load"})
            return
        if time.monotonic() > deadline:
            raise KernelError("the relay ends again and again: 'testbed events' says more")
        time.sleep(_POLL_INTERVAL)  # it is dying; the supervisor notices when its last socket closes
        start_again()


def report(store: Store, state: State) -> dict[str, Any] | None:
    """The relay's current report; None if there is no relay or one of its processes does not answer.

    Links, modelled switches and sentences of all processes are merged. "processes" lists the reports of each; "pid" is
    the first one's, "begun" is when the last one started, "processor" is the sum.
    """
    places = RelayPaths(store.directory(state.name))
    orders = places.read_orders()
    merged: dict[str, Any] = {"processes": [], "links": {}, "switches": {}, "idle_rules": []}
    for number in range(orders.processes) if orders is not None else ():
        if orders is None or not orders.share(number).links:
            continue
        try:
            call(places.socket(number), {"do": "report"})
        except NotListeningError:
            return None
        process_report = places.read_report(number)
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
    """The texts of the tables and traces that the relay has, by the names that impairments give them."""
    orders = RelayPaths(store.directory(name)).read_orders()
    return orders.files if orders is not None else {}


def idle_rules(store: Store, state: State, numbers: Sequence[int] = ()) -> list[str]:
    """A sentence for each injected rule (of these injections, or of all) that has not decided any frame's fate."""
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
    return [f"rule {text.partition(': ')[2]!r} of {text.partition(': ')[0]} has decided no frame's fate"
            for text, count in decided.items() if not count]  # fmt: skip
