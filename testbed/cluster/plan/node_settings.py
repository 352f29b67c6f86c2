"""Nodes in a plan: namespaces, limits, routing, addresses and routes."""

from __future__ import annotations

import ipaddress

from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.draft import NOTHING, Draft
from testbed.cluster.plan.kernel_operations import (
    AddAddress,
    AddRoute,
    MakeNamespace,
    RemoveAddress,
    RemoveRoute,
    SetLimits,
    SetNodeContext,
    SetRouting,
)
from testbed.kernel.rtnl_dump import Contents
from testbed.spec.layout import Nic, Node


def make_namespaces(draft: Draft) -> None:
    """Make missing namespaces, and set what holds for a whole node."""
    for key in [namespace_names.WIRE, *(node.name for node in draft.wanted.nodes)]:
        if key not in draft.existing.namespaces:
            draft.operations.append(MakeNamespace(key))
    for node in draft.wanted.nodes:
        found = draft.existing.namespaces.get(node.name)
        _set_routing(draft, node, found)
        limits = (node.cpu_share, node.memory)
        if limits != draft.existing.limits.get(node.name, (0.0, 0)):
            draft.operations.append(SetLimits(node.name, *limits))
        before = draft.existing.nodes.get(node.name, node)
        if found is not None and _node_context(before) != _node_context(node):
            draft.operations.append(SetNodeContext(node.name))


def _set_routing(draft: Draft, node: Node, found: Contents | None) -> None:
    if len(node.nics) < 2:  # it cannot route, whatever setting its namespace inherited
        return
    for version in (4, 6):
        wished = node.forwards and (version == 4 or _has_ipv6(node))
        # A new namespace may have inherited the machine's own setting, of IPv4 only.
        if wished != (version in found.routing) if found is not None else wished or version == 4:
            draft.operations.append(SetRouting(node.name, version, wished))


def _has_ipv6(node: Node) -> bool:
    return any(":" in address for nic in node.nics for address in nic.addresses)


def _node_context(node: Node) -> tuple[object, ...]:
    """The environment of a node's programs that is no kernel object."""
    return node.cpus, dict(node.environment), dict(node.files)


def configure(draft: Draft, node: Node) -> None:
    """Set addresses and routes. An interface must be up before its routes, or the kernel refuses them."""
    contents = draft.existing.namespaces.get(node.name, NOTHING)
    wanted_routes = {(route.destination, route.via) for route in node.routes}
    for destination, via in sorted(contents.routes - wanted_routes):
        draft.operations.append(RemoveRoute(node.name, destination, via))
    moved = False  # removing an address removes the routes over its network
    for nic in node.nics:
        device = (node.name, nic.name)
        index = draft.index(device)
        kept = device in draft.kept
        existing = contents.addresses.get(index, frozenset()) if kept else frozenset()
        wanted = _addresses(node, nic)
        obsolete = existing - set(wanted)
        moved = moved or not kept or bool(obsolete)
        for address in sorted(obsolete):
            draft.operations.append(RemoveAddress(*device, index, address))
        if any(":" not in address for address in obsolete):
            # Removing an IPv4 address can remove later ones of the same network (its "secondaries").
            existing = frozenset(address for address in existing if ":" in address)
        for address in wanted:
            if address not in existing:
                draft.operations.append(AddAddress(*device, index, address))
        draft.set_up(device)
        moved = moved or not (kept and draft.kept[device].up)
    for route in node.routes:
        if moved or (route.destination, route.via) not in contents.routes:
            draft.operations.append(AddRoute(node.name, route.destination, route.via))


def _addresses(node: Node, nic: Nic) -> tuple[str, ...]:
    """The addresses of a NIC, including a link-local one on an IPv6 router (RFC 4291, appendix A).

    The kernel sends neighbour solicitations for forwarded packets only from a link-local address.
    """
    if not node.forwards or not any(":" in address for address in nic.addresses):
        return nic.addresses
    mac = bytes.fromhex(nic.mac.replace(":", ""))
    identifier = bytes([mac[0] ^ 2, *mac[1:3], 0xFF, 0xFE, *mac[3:]])
    return (*nic.addresses, f"{ipaddress.IPv6Address(bytes([0xFE, 0x80, *bytes(6)]) + identifier)}/64")
