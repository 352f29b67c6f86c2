"""Partitions, expressed as fault rules: which nodes do not receive from which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from testbed.cluster.faults.injections import BOTH, Place
from testbed.spec.layout import Layout, Node


def deaf_across(groups: Sequence[Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Map each node to all nodes of other groups."""
    return {
        node: tuple(other for another in groups if another is not group for other in another)
        for group in groups
        for node in group
    }


def rules_between(layout: Layout, deaf: Mapping[str, Sequence[str]]) -> tuple[tuple[Place, str], ...]:
    """Rules by which every NIC of a node drops frames of the nodes that it shall not hear.

    Senders are recognised by MAC and, where nodes route, by address. deaf: node -> the names of the senders.
    """
    nodes = {node.name: node for node in layout.nodes}
    routed = any(node.forwards for node in layout.nodes)
    conditions = {
        name: condition
        for name, others in deaf.items()
        # Nodes without NICs send nothing, and a rule without a condition would match every frame.
        if (condition := _from_any((nodes[other] for other in others), routed=routed))
    }
    return tuple(
        ((link.name, direction), f"drop {conditions[end.owner]}")
        for link in layout.links
        for end, direction in ((link.b, BOTH[0]), (link.a, BOTH[1]))
        if end.owner in conditions
    )


def _from_any(nodes: Iterable[Node], *, routed: bool) -> str:
    """The condition that a frame was sent by one of these nodes; empty if they have no NICs."""
    nics = [nic for node in nodes for nic in node.nics]
    sources = {"eth.src": [nic.mac for nic in nics]}
    if routed:
        addresses = [address.partition("/")[0] for nic in nics for address in nic.addresses]
        sources["ip.src"] = [address for address in addresses if ":" not in address]
        sources["ipv6.src"] = [address for address in addresses if ":" in address]
    return " or ".join(f"{field} in ({', '.join(values)})" for field, values in sources.items() if values)
