"""Exploration of the network from the mapper's own NIC, breadth first, until every port of every switch is known.

Mainwaring, Chun, Schleimer and Wilkerson ("System Area Network Mapping", SPAA 1997) explore with two kinds of probes,
for hosts and for switches, and merge the replicates of a switch that is reached by several routes through the hosts
that they have in common; what a bridge cuts off from all hosts remains unknown. Only the abstract of the paper was
available to us, so the method here is ours:

- A host probe follows a route, and the host at its end answers. The answer identifies the host, and so the switch: a
  host has one cable.
- A switch probe (loopback) follows a route, is sent back to where it came from by delta 0, and returns by the same
  cables.
- A comparison is a loopback probe that identifies a switch without hosts. To test whether an *entry*, a cable that
  leads to some switch, leads to port p of a known switch S, a probe enters by the cable, leaves by the delta from p to
  S's port 0, and returns from there by S's route. The probe returns if the entry leads to p of S. Conversely, every
  cable and every delta can be taken backwards, so that a probe that returns has passed S.

So the map contains only what probes have shown, and covers the whole network to which the NIC is connected. No probe
that can be answered takes a cable twice in one direction, where it could wait for itself, with one exception: a cable
that joins two ports of one switch without hosts. (An entry never leads back to a switch on its own route, since the
cables of earlier levels are known.) A comparison with the wrong switch may take a cable twice; its loss then makes no
difference.

The entries of a level of the breadth-first search are explored together. They are probed for hosts; if a known host
answers, the entry's switch is known. The other switches are probed for further switches. Then entries without a host
are compared with known switches without a host, at those ports that lead to a switch not identified yet.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from protocols.myrinet.envelope import Route, reverse_route
from protocols.myrinet.mapper.network_map import Port, Topology, span
from protocols.myrinet.mapper.prober import Answer, Batch, HostAnswer, Probe

ExplorationTask = Generator[Batch, None, Topology]
"""Generator that yields batches, is resumed after each, and returns a map. Raises ContradictionError."""


def loopback_route(route: Route) -> Route:
    """Return the route of a loopback probe to a switch: there, and back by the same cables. route: to the switch."""
    return (*route, 0, *reverse_route(route))


@dataclass(slots=True)
class Entry:
    """A cable that leads to a switch not identified yet. Ports of this switch are counted from the port of entry.

    route: to the switch. place: the near end of the cable; None: it is the NIC's own cable. hosts: hosts by port.
    switch_ports: ports that lead to switches. is_known: a host whose place is known has answered. used_ports: ports
    with a host or a switch.
    """

    route: Route
    place: Port | None
    hosts: dict[int, HostAnswer] = field(default_factory=dict)
    switch_ports: set[int] = field(default_factory=lambda: {0})
    is_known: bool = False
    used_ports: set[int] = field(default_factory=lambda: {0})


class FirstHopScan:
    """Batch that tests whether the NIC's own cable leads to a host or to a switch. host: the host; None: none has
    answered. is_switch: a switch has returned the probe."""

    has_retries = True
    is_patient = True

    def __init__(self) -> None:
        self.probes = [Probe(True, ()), Probe(False, loopback_route(()))]
        self.host: HostAnswer | None = None
        self.is_switch = False

    def is_wanted(self, probe: Probe) -> bool:  # noqa: ARG002
        return not self.is_switch and self.host is None

    def on_answer(self, probe: Probe, answer: Answer) -> None:  # noqa: ARG002
        self.host, self.is_switch = answer, answer is None


class PortScan:
    """Batch that tests which ports of the entries' switches have hosts, or lead to switches."""

    has_retries = True
    is_patient = False

    def __init__(self, entries: Sequence[Entry], ports: int, for_hosts: bool, known_places: dict[int, Port]) -> None:
        """ports: maximum ports of a switch. for_hosts: test for hosts; otherwise for switches. known_places: known
        places of hosts, by number."""
        self._entries, self._ports, self._known_places = entries, ports, known_places
        self.probes: list[Probe] = []
        for index, entry in enumerate(entries):
            for port in span(entry.used_ports, ports):
                if port not in entry.used_ports:
                    route = (*entry.route, port)
                    route = route if for_hosts else loopback_route(route)
                    self.probes.append(Probe(for_hosts, route, (index, port)))

    def is_wanted(self, probe: Probe) -> bool:
        index, port = probe.target
        entry = self._entries[index]
        is_open = port not in entry.used_ports and port in span(entry.used_ports, self._ports)
        return is_open and not entry.is_known

    def on_answer(self, probe: Probe, answer: Answer) -> None:
        index, port = probe.target
        entry = self._entries[index]
        entry.used_ports.add(port)
        if answer is None:
            entry.switch_ports.add(port)
        else:
            entry.hosts[port] = answer
            entry.is_known |= answer.number in self._known_places


class SwitchComparison:
    """Batch that tests whether an entry leads to one of these ports of known switches. place: the port; None: none has
    been confirmed."""

    has_retries = True
    is_patient = False

    def __init__(self, entry: Entry, places: Sequence[Port], routes: Sequence[Route]) -> None:
        """routes: to all known switches."""
        self._places = places
        self.probes = [
            Probe(False, (*entry.route, -place.port, *reverse_route(routes[place.switch])), (index, 0))
            for index, place in enumerate(places)
        ]
        self.place: Port | None = None

    def is_wanted(self, probe: Probe) -> bool:  # noqa: ARG002
        return self.place is None

    def on_answer(self, probe: Probe, answer: Answer) -> None:  # noqa: ARG002
        self.place = self._places[probe.target[0]]


def explore(me: int, ports: int, has_losses: Callable[[], bool]) -> ExplorationTask:
    """Explore the network. me: number of the mapper's own NIC. ports: maximum ports of a switch. has_losses: returns
    whether probes have been lost, so that a silent port may be connected."""
    topology = Topology(me)
    first = FirstHopScan()
    yield first
    if first.host is not None and first.host.number != me:
        topology.hosts[first.host.number] = first.host
    if not first.is_switch:
        return topology
    return (yield from _Exploration(topology, ports, has_losses).explore_levels())


class _Exploration:
    """An exploration behind the first switch."""

    def __init__(self, topology: Topology, ports: int, has_losses: Callable[[], bool]) -> None:
        self._map, self._ports, self._has_losses = topology, ports, has_losses
        self._hostless_switches: list[int] = []
        self._open_ports: dict[int, set[int]] = {}  # ports of each switch that lead to switches not identified yet

    def explore_levels(self) -> ExplorationTask:
        entries = [Entry((), None)]
        while entries:
            yield PortScan(entries, self._ports, True, self._map.at)
            new_switches: dict[int, Entry] = {}  # new switches with a host, by number
            hostless: list[Entry] = []
            for entry in entries:
                if entry.hosts or entry.place is None:
                    self._merge_by_hosts(entry, new_switches)
                else:
                    hostless.append(entry)
            hostless = [entry for entry in hostless if self._is_open(entry)]
            yield PortScan([*new_switches.values(), *hostless], self._ports, False, {})
            for switch, entry in new_switches.items():
                self._add_open_ports(switch, entry)
            for entry in hostless:
                if self._is_open(entry):
                    yield from self._merge_by_comparison(entry)
            entries = self._next_level()
        return self._map

    def _is_open(self, entry: Entry) -> bool:
        """Whether the entry's switch is still unidentified."""
        place = entry.place
        return place is None or place.port not in self._map.ends[place.switch]

    def _merge_by_hosts(self, entry: Entry, new_switches: dict[int, Entry]) -> None:
        """Identify the entry's switch, possibly a new one, by its hosts. new_switches: entries of this level's new
        switches, by number; a new one is added."""
        topology = self._map
        shift, place = 0, None
        for port, host in sorted(entry.hosts.items()):
            if host.number in topology.at:
                place = topology.at[host.number]
                shift = place.port - port
                break
        switch = self._add_switch(entry) if place is None else place.switch
        if place is None:
            new_switches[switch] = entry
            if entry.place is None:
                topology.attach(Port(switch, 0), topology.me)
        elif switch in new_switches:
            # Each of the two entries may have a host that the other does not have.
            new_switches[switch].used_ports.update(port + shift for port in entry.hosts)
        for port, host in entry.hosts.items():
            topology.attach(Port(switch, port + shift), host.number)
            if host.number != topology.me:
                topology.hosts[host.number] = host
        self._connect(entry, Port(switch, shift))

    def _merge_by_comparison(self, entry: Entry) -> Generator[Batch, None, None]:
        """Identify the entry's switch, possibly a new one, which has no hosts, by comparison with known switches."""
        places = [
            Port(switch, port)
            for switch in self._hostless_switches
            for port in sorted(self._open_ports[switch])
            if (switch, port) != entry.place and self._fits(entry, switch, port)
        ]
        comparison = SwitchComparison(entry, places, self._map.routes)
        if places:
            yield comparison
        place = comparison.place
        if place is None:
            place = Port(self._add_switch(entry), 0)
            self._hostless_switches.append(place.switch)
            self._connect(entry, place)
            self._add_open_ports(place.switch, entry)
        else:
            self._connect(entry, place)

    def _fits(self, entry: Entry, switch: int, port: int) -> bool:
        """Whether the entry may lead to this port of a known switch, by the ports that lead to switches."""
        ports = {port + switch_port for switch_port in entry.switch_ports}
        known_ports = self._open_ports[switch] | set(self._map.ends[switch])
        if self._has_losses():
            all_ports = ports | known_ports
            return max(all_ports) - min(all_ports) < self._ports
        return ports == known_ports

    def _add_switch(self, entry: Entry) -> int:
        switch = self._map.add(entry.route)
        self._open_ports[switch] = set()
        return switch

    def _add_open_ports(self, switch: int, entry: Entry) -> None:
        """Add the ports of a new switch that lead to switches not identified yet. entry: of the switch."""
        self._open_ports[switch].update(port for port in entry.switch_ports if port not in self._map.ends[switch])

    def _connect(self, entry: Entry, place: Port) -> None:
        """Add the entry's cable to the map. place: its far end."""
        near = entry.place
        if near is not None:
            self._map.connect(near, place)
            self._open_ports[near.switch].discard(near.port)
        self._open_ports[place.switch].discard(place.port)

    def _next_level(self) -> list[Entry]:
        """Return the entries of the next level: the cables to switches not identified yet."""
        topology = self._map
        return [
            Entry((*topology.routes[switch], port), Port(switch, port))
            for switch, ports in self._open_ports.items()
            for port in sorted(ports)
        ]
