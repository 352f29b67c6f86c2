"""Random valid clusters for property tests, and random edits of them.

All are Ethernet without impairments, so that a machine can bring them up: switches in trees and cycles, cables between
nodes, nodes on several segments, and declared NICs with static addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from testbed.errors import DescriptionError
from testbed.spec.layout import End
from testbed.spec.model import Defaults, Description, Link, Nic, Node, Switch
from testbed.spec.resolver import resolve

MTUS = [1280, 1500, 4000, 9000]
_NODE_NAMES = ["n1", "n2", "n3", "n07", "n300", "a", "b", "rack1-host2", "rack2-host2", "login", "x_9", "M1"]


@st.composite
def descriptions(draw: st.DrawFn, max_nodes: int = 6) -> Description:
    """Draw a valid cluster of 1 to `max_nodes` nodes."""
    names = draw(st.lists(st.sampled_from(_NODE_NAMES), min_size=1, max_size=max_nodes, unique=True))
    switches = [f"s{number}" for number in range(1, draw(st.integers(0, 4)) + 1)]
    ends = draw(_cables(names, switches))
    network6: str | None = draw(st.sampled_from([None, "fd00:7::/48"]))
    plain = _build(names, [()] * len(names), switches, [Link(ends=pair) for pair in ends], network6=network6)
    layout = resolve(plain)
    plugs = [(link.a, link.b) for link in layout.links]
    addresses = {End(node.name, nic.name): nic.addresses for node in layout.nodes for nic in node.nics}
    declared = [end for end in addresses if draw(st.integers(0, 3)) == 0]
    nics: dict[str, list[Nic]] = {name: [] for name in names}
    for number, end in enumerate(declared):
        addresses_of_nic = [_other_address(text, number) for text in addresses[end] if draw(st.booleans())]
        if network6 is None and draw(st.booleans()):
            addresses_of_nic.append(f"2001:db8:{_second_octet(addresses[end][0]):x}::{number + 1:x}/64")
        nics[end.owner].append(
            Nic(
                name=end.port,
                mac=f"02:00:00:00:{number >> 8:02x}:{number & 255:02x}" if draw(st.booleans()) else None,
                mtu=draw(st.sampled_from([None, *MTUS])),
                addresses=addresses_of_nic,
            )
        )
    links = [
        Link(ends=[str(plug) if plug in declared else end for plug, end in zip(pair, ends[index], strict=True)])
        for index, pair in enumerate(plugs)
    ]
    mtu = draw(st.sampled_from(MTUS))
    return _build(names, [tuple(nics[name]) for name in names], switches, links, mtu=mtu, network6=network6)


def edits(description: Description) -> st.SearchStrategy[Description]:
    """Return a strategy of descriptions with one edit: a node or link added or removed, or an MTU or address changed."""
    kinds: list[Callable[[st.DrawFn, Description], Description]] = [
        _add_node, _remove_node, _add_link, _remove_link, _change_mtu, _change_address,
    ]  # fmt: skip

    @st.composite
    def edited(draw: st.DrawFn) -> Description:
        try:
            return draw(st.sampled_from(kinds))(draw, description)
        except DescriptionError:
            # Adding or removing a link can join or split segments whose static addresses then conflict.
            return _change_mtu(draw, description)

    return edited()


@st.composite
def _cables(draw: st.DrawFn, nodes: Sequence[str], switches: Sequence[str]) -> list[list[str]]:
    """Draw the ends of links, some with the name of a NIC or port; switches may form cycles and have parallel cables."""
    pairs: list[tuple[str, str]] = []
    for name in nodes:
        neighbours = [*switches, *(node for node in nodes if node != name)]
        if neighbours:
            pairs += [(name, neighbour) for neighbour in draw(st.lists(st.sampled_from(neighbours), max_size=2))]
    if len(switches) > 1:
        switch_pairs = st.lists(st.sampled_from(switches), min_size=2, max_size=2, unique=True)
        pairs += [(a, b) for a, b in draw(st.lists(switch_pairs, max_size=6))]
    pairs = draw(st.permutations(pairs))
    used_ends: set[str] = set()

    def end(owner: str) -> str:
        if draw(st.integers(0, 4)):
            return owner
        port = draw(st.sampled_from(["3", "7", "900"] if owner in switches else ["eth0", "eth2", "ib0", "cable.1"]))
        text = f"{owner}:{port}"
        if text in used_ends:
            return owner
        used_ends.add(text)
        return text

    return [[end(a), end(b)] for a, b in pairs]


def _build(
    names: Sequence[str],
    nics: Sequence[tuple[Nic, ...]],
    switches: Sequence[str],
    links: Sequence[Link],
    mtu: int = 1500,
    network6: str | None = None,
) -> Description:
    return Description(
        name="random",
        network6=network6,
        defaults=Defaults(mtu=mtu),
        nodes=[Node(name=name, nics=own_nics) for name, own_nics in zip(names, nics, strict=True)],
        switches=[Switch(name=name) for name in switches],
        links=links,
    )


def _other_address(text: str, number: int) -> str:
    """Return another address of the same network, outside the range of numbered names."""
    address, _, prefix = text.partition("/")
    if ":" in address:
        return f"{address.rpartition('::')[0] if '::' in address else _network_part(address)}::beef:{number + 1:x}/{prefix}"
    first, second, _, _ = address.split(".")
    return f"{first}.{second}.200.{number % 250 + 1}/{prefix}"


def _network_part(address: str) -> str:
    return ":".join(address.split(":")[:4])


def _second_octet(text: str) -> int:
    return int(text.split(".")[1])


def _replace(description: Description, **changes: object) -> Description:
    """Return a validated description with changed parts."""
    values = {key: getattr(description, key) for key in Description.model_fields} | changes
    return Description.model_validate(values)


def _add_node(draw: st.DrawFn, description: Description) -> Description:
    known_names = [node.name for node in description.nodes] + [switch.name for switch in description.switches]
    name = draw(st.sampled_from([name for name in ["n8", "extra", "n4"] if name not in known_names]))
    link = Link(ends=[name, draw(st.sampled_from(known_names))])
    return _replace(description, nodes=(*description.nodes, Node(name=name)), links=(*description.links, link))


def _remove_node(draw: st.DrawFn, description: Description) -> Description:
    if len(description.nodes) == 1:
        return _add_node(draw, description)
    removed_name = draw(st.sampled_from(description.nodes)).name
    remaining = tuple(node for node in description.nodes if node.name != removed_name)
    return _without(description, remaining, [link for link in description.links if removed_name in link.owners])


def _add_link(draw: st.DrawFn, description: Description) -> Description:
    known_names = [node.name for node in description.nodes] + [switch.name for switch in description.switches]
    if len(known_names) == 1:
        return _add_node(draw, description)
    ends = draw(st.lists(st.sampled_from(known_names), min_size=2, max_size=2, unique=True))
    index = draw(st.integers(0, len(description.links)))
    links = description.links
    return _replace(description, links=(*links[:index], Link(ends=ends), *links[index:]))


def _remove_link(draw: st.DrawFn, description: Description) -> Description:
    if not description.links:
        return _add_link(draw, description)
    return _without(description, description.nodes, [draw(st.sampled_from(description.links))])


def _without(description: Description, nodes: Sequence[Node], removed_links: Sequence[Link]) -> Description:
    """Return the description without some links and without the declared NICs at their ends."""
    ends = {end for link in removed_links for end in link.ends}
    remaining_nodes = [
        node.model_copy(update={"nics": tuple(nic for nic in node.nics if f"{node.name}:{nic.name}" not in ends)})
        for node in nodes
    ]
    links = tuple(link for link in description.links if link not in removed_links)
    return _replace(description, nodes=tuple(remaining_nodes), links=links)


def _change_mtu(draw: st.DrawFn, description: Description) -> Description:
    mtus = [mtu for mtu in MTUS if mtu != description.defaults.mtu]
    return _replace(description, defaults=Defaults(mtu=draw(st.sampled_from(mtus))))


def _change_address(draw: st.DrawFn, description: Description) -> Description:
    """Change or remove a declared address."""
    nic_addresses = [
        (node, nic, address) for node in description.nodes for nic in node.nics for address in nic.addresses
    ]
    if not nic_addresses:
        return _change_mtu(draw, description)
    node, nic, old = draw(st.sampled_from(nic_addresses))
    new = [_other_address(old, 240)] if "." in old and draw(st.booleans()) else []
    addresses = tuple(text for address in nic.addresses for text in ([address] if address != old else new))
    changed_nic = nic.model_copy(update={"addresses": addresses})
    nics = tuple(changed_nic if item is nic else item for item in node.nics)
    nodes = tuple(item.model_copy(update={"nics": nics}) if item is node else item for item in description.nodes)
    return _replace(description, nodes=nodes)
