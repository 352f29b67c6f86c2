"""What the links of a cluster have carried and dropped until now, link by link and direction by direction.

Frames and bytes are the kernel's counts on the wire side, where all links but direct ones end. Which counter of which
interface means what is worked out once, and again after there has been news; a look is then one dump of counters. What
drops frames between a link's ends is asked for its own counts: the relay, the loss classifiers, queueing disciplines.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from testbed.cluster import names
from testbed.cluster.injections import BOTH, DirectionName, is_down
from testbed.cluster.state import State
from testbed.cluster.wiring import free_ends, wire_ends
from testbed.errors import KernelError
from testbed.kernel import bpf, loss_classifier, survey, userns
from testbed.kernel.counting import Counted, Ears, counted, ears, queue_drops
from testbed.kernel.netlink import RequestError
from testbed.runtime.calls import NotThereError, call
from testbed.runtime.orders import Places
from testbed.spec.layout import Link
from testbed.wire.counters import CAUSES

_AT_ONCE: Final = 50  # links that the relay is asked for in one turn of its
_PATIENCE: Final = 0.5  # s for an answer of the relay's
_MOST_CLASSIFIERS: Final = 400  # a descriptor each, of the 1,024 that a process usually may have

Place = tuple[str, DirectionName]


class Counter(NamedTuple):
    """One direction's: an interface (namespace key, index), and whether what it receives or what it sends is meant."""

    key: str
    interface: int
    receives: bool


@dataclass(frozen=True, slots=True)
class Wire:
    """A link as it is wired now. state: "up", "down" or "GONE"."""

    state: str
    counters: Mapping[DirectionName, Counter] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Carried:
    """One direction until now. dropped: frames by cause. met: what else was done to frames, as `wire.counters` has it."""

    frames: int = 0
    bytes: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    met: Mapping[str, int] = field(default_factory=dict)


class Wires:
    """Of one cluster, while its namespaces stay the same ones. Opening raises OSError, KernelError."""

    def __init__(self, state: State, directory: Path, keeper: int) -> None:
        """directory: the cluster's. keeper: the process whose namespaces have the cluster's names; 0: ours have."""
        self._places = Places(directory)
        self._keeper = keeper
        self._paths = dict(state.namespaces)
        self._ears: dict[str, Ears] = {}
        self._state = state
        self._wires: dict[str, Wire] = {}
        self._shares: dict[int, list[str]] = {}  # links by the relay's process that carries them
        self._free: dict[Place, int] = {}  # the interface on which frames of a direction come to whoever carries it
        self._classifiers: dict[Place, bpf.Map] = {}  # their counters
        try:
            self._hear(names.WIRE)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for one in self._ears.values():
            one.close()
        self._ears.clear()
        self._forget_classifiers()

    def fits(self, state: State) -> bool:
        """Whether that state's cluster has the same namespaces."""
        return self._paths == dict(state.namespaces)

    def look(self, state: State) -> tuple[dict[str, Wire], dict[Place, Carried]]:
        """How the links are wired, and what they have carried. OSError where the namespaces are gone."""
        heard = [one.news.heard() for one in self._ears.values()]
        if any(heard) or state is not self._state or not self._wires:
            self._state = state
            self._work_out(state)
        counts = {key: counted(one.route) for key, one in self._ears.items()}
        carriers = set(state.datapaths.values())
        relayed = self._relayed(state) if "relay" in carriers else {}
        queues = queue_drops(self._ears[names.WIRE].route) if carriers & {"netem", "tc"} else {}
        found = {}
        for link, wire in self._wires.items():
            for direction, counter in wire.counters.items():
                one = counts[counter.key].get(counter.interface)
                if one is None:
                    continue
                place = link, direction
                told = relayed.get(place, {})
                causes = {name: told[name] for name in CAUSES if name in told}
                met = {name: count for name, count in told.items() if name not in causes}
                if place in self._classifiers:
                    causes |= _lost(loss_classifier.counters_in(self._classifiers[place]))
                if queues and (full := queues.get(self._free.get(_other(place), 0))):
                    causes["queue"] = causes.get("queue", 0) + full
                found[place] = _carried(one, counter.receives, causes, met)
        return dict(self._wires), found

    def _hear(self, key: str) -> Ears | None:
        if key not in self._ears and key in self._paths:
            self._ears[key] = ears(self._paths[key], self._keeper)
        return self._ears.get(key)

    def _work_out(self, state: State) -> None:
        """Where everything is to be read now."""
        self._forget_classifiers()
        self._wires.clear()
        self._free.clear()
        self._shares.clear()
        for link in state.layout.links:
            for end in (link.a, link.b) if link.datapath == "direct" else ():
                with suppress(OSError):  # the node is gone
                    self._hear(end.owner)
        there = {key: survey.by_name(survey.interfaces(one.route)) for key, one in self._ears.items()}
        wire = there[names.WIRE]
        crossbars = state.layout.crossbars()
        for link, ends in zip(state.layout.links, wire_ends(state.layout), strict=True):
            self._wires[link.name] = _wired(link, ends, there)
            if crossbars >= {link.a.owner, link.b.owner}:  # a cable in the relay, which no interface counts
                self._wires[link.name] = Wire("down" if is_down(link, state.injected) else "up")
            if state.datapaths.get(link.name, "direct") == "direct":
                continue
            for direction, device in zip(BOTH, free_ends(state.layout, link.name), strict=True):
                if device in wire:
                    self._free[link.name, direction] = wire[device].index
        self._open_classifiers(state)

    def _open_classifiers(self, state: State) -> None:
        """As root only: without root there are none."""
        if self._keeper or not userns.is_root():
            return
        wire = self._ears[names.WIRE].route
        for place, index in self._free.items():
            if state.datapaths.get(place[0]) == "tc":
                if len(self._classifiers) == _MOST_CLASSIFIERS:
                    return
                with suppress(OSError, RequestError):  # it is just being replaced: then there will be news
                    found = loss_classifier.open_counters(wire, index)
                    if found is not None:
                        self._classifiers[place] = found

    def _forget_classifiers(self) -> None:
        for one in self._classifiers.values():
            one.close()
        self._classifiers.clear()

    def _relayed(self, state: State) -> dict[Place, Mapping[str, int]]:
        """What the relay says; nothing of a process of it that does not answer in time."""
        self._shares = self._shares or self._shared_out(state)
        found: dict[Place, Mapping[str, int]] = {}
        for number, links in self._shares.items():
            for first in range(0, len(links), _AT_ONCE):
                try:
                    said = call(
                        self._places.socket(number),
                        {"do": "count", "links": links[first : first + _AT_ONCE]},
                        _PATIENCE,
                    )
                except (NotThereError, KernelError):
                    break
                for link, directions in said["links"].items():
                    for direction in BOTH:
                        found[link, direction] = directions[direction]
        return found

    def _shared_out(self, state: State) -> dict[int, list[str]]:
        known = self._places.read_orders()
        shares: dict[int, list[str]] = {}
        for link, number in known.processes_of().items() if known is not None else ():
            if state.datapaths.get(link) == "relay":
                shares.setdefault(number, []).append(link)
        return shares


def _wired(link: Link, ends: tuple[str, str], there: Mapping[str, Mapping[str, survey.Interface]]) -> Wire:
    """Frames from a arrive at its wire-side end; at the far side of a switch they leave by b's."""
    if link.datapath == "direct":
        a = there.get(link.a.owner, {}).get(link.a.port)
        b = there.get(link.b.owner, {}).get(link.b.port)
        if a is None or b is None:
            return Wire("GONE")
        return Wire(_state(a, b), _pair(Counter(link.b.owner, b.index, True), Counter(link.a.owner, a.index, True)))
    a, b = (there[names.WIRE].get(end) for end in ends)
    if a is not None and b is not None:
        of_a, of_b = (Counter(names.WIRE, one.index, True) for one in (a, b))
        switches_only = a.peer == b.index  # one pair between two switches; else two pairs, joined
        return Wire(_state(a, b), _pair(of_b, of_a) if switches_only else _pair(of_a, of_b))
    one = a or b
    if one is None:
        return Wire("GONE")
    comes, goes = (Counter(names.WIRE, one.index, receives) for receives in (True, False))
    return Wire(_state(one), _pair(comes, goes) if a is not None else _pair(goes, comes))


def _state(*ends: survey.Interface) -> str:
    return "up" if all(end.up for end in ends) else "down"


def _pair(forward: Counter, backward: Counter) -> dict[DirectionName, Counter]:
    return {"forward": forward, "backward": backward}


def _other(place: Place) -> Place:
    """Frames of a direction leave by the interface on which those of the other one come."""
    return place[0], "backward" if place[1] == "forward" else "forward"


def _lost(counters: loss_classifier.Counters) -> dict[str, int]:
    causes = {"loss": counters.loss, "gemodel": counters.gemodel, "loss_pattern": counters.loss_pattern}
    return {cause: count for cause, count in causes.items() if count}


def _carried(one: Counted, receives: bool, causes: dict[str, int], met: dict[str, int]) -> Carried:
    frames, size, lost = (
        (one.rx_frames, one.rx_bytes, one.rx_dropped) if receives else (one.tx_frames, one.tx_bytes, one.tx_dropped)
    )
    if lost:
        causes["kernel"] = lost
    return Carried(frames, size, causes, met)
