"""Hardware and IP addresses for NICs that have none, so that an edit elsewhere changes as few of them as
possible.

A MAC is made of the node's and the NIC's name alone. Every segment gets a network: that of its declared
addresses, or the next part of the pool. A host's number in it is the number at the end of its node's name, if
free (``n7`` is 10.0.0.7), else a hash of its names.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from testbed.errors import Problem
from testbed.spec.layout import End
from testbed.spec.names import plain_number
from testbed.spec.wiring import Segment, Wiring

_WIDTH = {4: 32, 6: 128}
_USUAL_PREFIX = {4: (16, 24), 6: (64,)}


@dataclass(frozen=True, slots=True)
class Network:
    """An IP network: version 4 or 6, its first address as an integer, its prefix length."""

    version: int
    base: int
    prefix: int

    @property
    def size(self) -> int:
        return 1 << (_WIDTH[self.version] - self.prefix)

    @property
    def hosts(self) -> int:
        """How many hosts it has room for: neither its first address (the network, or in IPv6 the routers'
        anycast address, RFC 4291 section 2.6.1) nor its last (the broadcast address) is a host's."""
        return self.size - 2

    def overlaps(self, other: Network) -> bool:
        return self.version == other.version and (
            self.base < other.base + other.size and other.base < self.base + self.size
        )

    def contains(self, other: Network) -> bool:
        return self.overlaps(other) and self.prefix <= other.prefix

    def part(self, index: int, prefix: int) -> Network:
        """Its index-th part of a prefix length."""
        return Network(self.version, self.base + (index << (_WIDTH[self.version] - prefix)), prefix)

    def address(self, number: int) -> str:
        """The text of a host's address, without the prefix length."""
        value = self.base + number
        if self.version == 4:
            return f"{value >> 24}.{value >> 16 & 255}.{value >> 8 & 255}.{value & 255}"
        return str(ipaddress.IPv6Address(value))

    def __str__(self) -> str:
        return f"{self.address(0)}/{self.prefix}"


def network_of(text: str) -> Network:
    """The network of ``10.0.0.0/8`` or of a host in it such as ``10.0.0.1/8``."""
    network = ipaddress.ip_interface(text).network
    return Network(network.version, int(network.network_address), network.prefixlen)


def version_of(address: str) -> int:
    return 6 if ":" in address else 4


def macs(nics: Iterable[End], declared: dict[End, str]) -> dict[End, str]:
    """A MAC for every NIC: declared ones kept; the others locally administered unicast, from their names."""
    result = dict(declared)
    taken = set(declared.values())
    for nic in nics:
        attempt = 0
        while nic not in result:
            # Two names with one hash are as good as impossible; the attempt's number makes them differ
            # anyway.
            text = f"{nic.owner}/{nic.port}" + (f"/{attempt}" if attempt else "")
            mac = f"02:{blake2b(text.encode(), digest_size=5).digest().hex(':')}"
            attempt += 1
            if mac not in taken:
                taken.add(mac)
                result[nic] = mac
    return result


def plan_networks(wiring: Wiring, pool: Network, places: dict[End, str]) -> tuple[list[Network | None], list[Problem]]:
    """The network of each segment in one IP version, and what is wrong with the declared addresses.

    places: where in the description a declared NIC stands, for the problems.
    """
    problems: list[Problem] = []
    networks: list[Network | None] = []
    for segment in wiring.segments:
        network, witness = None, ""
        for nic, text in _declared(segment, wiring, pool.version):
            own = network_of(text)
            if network is None:
                network, witness = own, f"{text} of {nic}"
            elif own != network:
                expected = f"an address of its segment's network {network}, as {witness}"
                problems.append(Problem(places.get(nic, str(nic)), repr(text), expected))
        for place, other in enumerate(networks) if network else ():
            if network and other and network.overlaps(other):
                others = next(str(nic) for nic, _ in _declared(wiring.segments[place], wiring, pool.version))
                where = next(places.get(nic, str(nic)) for nic, _ in _declared(segment, wiring, pool.version))
                expected = f"a network that does not overlap {other} of another segment (at {others})"
                problems.append(Problem(where, f"the network {network}", expected))
        networks.append(network)
    problems += _fill(networks, wiring.segments, pool)
    for network, segment in zip(networks, wiring.segments, strict=True):
        if network and len(segment.nics) > network.hosts:
            problems.append(_too_small(pool, f"{len(segment.nics):,} NICs in the network {network}"))
    return networks, problems


def declared_networks(wiring: Wiring, version: int) -> list[Network | None]:
    """Where there is no pool: the networks of the declared addresses only."""
    firsts = (next(_declared(segment, wiring, version), None) for segment in wiring.segments)
    return [network_of(first[1]) if first else None for first in firsts]


def _declared(segment: Segment, wiring: Wiring, version: int) -> Iterator[tuple[End, str]]:
    for nic in segment.nics:
        if nic in wiring.declared:
            for text in wiring.declared[nic].addresses:
                if version_of(text) == version:
                    yield nic, text


def _fill(networks: list[Network | None], segments: Sequence[Segment], pool: Network) -> list[Problem]:
    """Gives each segment without a network its part of the pool: the i-th segment the i-th part."""
    open_places = [place for place, network in enumerate(networks) if network is None and segments[place].nics]
    if not open_places:
        return []
    declared = [network for network in networks if network]
    smallest = pool.prefix + (len(networks) + len(declared)).bit_length()
    longest = 30 if pool.version == 4 else 64
    for prefix in [max(usual, pool.prefix) for usual in _USUAL_PREFIX[pool.version]] + [min(smallest, longest)]:
        count = 1 << (prefix - pool.prefix)
        fresh = iter(range(len(networks), count))
        chosen: dict[int, Network] = {}
        for place in open_places:
            # A part that a declared network lies in is passed over for one behind all segments' own.
            indices = itertools.chain([place] if place < count else [], fresh)
            parts = (pool.part(index, prefix) for index in indices)
            part = next((part for part in parts if _clear(part, declared)), None)
            if part is None:
                break
            chosen[place] = part
        else:
            for place, part in chosen.items():
                networks[place] = part
            return []
    return [_too_small(pool, f"{len(open_places):,} segments")]


def _clear(part: Network, declared: Sequence[Network]) -> bool:
    return not any(part.overlaps(other) for other in declared)


def _too_small(pool: Network, need: str) -> Problem:
    key = "network" if pool.version == 4 else "network6"
    return Problem(key, repr(str(pool)), f"a pool with room for {need}")


def host_numbers(nics: Sequence[End], network: Network, taken: set[int]) -> dict[End, int]:
    """A free host number for each NIC. taken: those of the declared addresses; it grows.

    n7 gets 7; any other name gets a number of the network's upper half by its hash. So a NIC's number follows from its own
    name, and does not move when others come and go, except where two hashes meet.
    """
    chosen: dict[End, int] = {}
    lower = network.hosts // 2
    for nic in nics:
        number = plain_number(nic.owner)
        if 0 < number <= network.hosts and number not in taken:
            taken.add(number)
            chosen[nic] = number
    for nic in nics:
        if nic not in chosen:
            digest = blake2b(f"{nic.owner}/{nic.port}".encode(), digest_size=8).digest()
            start = lower + int.from_bytes(digest) % (network.hosts - lower)
            # The pool check has seen to it that there is room.
            number = next(
                n for n in ((start + step) % network.hosts + 1 for step in range(network.hosts)) if n not in taken
            )
            taken.add(number)
            chosen[nic] = number
    return chosen
