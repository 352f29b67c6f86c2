"""A network for mappers: it models little more than the wire format, so that thousands of maps take seconds.

Frames follow their source routes through anonymous switches, one hop a microsecond, and never wait. Whether a frame is lost,
truncated or corrupted is drawn for each hop from the network's seed. Maps are compared with the network's cables.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from itertools import count, pairwise
from random import Random

from protocols.myrinet.envelope import crc8
from protocols.myrinet.mapper.mapper import Mapper, MapperIdentity
from protocols.myrinet.mapper.network_map import Port, Topology
from protocols.myrinet.mapper.route_tables import Table
from protocols.myrinet.mapper.settings import MILLISECOND, SECOND, Settings

HOP = 1_000  # ns
End = tuple[str | int, int]  # a switch's name or a host's number, and the port; a host's is 0
Cable = tuple[End, End]


def address(number: int) -> bytes:
    return bytes((2, 0, 0, 0)) + number.to_bytes(2, "big")


class Myrinet:
    """Network of switches, cables, and hosts with a mapper each."""

    def __init__(
        self,
        cables: Iterable[Cable],
        *,
        seed: int = 0,
        loss: float = 0.0,
        damage: float = 0.0,
        ports: int = 8,
        settings: Settings | None = None,
        leaders: Iterable[int] | None = None,
        hosts: Iterable[int] = (),
    ) -> None:
        """crossings: frames that arrived although they took a cable twice in one direction. loss and damage:
        probabilities for each hop. leaders: hosts that may lead; None: all. hosts: further hosts, not connected yet."""
        self.cables = list(cables)
        self.ports, self.loss, self.damage = ports, loss, damage
        self.now = self.delivered = self.dropped = self.crossings = 0
        self._random = Random(seed)
        self._peers: dict[End, End] = {}
        for cable in self.cables:
            self._plug(*cable)
        self._events: list[tuple[int, int, int, bytes | None]] = []
        self._order = count()
        self._incarnations: dict[int, int] = {}
        self.mappers: dict[int, Mapper] = {}
        self.tables: dict[int, Table] = {}
        self.sent_at: list[int] = []  # when host 0 sent its frames
        self._settings = settings or Settings(ports=ports)
        self._leaders = None if leaders is None else set(leaders)
        for number in sorted({*hosts, *(end for cable in self.cables for end, _ in cable if isinstance(end, int))}):
            self.boot(number)

    # Events.

    def boot(self, number: int) -> None:
        """Start or restart a host's mapper."""
        self._incarnations[number] = incarnation = self._incarnations.get(number, 0) + 1
        leads = self._leaders is None or number in self._leaders
        self.tables.pop(number, None)
        mapper = self.mappers[number] = Mapper(
            MapperIdentity(number, incarnation, address(number)),
            lambda frame: self._transmit(number, frame),
            lambda table: self.tables.__setitem__(number, table),
            replace(self._settings, leads=leads),
        )
        mapper.start(self.now)
        self._schedule(number, mapper)

    def kill(self, number: int) -> None:
        del self.mappers[number]
        self.tables.pop(number, None)

    def cut(self, cable: Cable) -> None:
        self.cables.remove(cable)
        for end in cable:
            del self._peers[end]

    def fail(self, switch: str) -> None:
        """Cut all cables of a switch."""
        for cable in [cable for cable in self.cables if switch in (cable[0][0], cable[1][0])]:
            self.cut(cable)

    def join(self, cable: Cable) -> None:
        self.cables.append(cable)
        self._plug(*cable)

    def _plug(self, first: End, second: End) -> None:
        assert first not in self._peers, first
        assert second not in self._peers, second
        self._peers[first], self._peers[second] = second, first

    def hint(self, number: int, lost: int) -> None:
        """Report by a host's transport that another host is unreachable."""
        self.mappers[number].on_unreachable(self.now, lost)
        self._schedule(number, self.mappers[number])

    # Time.

    def run(self, duration: int, until: Callable[[], bool] = lambda: False) -> bool:
        """Run for `duration` nanoseconds, or until `until` is true; return whether it is."""
        end = self.now + duration
        while self._events and self._events[0][0] <= end:
            self.now, _, number, frame = heapq.heappop(self._events)
            mapper = self.mappers.get(number)
            if mapper is None:
                continue
            if frame is not None:
                self.delivered += 1
                mapper.receive(self.now, frame)
            elif mapper.deadline is not None and mapper.deadline <= self.now:
                mapper.on_timer(self.now)
            else:
                continue
            self._schedule(number, mapper)
            if until():
                return True
        self.now = end
        return until()

    def _schedule(self, number: int, mapper: Mapper) -> None:
        if mapper.deadline is not None:
            heapq.heappush(self._events, (max(mapper.deadline, self.now), next(self._order), number, None))

    def _transmit(self, number: int, frame: bytes) -> None:
        peers, ports, offset = self._peers, self.ports, 14
        if number == 0:
            self.sent_at.append(self.now)
        attached: End | None = peers.get((number, 0))
        time = self.now + HOP
        crossed_ports, is_crossed_twice = {(number, 0)}, False
        while attached is not None:
            if self.loss and self._random.random() < self.loss:
                break
            if self.damage and self._random.random() < self.damage:
                frame = self._corrupted(frame)
            node, port = attached
            if isinstance(node, int):
                self.crossings += is_crossed_twice and not (offset < len(frame) and frame[offset] & 0x80)
                if offset > 14:
                    # Each switch recomputes the CRC-8 and keeps its error: so do all of them together.
                    crc_error = crc8(frame[14:])
                    frame = frame[:14] + frame[offset:-1]
                    frame += bytes((crc8(frame[14:]) ^ crc_error,))
                heapq.heappush(self._events, (time, next(self._order), node, frame))
                return
            if offset >= len(frame) or not frame[offset] & 0x80:
                break
            delta = (frame[offset] & 0x3F ^ 0x20) - 0x20
            offset += 1
            port += delta
            is_crossed_twice |= (node, port) in crossed_ports
            crossed_ports.add((node, port))
            attached = peers.get((node, port)) if 0 <= port < ports else None
            time += HOP
        self.dropped += 1

    def _corrupted(self, frame: bytes) -> bytes:
        if self._random.random() < 0.5:
            return frame[: 14 + self._random.randrange(len(frame) - 14)]
        bit = self._random.randrange(8 * len(frame))
        return frame[: bit >> 3] + bytes((frame[bit >> 3] ^ 1 << (bit & 7),)) + frame[(bit >> 3) + 1 :]

    # The actual network, with which maps and routes are compared.

    def reached(self, origin: int) -> set[int]:
        """Return the running hosts that are connected to a host, including itself."""
        reached: set[str | int] = {origin}
        to_visit = [origin]
        while to_visit:
            node = to_visit.pop()
            for (first, _), (second, _) in [(a, b) for a, b in self._peers.items() if a[0] == node]:
                assert first == node
                if second not in reached:
                    reached.add(second)
                    to_visit.append(second)
        return reached & set(self.mappers)

    def groups(self) -> list[set[int]]:
        """Return the groups of running hosts that are connected to each other."""
        remaining, groups = set(self.mappers), []
        while remaining:
            groups.append(self.reached(min(remaining)))
            remaining -= groups[-1]
        return groups

    def settle(self, limit: int = 10 * SECOND, step: int = 10 * MILLISECOND) -> int | None:
        """Run until every group has a leader, the right map and its routes; return the time taken, in ns; None
        beyond the limit."""
        start_time = self.now
        while self.now - start_time < limit:
            self.run(step)
            if all(map(self.is_mapped, self.groups())):
                return self.now - start_time
        return None

    def leads_to(self, number: int, route: Iterable[int]) -> tuple[str | int | None, list[End]]:
        """Return where a frame from that host ends, and its channels: the ports that it leaves by."""
        channels: list[End] = [(number, 0)]
        attached = self._peers.get((number, 0))
        for delta in route:
            if attached is None or isinstance(attached[0], int):
                return None, channels
            channels.append((attached[0], attached[1] + delta))
            attached = self._peers.get(channels[-1])
        return (None if attached is None else attached[0]), channels

    def differences(self, topology: Topology) -> list[str]:
        """List the differences between the map and the network, up to where a switch's ports are counted from.

        The map names a route to each of its switches; each port there must lead where the map says. Since the network
        has no further ports and no two switches of the map share a place, agreement at every port is an isomorphism.
        """
        problems: list[str] = []
        attached_ports: list[End] = []
        for switch, route in enumerate(topology.routes):
            _, channels = self.leads_to(topology.me, route)
            attached = self._peers.get(channels[-1])
            if attached is None or isinstance(attached[0], int):
                return [f"no switch {switch} by {route}"]
            attached_ports.append(attached)
        if len({name for name, _ in attached_ports}) < len(attached_ports):
            problems.append("a switch is mapped twice")
        for (name, base), ends in zip(attached_ports, topology.ends, strict=True):
            for port in range(self.ports):
                peer = self._peers.get((name, port))
                if peer is not None and isinstance(peer[0], int) and peer[0] not in self.mappers:
                    peer = None  # a silent host cannot be distinguished from none
                end = ends.get(port - base)
                if isinstance(end, Port):
                    remote: End | None = (attached_ports[end.switch][0], attached_ports[end.switch][1] + end.port)
                else:
                    remote = None if end is None else (end, 0)
                if peer != remote:
                    problems.append(f"{name}:{port} leads to {peer}, not {remote}")
            problems += [f"{name} has no port {base + port}" for port in ends if not 0 <= base + port < self.ports]
        if {topology.me, *topology.hosts} != self.reached(topology.me):
            problems.append(f"hosts {sorted(topology.hosts)}")
        return problems

    def is_routed(self, numbers: Iterable[int]) -> bool:
        """Return whether these hosts have tables of one version, with addresses of and routes to exactly all others."""
        group = set(numbers)
        if any(number not in self.tables for number in group):
            return False
        if len({self.tables[number].version for number in group}) > 1:
            return False
        for number in group:
            paths = self.tables[number].paths
            if set(paths) != group - {number}:
                return False
            for destination, path in paths.items():
                route = [(byte & 0x3F ^ 0x20) - 0x20 for byte in path.route]
                if path.address != address(destination) or self.leads_to(number, route)[0] != destination:
                    return False
        return True

    def is_mapped(self, numbers: Iterable[int]) -> bool:
        """Return whether one of these hosts leads with the right map, and all hold its routes."""
        group = sorted(numbers)
        leading = [number for number in group if self.mappers[number].is_leading]
        if len(leading) != 1 or any(self.mappers[number].leader != leading[0] for number in group):
            return False
        topology = self.mappers[leading[0]].topology
        return topology is not None and self.is_routed(group) and not self.differences(topology)

    def dependencies(self) -> Mapping[End, set[End]]:
        """Return for each channel those that frames wait for while they hold it, for all installed routes."""
        graph: dict[End, set[End]] = {}
        for number, table in self.tables.items():
            for path in table.paths.values():
                route = [(byte & 0x3F ^ 0x20) - 0x20 for byte in path.route]
                for channel, awaited in pairwise(self.leads_to(number, route)[1]):
                    graph.setdefault(channel, set()).add(awaited)
        return graph

    def deadlock(self) -> list[End]:
        """Return channels in a cycle, each waiting for the next; empty without a deadlock."""
        try:
            list(TopologicalSorter(self.dependencies()).static_order())
        except CycleError as error:
            return list(error.args[1])
        return []

    def probes_sent(self) -> int:
        return sum(mapper.counters.probes_sent for mapper in self.mappers.values())


# Shapes. An end at a switch gets the switch's next free port.


def plug_cables(
    ends: Iterable[tuple[str | int, str | int]], *, shuffled: Random | None = None, ports: int = 8
) -> list[Cable]:
    """Return cables between these nodes; the ports of a switch are taken in order, or drawn by `shuffled`."""
    free_ports: dict[str, Iterator[int]] = {}

    def next_port(end: str | int) -> End:
        if isinstance(end, int):
            return end, 0
        if end not in free_ports:
            numbers = list(range(ports))
            if shuffled:
                shuffled.shuffle(numbers)
            free_ports[end] = iter(numbers)
        return end, next(free_ports[end])

    return [(next_port(first), next_port(second)) for first, second in ends]


def star(hosts: int) -> list[Cable]:
    return plug_cables((number, "s") for number in range(hosts))


def ring(switches: int, hosts: int) -> list[Cable]:
    """Return a ring of switches. hosts: hosts at each switch."""
    ring_cables = [(f"s{number}", f"s{(number + 1) % switches}") for number in range(switches)]
    return plug_cables([*ring_cables, *((number, f"s{number // hosts}") for number in range(switches * hosts))])


def torus(width: int, hosted: int = 1) -> list[Cable]:
    """Return a torus of switches with a host at every `hosted`-th one."""
    ends: list[tuple[str | int, str | int]] = []
    for x in range(width):
        for y in range(width):
            ends += [(f"s{x}.{y}", f"s{(x + 1) % width}.{y}"), (f"s{x}.{y}", f"s{x}.{(y + 1) % width}")]
    ends += [(number, f"s{n // width}.{n % width}") for number, n in enumerate(range(0, width * width, hosted))]
    return plug_cables(ends)


def fat_tree() -> list[Cable]:
    """Return a two-level fat tree of sixteen hosts: four leaves of four hosts, each with a cable to each of four spines."""
    leaves = [(number, f"leaf{number // 4}") for number in range(16)]
    return plug_cables([*leaves, *((f"leaf{leaf}", f"spine{spine}") for leaf in range(4) for spine in range(4))])


def random_network(seed: int, max_nodes: int = 64, ports: int = 8) -> list[Cable]:
    """Return a connected network of 1 to `max_nodes` switches, some without hosts, some joined twice, some only by a
    bridge."""
    rng = Random(seed)
    switches = rng.randint(1, max_nodes)
    free_ports = dict.fromkeys(range(switches), ports)
    ends: list[tuple[str | int, str | int]] = []

    def join(first: int, second: int) -> None:
        free_ports[first] -= 1
        free_ports[second] -= 1
        ends.append((f"s{first}", f"s{second}"))

    def draw_switch(candidates: Iterable[int]) -> int | None:
        candidates_with_ports = [switch for switch in candidates if free_ports[switch] > 0]
        return rng.choice(candidates_with_ports) if candidates_with_ports else None

    for switch in range(1, switches):
        first = draw_switch(range(switch))
        assert first is not None
        join(first, switch)
    for _ in range(rng.randint(0, 2 * switches)):
        first = draw_switch(range(switches))
        second = draw_switch(switch for switch in range(switches) if switch != first)
        if first is not None and second is not None:
            join(first, second)
    populated = rng.sample(range(switches), rng.randint(1, switches))
    number = 0
    for switch in populated:
        for _ in range(rng.randint(1, 3)):
            if free_ports[switch]:
                free_ports[switch] -= 1
                ends.append((number, f"s{switch}"))
                number += 1
    if not number:  # no port was free
        return random_network(seed + 1_000_000, max_nodes, ports)
    rng.shuffle(ends)
    return plug_cables(ends, shuffled=rng, ports=ports)
