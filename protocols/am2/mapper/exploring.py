"""Explores the network from the mapper's own NIC, breadth first, until every port of every switch is known.

Mainwaring, Chun, Schleimer and Wilkerson ("System Area Network Mapping", SPAA 1997) explore with two kinds of probes, for
hosts and for switches, and merge the replicates of a switch that is reached by several routes through the hosts that they
have in common; what a bridge cuts off from all hosts remains unknown. What we have of the paper is its abstract, so
how it is done here is ours:

- A host probe follows a route, and the host at its end answers. It names the host, and so the switch: a host has one cable.
- A switch probe (loopback) follows a route, is sent back where it came from by delta 0, and takes the same way home.
- A comparison is the loopback of switches without hosts. To know whether an *entry*, a cable that leads to some switch,
  leads to a known switch S, and to which port p, a probe enters by the cable, leaves by the delta that would lead from p to
  S's port 0, and goes home from there. Every cable and every delta can be taken backwards, so what comes home has been at S.
  And if it is S and p, it comes home.

So nothing is inferred that a probe has not shown, and the map is of the whole network that the NIC is connected to.
No probe that can be answered takes a cable twice in one direction, so that it never waits for itself, with one exception:
where a cable joins two ports of one switch without hosts. (An entry is no cable to a switch on its own route: those of lower
levels are known.) A comparison with a wrong switch may go astray and do so; whether it is lost then makes no difference.

A level of the breadth-first search is explored at once. Its entries are asked for hosts; with a known one, the rest of the
entry is known. The others are asked for switches. Then entries without a host are compared with switches without one, of
which only those ports come into question that lead to switches and whose cables' other ends are not known yet.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from protocols.am2.mapper.prober import Answer, Batch, Found, Probe
from protocols.am2.mapper.topology import Port, Topology, span
from protocols.myrinet.envelope import Route, back

Asking = Generator[Batch, None, Topology]
"""Gives batches, is resumed when each is over, and returns a map. Raises ContradictionError."""


def loop(route: Route) -> Route:
    """There and back again, for a route to a switch."""
    return (*route, 0, *back(route))


@dataclass(slots=True)
class Entry:
    """A cable that leads to a switch, not yet known to which. place: of its near end; None: it is the NIC's own. Ports are
    counted from the one of entry."""

    route: Route
    place: Port | None
    hosts: dict[int, Found] = field(default_factory=dict)
    switches: set[int] = field(default_factory=lambda: {0})
    known: bool = False
    used: set[int] = field(default_factory=lambda: {0})


class First:
    """What is at the other end of the NIC's own cable?"""

    once = False

    def __init__(self) -> None:
        self.probes = [Probe(True, ()), Probe(False, loop(()))]
        self.host: Found | None = None
        self.switch = False

    def wanted(self, probe: Probe) -> bool:  # noqa: ARG002
        return not self.switch and self.host is None

    def answered(self, probe: Probe, answer: Answer) -> None:  # noqa: ARG002
        self.host, self.switch = answer, answer is None


class Scan:
    """What is at the ports of these entries' switches: hosts, or switches?"""

    once = False

    def __init__(self, entries: Sequence[Entry], ports: int, hosts: bool, at: dict[int, Port]) -> None:
        """at: where hosts are known to be."""
        self._entries, self._ports, self._at = entries, ports, at
        self.probes: list[Probe] = []
        for index, entry in enumerate(entries):
            for port in span(entry.used, ports):
                if port not in entry.used:
                    route = (*entry.route, port)
                    self.probes.append(Probe(hosts, route if hosts else loop(route), (index, port)))

    def wanted(self, probe: Probe) -> bool:
        index, port = probe.about
        entry = self._entries[index]
        return not entry.known and port not in entry.used and port in span(entry.used, self._ports)

    def answered(self, probe: Probe, answer: Answer) -> None:
        index, port = probe.about
        entry = self._entries[index]
        entry.used.add(port)
        if answer is None:
            entry.switches.add(port)
        else:
            entry.hosts[port] = answer
            entry.known |= answer.number in self._at


class Comparison:
    """Is an entry's switch one of these, entered by one of these ports?"""

    once = False

    def __init__(self, entry: Entry, places: Sequence[Port], routes: Sequence[Route]) -> None:
        self._places = places
        self.probes = [
            Probe(False, (*entry.route, -place.port, *back(routes[place.switch])), (index, 0))
            for index, place in enumerate(places)
        ]
        self.place: Port | None = None

    def wanted(self, probe: Probe) -> bool:  # noqa: ARG002
        return self.place is None

    def answered(self, probe: Probe, answer: Answer) -> None:  # noqa: ARG002
        self.place = self._places[probe.about[0]]


def explore(me: int, ports: int, lossy: Callable[[], bool]) -> Asking:
    """me: the mapper's own number. ports: of a switch, at most. lossy: whether probes have been lost, so that a silent port
    says little."""
    topology = Topology(me)
    first = First()
    yield first
    if first.host is not None and first.host.number != me:
        topology.hosts[first.host.number] = first.host
    if not first.switch:
        return topology
    return (yield from _Exploration(topology, ports, lossy).levels())


class _Exploration:
    def __init__(self, topology: Topology, ports: int, lossy: Callable[[], bool]) -> None:
        self._map, self._ports, self._lossy = topology, ports, lossy
        self._hostless: list[int] = []
        self._open: dict[int, set[int]] = {}  # of each switch the ports to switches that are not known

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
        """Nothing has told yet where its cable leads."""
        place = entry.place
        return place is None or place.port not in self._map.ends[place.switch]

    def _merge_by_hosts(self, entry: Entry, named: dict[int, Entry]) -> None:
        """The entry leads to the switch of its hosts, which may be new."""
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
            # Each may have heard of a host that the other has not.
            named[switch].used.update(port + shift for port in entry.hosts)
        for port, host in entry.hosts.items():
            topology.attach(Port(switch, port + shift), host.number)
            if host.number != topology.me:
                topology.hosts[host.number] = host
        self._lead_to(entry, Port(switch, shift))

    def _merge_by_comparison(self, entry: Entry) -> Generator[Batch, None, None]:
        """The entry leads to a switch without hosts, which may be new."""
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
        """The entry's ports may be those of that switch, entered by that port."""
        ports = {other + port for other in entry.switches}
        known = self._open[switch] | set(self._map.ends[switch])
        if self._lossy():
            together = ports | known
            return max(together) - min(together) < self._ports
        return ports == known

    def _add(self, entry: Entry) -> int:
        switch = self._map.add(entry.route)
        self._open[switch] = set()
        return switch

    def _leads_on(self, switch: int, entry: Entry) -> None:
        """That is where further switches are."""
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
