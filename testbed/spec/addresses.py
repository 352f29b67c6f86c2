"""Hardware and IP addresses for NICs that declare none. An edit of the description changes as few of them as possible.

A MAC derives only from the names of the node and the NIC. Every segment gets a network: that of its declared addresses, or
a subnet of the pool. The host number of a NIC is the number at the end of its node's name, if free (``n7`` is 10.0.0.7),
otherwise a hash of the names of node and NIC.
"""

from __future__ import annotations

import ipaddress
import itertools
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

from testbed.errors import Problem
from testbed.lazy_dataclass import dataclass
from testbed.spec.layout import End
from testbed.spec.names import plain_number
from testbed.spec.wiring import Segment, Wiring

_WIDTH = {4: 32, 6: 128}  # bits of an address, by IP version
_PREFERRED_PREFIXES = {4: (16, 24), 6: (64,)}  # prefix lengths of a segment's network, by IP version


@dataclass(frozen=True, slots=True)
class Network:
    """An IP network. version: 4 or 6. base: first address as an integer. prefix: prefix length."""

    version: int
    base: int
    prefix: int

    @property
    def size(self) -> int:
        return 1 << (_WIDTH[self.version] - self.prefix)

    @property
    def hosts(self) -> int:
        """Number of host addresses: all except the first (the network, or in IPv6 the subnet-router anycast address, RFC
        4291 section 2.6.1) and the last (the broadcast address)."""
        return self.size - 2

    def overlaps(self, other: Network) -> bool:
        return self.version == other.version and (
            self.base < other.base + other.size and other.base < self.base + self.size
        )

    def contains(self, other: Network) -> bool:
        return self.overlaps(other) and self.prefix <= other.prefix

    def subnet(self, index: int, prefix: int) -> Network:
        """Return the index-th subnet of a prefix length."""
        return Network(self.version, self.base + (index << (_WIDTH[self.version] - prefix)), prefix)

    def enclosing_base(self, prefix: int) -> int:
        """Return the first address of the network of a shorter prefix length that contains this one."""
        shift = _WIDTH[self.version] - prefix
        return self.base >> shift << shift

    def address(self, number: int) -> str:
        """Format the address of a host number, without the prefix length."""
        value = self.base + number
        if self.version == 4:
            return f"{value >> 24}.{value >> 16 & 255}.{value >> 8 & 255}.{value & 255}"
        return str(ipaddress.IPv6Address(value))

    def __str__(self) -> str:
        return f"{self.address(0)}/{self.prefix}"


class _NetworkIndex:
    """Networks of one IP version, with their positions in a list, to find overlaps."""

    def __init__(self) -> None:
        self._positions: dict[tuple[int, int], int] = {}  # (prefix, base) -> first position of that network
        self._prefixes: set[int] = set()
        self._bases: list[tuple[int, int]] = []  # (base, position), ascending

    def add(self, network: Network, position: int) -> None:
        self._positions.setdefault((network.prefix, network.base), position)
        self._prefixes.add(network.prefix)
        insort(self._bases, (network.base, position))

    def overlapping(self, network: Network) -> int | None:
        """Return the position of an overlapping network: the widest that contains it, otherwise the first within it."""
        for prefix in sorted(self._prefixes):
            if (
                prefix <= network.prefix
                and (position := self._positions.get((prefix, network.enclosing_base(prefix)))) is not None
            ):
                return position
        next_index = bisect_left(self._bases, (network.base, -1))
        inside = next_index < len(self._bases) and self._bases[next_index][0] < network.base + network.size
        return self._bases[next_index][1] if inside else None


def network_of(text: str) -> Network:
    """Return the network of an address with its prefix length, such as ``10.0.0.1/8`` or ``10.0.0.0/8``."""
    network = ipaddress.ip_interface(text).network
    return Network(network.version, int(network.network_address), network.prefixlen)


def version_of(address: str) -> int:
    return 6 if ":" in address else 4


def macs(nics: Iterable[End], declared: dict[End, str]) -> dict[End, str]:
    """Return a MAC for every NIC: the declared MAC, otherwise a locally administered unicast address from the names."""
    result = dict(declared)
    taken = set(declared.values())
    for nic in nics:
        attempt = 0
        while nic not in result:
            # If two hashes collide, which is unlikely, the number of the attempt changes the next hash.
            text = f"{nic.owner}/{nic.port}" + (f"/{attempt}" if attempt else "")
            mac = f"02:{blake2b(text.encode(), digest_size=5).digest().hex(':')}"
            attempt += 1
            if mac not in taken:
                taken.add(mac)
                result[nic] = mac
    return result


def plan_networks(wiring: Wiring, pool: Network, paths: dict[End, str]) -> tuple[list[Network | None], list[Problem]]:
    """Return the network of each segment in the pool's IP version, and the problems of declared addresses.

    paths: the path of each declared NIC in the description, for the problems.
    """
    problems: list[Problem] = []
    networks: list[Network | None] = []
    declared = _NetworkIndex()
    for segment in wiring.segments:
        network, first_declared = None, ""
        for nic, text in _declared(segment, wiring, pool.version):
            nic_network = network_of(text)
            if network is None:
                network, first_declared = nic_network, f"{text} of {nic}"
            elif nic_network != network:
                expected = f"an address of its segment's network {network}, as {first_declared}"
                problems.append(Problem(paths.get(nic, str(nic)), repr(text), expected))
        if network:
            position = declared.overlapping(network)
            if position is not None:
                other_nic = next(str(nic) for nic, _ in _declared(wiring.segments[position], wiring, pool.version))
                path = next(paths.get(nic, str(nic)) for nic, _ in _declared(segment, wiring, pool.version))
                expected = f"a network that does not overlap {networks[position]} of another segment (at {other_nic})"
                problems.append(Problem(path, f"the network {network}", expected))
            declared.add(network, len(networks))
        networks.append(network)
    problems += _assign_subnets(networks, declared, wiring.segments, pool)
    for network, segment in zip(networks, wiring.segments, strict=True):
        if network and len(segment.nics) > network.hosts:
            problems.append(_too_small(pool, f"{len(segment.nics):,} NICs in the network {network}"))
    return networks, problems


def declared_networks(wiring: Wiring, version: int) -> list[Network | None]:
    """Return the network of each segment's declared addresses, for an IP version without a pool; None if it has none."""
    first_addresses = (next(_declared(segment, wiring, version), None) for segment in wiring.segments)
    return [network_of(first[1]) if first else None for first in first_addresses]


def _declared(segment: Segment, wiring: Wiring, version: int) -> Iterator[tuple[End, str]]:
    for nic in segment.nics:
        if nic in wiring.declared:
            for text in wiring.declared[nic].addresses:
                if version_of(text) == version:
                    yield nic, text


def _assign_subnets(
    networks: list[Network | None], declared: _NetworkIndex, segments: Sequence[Segment], pool: Network
) -> list[Problem]:
    """Assign a subnet of the pool to each segment without a network: the i-th subnet to the i-th segment."""
    unassigned = [position for position, network in enumerate(networks) if network is None and segments[position].nics]
    if not unassigned:
        return []
    smallest = pool.prefix + (len(networks) + sum(network is not None for network in networks)).bit_length()
    longest = 30 if pool.version == 4 else 64
    for prefix in [max(prefix, pool.prefix) for prefix in _PREFERRED_PREFIXES[pool.version]] + [min(smallest, longest)]:
        count = 1 << (prefix - pool.prefix)
        spare_indices = iter(range(len(networks), count))
        assigned: dict[int, Network] = {}
        for position in unassigned:
            # A subnet that overlaps a declared network is replaced by one after the subnets of all segments.
            indices = itertools.chain([position] if position < count else [], spare_indices)
            candidates = (pool.subnet(index, prefix) for index in indices)
            subnet = next((candidate for candidate in candidates if declared.overlapping(candidate) is None), None)
            if subnet is None:
                break
            assigned[position] = subnet
        else:
            for position, subnet in assigned.items():
                networks[position] = subnet
            return []
    return [_too_small(pool, f"{len(unassigned):,} segments")]


def _too_small(pool: Network, need: str) -> Problem:
    key = "network" if pool.version == 4 else "network6"
    return Problem(key, repr(str(pool)), f"a pool with room for {need}")


def host_numbers(nics: Sequence[End], network: Network, taken: set[int]) -> dict[End, int]:
    """Choose a free host number for each NIC. taken: the numbers of declared addresses; the chosen numbers are added.

    A NIC of n7 gets 7, if that is free. Others get a number in the network's upper half by the hash of their names. So a
    NIC's number does not change when other NICs are added or removed, unless two hashes collide.
    """
    chosen: dict[End, int] = {}
    lower = network.hosts // 2
    next_candidates: dict[int, int] = {}  # taken number -> a later number, up to which all are taken
    for nic in nics:
        number = plain_number(nic.owner)
        if 0 < number <= network.hosts and number not in taken:
            taken.add(number)
            chosen[nic] = number
    for nic in nics:
        if nic not in chosen:
            digest = blake2b(f"{nic.owner}/{nic.port}".encode(), digest_size=8).digest()
            start = lower + int.from_bytes(digest) % (network.hosts - lower)
            # `plan_networks` has checked that the network has enough numbers.
            number = start % network.hosts + 1
            probed = []
            while number in taken:
                probed.append(number)
                number = next_candidates.get(number, number % network.hosts + 1)
            next_candidates.update(dict.fromkeys(probed, number))
            taken.add(number)
            chosen[nic] = number
    return chosen
