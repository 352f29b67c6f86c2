"""Counts of the frames that the links of a cluster have carried and dropped, by link and direction.

Frames and bytes are the kernel's counters in the wire namespace, where all links except direct ones end. The mapping of
interface counters to directions is recomputed only after a change of interfaces or of the cluster's state, so that a reading
is usually one dump of counters. The relay, the loss classifiers and the queueing disciplines count their drops separately.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from testbed.cluster.faults.injections import BOTH, DirectionName, is_down
from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.veth_wiring import free_ends, stage_ends, wire_ends
from testbed.cluster.records.state import State
from testbed.errors import KernelError
from testbed.fates.fate_counters import CAUSES, FATES
from testbed.kernel import bpf, loss_classifier, rtnl_dump, userns
from testbed.kernel.interface_counters import (
    CounterSockets,
    InterfaceCounters,
    open_sockets,
    read_counters,
    read_queue_drops,
)
from testbed.kernel.netlink import RequestError
from testbed.runtime.calls import NotListeningError, call
from testbed.runtime.relay.orders import RelayPaths
from testbed.spec.layout import Link

_LINKS_PER_CALL: Final = 50  # the relay forwards no frames while it processes a call
_REPLY_TIMEOUT: Final = 0.5  # s to wait for the relay's reply
_MAX_CLASSIFIERS: Final = 400  # each needs a file descriptor; the default limit is 1,024

DirectionKey = tuple[str, DirectionName]


class DirectionCounter(NamedTuple):
    """Counter of one direction. key: key of the interface's namespace. interface: index of the interface. receives: whether
    the counted frames are those that the interface receives; otherwise those that it sends."""

    key: str
    interface: int
    receives: bool


@dataclass(frozen=True, slots=True)
class Wire:
    """Current wiring of a link. state: "up", "down" or "GONE". counters: by direction; empty if no interface counts."""

    state: str
    counters: Mapping[DirectionName, DirectionCounter] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DirectionTraffic:
    """Totals of one direction. dropped: frames by cause. fates: fates other than drops, as in `fates.fate_counters`."""

    frames: int = 0
    bytes: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    fates: Mapping[str, int] = field(default_factory=dict)


class Wires:
    """Counters of one cluster's links, as long as its namespaces stay the same (`has_namespaces_of`)."""

    def __init__(self, state: State, directory: Path, holder: int) -> None:
        """directory: directory of the cluster. holder: pid of the process in whose mount namespace the names of the
        cluster's namespaces are; 0: they are in that of this process. Raises OSError, KernelError."""
        self._relay_paths = RelayPaths(directory)
        self._holder = holder
        self._paths = dict(state.namespaces)
        self._sockets: dict[str, CounterSockets] = {}
        self._state = state
        self._wires: dict[str, Wire] = {}
        self._inner: set[str] = set()  # links between modelled switches, which the relay alone counts
        self._links_by_process: dict[int, list[str]] = {}  # relay process -> the links that it forwards
        self._free_ends: dict[DirectionKey, int] = {}  # interface on which the datapath receives a direction's frames
        self._stages: dict[DirectionKey, int] = {}  # interface with the kernel discipline of a direction
        self._classifiers: dict[DirectionKey, bpf.Map] = {}  # counters of the loss classifiers
        try:
            self._open_sockets(namespace_names.WIRE)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for sockets in self._sockets.values():
            sockets.close()
        self._sockets.clear()
        self._close_classifiers()

    def has_namespaces_of(self, state: State) -> bool:
        """Whether the state has the namespaces opened here."""
        return self._paths == dict(state.namespaces)

    def sample(self, state: State) -> tuple[dict[str, Wire], dict[DirectionKey, DirectionTraffic]]:
        """Return the wiring of the links, and the totals of their directions. Raises OSError if the namespaces are gone."""
        changes = [sockets.monitor.drain() for sockets in self._sockets.values()]
        if any(changes) or state is not self._state or not self._wires:
            self._state = state
            self._locate_counters(state)
        counts = {key: read_counters(sockets.route) for key, sockets in self._sockets.items()}
        carriers = set(state.datapaths.values())
        relayed = self._relay_counts(state) if "relay" in carriers else {}
        queues = read_queue_drops(self._sockets[namespace_names.WIRE].route) if carriers & {"netem", "tc"} else {}
        totals: dict[DirectionKey, DirectionTraffic] = {}
        for link, wire in self._wires.items():
            if link in self._inner:
                totals |= {
                    (link, direction): _relayed_traffic(relayed.get((link, direction), {})) for direction in BOTH
                }
            for direction, counter in wire.counters.items():
                interface = counts[counter.key].get(counter.interface)
                if interface is None:
                    continue
                direction_key = link, direction
                counts_of_relay = relayed.get(direction_key, {})
                causes = {name: counts_of_relay[name] for name in CAUSES if name in counts_of_relay}
                fates = {name: counts_of_relay[name] for name in FATES if name in counts_of_relay}
                if direction_key in self._classifiers:
                    causes |= _drops(loss_classifier.counters_in(self._classifiers[direction_key]))
                if queues and (queue_full := queues.get(self._stages.get(direction_key, 0))):
                    causes["queue"] = causes.get("queue", 0) + queue_full
                totals[direction_key] = _traffic(interface, counter.receives, causes, fates)
        return dict(self._wires), totals

    def _open_sockets(self, key: str) -> CounterSockets | None:
        """Return the sockets in a namespace, opened on first use; None if the cluster has no such namespace."""
        if key not in self._sockets and key in self._paths:
            self._sockets[key] = open_sockets(self._paths[key], self._holder)
        return self._sockets.get(key)

    def _locate_counters(self, state: State) -> None:
        """Find the interface counters of each link's directions."""
        self._close_classifiers()
        self._wires.clear()
        self._free_ends.clear()
        self._stages.clear()
        self._links_by_process.clear()
        self._inner.clear()
        for link in state.layout.links:
            for end in (link.a, link.b) if link.datapath == "direct" else ():
                with suppress(OSError):  # the node has been removed
                    self._open_sockets(end.owner)
        interfaces = {
            key: rtnl_dump.by_name(rtnl_dump.interfaces(sockets.route)) for key, sockets in self._sockets.items()
        }
        wire = interfaces[namespace_names.WIRE]
        modelled, tunnels = state.layout.simulated_switches().keys(), state.layout.tunnels()
        for link, ends in zip(state.layout.links, wire_ends(state.layout), strict=True):
            self._wires[link.name] = _find_counters(link, ends, interfaces, is_tunnel=link.name in tunnels)
            if modelled >= {link.a.owner, link.b.owner}:  # a link within the relay, which no interface counts
                self._wires[link.name] = Wire("down" if is_down(link, state.injected) else "up")
                self._inner.add(link.name)
            if state.datapaths.get(link.name, "direct") == "direct":
                continue
            for direction, device in zip(BOTH, free_ends(state.layout, link.name), strict=True):
                if device in wire:
                    self._free_ends[link.name, direction] = wire[device].index
            if state.datapaths[link.name] == "relay":
                continue
            for direction, device in zip(BOTH, stage_ends(state.layout, link.name), strict=True):
                if device in wire:
                    self._stages[link.name, direction] = wire[device].index
        self._open_classifiers(state)

    def _open_classifiers(self, state: State) -> None:
        """Open the counters of loss classifiers, which only a cluster with root has."""
        if self._holder or not userns.is_root():
            return
        wire = self._sockets[namespace_names.WIRE].route
        for key, index in self._free_ends.items():
            if state.datapaths.get(key[0]) == "tc":
                if len(self._classifiers) == _MAX_CLASSIFIERS:
                    return
                with suppress(OSError, RequestError):  # the classifier is being replaced: a notification follows
                    counters = loss_classifier.open_counters(wire, index)
                    if counters is not None:
                        self._classifiers[key] = counters

    def _close_classifiers(self) -> None:
        for counters in self._classifiers.values():
            counters.close()
        self._classifiers.clear()

    def _relay_counts(self, state: State) -> dict[DirectionKey, Mapping[str, int]]:
        """Query the relay's processes for their counters; a process that does not answer in time is left out."""
        self._links_by_process = self._links_by_process or self._assign_links(state)
        counts: dict[DirectionKey, Mapping[str, int]] = {}
        for number, links in self._links_by_process.items():
            for first in range(0, len(links), _LINKS_PER_CALL):
                try:
                    reply = call(
                        self._relay_paths.socket(number),
                        {"do": "count", "links": links[first : first + _LINKS_PER_CALL]},
                        _REPLY_TIMEOUT,
                    )
                except (NotListeningError, KernelError):
                    break
                for link, directions in reply["links"].items():
                    for direction in BOTH:
                        counts[link, direction] = directions[direction]
        return counts

    def _assign_links(self, state: State) -> dict[int, list[str]]:
        """Return the links that each of the relay's processes forwards."""
        orders = self._relay_paths.read_orders()
        links_by_process: dict[int, list[str]] = {}
        for link, number in orders.processes_of().items() if orders is not None else ():
            if state.datapaths.get(link) == "relay":
                links_by_process.setdefault(number, []).append(link)
        return links_by_process


def _find_counters(
    link: Link, ends: tuple[str, str], interfaces: Mapping[str, Mapping[str, rtnl_dump.Interface]], *, is_tunnel: bool
) -> Wire:
    """Find a link's counters. Frames from end `a` are received by its interface in the wire namespace. If only the interface
    of `b` is there, they are the frames that it sends."""
    if link.datapath == "direct":
        a, b = (interfaces.get(end.owner, {}).get(end.port) for end in (link.a, link.b))
        if a is not None and b is not None:
            return Wire(
                _state(a, b),
                _pair(DirectionCounter(link.b.owner, b.index, True), DirectionCounter(link.a.owner, a.index, True)),
            )
        nic, owner = (a, link.a.owner) if a is not None else (b, link.b.owner)
        if nic is None or not is_tunnel:
            return Wire("GONE")
        received, sent = (DirectionCounter(owner, nic.index, receives) for receives in (True, False))
        return Wire(_state(nic), _pair(sent, received) if a is not None else _pair(received, sent))
    a, b = (interfaces[namespace_names.WIRE].get(end) for end in ends)
    if a is not None and b is not None:
        of_a, of_b = (DirectionCounter(namespace_names.WIRE, end.index, True) for end in (a, b))
        is_single_pair = a.peer == b.index  # of veth interfaces, between two switches; otherwise there are two pairs
        return Wire(_state(a, b), _pair(of_b, of_a) if is_single_pair else _pair(of_a, of_b))
    end = a or b
    if end is None:
        return Wire("GONE")
    received, sent = (DirectionCounter(namespace_names.WIRE, end.index, receives) for receives in (True, False))
    return Wire(_state(end), _pair(received, sent) if a is not None else _pair(sent, received))


def _state(*ends: rtnl_dump.Interface) -> str:
    return "up" if all(end.up for end in ends) else "down"


def _pair(forward: DirectionCounter, backward: DirectionCounter) -> dict[DirectionName, DirectionCounter]:
    return {"forward": forward, "backward": backward}


def _drops(counters: loss_classifier.Counters) -> dict[str, int]:
    causes = {"loss": counters.loss, "gemodel": counters.gemodel, "loss_pattern": counters.loss_pattern}
    return {cause: count for cause, count in causes.items() if count}


def _relayed_traffic(counts: Mapping[str, int]) -> DirectionTraffic:
    dropped, fates = ({name: counts[name] for name in names if name in counts} for names in (CAUSES, FATES))
    return DirectionTraffic(counts.get("delivered", 0), counts.get("delivered_bytes", 0), dropped, fates)


def _traffic(
    counts: InterfaceCounters, receives: bool, causes: dict[str, int], fates: dict[str, int]
) -> DirectionTraffic:
    frames, size, lost = (
        (counts.rx_frames, counts.rx_bytes, counts.rx_dropped)
        if receives
        else (counts.tx_frames, counts.tx_bytes, counts.tx_dropped)
    )
    if lost:
        causes["kernel"] = lost
    return DirectionTraffic(frames, size, causes, fates)
