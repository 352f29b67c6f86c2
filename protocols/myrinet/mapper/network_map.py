"""A map of the network: switches, the cables at their ports, and the routes by which the mapper's own NIC reaches them.

Names of switches and numbers of ports cannot be discovered. Switches are numbered in the order of discovery. A port is
numbered relative to the port by which the switch was first entered, which is port 0; numbers may be negative. A delta
is the difference of two ports, so the origin of a switch's port numbers does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from protocols.myrinet.envelope import Route
from protocols.myrinet.mapper.prober import HostAnswer


class Port(NamedTuple):
    """A port of a switch in the map."""

    switch: int
    port: int


End = Port | int
"""The far end of a cable: a switch's port, or the host of that number."""


class ContradictionError(Exception):
    """Answers are inconsistent: the network changed during the exploration, or an answer was lost repeatedly."""


@dataclass(slots=True)
class Topology:
    """The map. me: number of the mapper's own NIC. hosts: all hosts except that NIC. at: the switch port of each host,
    including that NIC; empty in a network of two hosts and one cable. ends: for each switch, the far ends of its cables
    by port. routes: to each switch, entering by its port 0."""

    me: int
    hosts: dict[int, HostAnswer] = field(default_factory=dict)
    at: dict[int, Port] = field(default_factory=dict)
    ends: list[dict[int, End]] = field(default_factory=list)
    routes: list[Route] = field(default_factory=list)

    def add(self, route: Route) -> int:
        """Add a switch and return its number."""
        self.ends.append({})
        self.routes.append(route)
        return len(self.ends) - 1

    def attach(self, place: Port, number: int) -> None:
        """Attach a host's cable to a port. Raises ContradictionError if the port or the host has another cable."""
        self._put(place, number)
        if self.at.setdefault(number, place) != place:
            raise ContradictionError(f"host {number} is at two ports")

    def with_host(self, place: Port, host: HostAnswer) -> Topology:
        """Return a copy of the map with one more host. Raises ContradictionError."""
        changed = self._copy()
        changed.attach(place, host.number)
        changed.hosts[host.number] = host
        return changed

    def without_hosts(self, numbers: Iterable[int]) -> Topology:
        """Return a copy of the map without some hosts, whose ports become silent."""
        changed = self._copy()
        for number in numbers:
            place = changed.at.pop(number)
            del changed.hosts[number], changed.ends[place.switch][place.port]
        return changed

    def connect(self, first: Port, second: Port) -> None:
        """Add a cable between two switches, or between two ports of one. Raises ContradictionError if a port has
        another cable."""
        self._put(first, second)
        self._put(second, first)

    def cables(self) -> Iterator[tuple[Port, Port]]:
        """Yield the cables between switches, each once, from the end with the lower number."""
        for switch, ends in enumerate(self.ends):
            for port, end in ends.items():
                if isinstance(end, Port) and (switch, port) <= end:
                    yield Port(switch, port), end

    def silent_ports(self, switch: int, ports: int) -> list[int]:
        """Return the possible ports of a switch without a known cable. ports: maximum number of ports."""
        return [port for port in span(self.ends[switch], ports) if port not in self.ends[switch]]

    def _copy(self) -> Topology:
        return Topology(self.me, dict(self.hosts), dict(self.at), [dict(ends) for ends in self.ends], list(self.routes))

    def _put(self, place: Port, end: End) -> None:
        if self.ends[place.switch].setdefault(place.port, end) != end:
            raise ContradictionError(f"two cables at port {place.port} of switch {place.switch}")


def span(known: dict[int, End] | set[int], ports: int) -> range:
    """Return the range of possible port numbers of a switch. known: the known ports; port 0 if empty. ports: maximum
    number of ports."""
    return range(max(known, default=0) - ports + 1, min(known, default=0) + ports)
