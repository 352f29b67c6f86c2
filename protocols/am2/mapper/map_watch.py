"""Checks whether a map is still right, at low cost while nothing changes.

A check probes every host, loops through every cable that the routes to hosts do not take, and through every switch
without a host. A few of the silent ports are probed each time, once: something may have been plugged in.
"""

from __future__ import annotations

from collections.abc import Iterator

from protocols.am2.mapper.explorer import loop
from protocols.am2.mapper.network_map import Topology
from protocols.am2.mapper.prober import Answer, HostAnswer, Probe
from protocols.myrinet.envelope import Route, back


class MapCheck:
    """Batch that tests whether everything in the map is still present. answers: of the hosts that are. broken:
    something is missing."""

    once = False

    def __init__(self, topology: Topology) -> None:
        self._map = topology
        self.probes = list(_known(topology))
        self._missing = len(self.probes)
        self._wrong = False
        self.answers: dict[int, HostAnswer] = {}

    @property
    def broken(self) -> bool:
        """Whether something is missing; valid when the batch is over."""
        return self._wrong or self._missing > 0

    def wanted(self, probe: Probe) -> bool:  # noqa: ARG002
        return not self._wrong

    def answered(self, probe: Probe, answer: Answer) -> None:
        self._missing -= 1
        if answer is not None:
            self._wrong |= answer.number != probe.about[0]
            self.answers[answer.number] = answer


class SilentPortCheck:
    """Batch that tests whether something has appeared at silent ports. appeared: it has."""

    once = True

    def __init__(self, topology: Topology, ports: int, slices: int, turn: int) -> None:
        """Test every slices-th silent port; the slice changes with each turn."""
        routes = _silent(topology, ports)[turn % slices :: slices]
        self.probes = [probe for route in routes for probe in (Probe(True, route), Probe(False, loop(route)))]
        self.appeared = False

    def wanted(self, probe: Probe) -> bool:  # noqa: ARG002
        return not self.appeared

    def answered(self, probe: Probe, answer: Answer) -> None:  # noqa: ARG002
        self.appeared = True


def _silent(topology: Topology, ports: int) -> list[Route]:
    """Return the routes to all silent ports."""
    if not topology.routes:
        return [] if topology.hosts else [()]
    return [(*route, port) for switch, route in enumerate(topology.routes) for port in topology.silent(switch, ports)]


def _known(topology: Topology) -> Iterator[Probe]:
    for number in topology.hosts:
        place = topology.at.get(number)
        route = () if place is None else (*topology.routes[place.switch], place.port)
        yield Probe(True, route, (number, 0))
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
