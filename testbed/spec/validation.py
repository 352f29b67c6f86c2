"""Checks of the elements of a description against each other: all contradictions are reported.

The elements may come from a description with other mistakes. Then `Parts` marks the doubtful ones, so that consequences of a
known mistake are not reported.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from testbed.errors import Problem
from testbed.lazy_dataclass import dataclass
from testbed.spec.addresses import declared_networks, network_of, plan_networks, version_of
from testbed.spec.contradictions import contradictions
from testbed.spec.elements import DEFAULT_MTU, MIN_IPV6_MTU, Defaults, Impairments, Link, Node, Switch
from testbed.spec.kinds import ETHERNET, Kind, kind_of
from testbed.spec.layout import End
from testbed.spec.names import MAX_CORES, port_number
from testbed.spec.problems import format_value, item, join_alternatives, nearest
from testbed.spec.wiring import Wiring, nic_names, wire

_ETHERNET_HEADER = 14
_NUMBER = re.compile("[0-9]+|0[xX][0-9a-fA-F]*")


@dataclass(frozen=True, slots=True)
class Parts:
    """Elements of a cluster before the checks.

    network, network6: pools of addresses. *_indices: the index of each element in the user's list, from 0; None for a
    generated element; empty: the list has exactly these elements. doubtful_*: the indices of elements from which a mistake
    was removed. incomplete: whether nodes, switches or links were left out.
    """

    nodes: Sequence[Node]
    switches: Sequence[Switch]
    links: Sequence[Link]
    defaults: Defaults
    network: str
    network6: str | None
    node_indices: Sequence[int | None] = ()
    switch_indices: Sequence[int | None] = ()
    link_indices: Sequence[int | None] = ()
    doubtful_nodes: frozenset[int] = frozenset()
    doubtful_links: frozenset[int] = frozenset()
    doubtful_defaults: bool = False
    incomplete: bool = False


@dataclass(slots=True)
class _Paths:
    """Paths of the elements, for error messages."""

    nodes: list[str] = field(default_factory=list)
    switches: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    nics: dict[End, str] = field(default_factory=dict)


def check(parts: Parts) -> list[Problem]:
    """Return all contradictions between the elements."""
    paths = _make_paths(parts)
    references = list(_references(parts, paths))
    wiring = wire(parts.nodes, parts.switches, parts.links)
    problems = [
        *_names(parts, paths),
        *_host_names(parts, paths),
        *references,
        *_ports(parts, paths, wiring),
        *_kinds(parts, paths),
    ]
    problems += _doubled_links(parts, paths)
    problems += _nics(parts, paths, wiring)
    problems += _hosts(parts, paths)
    problems += _impairments(parts, paths)
    problems += _addresses(parts, paths, wiring, segments_known=not (references or parts.incomplete))
    return problems


def check_pools(network: str, network6: str | None) -> list[Problem]:
    """Return the problems of the address pools by themselves. network6: None: there is no IPv6 pool."""
    problems = []
    for key, text, version, longest in (("network", network, 4, 30), ("network6", network6, 6, 64)):
        if text is None:
            continue
        kind = f"an IPv{version} network of at most /{longest}, such as {_POOLS[version]!r}"
        try:
            pool = ipaddress.ip_network(text, strict=False)
        except ValueError:
            problems.append(Problem(key, format_value(text), kind))
            continue
        if pool.version != version:
            other_key = "network6" if key == "network" else "network"
            problems.append(
                Problem(key, format_value(text), f"{kind} ({other_key!r} has the IPv{pool.version} addresses)")
            )
        elif not 0 < pool.prefixlen <= longest or "/" not in text or "%" in text:
            problems.append(Problem(key, format_value(text), kind))
        elif str(pool) != str(ipaddress.ip_interface(text)):
            problems.append(Problem(key, format_value(text), f"{kind}, without bits after its prefix", str(pool)))
        elif any(pool.overlaps(ipaddress.ip_network(other)) for other in _NOT_UNICAST[version]):
            problems.append(Problem(key, format_value(text), f"{kind}, of unicast addresses"))
    return problems


_POOLS = {4: "10.0.0.0/8", 6: "fd00::/48"}
_NOT_UNICAST = {
    4: ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3"),
    6: ("::/64", "fe80::/10", "ff00::/8"),
}


def _make_paths(parts: Parts) -> _Paths:
    paths = _Paths()
    for index, node in enumerate(parts.nodes):
        list_index = parts.node_indices[index] if parts.node_indices else index
        paths.nodes.append(_path("node", list_index, node.name))
        for number, (name, nic) in enumerate(zip(nic_names(node), node.nics, strict=True)):
            paths.nics[End(node.name, name)] = f"{paths.nodes[-1]}.{item('nic', number, nic.name or '')}"
    for index, switch in enumerate(parts.switches):
        list_index = parts.switch_indices[index] if parts.switch_indices else index
        paths.switches.append(_path("switch", list_index, switch.name))
    for list_index, link in zip(parts.link_indices or range(len(parts.links)), parts.links, strict=True):
        paths.links.append(item("link", list_index) if list_index is not None else f"generate ({'--'.join(link.ends)})")
    return paths


def _path(key: str, list_index: int | None, name: str) -> str:
    return f"generate ({name})" if list_index is None else item(key, list_index, name)


def _names(parts: Parts, paths: _Paths) -> Iterator[Problem]:
    """Find names of nodes and switches that occur twice."""
    first: dict[str, str] = {}
    names = [node.name for node in parts.nodes] + [switch.name for switch in parts.switches]
    all_paths = paths.nodes + paths.switches
    for name, path in zip(names, all_paths, strict=True):
        if name in first:
            expected = f"another name: {first[name]} has this one"
            yield Problem(f"{path}.name", format_value(name), expected)
        first.setdefault(name, path)


def _host_names(parts: Parts, paths: _Paths) -> Iterator[Problem]:
    """Find names of nodes that programs would take for another host: resolvers ignore case, and read numbers as addresses
    (inet_aton(3))."""
    first: dict[str, str] = {}
    for node, path in zip(parts.nodes, paths.nodes, strict=True):
        name = first.setdefault(node.name.lower(), node.name)
        if name != node.name:
            yield Problem(
                f"{path}.name", format_value(node.name), f"a name that differs from {name!r} in more than case"
            )
        if _NUMBER.fullmatch(node.name) or node.name.lower() == "localhost":
            expected = "a host's name: programs take a number for an IP address, and 'localhost' for the node itself"
            yield Problem(f"{path}.name", format_value(node.name), expected)


def _references(parts: Parts, paths: _Paths) -> Iterator[Problem]:
    """Find ends at unknown elements or at occupied ports."""
    switches = {switch.name: switch for switch in parts.switches}
    known = [node.name for node in parts.nodes] + list(switches)
    existing = frozenset(known)
    plugged: dict[str, str] = {}
    suggestions_left = 20  # the search for the nearest name is slow, and more suggestions do not help
    for link, path in zip(parts.links, paths.links, strict=True):
        if link.owners[0] == link.owners[1] and link.owners[0] in existing:
            yield Problem(
                f"{path}.ends", f"both ends at {format_value(link.owners[0])}", "two different nodes or switches"
            )
        for number, end in enumerate(link.ends):
            path_of_end = item(f"{path}.ends", number)
            owner, _, port = end.partition(":")
            if owner not in existing:
                guess = nearest(owner, known) if suggestions_left > 0 else ""
                suggestions_left -= 1
                rest = f":{port}" if port else ""
                expected = "the name of a node or switch of this cluster"
                yield Problem(path_of_end, f"unknown name {format_value(owner)}", expected, guess and guess + rest)
                continue
            if port and owner in switches:
                highest = switches[owner].max_ports
                if not 1 <= port_number(port) <= highest:
                    yield Problem(path_of_end, format_value(end), f"a port of {owner} from 1 to {highest:,}")
            if port and plugged.setdefault(end, path) != path:
                yield Problem(path_of_end, format_value(end), f"a free port: {plugged[end]} is plugged into this one")
        if link.datapath == "direct":
            for owner in link.owners:
                if owner in switches:
                    yield Problem(
                        f"{path}.datapath",
                        f"'direct' at the switch {owner}",
                        "a link between two nodes, or 'auto'",
                    )


def _doubled_links(parts: Parts, paths: _Paths) -> Iterator[Problem]:
    """Find listed links, without ports, between two elements that a generated link joins: mostly that link is meant."""
    indices = parts.link_indices or range(len(parts.links))
    switches = {switch.name for switch in parts.switches}
    generated = {frozenset(link.owners) for link, index in zip(parts.links, indices, strict=True) if index is None}
    for link, index, path in zip(parts.links, indices, paths.links, strict=True):
        if index is None or frozenset(link.owners) not in generated or any(":" in end for end in link.ends):
            continue
        first, second = link.ends
        port = f"{first}:{'9' if first in switches else 'eth1'}"
        yield Problem(
            f"{path}.ends",
            f"a second cable between {first} and {second}, which [generate] has joined",
            "unconnected ends: [defaults.link] sets the keys of all generated links, and a second cable needs a port "
            f"({port!r})",
        )


def _ports(parts: Parts, paths: _Paths, wiring: Wiring) -> Iterator[Problem]:
    """Find switches with too many ports or links, and links between switches of different kinds."""
    kinds = {switch.name: switch.kind for switch in parts.switches}
    plugged = Counter(end.owner for pair in wiring.ends for end in pair or ())
    for switch, path in zip(parts.switches, paths.switches, strict=True):
        used = plugged[switch.name]
        needed = max(used, switch.ports or 0)
        if 0 < (kind := kind_of(switch.kind)).max_ports < needed:
            yield too_many_ports(path, needed, kind)
        elif used > switch.max_ports:
            yield Problem(path, f"{used:,} links", f"at most {switch.max_ports:,}, one for each of its ports")
    for pair, path in zip(wiring.ends, paths.links, strict=True):
        if pair and all(end.owner in kinds for end in pair):
            a, b = (kinds[end.owner] for end in pair)
            if a != b:
                yield Problem(f"{path}.ends", f"a switch of kind {a} and one of kind {b}", "switches of one kind")


def _kinds(parts: Parts, paths: _Paths) -> Iterator[Problem]:
    """Find links whose kind their ends or their datapath contradict."""
    kinds = {switch.name: switch.kind for switch in parts.switches}
    for link, path in zip(parts.links, paths.links, strict=True):
        if link.kind is None:
            continue
        actual, switch = format_value(link.kind), next((owner for owner in link.owners if owner in kinds), None)
        if switch is not None and kinds[switch] != link.kind:
            expected = f"{format_value(kinds[switch])}, the kind of the switch {switch}, or no kind: it is implied"
            yield Problem(f"{path}.kind", actual, expected)
        elif switch is None and kind_of(link.kind).needs_switch:
            yield Problem(f"{path}.kind", f"{actual} between two nodes", "a switch of that kind between them")
        elif kind_of(link.kind).modelled and link.datapath not in ("auto", "relay"):
            expected = f"'auto' or 'relay': the relay carries links of kind {link.kind}"
            yield Problem(f"{path}.datapath", format_value(link.datapath), expected)


def too_many_ports(path: str, ports: int, kind: Kind) -> Problem:
    """Return the problem of a switch with too many ports. path: path of the switch."""
    return Problem(path, f"{ports:,} ports", f"at most {kind.max_ports:,} ports {kind.why_max}")


def _nics(parts: Parts, paths: _Paths, wiring: Wiring) -> Iterator[Problem]:
    """Find NICs with equal names or hardware addresses, and NICs without a link."""
    used = {end for pair in wiring.ends if pair for end in pair}
    macs: dict[str, str] = {}
    for index, node in enumerate(parts.nodes):
        seen: dict[str, str] = {}
        for name, nic in zip(nic_names(node), node.nics, strict=True):
            end = End(node.name, name)
            path = paths.nics[end]
            if name in seen:
                yield Problem(f"{path}.name", format_value(name), "a name that no other NIC of the node has")
                continue
            seen[name] = path
            if end not in used and not parts.incomplete and index not in parts.doubtful_nodes:
                yield Problem(path, f"the NIC {name} without a link", f"a link with the end '{end}'")
            if nic.mac and macs.setdefault(nic.mac, path) != path:
                yield Problem(
                    f"{path}.mac", format_value(nic.mac), f"another hardware address: {macs[nic.mac]} has this one"
                )


def _hosts(parts: Parts, paths: _Paths) -> Iterator[Problem]:
    """Find cores in caches and ranks that the node's host does not have, and cores with two caches."""
    for node, path in zip(parts.nodes, paths.nodes, strict=True):
        cores = node.cores or (MAX_CORES if node.profile else 1)
        seen: set[int] = set()
        for key, groups in (("caches", node.caches), ("ranks", (node.ranks,))):
            for number in [core for group in groups for core in group if core >= cores]:
                allowed = f"a core of the node, 0 to {cores - 1}" if cores > 1 else "core 0: the node has 1 core"
                yield Problem(f"{path}.{key}", f"core {number}", f"{allowed}; the key 'cores' sets their number")
        for number in [core for group in node.caches for core in group]:
            if number in seen:
                yield Problem(f"{path}.caches", f"core {number} twice", "each core in one group")
            seen.add(number)


def _impairments(parts: Parts, paths: _Paths) -> Iterator[Problem]:
    """Find contradictions in a direction's effective impairments; each is reported once, at the key that causes it."""
    mtus = {node.name: [nic.mtu for nic in node.nics if nic.mtu] for node in parts.nodes if node.nics}
    kinds = {switch.name: switch.kind for switch in parts.switches}
    default = parts.defaults.link
    valid_defaults: set[tuple[int, str]] = set()  # frame sizes and kinds for which the defaults are valid
    seen: set[str] = set()
    for index, (link, path) in enumerate(zip(parts.links, paths.links, strict=True)):
        if index in parts.doubtful_links or parts.doubtful_defaults:
            continue
        owners = link.owners
        frame = max([parts.defaults.mtu, *(mtu for owner in owners for mtu in mtus.get(owner, ()))]) + _ETHERNET_HEADER
        kind = kind_of(kind_of_link(link, kinds))
        effective_impairments = effective(link, parts.defaults)
        for direction, impairments in zip(("forward", "backward"), effective_impairments, strict=True):
            if impairments is default and (frame, kind.name) in valid_defaults:
                continue
            mistakes = list(contradictions(impairments, frame))
            mistakes += [
                (key, f"{key} on a link of kind {kind.name}", f"no {key}: {kind.why_lacks}")
                for key in kind.unsupported(impairments)
            ]
            if impairments is default and not mistakes:
                valid_defaults.add((frame, kind.name))
            levels = [(f"{path}.{direction}", getattr(link, direction) or Impairments()), (path, link)]
            levels.append(("defaults.link", default))
            for key, actual, expected in mistakes:
                origin = next((level_path for level_path, level in levels if getattr(level, key) is not None), path)
                key_path = f"{origin}.{key}"
                if key_path not in seen:
                    seen.add(key_path)
                    suffix = f" ({path})" if origin == "defaults.link" else ""
                    yield Problem(key_path, actual, expected + suffix)
        if link.datapath == "direct":
            keys = sorted(
                {key for impairments in effective_impairments for key, value in impairments.explicit().items() if value}
            )
            if keys:
                expected = "'auto', or no impairment: a direct link is one veth pair and cannot have any"
                yield Problem(f"{path}.datapath", f"'direct' on a link with {join_alternatives(keys, 'and')}", expected)


def kind_of_link(link: Link, kinds: Mapping[str, str]) -> str:
    """Return the kind of a link's network. kinds: kinds of the switches, by name."""
    return next((kinds[owner] for owner in link.owners if owner in kinds), link.kind or ETHERNET.name)


def effective(link: Link, defaults: Defaults) -> tuple[Impairments, Impairments]:
    """Return the effective impairments of both directions: a key of the direction overrides that of the link, which
    overrides the default."""
    common = link.over(defaults.link)
    return (
        link.forward.over(common) if link.forward else common,
        link.backward.over(common) if link.backward else common,
    )


def _addresses(parts: Parts, paths: _Paths, wiring: Wiring, segments_known: bool) -> Iterator[Problem]:
    pool_problems = check_pools(parts.network, parts.network6)
    yield from pool_problems
    is_outside = False
    pools = {4: None if pool_problems else network_of(parts.network)}
    pools[6] = None if pool_problems or parts.network6 is None else network_of(parts.network6)
    owners: dict[str, str] = {}
    for end, nic in wiring.declared.items():
        for number, text in enumerate(nic.addresses):
            path = item(f"{paths.nics[end]}.addresses", number)
            pool, host_address = pools[version_of(text)], text.partition("/")[0]
            if host_address in owners:
                yield Problem(path, format_value(text), f"another address: {owners[host_address]} has this one")
                continue
            owners[host_address] = f"{end.owner}'s {end.port}"
            if pool and not pool.contains(network_of(text)):
                is_outside = True
                key = "network6" if ":" in text else "network"
                yield Problem(path, format_value(text), f"an address in the cluster's {key} {pool}")
        mtu = nic.mtu or parts.defaults.mtu
        ipv6 = parts.network6 is not None or any(":" in text for text in nic.addresses)
        if ipv6 and nic.mtu and mtu < MIN_IPV6_MTU:
            yield Problem(f"{paths.nics[end]}.mtu", f"{mtu:,} on a NIC with IPv6", f"at least {MIN_IPV6_MTU:,}")
    ipv6 = parts.network6 is not None or any(":" in address for address in owners)
    if ipv6 and parts.defaults.mtu < MIN_IPV6_MTU:
        expected = f"at least {MIN_IPV6_MTU:,}, or {DEFAULT_MTU:,}"
        yield Problem("defaults.mtu", f"{parts.defaults.mtu:,} in a cluster with IPv6", expected)
    if segments_known and not pool_problems and not is_outside:
        if pools[4]:
            yield from plan_networks(wiring, pools[4], paths.nics)[1]
        if pools[6]:
            yield from plan_networks(wiring, pools[6], paths.nics)[1]
        else:
            yield from _static_ipv6(wiring, paths)


def _static_ipv6(wiring: Wiring, paths: _Paths) -> Iterator[Problem]:
    """Check declared addresses without an IPv6 pool: all addresses of a segment must be in the same network."""
    for segment, network in zip(wiring.segments, declared_networks(wiring, 6), strict=True):
        for nic in segment.nics:
            for text in wiring.declared[nic].addresses if nic in wiring.declared else ():
                if network and ":" in text and network_of(text) != network:
                    yield Problem(paths.nics[nic], format_value(text), f"an address of its segment's network {network}")
