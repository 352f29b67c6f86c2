"""Checks whether a map is still right, at low cost while nothing changes.

A check probes every host, loops through every cable that the routes to hosts do not take, and through every switch
without a host. A few of the silent ports are probed each time, once: something may have been plugged in.

A host that comes or goes changes the map only at its own port, if its switch is as it was. So it needs no exploration,
which takes as long as silence at every other port takes to be believed.
"""

from __future__ import annotations

from collections.abc import Iterator

from protocols.myrinet.envelope import Route, back
from protocols.myrinet.mapper.explorer import loop
from protocols.myrinet.mapper.network_map import Port, Topology
from protocols.myrinet.mapper.prober import Answer, HostAnswer, Probe


class MapCheck:
    """Batch that tests whether everything in the map is still present. answers: of the hosts that are. is_wrong: a
    cable, or a switch without a host, is missing, or another host than the map's has answered. missing: hosts that have
    not answered. Valid when the batch is over."""

    once = False
    is_patient = False

    def __init__(self, topology: Topology) -> None:
        self._map = topology
        self.probes = list(_known(topology))
        self._silent = sum(not probe.host for probe in self.probes)
        self._is_another = False
        self.answers: dict[int, HostAnswer] = {}

    @property
    def is_wrong(self) -> bool:
        return self._is_another or self._silent > 0

    @property
    def missing(self) -> list[int]:
        return [number for number in self._map.hosts if number not in self.answers]

    def wanted(self, probe: Probe) -> bool:  # noqa: ARG002
        return not self._is_another

    def answered(self, probe: Probe, answer: Answer) -> None:
        if answer is None:
            self._silent -= 1
        elif answer.number == probe.about[0]:
            self.answers[answer.number] = answer
        else:
            self._is_another = True


class AbsenceCheck:
    """Batch that tests whether hosts that have not answered are gone, and their switches still there. gone: those hosts.
    is_wrong: a switch is silent, too, or another host is there, or there is no switch. Valid when the batch is over."""

    once = False
    is_patient = True

    def __init__(self, topology: Topology, missing: list[int]) -> None:
        self.gone = {number for number in missing if number in topology.at}
        self._silent = {topology.at[number].switch for number in self.gone}
        self._is_another = len(self.gone) < len(missing)
        self.probes = [Probe(True, _route_to(topology, number), (number, 0)) for number in self.gone]
        self.probes += [Probe(False, loop(topology.routes[switch]), (switch, 0)) for switch in self._silent]

    @property
    def is_wrong(self) -> bool:
        return self._is_another or bool(self._silent)

    def wanted(self, probe: Probe) -> bool:  # noqa: ARG002
        return not self._is_another

    def answered(self, probe: Probe, answer: Answer) -> None:
        if answer is None:
            self._silent.discard(probe.about[0])
        elif answer.number == probe.about[0]:
            self.gone.discard(answer.number)
        else:
            self._is_another = True


class SilentPortCheck:
    """Batch that tests whether something has appeared at silent ports. hosts: those that have, with their places.
    is_wrong: a switch has, or a host that the map has elsewhere. Valid when the batch is over."""

    once = True
    is_patient = False

    def __init__(self, topology: Topology, ports: int, slices: int, turn: int) -> None:
        """Test every slices-th silent port; the slice changes with each turn."""
        self._map = topology
        places = _silent(topology, ports)[turn % slices :: slices]
        self.probes = [
            probe for place, route in places for probe in (Probe(True, route, place), Probe(False, loop(route), place))
        ]
        self.hosts: dict[Port, HostAnswer] = {}
        self.is_wrong = False

    def wanted(self, probe: Probe) -> bool:  # noqa: ARG002
        return not self.is_wrong

    def answered(self, probe: Probe, answer: Answer) -> None:
        topology = self._map
        known = {host.number for host in self.hosts.values()} | topology.at.keys()
        if answer is None or answer.number in known or not topology.routes:
            self.is_wrong = True
        else:
            self.hosts[Port(*probe.about)] = answer


def _silent(topology: Topology, ports: int) -> list[tuple[Port, Route]]:
    """Return all silent ports and the routes to them. Without switches there is one, if there is no host either."""
    if not topology.routes:
        return [] if topology.hosts else [(Port(0, 0), ())]
    return [
        (Port(switch, port), (*route, port))
        for switch, route in enumerate(topology.routes)
        for port in topology.silent(switch, ports)
    ]


def _route_to(topology: Topology, number: int) -> Route:
    place = topology.at.get(number)
    return () if place is None else (*topology.routes[place.switch], place.port)


def _known(topology: Topology) -> Iterator[Probe]:
    for number in topology.hosts:
        yield Probe(True, _route_to(topology, number), (number, 0))
    populated = {place.switch for place in topology.at.values()}
    for switch, route in enumerate(topology.routes):
        if switch not in populated or not topology.hosts:
            yield Probe(False, loop(route))
    for near, far in topology.cables():
        if 0 in (near.port, far.port) and near.switch != far.switch and _is_taken(topology, near, far):
            continue
        there = (*topology.routes[near.switch], near.port)
        yield Probe(False, (*there, -far.port, *back(topology.routes[far.switch])))


def _is_taken(topology: Topology, near: tuple[int, int], far: tuple[int, int]) -> bool:
    """Whether one of the two switches was found through this cable."""
    for (switch, port), (beyond, entry) in ((near, far), (far, near)):
        if entry == 0 and topology.routes[beyond] == (*topology.routes[switch], port):
            return True
    return False
