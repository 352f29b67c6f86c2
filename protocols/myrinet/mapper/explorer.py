"""Exploration of the network from the mapper's own NIC, breadth first, until every port of every switch is known.

Mainwaring, Chun, Schleimer and Wilkerson ("System Area Network Mapping", SPAA 1997) explore with two kinds of probes,
for hosts and for switches, and merge the replicates of a switch that is reached by several routes through the hosts
that they have in common; what a bridge cuts off from all hosts remains unknown. Only the abstract of the paper was
available to us, so the method here is ours:

- A host probe follows a route, and the host at its end answers. The answer identifies the host, and so the switch: a
  host has one cable.
- A switch probe (loopback) follows a route, is sent back where it came from by delta 0, and returns by the same cables.
- A comparison is the loopback of switches without hosts. To test whether an *entry*, a cable that leads to some switch,
  leads to a known switch S at port p, a probe enters by the cable, leaves by the delta that would lead from p to S's
  port 0, and returns home from there. Every cable and every delta can be taken backwards, so a probe that comes home
  has passed S; and if the entry is S and p, the probe comes home.

So nothing is inferred that a probe has not shown, and the map covers the whole network that the NIC is connected to. No
probe that can be answered takes a cable twice in one direction, so that it never waits for itself, with one exception:
a cable that joins two ports of one switch without hosts. (An entry is no cable to a switch on its own route: those of
lower levels are known.) A comparison with a wrong switch may go astray and do so; its loss then makes no difference.

A level of the breadth-first search is explored at once. Its entries are probed for hosts; if a known one answers, the
rest of the entry is known. The others are probed for switches. Then entries without a host are compared with switches
without one, using only the ports that lead to switches and whose cables' other ends are not known yet.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from protocols.myrinet.envelope import Route, reverse_route
from protocols.myrinet.mapper.network_map import Port, Topology, span
from protocols.myrinet.mapper.prober import Answer, Batch, HostAnswer, Probe

Asking = Generator[Batch, None, Topology]
"""Yields batches, is resumed when each is over, and returns a map. Raises ContradictionError."""


def loop(route: Route) -> Route:
    """Return the loopback route for a route to a switch: there and back."""
    return (*route, 0, *reverse_route(route))


@dataclass(slots=True)
class Entry:
    """A cable that leads to a switch not identified yet. place: its near end; None: it is the NIC's own cable. Ports
    are counted from the port of entry."""

    route: Route
    place: Port | None
    hosts: dict[int, HostAnswer] = field(default_factory=dict)
    switches: set[int] = field(default_factory=lambda: {0})
    known: bool = False
    used: set[int] = field(default_factory=lambda: {0})


class FirstHop:
    """Batch that finds out what is at the other end of the NIC's own cable."""

    has_retries = True
    is_patient = True

    def __init__(self) -> None:
        self.probes = [Probe(True, ()), Probe(False, loop(()))]
        self.host: HostAnswer | None = None
        self.switch = False

    def is_wanted(self, probe: Probe) -> bool:  # noqa: ARG002
        return not self.switch and self.host is None

    def answered(self, probe: Probe, answer: Answer) -> None:  # noqa: ARG002
        self.host, self.switch = answer, answer is None


class Scan:
    """Batch that finds out which ports of the entries' switches have hosts, or lead to switches."""

    has_retries = True
    is_patient = False

    def __init__(self, entries: Sequence[Entry], ports: int, hosts: bool, at: dict[int, Port]) -> None:
        """at: known places of hosts."""
        self._entries, self._ports, self._at = entries, ports, at
        self.probes: list[Probe] = []
        for index, entry in enumerate(entries):
            for port in span(entry.used, ports):
                if port not in entry.used:
                    route = (*entry.route, port)
                    self.probes.append(Probe(hosts, route if hosts else loop(route), (index, port)))

    def is_wanted(self, probe: Probe) -> bool:
        index, port = probe.target
        entry = self._entries[index]
        return not entry.known and port not in entry.used and port in span(entry.used, self._ports)

    def answered(self, probe: Probe, answer: Answer) -> None:
        index, port = probe.target
        entry = self._entries[index]
        entry.used.add(port)
        if answer is None:
            entry.switches.add(port)
        else:
            entry.hosts[port] = answer
            entry.known |= answer.number in self._at


class Comparison:
    """Batch that tests whether an entry leads to one of these switches, at one of these ports."""

    has_retries = True
    is_patient = False

    def __init__(self, entry: Entry, places: Sequence[Port], routes: Sequence[Route]) -> None:
        self._places = places
        self.probes = [
            Probe(False, (*entry.route, -place.port, *reverse_route(routes[place.switch])), (index, 0))
            for index, place in enumerate(places)
        ]
        self.place: Port | None = None

    def is_wanted(self, probe: Probe) -> bool:  # noqa: ARG002
        return self.place is None

    def answered(self, probe: Probe, answer: Answer) -> None:  # noqa: ARG002
        self.place = self._places[probe.target[0]]


def explore(me: int, ports: int, has_losses: Callable[[], bool]) -> Asking:
    """Explore the network. me: the mapper's own number. ports: maximum ports of a switch. has_losses: whether probes have
    been lost, so that silence of a port proves little."""
    topology = Topology(me)
    first = FirstHop()
    yield first
    if first.host is not None and first.host.number != me:
        topology.hosts[first.host.number] = first.host
    if not first.switch:
        return topology
    return (yield from _Exploration(topology, ports, has_losses).levels())


class _Exploration:
    def __init__(self, topology: Topology, ports: int, has_losses: Callable[[], bool]) -> None:
        self._map, self._ports, self._has_losses = topology, ports, has_losses
        self._hostless: list[int] = []
        self._open: dict[int, set[int]] = {}  # for each switch, its ports to unidentified switches

    def levels(self) -> Asking:
        entries = [Entry((), None)]
        while entries:
            yield Scan(entries, self._ports, True, self._map.at)
            named: dict[int, Entry] = {}  # new switches with a host, by number
            rest: list[Entry] = []
            for entry in entries:
                if entry.hosts or entry.place is None:
                    self._merge_by_hosts(entry, named)
                else:
                    rest.append(entry)
            rest = [entry for entry in rest if self._is_open(entry)]
            yield Scan([*named.values(), *rest], self._ports, False, {})
            for switch, entry in named.items():
                self._leads_on(switch, entry)
            for entry in rest:
                if self._is_open(entry):
                    yield from self._merge_by_comparison(entry)
            entries = self._frontier()
        return self._map

    def _is_open(self, entry: Entry) -> bool:
        """Whether the entry's switch is still unidentified."""
        place = entry.place
        return place is None or place.port not in self._map.ends[place.switch]

    def _merge_by_hosts(self, entry: Entry, named: dict[int, Entry]) -> None:
        """Identify the entry's switch, possibly a new one, by its hosts."""
        topology = self._map
        shift, place = 0, None
        for port, host in sorted(entry.hosts.items()):
            if host.number in topology.at:
                place = topology.at[host.number]
                shift = place.port - port
                break
        switch = self._add(entry) if place is None else place.switch
        if place is None:
            named[switch] = entry
            if entry.place is None:
                topology.attach(Port(switch, 0), topology.me)
        elif switch in named:
            # Each entry may know a host that the other does not.
            named[switch].used.update(port + shift for port in entry.hosts)
        for port, host in entry.hosts.items():
            topology.attach(Port(switch, port + shift), host.number)
            if host.number != topology.me:
                topology.hosts[host.number] = host
        self._lead_to(entry, Port(switch, shift))

    def _merge_by_comparison(self, entry: Entry) -> Generator[Batch, None, None]:
        """Identify the entry's switch, possibly a new one, which has no hosts."""
        places = [
            Port(switch, port)
            for switch in self._hostless
            for port in sorted(self._open[switch])
            if (switch, port) != entry.place and self._fits(entry, switch, port)
        ]
        comparison = Comparison(entry, places, self._map.routes)
        if places:
            yield comparison
        place = comparison.place
        if place is None:
            place = Port(self._add(entry), 0)
            self._hostless.append(place.switch)
            self._lead_to(entry, place)
            self._leads_on(place.switch, entry)
        else:
            self._lead_to(entry, place)

    def _fits(self, entry: Entry, switch: int, port: int) -> bool:
        """Whether the entry's ports may be those of a switch, entered by a port."""
        ports = {switch + port for switch in entry.switches}
        known = self._open[switch] | set(self._map.ends[switch])
        if self._has_losses():
            together = ports | known
            return max(together) - min(together) < self._ports
        return ports == known

    def _add(self, entry: Entry) -> int:
        switch = self._map.add(entry.route)
        self._open[switch] = set()
        return switch

    def _leads_on(self, switch: int, entry: Entry) -> None:
        """Note the ports at which further switches are."""
        self._open[switch].update(port for port in entry.switches if port not in self._map.ends[switch])

    def _lead_to(self, entry: Entry, place: Port) -> None:
        near = entry.place
        if near is not None:
            self._map.connect(near, place)
            self._open[near.switch].discard(near.port)
        self._open[place.switch].discard(place.port)

    def _frontier(self) -> list[Entry]:
        topology = self._map
        return [
            Entry((*topology.routes[switch], port), Port(switch, port))
            for switch, ports in self._open.items()
            for port in sorted(ports)
        ]
