"""Resolution of a description to a layout: absent values are chosen deterministically.

An edit of the description changes the layout as little as possible. MACs depend only on names; addresses on names, on the
numbers in them, and on the position of their segment among all segments. Names of NICs and numbers of ports are assigned in
the order of the links, so that additions at the end change nothing.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from testbed.errors import DescriptionError, Problem
from testbed.spec import addresses, forwarding_tables
from testbed.spec.addresses import Network, host_numbers, macs, network_of, version_of
from testbed.spec.elements import Impairments
from testbed.spec.kinds import ETHERNET, kind_of
from testbed.spec.layout import End, Impairment, Layout, Link, Nic, Node, Route, Switch
from testbed.spec.model import Description
from testbed.spec.routing import routes
from testbed.spec.validation import effective, kind_of_link
from testbed.spec.wiring import Wiring, wire

_DEFAULT_DISTRIBUTION = "uniform"
"""Default distribution of the jitter, that of netem."""


def resolve(description: Description) -> Layout:
    """Return the layout of a description. Raises DescriptionError if its address pool is too small."""
    wiring = wire(description.nodes, description.switches, description.links)
    nics_of: dict[str, list[End]] = {node.name: [] for node in description.nodes}
    segments_of: dict[str, list[int]] = {node.name: [] for node in description.nodes}
    for index, segment in enumerate(wiring.segments):
        for nic in segment.nics:
            nics_of[nic.owner].append(nic)
            segments_of[nic.owner].append(index)
    all_nics = [nic for nics in nics_of.values() for nic in nics]
    declared_macs = {nic: wiring.declared[nic].mac for nic in all_nics if nic in wiring.declared}
    mac_of = macs(all_nics, {nic: address for nic, address in declared_macs.items() if address})
    addresses_of, routes_of = _addresses_and_routes(description, wiring)
    nodes = []
    for node in description.nodes:
        nics = []
        for end in sorted(nics_of[node.name], key=lambda end: _natural_key(end.port)):
            declared = wiring.declared.get(end)
            mtu = (declared and declared.mtu) or description.defaults.mtu
            nics.append(Nic(end.port, mac_of[end], mtu, tuple(addresses_of[end])))
        nodes.append(
            Node(
                name=node.name,
                nics=tuple(nics),
                routes=tuple(routes_of.get(node.name, ())),
                forwards=len(set(segments_of[node.name])) > 1,
                cpus=node.cpus,
                cpu_share=node.cpu_share or 0.0,
                memory=node.memory or 0,
                environment=dict(node.environment),
                files=dict(node.files),
                private_directories=node.private_directories,
                tags=node.tags,
                cores=node.cores or 0,
                caches=node.caches,
                ranks=node.ranks,
                profile=node.profile,
            )
        )
    return Layout(
        name=description.name,
        seed=description.seed,
        nodes=tuple(nodes),
        switches=tuple(_switches(description, wiring, mac_of)),
        links=tuple(_links(description, wiring)),
    )


def _natural_key(name: str) -> tuple[str, int, str]:
    """Return a sort key by which eth2 precedes eth10."""
    match = re.fullmatch(r"(.*?)(\d{1,15})", name)
    return (match[1], int(match[2]), name) if match else (name, -1, name)


def _addresses_and_routes(
    description: Description, wiring: Wiring
) -> tuple[dict[End, list[str]], dict[str, list[Route]]]:
    """Return the addresses of each NIC, and the routes of each node. Raises DescriptionError."""
    pools = [network_of(description.network)]
    if description.network6 is not None:
        pools.append(network_of(description.network6))
    addresses_of: dict[End, list[str]] = {nic: [] for segment in wiring.segments for nic in segment.nics}
    routes_of: dict[str, list[Route]] = {}
    problems: list[Problem] = []
    for version in (4, 6):
        pool = next((pool for pool in pools if pool.version == version), None)
        if pool is None:
            networks = addresses.declared_networks(wiring, version)
        else:
            networks, pool_problems = addresses.plan_networks(wiring, pool, {})
            problems += pool_problems
        if not problems:
            presence = _assign(wiring, version, networks, addresses_of, fill=pool is not None)
            if sum(network is not None for network in networks) > 1:
                for node, node_routes in routes(presence, networks).items():
                    routes_of.setdefault(node, []).extend(node_routes)
    if problems:
        raise DescriptionError(description.name, problems)
    return addresses_of, routes_of


def _assign(
    wiring: Wiring, version: int, networks: Sequence[Network | None], addresses_of: dict[End, list[str]], fill: bool
) -> dict[str, dict[int, str]]:
    """Add the addresses of one IP version to those of each NIC; return the address of each node on each segment. fill:
    whether NICs that declare none get an address."""
    presence: dict[str, dict[int, str]] = {}
    for index, (segment, network) in enumerate(zip(wiring.segments, networks, strict=True)):
        if network is None:
            continue
        declared = {
            nic: [text for text in wiring.declared[nic].addresses if version_of(text) == version]
            for nic in segment.nics
            if nic in wiring.declared
        }
        used_numbers = {
            int(ipaddress.ip_interface(text).ip) - network.base for texts in declared.values() for text in texts
        }
        without_address = [nic for nic in segment.nics if not declared.get(nic)] if fill else []
        numbers = host_numbers(without_address, network, used_numbers)
        for nic in segment.nics:
            texts = declared.get(nic) or (
                [f"{network.address(numbers[nic])}/{network.prefix}"] if nic in numbers else []
            )
            addresses_of[nic] += texts
            for text in texts[:1]:
                presence.setdefault(nic.owner, {}).setdefault(index, text.partition("/")[0])
    return presence


def _switches(description: Description, wiring: Wiring, mac_of: dict[End, str]) -> list[Switch]:
    kinds = {switch.name: switch.kind for switch in description.switches}
    ports: dict[str, list[int]] = {name: [] for name in kinds}
    for pair in wiring.ends:
        for end in pair or ():
            if end.owner in ports:
                ports[end.owner].append(int(end.port))
    tables: dict[str, forwarding_tables.Tables] = {}
    for segment in wiring.segments:
        if not segment.switches:
            continue
        network_kind = kind_of(kinds[segment.switches[0]])
        if network_kind.modelled and not network_kind.planned:
            continue
        pairs = [pair for pair in (wiring.ends[index] for index in segment.links) if pair]
        cables = [pair for pair in pairs if all(end.owner in kinds for end in pair)]
        if network_kind.planned or forwarding_tables.is_cyclic(segment.switches, cables):
            nic_ports = [
                (b, a) if a.owner in kinds else (a, b) for a, b in pairs if (a.owner in kinds) != (b.owner in kinds)
            ]
            macs_at_ports = [(mac_of[nic], port_end) for nic, port_end in nic_ports]
            tables |= forwarding_tables.tables(segment.switches, cables, macs_at_ports)
    result = []
    for name, kind in kinds.items():
        table = tables.get(name)
        learns = kind == ETHERNET.name and table is None
        tree, entries = (table.tree, table.forwarding) if table else ((), {})
        result.append(Switch(name, kind, tuple(sorted(ports[name])), learns, tree, entries))
    return result


def _links(description: Description, wiring: Wiring) -> list[Link]:
    result = []
    default = impairment(description.defaults.link)
    kinds = {switch.name: switch.kind for switch in description.switches}
    for link, pair in zip(description.links, wiring.ends, strict=True):
        if pair is None:
            raise AssertionError("a checked description has no link with an unknown end")
        forward, backward = (
            default if impairments is description.defaults.link else impairment(impairments)
            for impairments in effective(link, description.defaults)
        )
        kind = kind_of_link(link, kinds)
        result.append(Link(pair[0], pair[1], link.datapath, forward, backward, link.tags, kind))
    return result


def impairment(impairments: Impairments) -> Impairment:
    """Return the resolved impairment: absent keys have the values that mean none."""
    values = impairments.explicit()
    if not values:
        return Impairment()
    jitter = impairments.jitter or 0
    distribution = (
        (impairments.distribution or _DEFAULT_DISTRIBUTION) if jitter or impairments.distribution == "trace" else ""
    )
    corrupt = impairments.corrupt or 0.0
    return Impairment(
        delay=impairments.delay or 0,
        jitter=jitter,
        distribution=distribution,
        rate=impairments.rate or 0,
        queue=impairments.queue or 0,
        loss=impairments.loss or 0.0,
        corrupt=corrupt,
        duplicate=impairments.duplicate or 0.0,
        reorder=impairments.reorder or 0.0,
        jitter_file=(impairments.jitter_file or "") if distribution in ("table", "trace") else "",
        rate_trace=impairments.rate_trace or "",
        queue_frames=impairments.queue_frames or 0,
        gemodel=impairments.gemodel or (),
        loss_pattern=impairments.loss_pattern or "",
        corrupt_bits=(impairments.corrupt_bits or 0) if corrupt else 0,
        minimum_frame=impairments.minimum_frame or 0,
        overhead=impairments.overhead or 0,
        cell_size=impairments.cell_size or 0,
        cell_overhead=impairments.cell_overhead or 0,
        rules=impairments.rules or (),
    )
