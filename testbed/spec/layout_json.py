"""Conversion of layouts to JSON data and back, for the state of a cluster and for the commands' ``--json``.

Default values are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from testbed.json_text import check
from testbed.spec.kinds import ETHERNET
from testbed.spec.layout import End, Impairment, Layout, Link, Nic, Node, Part, Route, Switch, Tunnel

Json = dict[str, Any]

_IMPAIRMENT_KEYS = (
    "delay",
    "jitter",
    "distribution",
    "rate",
    "queue",
    "loss",
    "corrupt",
    "duplicate",
    "reorder",
    "jitter_file",
    "rate_trace",
    "queue_frames",
    "gemodel",
    "loss_pattern",
    "corrupt_bits",
    "minimum_frame",
    "overhead",
    "cell_size",
    "cell_overhead",
    "rules",
)


def to_json(layout: Layout, everywhere: list[Json] | None = None) -> Json:
    """Convert to dictionaries, lists, text and numbers. everywhere: `Part.nodes` as converted by `nodes_to_json`, to convert
    them once for all parts of a cluster; None: they are converted here."""
    return {
        "name": layout.name,
        "seed": layout.seed,
        "nodes": nodes_to_json(layout.nodes),
        "switches": [_switch(switch) for switch in layout.switches],
        "links": [_link(link) for link in layout.links],
        **({"slowed": layout.slowed} if layout.slowed != 1 else {}),
        **({"part": _part(layout.part, everywhere)} if layout.part is not None else {}),
    }


def nodes_to_json(nodes: Iterable[Node]) -> list[Json]:
    """Convert nodes as `to_json` does."""
    return [_node(node) for node in nodes]


def from_json(data: Mapping[str, Any]) -> Layout:
    """Read a layout written by `to_json`. Raises ValueError for invalid data."""
    try:
        layout = from_json_unchecked(data)
    except KeyError as error:
        raise ValueError(f"the key {error} is missing") from None
    except (TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"invalid layout: {error}") from None
    check(layout, Layout)
    check_ends(layout)
    return layout


def from_json_unchecked(data: Mapping[str, Any]) -> Layout:
    """Read a layout like `from_json`, without checks. The caller must check the types, and call `check_ends`. Raises
    KeyError, TypeError, AttributeError or IndexError for data that is not a layout."""
    return Layout(
        name=data["name"],
        seed=data["seed"],
        nodes=tuple([_to_node(node) for node in data["nodes"]]),
        switches=tuple([_to_switch(switch) for switch in data["switches"]]),
        links=tuple([_to_link(link) for link in data["links"]]),
        slowed=data.get("slowed", 1),
        part=_to_part(data["part"]) if "part" in data else None,
    )


def check_ends(layout: Layout) -> None:
    """Raise ValueError if a link ends at an unknown port."""
    ports = {(node.name, nic.name) for node in layout.nodes for nic in node.nics}
    ports |= {(switch.name, str(port)) for switch in layout.switches for port in switch.ports}
    if layout.part is not None:
        ports |= {(tunnel.end.owner, tunnel.end.port) for tunnel in layout.part.tunnels}
    for link in layout.links:
        for end in (link.a, link.b):
            if (end.owner, end.port) not in ports:
                raise ValueError(f"the link {link.name} ends at {end}, which does not exist")


def _node(node: Node) -> Json:
    data: Json = {
        "name": node.name,
        "nics": [
            {"name": nic.name, "mac": nic.mac, "mtu": nic.mtu, "addresses": list(nic.addresses)} for nic in node.nics
        ],
    }
    if node.routes:
        data["routes"] = [[route.destination, route.via] for route in node.routes]
    if node.forwards:
        data["forwards"] = True
    if node.cpus:
        data["cpus"] = list(node.cpus)
    if node.cpu_share:
        data["cpu_share"] = node.cpu_share
    if node.memory:
        data["memory"] = node.memory
    if node.environment:
        data["environment"] = dict(node.environment)
    if node.files:
        data["files"] = dict(node.files)
    if node.private_directories:
        data["private_directories"] = list(node.private_directories)
    if node.tags:
        data["tags"] = list(node.tags)
    if node.cores:
        data["cores"] = node.cores
    if node.caches:
        data["caches"] = [list(group) for group in node.caches]
    if node.ranks:
        data["ranks"] = list(node.ranks)
    if node.profile:
        data["profile"] = node.profile
    return data


def _to_node(data: Mapping[str, Any]) -> Node:
    return Node(
        data["name"],
        tuple([Nic(nic["name"], nic["mac"], nic["mtu"], tuple(nic["addresses"])) for nic in data["nics"]]),
        tuple([Route(destination, via) for destination, via in data.get("routes", ())]),
        data.get("forwards", False),
        tuple(data.get("cpus", ())),
        data.get("cpu_share", 0.0),
        data.get("memory", 0),
        dict(data.get("environment", ())),
        dict(data.get("files", ())),
        tuple(data.get("private_directories", ())),
        tuple(data.get("tags", ())),
        data.get("cores", 0),
        tuple([tuple(group) for group in data.get("caches", ())]),
        tuple(data.get("ranks", ())),
        data.get("profile", ""),
    )


def _switch(switch: Switch) -> Json:
    data: Json = {"name": switch.name, "kind": switch.kind, "ports": list(switch.ports)}
    if not switch.learns:
        data["learns"] = False
    if switch.tree:
        data["tree"] = list(switch.tree)
    if switch.forwarding:
        data["forwarding"] = dict(switch.forwarding)
    return data


def _to_switch(data: Mapping[str, Any]) -> Switch:
    return Switch(
        data["name"],
        data["kind"],
        tuple(data["ports"]),
        data.get("learns", True),
        tuple(data.get("tree", ())),
        dict(data.get("forwarding", ())),
    )


def _link(link: Link) -> Json:
    data: Json = {"a": [link.a.owner, link.a.port], "b": [link.b.owner, link.b.port]}
    if link.datapath != "auto":
        data["datapath"] = link.datapath
    if link.forward:
        data["forward"] = impairment_to_json(link.forward)
    if link.backward:
        data["backward"] = impairment_to_json(link.backward)
    if link.tags:
        data["tags"] = list(link.tags)
    if link.kind != ETHERNET.name:
        data["kind"] = link.kind
    return data


def _part(part: Part, everywhere: list[Json] | None) -> Json:
    return {
        "machine": part.machine,
        "mtu": part.mtu,
        "tunnels": [
            {
                "end": [tunnel.end.owner, tunnel.end.port],
                "vni": tunnel.vni,
                "local": tunnel.local,
                "remote": tunnel.remote,
                "delay": tunnel.delay,
                "machine": tunnel.machine,
            }
            for tunnel in part.tunnels
        ],
        "nodes": nodes_to_json(part.nodes) if everywhere is None else everywhere,
    }


def _to_part(data: Mapping[str, Any]) -> Part:
    return Part(
        data["machine"],
        data["mtu"],
        tuple(
            [
                Tunnel(
                    End(*tunnel["end"]),
                    tunnel["vni"],
                    tunnel["local"],
                    tunnel["remote"],
                    tunnel["delay"],
                    tunnel["machine"],
                )
                for tunnel in data["tunnels"]
            ]
        ),
        tuple([_to_node(node) for node in data["nodes"]]),
    )


_UNIMPAIRED = Impairment()


def _to_link(data: Mapping[str, Any]) -> Link:
    a, b = data["a"], data["b"]
    forward, backward = data.get("forward"), data.get("backward")
    return Link(
        End(a[0], a[1]),
        End(b[0], b[1]),
        data.get("datapath", "auto"),
        impairment_from_json(forward) if forward else _UNIMPAIRED,
        impairment_from_json(backward) if backward else _UNIMPAIRED,
        tuple(data.get("tags", ())),
        data.get("kind", ETHERNET.name),
    )


def impairment_to_json(impairment: Impairment) -> Json:
    """Convert an impairment to a table without zero and empty values."""
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key in _IMPAIRMENT_KEYS
        if (value := getattr(impairment, key))
    }


def impairment_from_json(data: Mapping[str, Any]) -> Impairment:
    """Read an impairment from `impairment_to_json`. Raises TypeError for an unknown key."""
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    return Impairment(**values)
