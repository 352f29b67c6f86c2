"""Targets of a fault on a cluster: nodes, and injections on links. A fault has the same targets in all modes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from testbed.cluster.faults.injections import (
    DirectionKey,
    Injection,
    blocked_senders,
    links_of,
    rules_between,
    select_directions,
)
from testbed.engine.sources import source
from testbed.spec.fault_models import Down, Fault, Impair, Incast, OnLinks, OnNodes, Partition, Rule, Traffic
from testbed.spec.layout import Layout
from testbed.spec.selection import expand_tags, node_of, nodes_of


def touched_nodes(layout: Layout, fault: Fault) -> list[str]:
    """Return the nodes that the fault acts on: of an incast, its receiver; of a fault of links, none. Raises
    NotFoundError."""
    if isinstance(fault, OnNodes):
        return nodes_of(layout, fault.on)
    if isinstance(fault, Traffic):
        return nodes_of(layout, (*fault.senders, node_of(layout, fault.receiver)))
    if isinstance(fault, Incast):
        return [node_of(layout, fault.receiver)]
    return []


def senders_of(layout: Layout, fault: Traffic | Incast) -> list[str]:
    """Return the nodes that send a load. Raises NotFoundError."""
    if isinstance(fault, Traffic):
        return nodes_of(layout, fault.senders)
    receiver = node_of(layout, fault.receiver)
    return [node.name for node in layout.nodes if node.name != receiver]


def candidates(layout: Layout, fault: OnNodes | OnLinks) -> list[str]:
    """Expand 'on': nodes, or links and targets of links. Raises NotFoundError."""
    if isinstance(fault, OnNodes):
        return nodes_of(layout, fault.on)
    if "all" in fault.on:
        return [link.name for link in layout.links]
    for target in fault.on:
        links_of(layout, target)
    return expand_tags(layout, fault.on)


def injection_of(fault: Fault, layout: Layout) -> Injection | None:
    """Return the fault's injection on links; None for a fault of nodes. Raises NotFoundError for an unknown name."""
    if isinstance(fault, Impair):
        keys = fault.explicit()
        rules = keys.pop("rules", ())
        directions = _directions(layout, fault.on, fault.direction)
        return Injection(0, fault.what, directions if keys else (), keys, _rules_at(directions, rules))
    if isinstance(fault, Rule):
        return Injection(0, fault.what, rules=_rules_at(_directions(layout, fault.on, fault.direction), fault.rules))
    if isinstance(fault, Down):
        links = dict.fromkeys(link.name for target in fault.on for link in links_of(layout, target))
        return Injection(0, fault.what, down=tuple(links))
    if isinstance(fault, Partition):
        return Injection(0, fault.what, rules=rules_between(layout, deaf_nodes(fault, layout)))
    return None


def _directions(layout: Layout, on: Sequence[str], direction: str) -> tuple[DirectionKey, ...]:
    return tuple(dict.fromkeys(key for target in on for key in select_directions(layout, target, direction)))


def _rules_at(directions: Sequence[DirectionKey], rules: Sequence[str]) -> tuple[tuple[DirectionKey, str], ...]:
    return tuple((direction, text) for direction in directions for text in rules)


def deaf_nodes(fault: Partition, layout: Layout) -> Mapping[str, Sequence[str]]:
    """Return, by node, the nodes from which it does not receive. Raises NotFoundError."""
    names = [node.name for node in layout.nodes]
    if fault.shape == "ring-majority":
        return _ring_majority(_shuffle(names, fault))
    if fault.groups is not None:
        groups: list[Sequence[str]] = [nodes_of(layout, group) for group in fault.groups]
    elif fault.shape == "halves":
        order = _shuffle(names, fault)
        groups = [order[: len(order) // 2], order[len(order) // 2 :]]
    else:
        candidate_names = nodes_of(layout, (fault.node,)) if fault.node is not None else names
        isolated = _shuffle(candidate_names, fault)[0]
        groups = [[isolated], [name for name in names if name != isolated]]
    deaf: Mapping[str, Sequence[str]] = blocked_senders(groups)
    if not fault.one_way:
        return deaf
    first_group = set(groups[0])
    return {
        node: tuple(sender for sender in senders if sender in first_group)
        for node, senders in deaf.items()
        if node not in first_group
    }


def _shuffle(names: Sequence[str], fault: Partition) -> list[str]:
    """Return the names in an order drawn from the fault's seed; without a seed, in their order."""
    order = list(names)
    if fault.seed is not None:
        source(fault.seed, "partition").shuffle(order)
    return order


def _ring_majority(order: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Partition so that each node receives from a majority, itself and its neighbours on a ring, and no two of three nodes
    or more have an equal majority (Jepsen's "majorities ring" partition)."""
    count = len(order)
    majority = count // 2 + 1
    deaf: dict[str, Sequence[str]] = {}
    for index, name in enumerate(order):
        first = index - (majority - 1) // 2
        audible = {order[(first + step) % count] for step in range(majority)}
        deaf[name] = tuple(sender for sender in order if sender not in audible)
    return deaf


def decisive_counters(fault: Fault) -> tuple[str, ...]:
    """Return the counters of a direction of which at least one rises if the fault has an effect; "frames" for impairments
    that affect every frame. Empty: any counter."""
    if not isinstance(fault, Impair):
        return ()
    counter_of = {
        "loss": "loss", "gemodel": "gemodel", "loss_pattern": "loss_pattern", "corrupt": "corrupted",
        "duplicate": "duplicated", "reorder": "reordered", "rules": "decided",
    }  # fmt: skip
    explicit = fault.explicit()
    counters = [counter_of[key] for key in explicit if key in counter_of and explicit[key]]
    if any(key not in (*counter_of, "corrupt_bits") or not explicit[key] for key in explicit):
        counters.append("frames")
    return tuple(counters)
