"""A map of the network: switches, what is at their ports, and the routes by which the mapper's own NIC reaches them.

Switches have no names and their ports no numbers that could be learned. A switch is numbered in the order of discovery, and
a port by its place relative to the one by which the switch was first entered: that is port 0, and others may be negative.
A delta is the difference of two ports, so that it does not matter where a switch's numbers begin.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from protocols.am2.mapper.prober import Found
from protocols.myrinet.envelope import Route


class Port(NamedTuple):
    """Of a switch of the map."""

    switch: int
    port: int


End = Port | int
"""Where a cable ends: at a switch, or at the host of that number."""


class ContradictionError(Exception):
    """Answers do not fit together: the network changes while it is explored, or an answer was lost too often."""


@dataclass(slots=True)
class Topology:
    """me: the number of the mapper's own NIC. hosts: without me. at: the port of each host's cable, me among them; a
    network of two hosts and one cable has none. ends: of each switch by port what its cable leads to. routes: to each
    switch, which is entered by its port 0."""

    me: int
    hosts: dict[int, Found] = field(default_factory=dict)
    at: dict[int, Port] = field(default_factory=dict)
    ends: list[dict[int, End]] = field(default_factory=list)
    routes: list[Route] = field(default_factory=list)

    def add(self, route: Route) -> int:
        """Another switch; its number."""
        self.ends.append({})
        self.routes.append(route)
        return len(self.ends) - 1

    def attach(self, place: Port, number: int) -> None:
        """That host's cable ends there. Raises ContradictionError."""
        self._put(place, number)
        if self.at.setdefault(number, place) != place:
            raise ContradictionError(f"host {number} is in two places")

    def connect(self, first: Port, second: Port) -> None:
        """A cable between two switches, or within one. Raises ContradictionError."""
        self._put(first, second)
        self._put(second, first)

    def cables(self) -> Iterator[tuple[Port, Port]]:
        """Between switches, each once, from its lesser end."""
        for switch, ends in enumerate(self.ends):
            for port, end in ends.items():
                if isinstance(end, Port) and (switch, port) <= end:
                    yield Port(switch, port), end

    def silent(self, switch: int, ports: int) -> list[int]:
        """Where it may have further ports, if it has at most so many."""
        return [port for port in span(self.ends[switch], ports) if port not in self.ends[switch]]

    def _put(self, place: Port, end: End) -> None:
        if self.ends[place.switch].setdefault(place.port, end) != end:
            raise ContradictionError(f"two cables at port {place.port} of switch {place.switch}")


def span(known: dict[int, End] | set[int], ports: int) -> range:
    """The ports that a switch may have, by those that it has and their number at most; port 0 is one of them."""
    return range(max(known, default=0) - ports + 1, min(known, default=0) + ports)
