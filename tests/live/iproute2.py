"""State of the kernel as ``ip``, ``bridge`` and ``tc`` report it, independent of testbed's own parsers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from testbed.cluster.plan import namespace_names
from testbed.cluster.records.state import State
from testbed.cluster.running_cluster import RunningCluster


def query(namespace: str, *command: str) -> list[dict[str, Any]]:
    """Run ``ip``, ``bridge`` or ``tc`` in a network namespace given by its path; return its JSON."""
    program, *rest = command
    inside = ["nsenter", f"--net={namespace}", program, "-j", *rest]
    done = subprocess.run(inside, capture_output=True, text=True, check=True)
    document: list[dict[str, Any]] = json.loads(done.stdout or "[]")
    return [entry for entry in document if entry]


@dataclass(frozen=True, slots=True)
class Link:
    """An interface as ``ip -d address`` shows it."""

    name: str
    index: int
    mac: str
    mtu: int
    up: bool
    kind: str
    master: str
    peer: int  # the index of a veth's other end
    addresses: frozenset[str]


@dataclass(frozen=True, slots=True)
class NamespaceContents:
    """Interfaces and routes of a namespace. routes: (destination, gateway) of protocol static."""

    links: Mapping[str, Link]
    routes: frozenset[tuple[str, str]]


def namespace_contents(namespace: str) -> NamespaceContents:
    routes = {
        (_network(entry["dst"], family), entry["gateway"])
        for family in ("-4", "-6")
        for entry in query(namespace, "ip", family, "route", "show", "table", "main")
        if entry.get("protocol") == "static"
    }
    return NamespaceContents({link.name: link for link in links(namespace)}, frozenset(routes))


def links(namespace: str) -> Iterator[Link]:
    entries = query(namespace, "ip", "-d", "address")
    by_index = {entry["ifindex"]: entry["ifname"] for entry in entries}
    for entry in entries:
        name = entry["ifname"]
        if name == "lo":
            continue
        peer = entry.get("link_index") or next((i for i, n in by_index.items() if n == entry.get("link")), 0)
        yield Link(
            name,
            entry["ifindex"],
            entry["address"],
            entry["mtu"],
            "UP" in entry["flags"],
            entry.get("linkinfo", {}).get("info_kind", ""),
            entry.get("master", ""),
            peer,
            frozenset(f"{address['local']}/{address['prefixlen']}" for address in entry["addr_info"] if address),
        )


def _network(text: str, family: str) -> str:
    if text == "default":
        return "0.0.0.0/0" if family == "-4" else "::/0"
    return text if "/" in text else f"{text}/{32 if family == '-4' else 128}"


def ports(wire: str) -> dict[str, dict[str, Any]]:
    """Return the bridge port settings, by device."""
    return {entry["ifname"]: entry for entry in query(wire, "bridge", "-d", "link")}


def static_forwarding(wire: str) -> dict[tuple[str, str], str]:
    """Return the static forwarding entries: (bridge device, MAC) -> port device."""
    return {
        (entry["master"], entry["mac"]): entry["ifname"]
        for entry in query(wire, "bridge", "fdb", "show")
        if entry.get("state") == "static" and "master" in entry
    }


def redirections(wire: str, device: str) -> list[str]:
    """Return the devices to which the ingress of `device` is redirected."""
    reported = query(wire, "tc", "filter", "show", "dev", device, "ingress")
    return [
        action["to_dev"]
        for entry in reported
        for action in entry.get("options", {}).get("actions", [])
        if action.get("kind") == "mirred" and action["mirred_action"] == "redirect" and action["direction"] == "egress"
    ]


def wire_path(state: State) -> str:
    return state.namespaces[namespace_names.WIRE]


def ping(cluster: RunningCluster, source: str, target: str, *more: str) -> None:
    """Send one echo request and wait for its reply, at most 5 s."""
    cluster[source].run(["ping", "-n", "-q", "-c1", "-W5", *more, target])
