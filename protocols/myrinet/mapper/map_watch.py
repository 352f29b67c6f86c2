"""Checks of a map against the network, at low cost while the network is unchanged.

A check probes every host, every cable that is not on a route to a host, and every switch without a host. It also probes
a slice of the silent ports, without retries, to detect new hosts and switches.

A host that appears or disappears changes the map only at its port, if its switch is unchanged. Such a change needs no
exploration, which would take longer, since it waits for retries at all silent ports.
"""

from __future__ import annotations

from collections.abc import Iterator

from protocols.myrinet.envelope import Route, reverse_route
from protocols.myrinet.mapper.explorer import loopback_route
from protocols.myrinet.mapper.network_map import Port, Topology
from protocols.myrinet.mapper.prober import Answer, HostAnswer, Probe


class MapCheck:
    """Batch that tests whether all hosts, switches and cables of the map are still present. answers: answers of the
    hosts. is_wrong: a cable, or a switch without a host, is missing, or a different host has answered. missing: hosts
    that have not answered. The results are valid after the batch."""

    has_retries = True
    is_patient = False

    def __init__(self, topology: Topology) -> None:
        self._map = topology
        self.probes = list(_probes(topology))
        self._silent_loops = sum(
            not probe.is_to_host for probe in self.probes
        )  # loopback probes that have not returned
        self._is_different = False
        self.answers: dict[int, HostAnswer] = {}

    @property
    def is_wrong(self) -> bool:
        return self._is_different or self._silent_loops > 0

    @property
    def missing(self) -> list[int]:
        return [number for number in self._map.hosts if number not in self.answers]

    def is_wanted(self, probe: Probe) -> bool:  # noqa: ARG002
        return not self._is_different

    def on_answer(self, probe: Probe, answer: Answer) -> None:
        if answer is None:
            self._silent_loops -= 1
        elif answer.number == probe.target[0]:
            self.answers[answer.number] = answer
        else:
            self._is_different = True


class AbsenceCheck:
    """Batch that tests whether silent hosts are gone while their switches are present. gone: hosts without an answer.
    is_wrong: a switch is silent, too, or a different host has answered, or the map has no switch. The results
    are valid after the batch."""

    has_retries = True
    is_patient = True

    def __init__(self, topology: Topology, missing: list[int]) -> None:
        self.gone = {number for number in missing if number in topology.at}
        self._silent_switches = {topology.at[number].switch for number in self.gone}
        self._is_different = len(self.gone) < len(missing)
        self.probes = [Probe(True, _route_to(topology, number), (number, 0)) for number in self.gone]
        self.probes += [
            Probe(False, loopback_route(topology.routes[switch]), (switch, 0)) for switch in self._silent_switches
        ]

    @property
    def is_wrong(self) -> bool:
        return self._is_different or bool(self._silent_switches)

    def is_wanted(self, probe: Probe) -> bool:  # noqa: ARG002
        return not self._is_different

    def on_answer(self, probe: Probe, answer: Answer) -> None:
        if answer is None:
            self._silent_switches.discard(probe.target[0])
        elif answer.number == probe.target[0]:
            self.gone.discard(answer.number)
        else:
            self._is_different = True


class SilentPortCheck:
    """Batch that tests whether hosts or switches have appeared at silent ports. hosts: new hosts by port. is_wrong: a
    switch has appeared, or a host that is at another port of the map. The results are valid after the batch."""

    has_retries = False
    is_patient = False

    def __init__(self, topology: Topology, ports: int, slices: int, turn: int) -> None:
        """slices: number of turns in which all silent ports are tested. turn: number of the check."""
        self._map = topology
        places = _silent_ports(topology, ports)[turn % slices :: slices]
        self.probes = [
            probe
            for place, route in places
            for probe in (Probe(True, route, place), Probe(False, loopback_route(route), place))
        ]
        self.hosts: dict[Port, HostAnswer] = {}
        self.is_wrong = False

    def is_wanted(self, probe: Probe) -> bool:  # noqa: ARG002
        return not self.is_wrong

    def on_answer(self, probe: Probe, answer: Answer) -> None:
        topology = self._map
        known = {host.number for host in self.hosts.values()} | topology.at.keys()
        if answer is None or answer.number in known or not topology.routes:
            self.is_wrong = True
        else:
            self.hosts[Port(*probe.target)] = answer


def _silent_ports(topology: Topology, ports: int) -> list[tuple[Port, Route]]:
    """Return all silent ports and the routes to them. In a map without switches and hosts, the NIC's own cable counts
    as a silent port. ports: maximum ports of a switch."""
    if not topology.routes:
        return [] if topology.hosts else [(Port(0, 0), ())]
    return [
        (Port(switch, port), (*route, port))
        for switch, route in enumerate(topology.routes)
        for port in topology.silent_ports(switch, ports)
    ]


def _route_to(topology: Topology, number: int) -> Route:
    place = topology.at.get(number)
    return () if place is None else (*topology.routes[place.switch], place.port)


def _probes(topology: Topology) -> Iterator[Probe]:
    """Yield the probes of `MapCheck`."""
    for number in topology.hosts:
        yield Probe(True, _route_to(topology, number), (number, 0))
    populated = {place.switch for place in topology.at.values()}
    for switch, route in enumerate(topology.routes):
        if switch not in populated or not topology.hosts:
            yield Probe(False, loopback_route(route))
    for near, far in topology.cables():
        if 0 in (near.port, far.port) and near.switch != far.switch and _is_taken(topology, near, far):
            continue
        route = (*topology.routes[near.switch], near.port)
        yield Probe(False, (*route, -far.port, *reverse_route(topology.routes[far.switch])))


def _is_taken(topology: Topology, near: tuple[int, int], far: tuple[int, int]) -> bool:
    """Whether one of the two switches was discovered through this cable, so that its route takes the cable."""
    for (switch, port), (beyond, entry) in ((near, far), (far, near)):
        if entry == 0 and topology.routes[beyond] == (*topology.routes[switch], port):
            return True
    return False
