"""A network for mappers: it models little more than the wire format, so that thousands of maps take seconds.

Frames follow their source routes through anonymous switches, one hop a microsecond, and never wait. Whether a frame is lost,
cut off or damaged is drawn for each hop from the network's seed. What is true of the network is asked of its cables.
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
Place = tuple[str | int, int]  # a switch's name or a host's number, and the port; a host's is 0
Cable = tuple[Place, Place]


def address(number: int) -> bytes:
    return bytes((2, 0, 0, 0)) + number.to_bytes(2, "big")


class Myrinet:
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
        probabilities for each hop. leaders: who may lead; None: all. hosts: more of them, not yet plugged in."""
        self.cables = list(cables)
        self.ports, self.loss, self.damage = ports, loss, damage
        self.now = self.delivered = self.dropped = self.crossings = 0
        self._random = Random(seed)
        self._peers: dict[Place, Place] = {}
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

    # What happens to it.

    def boot(self, number: int) -> None:
        """A host's mapper starts, or starts again."""
        self._incarnations[number] = incarnation = self._incarnations.get(number, 0) + 1
        leads = self._leaders is None or number in self._leaders
        self.tables.pop(number, None)
        mapper = self.mappers[number] = Mapper(
            MapperIdentity(number, incarnation, address(number)),
            lambda frame: self._carry(number, frame),
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
        """A switch, with all its cables."""
        for cable in [cable for cable in self.cables if switch in (cable[0][0], cable[1][0])]:
            self.cut(cable)

    def join(self, cable: Cable) -> None:
        self.cables.append(cable)
        self._plug(*cable)

    def _plug(self, first: Place, second: Place) -> None:
        assert first not in self._peers, first
        assert second not in self._peers, second
        self._peers[first], self._peers[second] = second, first

    def hint(self, number: int, lost: int) -> None:
        """A host's transport does not get through to another one."""
        self.mappers[number].unreachable(self.now, lost)
        self._schedule(number, self.mappers[number])

    # Time.

    def run(self, duration: int, until: Callable[[], bool] = lambda: False) -> bool:
        """Return whether that has come true, within that time."""
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

    def _carry(self, number: int, frame: bytes) -> None:
        peers, ports, offset = self._peers, self.ports, 14
        if number == 0:
            self.sent_at.append(self.now)
        attached: Place | None = peers.get((number, 0))
        time = self.now + HOP
        crossed_ports, is_crossed_twice = {(number, 0)}, False
        while attached is not None:
            if self.loss and self._random.random() < self.loss:
                break
            if self.damage and self._random.random() < self.damage:
                frame = self._damaged(frame)
            node, port = attached
            if isinstance(node, int):
                self.crossings += is_crossed_twice and not (offset < len(frame) and frame[offset] & 0x80)
                if offset > 14:
                    # As each switch makes the CRC-8 anew and keeps what was wrong of it, so do all of them.
                    is_wrong = crc8(frame[14:])
                    frame = frame[:14] + frame[offset:-1]
                    frame += bytes((crc8(frame[14:]) ^ is_wrong,))
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

    def _damaged(self, frame: bytes) -> bytes:
        if self._random.random() < 0.5:
            return frame[: 14 + self._random.randrange(len(frame) - 14)]
        bit = self._random.randrange(8 * len(frame))
        return frame[: bit >> 3] + bytes((frame[bit >> 3] ^ 1 << (bit & 7),)) + frame[(bit >> 3) + 1 :]

    # What is true.

    def reached(self, origin: int) -> set[int]:
        """The hosts that live and that a host is connected to, itself among them."""
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
        """The hosts that live, those that are connected together."""
        remaining, groups = set(self.mappers), []
        while remaining:
            groups.append(self.reached(min(remaining)))
            remaining -= groups[-1]
        return groups

    def settle(self, limit: int = 10 * SECOND, step: int = 10 * MILLISECOND) -> int | None:
        """Run until every group has a leader, the right map and its routes; return the time taken, in ns, None above
        the limit."""
        start_time = self.now
        while self.now - start_time < limit:
            self.run(step)
            if all(map(self.mapped, self.groups())):
                return self.now - start_time
        return None

    def leads_to(self, number: int, route: Iterable[int]) -> tuple[str | int | None, list[Place]]:
        """Return where a frame from that host ends, and its channels: the ports that it leaves by."""
        channels: list[Place] = [(number, 0)]
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
        attached_ports: list[Place] = []
        for switch, route in enumerate(topology.routes):
            _, channels = self.leads_to(topology.me, route)
            attached = self._peers.get(channels[-1])
            if attached is None or isinstance(attached[0], int):
                return [f"no switch {switch} by {route}"]
            attached_ports.append(attached)
        if len({name for name, _ in attached_ports}) < len(attached_ports):
            problems.append("a switch is there twice")
        for (name, base), ends in zip(attached_ports, topology.ends, strict=True):
            for port in range(self.ports):
                peer = self._peers.get((name, port))
                if peer is not None and isinstance(peer[0], int) and peer[0] not in self.mappers:
                    peer = None  # a silent host cannot be distinguished from none
                end = ends.get(port - base)
                if isinstance(end, Port):
                    remote: Place | None = (attached_ports[end.switch][0], attached_ports[end.switch][1] + end.port)
                else:
                    remote = None if end is None else (end, 0)
                if peer != remote:
                    problems.append(f"{name}:{port} leads to {peer}, not {remote}")
            problems += [f"{name} has no port {base + port}" for port in ends if not 0 <= base + port < self.ports]
        if {topology.me, *topology.hosts} != self.reached(topology.me):
            problems.append(f"hosts {sorted(topology.hosts)}")
        return problems

    def routed(self, numbers: Iterable[int]) -> bool:
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

    def mapped(self, numbers: Iterable[int]) -> bool:
        """Return whether one of these hosts leads with the right map, and all hold its routes."""
        group = sorted(numbers)
        leading = [number for number in group if self.mappers[number].leads]
        if len(leading) != 1 or any(self.mappers[number].leader != leading[0] for number in group):
            return False
        topology = self.mappers[leading[0]].topology
        return topology is not None and self.routed(group) and not self.differences(topology)

    def dependencies(self) -> Mapping[Place, set[Place]]:
        """Channels, and those that frames wait for while they hold them, of all routes that are installed."""
        graph: dict[Place, set[Place]] = {}
        for number, table in self.tables.items():
            for path in table.paths.values():
                route = [(byte & 0x3F ^ 0x20) - 0x20 for byte in path.route]
                for held, awaited in pairwise(self.leads_to(number, route)[1]):
                    graph.setdefault(held, set()).add(awaited)
        return graph

    def deadlock(self) -> list[Place]:
        """Channels in a circle, each waiting for the next; none."""
        try:
            list(TopologicalSorter(self.dependencies()).static_order())
        except CycleError as error:
            return list(error.args[1])
        return []

    def sent(self) -> int:
        return sum(mapper.counters.probes_sent for mapper in self.mappers.values())


# Shapes. A cable's end without a port gets the next one of its switch.


def plug_cables(
    ends: Iterable[tuple[str | int, str | int]], *, shuffled: Random | None = None, ports: int = 8
) -> list[Cable]:
    """Cables between these; the ports of a switch in order, or drawn."""
    free_ports: dict[str, Iterator[int]] = {}

    def next_port(end: str | int) -> Place:
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
    """hosts: hosts of each switch."""
    ring_cables = [(f"s{number}", f"s{(number + 1) % switches}") for number in range(switches)]
    return plug_cables([*ring_cables, *((number, f"s{number // hosts}") for number in range(switches * hosts))])


def torus(width: int, hosted: int = 1) -> list[Cable]:
    """A host at every hosted-th switch."""
    ends: list[tuple[str | int, str | int]] = []
    for x in range(width):
        for y in range(width):
            ends += [(f"s{x}.{y}", f"s{(x + 1) % width}.{y}"), (f"s{x}.{y}", f"s{x}.{(y + 1) % width}")]
    ends += [(number, f"s{n // width}.{n % width}") for number, n in enumerate(range(0, width * width, hosted))]
    return plug_cables(ends)


def fat_tree() -> list[Cable]:
    """Sixteen hosts, two-level: four leaves of four hosts, each with a cable to each of four spines."""
    leaves = [(number, f"leaf{number // 4}") for number in range(16)]
    return plug_cables([*leaves, *((f"leaf{leaf}", f"spine{spine}") for leaf in range(4) for spine in range(4))])


def random_network(seed: int, max_nodes: int = 64, ports: int = 8) -> list[Cable]:
    """A connected network of 1 to most switches, some of them without hosts, some joined twice, some by a bridge only."""
    random = Random(seed)
    switches = random.randint(1, max_nodes)
    free_ports = dict.fromkeys(range(switches), ports)
    ends: list[tuple[str | int, str | int]] = []

    def join(first: int, second: int) -> None:
        free_ports[first] -= 1
        free_ports[second] -= 1
        ends.append((f"s{first}", f"s{second}"))

    def draw_switch(candidates: Iterable[int]) -> int | None:
        able = [switch for switch in candidates if free_ports[switch] > 0]
        return random.choice(able) if able else None

    for switch in range(1, switches):
        first = draw_switch(range(switch))
        assert first is not None
        join(first, switch)
    for _ in range(random.randint(0, 2 * switches)):
        first = draw_switch(range(switches))
        second = draw_switch(switch for switch in range(switches) if switch != first)
        if first is not None and second is not None:
            join(first, second)
    populated = random.sample(range(switches), random.randint(1, switches))
    number = 0
    for switch in populated:
        for _ in range(random.randint(1, 3)):
            if free_ports[switch]:
                free_ports[switch] -= 1
                ends.append((number, f"s{switch}"))
                number += 1
    if not number:  # no port was free
        return random_network(seed + 1_000_000, max_nodes, ports)
    random.shuffle(ends)
    return plug_cables(ends, shuffled=random, ports=ports)
