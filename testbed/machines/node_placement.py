"""Placement of nodes and switches on machines with a small cut: the total rate of the links between machines.

Some groups are indivisible and stay on one machine: switches that exist only in a relay, with all their neighbours, and the
ends of a link that is declared direct, unless pins or exclusions divide them. The parts grow one machine after the other,
each by the group with the strongest links to it (greedy graph growing: Karypis, Kumar, "A fast and high quality multilevel
scheme for partitioning irregular graphs", SIAM J. Sci. Comput. 20, 1998), and are then refined by moves and exchanges that
reduce the cut. Further partitions start from clusters of groups with strong links between them (the paper's coarsening, in
one step), and from METIS's partition, if METIS is installed. The partition with the smallest cut is used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from importlib.util import find_spec
from typing import Final

from testbed.errors import UnsupportedError
from testbed.spec.layout import Layout
from testbed.spec.units import format_size

UNLIMITED: Final = 10_000_000_000
"""Assumed rate of a link without a rate, bit/s, unless a link of the cluster has a higher one."""

_SLACK: Final = 1.05
"""Maximum load of a machine, relative to its share, that is accepted for a smaller cut."""

_METIS_SCALE: Final = 1000  # METIS needs integer weights

_PORT_LOAD: Final = 0.05
"""Load of a switch port, relative to that of an average node: an estimate, so that large fabrics are spread like nodes."""

_CLUSTER_SHARES: Final = (1, 1 / 2, 1 / 4, 1 / 8)
"""Maximum loads of clusters to try, relative to a machine's share. Large clusters divide few links between machines, small
ones fill machines evenly."""

_PASSES: Final = 8  # refinement passes; most layouts need two


@dataclass(frozen=True, slots=True)
class Capacity:
    """Capacity of a machine for nodes. memory: bytes."""

    cores: float
    memory: int


@dataclass(frozen=True, slots=True)
class Constraints:
    """The user's constraints on a placement. pins: node or switch -> machine. exclusions: node or switch -> machines on
    which it must not be placed."""

    pins: Mapping[str, str] = field(default_factory=dict)
    exclusions: Mapping[str, Collection[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Placement:
    """Placement of a cluster. machine_of: node or switch -> machine. cut: names of the links between machines. rate: total
    rate of these links in both directions, bit/s, see `link_weights`."""

    machine_of: Mapping[str, str]
    cut: tuple[str, ...]
    rate: int

    def on(self, machine: str) -> frozenset[str]:
        """Return the nodes and switches on a machine."""
        return frozenset(name for name, owner in self.machine_of.items() if owner == machine)


@dataclass(slots=True)
class _Group:
    """Nodes and switches that stay together. load: load in cores, see `_shares`. declared, memory: cores and bytes that its
    nodes request. allowed: machines on which it may be placed. ties: other group -> total rate of the links to it, bit/s."""

    members: list[str]
    load: float = 0.0
    declared: float = 0.0
    memory: int = 0
    allowed: set[str] = field(default_factory=set)
    ties: dict[int, int] = field(default_factory=lambda: defaultdict(int))


def place(layout: Layout, capacities: Mapping[str, Capacity], constraints: Constraints | None = None) -> Placement:
    """Place a cluster's nodes and switches on machines, in the order of the machines. Raises UnsupportedError if they
    do not fit, or if pins divide an indivisible group."""
    groups = _groups(layout, capacities, constraints or Constraints())
    weights = link_weights(layout)
    group_of = {member: number for number, group in enumerate(groups) for member in group.members}
    for link in layout.links:
        a, b = group_of[link.a.owner], group_of[link.b.owner]
        if a != b:
            groups[a].ties[b] += weights[link.name]
            groups[b].ties[a] += weights[link.name]
    partitions: list[_Partition] = []
    refusals: list[UnsupportedError] = []
    suggestions = [_cluster_partition(groups, capacities, share) for share in _CLUSTER_SHARES]
    suggestions.append(_metis_partition(groups, capacities))
    for suggestion in [{}, *filter(None, suggestions)]:
        try:
            partitions.append(_partition(groups, capacities, suggestion))
        except UnsupportedError as error:
            refusals.append(error)
    if not partitions:
        raise refusals[0]
    machine_of = min(partitions, key=_Partition.cut).machine_of
    return placement_of(layout, {member: machine_of[number] for member, number in group_of.items()})


def _partition(
    groups: Sequence[_Group], capacities: Mapping[str, Capacity], suggestion: Mapping[int, str]
) -> _Partition:
    """Place every group. suggestion: see `_Partition.grow`. Raises UnsupportedError if the groups do not fit."""
    partition = _Partition(groups, capacities)
    partition.grow(suggestion)
    partition.refine()
    return partition


def placement_of(layout: Layout, machine_of: Mapping[str, str]) -> Placement:
    """Make a placement, and determine its cut. machine_of: node or switch -> machine."""
    weights = link_weights(layout)
    cut = tuple(link.name for link in layout.links if machine_of[link.a.owner] != machine_of[link.b.owner])
    return Placement(dict(machine_of), cut, sum(weights[name] for name in cut))


def link_weights(layout: Layout) -> dict[str, int]:
    """Return the cost of cutting each link: the sum of the rates of its directions, bit/s. A direction without a rate counts
    as `UNLIMITED`, or as the highest rate of the cluster if that is higher."""
    rates = [side.rate for link in layout.links for side in (link.forward, link.backward)]
    unlimited = max([UNLIMITED, *rates])
    return {link.name: (link.forward.rate or unlimited) + (link.backward.rate or unlimited) for link in layout.links}


def _groups(layout: Layout, capacities: Mapping[str, Capacity], constraints: Constraints) -> list[_Group]:
    """Return the indivisible groups, without ties. Raises UnsupportedError if no machine is allowed for one."""
    leader = {
        name: name for name in [*(node.name for node in layout.nodes), *(switch.name for switch in layout.switches)]
    }
    allowed = {
        name: ({constraints.pins[name]} & capacities.keys() if name in constraints.pins else {*capacities})
        - {*constraints.exclusions.get(name, ())}
        for name in leader
    }

    def find_leader(name: str) -> str:
        while leader[name] != name:
            leader[name] = name = leader[leader[name]]
        return name

    for link in sorted(layout.links, key=lambda link: not link.model):
        if link.datapath == "direct" or link.model:
            a, b = find_leader(link.a.owner), find_leader(link.b.owner)
            if link.model or allowed[a] & allowed[b]:
                leader[b] = a
                allowed[a] &= allowed[b]
    groups: dict[str, _Group] = {}
    for name in leader:
        first = find_leader(name)
        groups.setdefault(first, _Group([], allowed=allowed[first])).members.append(name)
    shares = _shares(layout, capacities)
    nodes = {node.name: node for node in layout.nodes}
    for group in groups.values():
        for member in group.members:
            group.load += shares[member]
            if member in nodes:
                group.declared += nodes[member].cpu_share
                group.memory += nodes[member].memory
        if not group.allowed:
            first, *others = group.members
            inseparable = f", inseparable from {', '.join(others[:3])}" if others else ""
            raise UnsupportedError(f"{first}{inseparable}: the pins and exclusions leave no machine for it")
    return list(groups.values())


def _shares(layout: Layout, capacities: Mapping[str, Capacity]) -> dict[str, float]:
    """Return the load of each node and switch in cores. The remaining cores are divided equally among nodes without a CPU
    share. Each port of a switch counts as a fraction of an average node, since forwarding also takes processor time."""
    declared = {node.name: node.cpu_share for node in layout.nodes}
    total = sum(capacity.cores for capacity in capacities.values())
    if sum(declared.values()) > total:
        raise UnsupportedError(
            f"{layout.name} requests {sum(declared.values()):g} cores, and the machines have {total:g} in total"
        )
    undeclared = sum(not share for share in declared.values())
    default_share = (total - sum(declared.values())) / undeclared if undeclared else 0.0
    loads = {name: share or default_share for name, share in declared.items()}
    average = sum(loads.values()) / len(loads) if loads else 0.0
    return loads | {switch.name: len(switch.ports) * _PORT_LOAD * average for switch in layout.switches}


def _cluster_partition(groups: Sequence[_Group], capacities: Mapping[str, Capacity], share: float) -> dict[int, str]:
    """Return a partition in which clusters of groups are not divided; empty if the clusters do not fit, or each is a single
    group. share: maximum load of a cluster, relative to the share of the machine with the fewest cores."""
    cluster_of = _cluster_numbers(groups, capacities, share)
    clusters = {number: _Group([]) for number in cluster_of}
    if len(clusters) == len(groups):
        return {}
    numbers = {cluster: number for number, cluster in enumerate(clusters)}
    for group, own_number in zip(groups, cluster_of, strict=True):
        cluster = clusters[own_number]
        cluster.allowed = cluster.allowed & group.allowed if cluster.members else group.allowed
        cluster.members += group.members
        cluster.load += group.load
        cluster.declared += group.declared
        cluster.memory += group.memory
        for neighbour, weight in group.ties.items():
            if (neighbour_number := cluster_of[neighbour]) != own_number:
                cluster.ties[numbers[neighbour_number]] += weight
    try:
        partition = _partition([*clusters.values()], capacities, {})
    except UnsupportedError:
        return {}
    return {group: partition.machine_of[numbers[cluster]] for group, cluster in enumerate(cluster_of)}


def _cluster_numbers(groups: Sequence[_Group], capacities: Mapping[str, Capacity], share: float) -> list[int]:
    """Return the cluster of each group; a cluster's number is that of one of its groups. The groups with the fewest
    neighbours come first: each joins its cluster with the one to which it has the strongest links. share: see
    `_cluster_partition`."""
    leader = list(range(len(groups)))
    load = [group.load for group in groups]
    memory = [group.memory for group in groups]
    allowed = [group.allowed for group in groups]
    cores = [capacity.cores for capacity in capacities.values()]
    max_load = sum(load) * min(cores) / sum(cores) * _SLACK * share
    max_memory = min(capacity.memory for capacity in capacities.values())

    def find_leader(number: int) -> int:
        while leader[number] != number:
            leader[number] = number = leader[leader[number]]
        return number

    for number in sorted(leader, key=lambda number: len(groups[number].ties)):
        own_cluster = find_leader(number)
        weights: dict[int, int] = {}
        for neighbour, weight in groups[number].ties.items():
            other_cluster = find_leader(neighbour)
            weights[other_cluster] = weights.get(other_cluster, 0) + weight
        weights.pop(own_cluster, None)
        for other_cluster in sorted(weights, key=lambda other_cluster: (-weights[other_cluster], other_cluster)):
            if (
                load[own_cluster] + load[other_cluster] <= max_load
                and memory[own_cluster] + memory[other_cluster] <= max_memory
                and allowed[own_cluster] == allowed[other_cluster]
            ):
                leader[own_cluster] = other_cluster
                load[other_cluster] += load[own_cluster]
                memory[other_cluster] += memory[own_cluster]
                break
    return [find_leader(number) for number in leader]


def has_metis() -> bool:
    """Whether METIS, the graph-partitioning library, is installed (extra ``netns-testbed[placement]``)."""
    return find_spec("pymetis") is not None


def _metis_partition(groups: Sequence[_Group], capacities: Mapping[str, Capacity]) -> dict[int, str]:
    """Return a partition by METIS, which considers loads and links, but neither memory nor pins; empty if METIS is not
    installed, or there are few groups."""
    if not has_metis() or len(groups) < 2 * len(capacities):
        return {}
    import pymetis

    starts: list[int] = [0]
    neighbours: list[int] = []
    weights: list[int] = []
    heaviest = max((weight for group in groups for weight in group.ties.values()), default=1)
    heaviest_load = max(group.load for group in groups) or 1.0
    for group in groups:
        neighbours += group.ties.keys()
        weights += [max(1, weight * _METIS_SCALE // heaviest) for weight in group.ties.values()]
        starts.append(len(neighbours))
    cores = sum(capacity.cores for capacity in capacities.values())
    parts = pymetis.part_graph(
        len(capacities),
        pymetis.CSRAdjacency(starts, neighbours),
        eweights=weights,
        vweights=[round(group.load / heaviest_load * _METIS_SCALE) for group in groups],
        tpwgts=[capacity.cores / cores for capacity in capacities.values()],
    ).vertex_part
    machines = list(capacities)
    return {number: machines[part] for number, part in enumerate(parts)}


class _Partition:
    """A partition under construction.

    machine_of: group -> machine. _used, _declared, _memory: load, declared cores and bytes of each machine's groups.
    _attraction: group -> machine with neighbours of the group -> weight of the links to them. _borders: (machine,
    neighbouring machine) -> groups on the first with links to the second, each after the negative gain of a move there, in
    this order. _loose: group -> weight of its links to groups that are not placed yet. _far: heap of these weights and
    groups, including outdated entries. _target: machine -> its share of the load.
    """

    def __init__(self, groups: Sequence[_Group], capacities: Mapping[str, Capacity]) -> None:
        self._groups = groups
        self._capacities = capacities
        self._order = {machine: number for number, machine in enumerate(capacities)}
        self.machine_of: dict[int, str] = {}
        self._used = dict.fromkeys(capacities, 0.0)
        self._declared = dict.fromkeys(capacities, 0.0)
        self._memory = dict.fromkeys(capacities, 0)
        load = sum(group.load for group in groups)
        cores = sum(capacity.cores for capacity in capacities.values())
        self._attraction: list[dict[str, int]] = [{} for _ in groups]
        self._borders: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        self._loose = [sum(group.ties.values()) for group in groups]
        self._far: list[tuple[int, int]] = []
        self._target = {name: load * capacity.cores / cores for name, capacity in capacities.items()}

    def grow(self, suggestion: Mapping[int, str]) -> None:
        """Place every group. suggestion: group -> machine, followed as far as the machines have room. Raises
        UnsupportedError if the groups do not fit."""
        for number, group in enumerate(self._groups):
            if len(group.allowed) == 1:
                (machine,) = group.allowed
                self._put_checked(number, machine)
        for number, machine in suggestion.items():
            if number not in self.machine_of and self._has_room(number, machine, self._target[machine] * _SLACK):
                self._put(number, machine)
        if not suggestion:
            pinned: dict[str, list[int]] = defaultdict(list)
            for number, machine in self.machine_of.items():
                pinned[machine].append(number)
            self._far = [(self._loose[number], number) for number in self._unplaced()]
            heapify(self._far)
            for machine in list(self._capacities)[:-1]:
                self._fill(machine, pinned[machine])
        unplaced = self._unplaced()
        unplaced.sort(key=lambda number: (-self._groups[number].declared, -self._groups[number].memory))
        for number in unplaced:
            self._put_checked(number, self._best_machine(number))

    def _fill(self, machine: str, pinned: Sequence[int]) -> None:
        """Grow a machine's part until it has its share of the load. The next group is the one with the strongest links
        to the part and the weakest links to groups that are not placed yet. pinned: groups that are already on the
        machine."""
        ties: dict[int, int] = defaultdict(int)
        near: list[tuple[int, int]] = []  # groups with links to the part
        too_large: list[tuple[int, int]] = []

        def add_neighbours(number: int) -> None:
            for neighbour, weight in self._groups[number].ties.items():
                ties[neighbour] += weight
                heappush(near, (self._loose[neighbour] - 2 * ties[neighbour], neighbour))

        for number in pinned:
            add_neighbours(number)
        while (near or self._far) and self._used[machine] < self._target[machine]:
            is_near = bool(near) and (not self._far or near[0] < self._far[0])
            rank, number = heappop(near if is_near else self._far)
            is_current = rank == self._loose[number] - (2 * ties[number] if is_near else 0)
            if number in self.machine_of or not is_current:
                continue
            if self._has_room(number, machine, self._target[machine] * _SLACK):
                self._put(number, machine)
                add_neighbours(number)
            elif not is_near:
                too_large.append((rank, number))
        for entry in too_large:
            heappush(self._far, entry)

    def _unplaced(self) -> list[int]:
        return [number for number in range(len(self._groups)) if number not in self.machine_of]

    def _has_room(self, number: int, machine: str, max_load: float) -> bool:
        """Whether a machine is allowed for a group and has room for it, and its load would not exceed `max_load`, unless the
        group's own load does."""
        group, capacity = self._groups[number], self._capacities[machine]
        return (
            machine in group.allowed
            and self._used[machine] + group.load <= max(max_load, group.load)
            and self._declared[machine] + group.declared <= capacity.cores
            and self._memory[machine] + group.memory <= capacity.memory
        )

    def _best_machine(self, number: int) -> str:
        """Return the machine with room that has the strongest links to a group; among equals, the machine that is furthest
        below its share of the load. If none has room, return an allowed machine."""
        fitting = [name for name in self._capacities if self._has_room(number, name, float("inf"))]
        balanced = [name for name in fitting if self._has_room(number, name, self._target[name] * _SLACK)]
        attraction = self._attraction[number]
        return max(
            balanced or fitting or self._groups[number].allowed,
            key=lambda name: (attraction.get(name, 0), self._target[name] - self._used[name]),
        )

    def _put_checked(self, number: int, machine: str) -> None:
        if not self._has_room(number, machine, float("inf")):
            group, capacity = self._groups[number], self._capacities[machine]
            raise UnsupportedError(
                f"{group.members[0]} fits on no machine that is allowed for it: machine {machine} would use "
                f"{self._declared[machine] + group.declared:g} of its {capacity.cores:g} cores and "
                f"{format_size(self._memory[machine] + group.memory)} of its {format_size(capacity.memory)}"
            )
        self._put(number, machine)

    def _put(self, number: int, machine: str) -> None:
        self._count(number, machine, 1)
        self._set_machine(number, machine)
        for neighbour, weight in self._groups[number].ties.items():
            self._loose[neighbour] -= weight
            if neighbour not in self.machine_of:
                heappush(self._far, (self._loose[neighbour], neighbour))

    def _set_machine(self, number: int, machine: str) -> None:
        previous = self.machine_of.get(number)
        self.machine_of[number] = machine
        for neighbour, weight in self._groups[number].ties.items():
            attraction = self._attraction[neighbour]
            attraction[machine] = attraction.get(machine, 0) + weight
            if previous is not None:
                attraction[previous] -= weight
                if not attraction[previous]:
                    del attraction[previous]

    def _count(self, number: int, machine: str, sign: int) -> None:
        group = self._groups[number]
        self._used[machine] += sign * group.load
        self._declared[machine] += sign * group.declared
        self._memory[machine] += sign * group.memory

    def cut(self) -> int:
        """Return twice the weight of the links between machines: each is counted from both ends."""
        return sum(
            weight
            for number, machine in self.machine_of.items()
            for neighbour, weight in self._groups[number].ties.items()
            if self.machine_of[neighbour] != machine
        )

    def refine(self) -> None:
        """Move groups and exchange pairs as long as this reduces the cut."""
        for _ in range(_PASSES):
            self._find_borders()
            if not sum([self._improve(number) for number in range(len(self._groups))]):
                return

    def _gain(self, number: int, target: str) -> int:
        """Return by how much a group's move to machine `target` reduces the cut."""
        attraction = self._attraction[number]
        return attraction.get(target, 0) - attraction.get(self.machine_of[number], 0)

    def _find_borders(self) -> None:
        self._borders.clear()
        for number, machine in self.machine_of.items():
            for neighbour_machine in self._attraction[number]:
                if neighbour_machine != machine:
                    self._borders[machine, neighbour_machine].append((-self._gain(number, neighbour_machine), number))
        for border in self._borders.values():
            border.sort()

    def _improve(self, number: int) -> bool:
        """Move a group to a machine with stronger links to it, if necessary in exchange for another group; return whether it
        was moved."""
        current, attraction = self.machine_of[number], self._attraction[number]
        if attraction.keys() <= {current}:
            return False
        for target in sorted(attraction, key=lambda name: (-attraction[name], self._order[name])):
            gain = self._gain(number, target)
            if gain <= 0:
                return False
            if self._try_moves({number: target}):
                return True
            for partner in self._partners(number, target, gain):
                if self._try_moves({number: target, partner: current}):
                    return True
        return False

    def _partners(self, number: int, target: str, gain: int) -> Iterator[int]:
        """Yield the groups on machine `target` whose exchange for a group reduces the cut. gain: gain of the group's move to
        `target`."""
        current, ties = self.machine_of[number], self._groups[number].ties
        for negative_gain, partner in self._borders[target, current]:
            if gain <= negative_gain:  # as of the start of the pass; the next pass takes later changes into account
                return
            if self.machine_of[partner] == target and gain + self._gain(partner, current) > 2 * ties.get(partner, 0):
                yield partner

    def _try_moves(self, moves: Mapping[int, str]) -> bool:
        """Move groups; undo all moves and return False if a machine lacks room."""
        before = {number: self.machine_of[number] for number in moves}
        for number, machine in before.items():
            self._count(number, machine, -1)
        done: dict[int, str] = {}
        for number, machine in moves.items():
            if not self._has_room(number, machine, self._target[machine] * _SLACK):
                break
            self._count(number, machine, 1)
            done[number] = machine
        if len(done) == len(moves):
            for number, machine in done.items():
                self._set_machine(number, machine)
            return True
        for number, machine in done.items():
            self._count(number, machine, -1)
        for number, machine in before.items():
            self._count(number, machine, 1)
        return False
