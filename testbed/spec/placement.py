"""Placement of a run's programs: ranks on nodes, their cores, and their functions of the nodes' NICs.

Each rank is a program with a function of its node's NIC, like a PCI function, which peers see as a separate NIC: it has a
number (the rank), a MAC address and firmware. The functions of a node share the node's interface. Ranks are numbered node by
node, in the order of the description.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from testbed.errors import UnsupportedError
from testbed.spec.layout import Layout, Node
from testbed.spec.names import MAX_RANKS

NO_ADDRESS: Final = bytes(6)
"""Address of a node without a NIC."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One program of a run. name: name of the node; if the node has several ranks, followed by a dot and `function`. number:
    number among all ranks. node: name of the node. function: function of the node's NIC, from 0. core: core of the node."""

    name: str
    number: int
    node: str
    function: int
    core: int


def node_of(rank: str) -> str:
    """Return the name of a rank's node."""
    return rank.partition(".")[0]


def ranks_of(layout: Layout) -> tuple[Rank, ...]:
    """Return the ranks in order."""
    ranks: list[Rank] = []
    for node in layout.nodes:
        cores = node.ranks or (0,)
        for function, core in enumerate(cores):
            name = node.name if len(cores) == 1 else f"{node.name}.{function}"
            ranks.append(Rank(name, len(ranks), node.name, function, core))
    return tuple(ranks)


def one_rank_per_node(layout: Layout) -> tuple[Rank, ...]:
    """Return one rank for each node, regardless of the layout."""
    return tuple([Rank(node.name, number, node.name, 0, 0) for number, node in enumerate(layout.nodes)])


def with_ranks(layout: Layout, per_node: int, cores: Mapping[str, int]) -> Layout:
    """Place `per_node` ranks on each node without configured ranks, on its cores in turn. cores: number of cores, by node.
    Raises UnsupportedError for an invalid number of ranks."""
    if not 1 <= per_node <= MAX_RANKS:
        raise UnsupportedError(f"ranks per node must be 1 to {MAX_RANKS}, got {per_node}")
    if per_node == 1:
        return layout
    nodes = [
        node if node.ranks else replace(node, ranks=tuple(rank % cores[node.name] for rank in range(per_node)))
        for node in layout.nodes
    ]
    return replace(layout, nodes=tuple(nodes))


def address_of(nic_mac: bytes, function: int) -> bytes:
    """Return the MAC address of a function of a NIC: the NIC's address with the function added to the upper six bits of the
    first byte, which are free in locally administered addresses. Function 0 has the NIC's address."""
    if not function:
        return nic_mac
    return bytes([((nic_mac[0] + 4 * function) & 0xFC) | 2]) + nic_mac[1:]


def first_local_ranks(ranks: Sequence[Rank]) -> tuple[int, ...]:
    """Return for each rank the number of the first rank on its node; empty if no node has several ranks."""
    firsts: dict[str, int] = {}
    first_ranks = tuple([firsts.setdefault(rank.node, rank.number) for rank in ranks])
    return first_ranks if len(firsts) < len(ranks) else ()


def nodes_of(ranks: Sequence[Rank]) -> tuple[str, ...]:
    """Return the name of each rank's node."""
    return tuple([rank.node for rank in ranks])


def addresses_of(layout: Layout, ranks: Sequence[Rank]) -> tuple[bytes, ...]:
    """Return the MAC address of each rank; zeros if the node has no NIC. Raises UnsupportedError for a duplicate address."""
    by_node = {node.name: node for node in layout.nodes}
    addresses = tuple([_address(by_node[rank.node], rank.function) for rank in ranks])
    require_distinct_addresses([rank.name for rank in ranks], addresses)
    return addresses


def require_distinct_addresses(names: Sequence[str], addresses: Sequence[bytes]) -> None:
    """Raise UnsupportedError if two ranks have the same MAC address, except zeros. names: names of the ranks."""
    owners: dict[bytes, str] = {}
    for name, address in zip(names, addresses, strict=True):
        if any(address) and owners.setdefault(address, name) != name:
            raise UnsupportedError(
                f"ranks {owners[address]} and {name} would both have MAC {address.hex(':')}; choose NIC addresses that "
                f"differ in the last five bytes"
            )


def _address(node: Node, function: int) -> bytes:
    return address_of(bytes.fromhex(node.nics[0].mac.replace(":", "")), function) if node.nics else NO_ADDRESS
