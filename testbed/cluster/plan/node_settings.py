"""Nodes in a plan: namespaces, limits, routing, addresses and routes."""

from __future__ import annotations

import ipaddress

from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.draft import NO_CONTENTS, Draft
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


def complete_nodes(draft: Draft) -> frozenset[str]:
    """Return the nodes all of whose NICs exist, match the layout and are up."""
    return frozenset(
        node.name for node in draft.desired.nodes if all((node.name, nic.name) in draft.up for nic in node.nics)
    )


def make_namespaces(draft: Draft, kept_nodes: frozenset[str]) -> None:
    """Make missing namespaces, and set the nodes' routing, limits and contexts. kept_nodes: nodes whose routing is not
    changed."""
    for key in [namespace_names.WIRE, *(node.name for node in draft.desired.nodes)]:
        if key not in draft.existing.namespaces:
            draft.operations.append(MakeNamespace(key))
    for node in draft.desired.nodes:
        contents = draft.existing.namespaces.get(node.name)
        if contents is None or node.name not in kept_nodes:
            _set_routing(draft, node, contents)
        limits = (node.cpu_share, node.memory)
        if limits != draft.existing.limits.get(node.name, (0.0, 0)):
            draft.operations.append(SetLimits(node.name, *limits))
        before = draft.existing.nodes.get(node.name, node)
        if contents is not None and _node_context(before) != _node_context(node):
            draft.operations.append(SetNodeContext(node.name))


def _set_routing(draft: Draft, node: Node, contents: Contents | None) -> None:
    if len(node.nics) < 2:  # the node cannot route, whatever its namespace has inherited
        return
    for version in (4, 6):
        desired = node.forwards and (version == 4 or _has_ipv6(node))
        # A new namespace may have inherited the machine's setting, but only for IPv4.
        is_unknown = contents is None and version == 4
        present = contents is not None and version in contents.routing
        if is_unknown or desired != present:
            draft.operations.append(SetRouting(node.name, version, desired))


def _has_ipv6(node: Node) -> bool:
    return any(":" in address for nic in node.nics for address in nic.addresses)


def _node_context(node: Node) -> tuple[object, ...]:
    """Return the settings of programs that are not kernel objects: CPUs, variables, files, private directories."""
    return node.cpus, dict(node.environment), dict(node.files), node.private_directories


def configure(draft: Draft, node: Node) -> None:
    """Set a node's addresses and routes, and set its NICs up: the kernel refuses routes over interfaces that are down."""
    contents = draft.existing.namespaces.get(node.name, NO_CONTENTS)
    desired_routes = {(route.destination, route.via) for route in node.routes}
    for destination, via in sorted(contents.routes - desired_routes):
        draft.operations.append(RemoveRoute(node.name, destination, via))
    loses_routes = False  # the kernel removes the routes over a removed address or an interface that is down
    for nic in node.nics:
        device = (node.name, nic.name)
        index = draft.index(device)
        kept = device in draft.kept
        existing = contents.addresses.get(index, frozenset()) if kept else frozenset()
        desired = _addresses(node, nic)
        obsolete = existing - set(desired)
        loses_routes = loses_routes or not kept or bool(obsolete)
        for address in sorted(obsolete):
            draft.operations.append(RemoveAddress(*device, index, address))
        if any(":" not in address for address in obsolete):
            # Removing an IPv4 address can remove later ones of the same network (its "secondaries").
            existing = frozenset(address for address in existing if ":" in address)
        for address in desired:
            if address not in existing:
                draft.operations.append(AddAddress(*device, index, address))
        draft.set_up(device)
        loses_routes = loses_routes or not (kept and draft.kept[device].up)
    for route in node.routes:
        if loses_routes or (route.destination, route.via) not in contents.routes:
            draft.operations.append(AddRoute(node.name, route.destination, route.via))


def _addresses(node: Node, nic: Nic) -> tuple[str, ...]:
    """Return the addresses of a NIC. On an IPv6 router, add a link-local one (RFC 4291, appendix A).

    The kernel sends neighbour solicitations for forwarded packets only from a link-local address.
    """
    if not node.forwards or not any(":" in address for address in nic.addresses):
        return nic.addresses
    mac = bytes.fromhex(nic.mac.replace(":", ""))
    identifier = bytes([mac[0] ^ 2, *mac[1:3], 0xFF, 0xFE, *mac[3:]])
    return (*nic.addresses, f"{ipaddress.IPv6Address(bytes([0xFE, 0x80, *bytes(6)]) + identifier)}/64")
