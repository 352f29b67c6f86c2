"""The relay of a cluster, seen from the commands that change its links."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from testbed.cluster import names
from testbed.cluster.applying import Workshop
from testbed.cluster.state import State, Store
from testbed.cluster.wiring import wire_ends
from testbed.errors import KernelError
from testbed.kernel.files import remove_file, replace_file
from testbed.kernel.processes import Identity, wait_until_gone
from testbed.kernel.survey import interfaces
from testbed.runtime import events
from testbed.runtime.calls import PATIENCE, NotThereError, call
from testbed.runtime.orders import Orders, Places

_MOST_PROCESSES: Final = 4
_MOMENT: Final = 0.01  # s


class Duties(NamedTuple):
    """What a steward does to its cluster when the time has come. heal(store, cluster, number): heals one injection.
    stop_sharing(store, cluster): NICs whose owner has ended are shared no more."""

    heal: Callable[[Store, str, int], object]
    stop_sharing: Callable[[Store, str], object]


class Replugging:
    """Links that change hands: made before the first operation, told of after the last.

    What the relay held of a link that it carries no more has been delivered early. What came in on a link's ends while
    nobody carried it is lost, and counted by the kernel.
    """

    def __init__(self, store: Store, workshop: Workshop, before: State | None, after: State, orders: Orders) -> None:
        self._directory = store.directory(after.name)
        self._workshop = workshop
        had = before.datapaths if before is not None else {}
        self._links = [] if before is None else _differing(had, after.datapaths)
        self._had, self._have = had, after.datapaths
        self._ends = dict(zip((link.name for link in after.layout.links), wire_ends(after.layout), strict=True))
        leaving = _leaving(self._directory, orders)
        self._unclaimed = self._read_unclaimed() if self._links else {}
        self._refused = self._read_refused() if self._links else {}
        self._early: dict[str, int] = {}
        for number, links in leaving.items():
            with contextlib.suppress(NotThereError):
                answer = call(Places(self._directory).socket(number), {"do": "release", "links": links})
                self._early.update(answer["early"])
                self._unclaimed.update(
                    answer["unclaimed"]
                )  # until then the relay took them, whatever the kernel counted

    def tell(self, unclaimed: Mapping[str, int]) -> None:
        """An event for each link: from whom to whom, how many frames were lost on the way or came early. unclaimed: what
        `engage` says of the links that the relay has taken over."""
        if not self._links:
            return
        after = {**self._read_unclaimed(), **unclaimed}
        refused = self._read_refused()
        for link in self._links:
            ends = self._ends.get(link, ())
            events.record(
                self._directory,
                "replugged",
                link=link,
                before=self._had.get(link, "direct"),
                after=self._have.get(link, "direct"),
                lost=_rise(self._unclaimed, after, ends) + _rise(self._refused, refused, ends),
                early=self._early.get(link, 0),
            )

    def _read_unclaimed(self) -> dict[str, int]:
        """By wire-side interface the frames that came in and that nobody took."""
        return {one.name: one.counters.rx_unclaimed for one in interfaces(self._workshop.open(names.WIRE).route)}

    def _read_refused(self) -> dict[str, int]:
        """The frames that the NIC at the other end refused: it was just being given other offloads."""
        return {one.name: one.counters.tx_dropped for one in interfaces(self._workshop.open(names.WIRE).route)}


def _rise(before: Mapping[str, int], after: Mapping[str, int], ends: Sequence[str]) -> int:
    return sum(max(0, after[end] - before[end]) for end in ends if end in before and end in after)


def _differing(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    return sorted(link for link in {*before, *after} if before.get(link) != after.get(link))


def _leaving(directory: Path, orders: Orders) -> dict[int, list[str]]:
    """The links that the relay carries and is to carry no more, by the number of its process."""
    known = Places(directory).read_orders()
    staying = {link.name for link in orders.links}
    leaving: dict[int, list[str]] = {}
    for link in known.links if known is not None else ():
        if known is not None and link.name not in staying:
            leaving.setdefault(known.process_of(link), []).append(link.name)
    return leaving


def _processes() -> int:
    """How many processes a relay has here: it leaves two processors to those whose frames it carries."""
    return max(1, min(_MOST_PROCESSES, len(os.sched_getaffinity(0)) - 2))


class Engaged(NamedTuple):
    """steward: the process that is needed now, if one is. unclaimed: by free end of the links that the relay has just taken
    over, how many frames nobody had taken until then."""

    steward: Identity | None = None
    unclaimed: Mapping[str, int] = MappingProxyType({})


def engage(store: Store, state: State, orders: Orders, duties: Duties) -> Engaged:
    """Have the orders in force when this returns.

    The state must be written, with what is injected.
    """
    places = Places(store.directory(state.name))
    known = places.read_orders()
    orders = replace(orders, processes=known.processes if known is not None else _processes())
    if orders.links:
        if known != orders:
            replace_file(places.orders, orders.to_json())
    elif known is not None:
        remove_file(places.orders)
    timed = any(injection.until for injection in state.injected)
    if not (orders.links or timed or known is not None or state.steward is not None or state.nics is not None):
        return Engaged()
    from testbed.cluster import steward  # with the relay's code, which a cluster without impairments does not need

    if not steward.needed(state, orders):
        leaving = steward.ensure(store, state, duties)  # it looks, and ends
        for one in (leaving, state.steward):
            if one is not None:
                wait_until_gone(one)
        return Engaged()
    identity = steward.ensure(store, state, duties)
    unclaimed: dict[str, int] = {}
    for number in range(orders.processes):  # the same orders, too: a free end may be another interface by now
        if orders.share(number).links:
            unclaimed |= _load(places.socket(number), lambda: steward.ensure(store, state, duties))
    return Engaged(identity, unclaimed)


def _load(socket: Path, start_again: Callable[[], object]) -> dict[str, int]:
    """Have a process of the relay do what its orders say; see `Engaged`. KernelError with what it says against them."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(NotThereError):
            unclaimed: dict[str, int] = call(socket, {"do": "load"})["unclaimed"]
            return unclaimed
        if time.monotonic() > deadline:
            raise KernelError("the relay ends again and again: 'testbed events' says more")
        time.sleep(_MOMENT)  # it is dying: it hears no more, but the steward sees it end only with its last socket
        start_again()


def report(store: Store, state: State) -> dict[str, Any] | None:
    """What the relay says of itself now; None where there is none, or not all of it.

    Of several processes the links, Myrinet's switches and sentences are together. "processes" is what each says of itself;
    "pid" is the first one's, "begun" when the last one began, "processor" the sum.
    """
    places = Places(store.directory(state.name))
    orders = places.read_orders()
    whole: dict[str, Any] = {"processes": [], "links": {}, "switches": {}, "idle_rules": []}
    for number in range(orders.processes) if orders is not None else ():
        if orders is None or not orders.share(number).links:
            continue
        try:
            call(places.socket(number), {"do": "report"})
        except NotThereError:
            return None
        said = places.read_report(number)
        whole["links"].update(said.pop("links"))
        whole["switches"].update(said.pop("switches"))
        whole["idle_rules"] += said.pop("idle_rules")
        whole["processes"].append(said)
    each = whole["processes"]
    if not each:
        return None
    used, spun = (sum(one["processor"][key] for one in each) for key in ("used", "spun"))
    return {
        **whole,
        "pid": each[0]["pid"],
        "begun": max(one["begun"] for one in each),
        "time": max(one["time"] for one in each),
        "processor": {"used": used, "spun": spun},
    }


def known_texts(store: Store, name: str) -> Mapping[str, str]:
    """The texts of tables and traces that the relay has, by the names that impairments give them."""
    orders = Places(store.directory(name)).read_orders()
    return orders.files if orders is not None else {}


def idle_rules(store: Store, state: State, numbers: Sequence[int] = ()) -> list[str]:
    """A sentence for each injected rule (of these injections, or of all) that has not decided any frame's fate."""
    said = report(store, state) if any(injection.rules for injection in state.injected) else None
    if said is None:
        return []
    decided: dict[str, int] = {}
    for link in said["links"].values():
        for direction in link.values():
            for name, rule in direction["rules"].items():
                if not numbers or int(name.partition(".")[0]) in numbers:
                    key = f"{name.partition('.')[0]}: {rule['text']}"
                    decided[key] = decided.get(key, 0) + rule["decided"]
    return [f"rule {text.partition(': ')[2]!r} of {text.partition(': ')[0]} has decided no frame's fate"
            for text, count in decided.items() if not count]  # fmt: skip
