"""Targets of a fault on a cluster: nodes, and injections on links, alike in both modes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from testbed.cluster.faults.injections import DirectionKey, Injection, blocked_senders, links_of, places, rules_between
from testbed.engine.sources import source
from testbed.spec.fault_models import Down, Fault, Impair, Incast, OnLinks, OnNodes, Partition, Rule, Traffic
from testbed.spec.layout import Layout
from testbed.spec.selection import expand_tags, node_of, nodes_of


def touched_nodes(layout: Layout, fault: Fault) -> list[str]:
    """Return the nodes that the fault touches. Raises NotFoundError."""
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
        places = _places(layout, fault.on, fault.direction)
        return Injection(0, fault.what, places if keys else (), keys, _placed(places, rules))
    if isinstance(fault, Rule):
        return Injection(0, fault.what, rules=_placed(_places(layout, fault.on, fault.direction), fault.rules))
    if isinstance(fault, Down):
        links = dict.fromkeys(link.name for target in fault.on for link in links_of(layout, target))
        return Injection(0, fault.what, down=tuple(links))
    if isinstance(fault, Partition):
        return Injection(0, fault.what, rules=rules_between(layout, deaf_nodes(fault, layout)))
    return None


def _places(layout: Layout, on: Sequence[str], direction: str) -> tuple[DirectionKey, ...]:
    return tuple(dict.fromkeys(place for target in on for place in places(layout, target, direction)))


def _placed(places: Sequence[DirectionKey], rules: Sequence[str]) -> tuple[tuple[DirectionKey, str], ...]:
    return tuple((place, text) for place in places for text in rules)


def deaf_nodes(fault: Partition, layout: Layout) -> Mapping[str, Sequence[str]]:
    """Return, by node, the nodes that it does not receive from. Raises NotFoundError."""
    names = [node.name for node in layout.nodes]
    if fault.shape == "ring-majority":
        return _ring(_drawn(names, fault))
    if fault.groups is not None:
        groups: list[Sequence[str]] = [nodes_of(layout, group) for group in fault.groups]
    elif fault.shape == "halves":
        order = _drawn(names, fault)
        groups = [order[: len(order) // 2], order[len(order) // 2 :]]
    else:
        among = nodes_of(layout, (fault.node,)) if fault.node is not None else names
        alone = _drawn(among, fault)[0]
        groups = [[alone], [name for name in names if name != alone]]
    deaf: Mapping[str, Sequence[str]] = blocked_senders(groups)
    if not fault.one_way:
        return deaf
    first = set(groups[0])
    return {
        node: tuple(other for other in others if other in first) for node, others in deaf.items() if node not in first
    }


def _drawn(names: Sequence[str], fault: Partition) -> list[str]:
    order = list(names)
    if fault.seed is not None:
        source(fault.seed, "partition").shuffle(order)
    return order


def _ring(order: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Partition so that each node receives from a majority, itself and its neighbours on a ring, and no two receive from
    the same one (Jepsen's "majorities ring" partition)."""
    count = len(order)
    heard = count // 2 + 1
    deaf: dict[str, Sequence[str]] = {}
    for place, name in enumerate(order):
        first = place - (heard - 1) // 2
        near = {order[(first + step) % count] for step in range(heard)}
        deaf[name] = tuple(other for other in order if other not in near)
    return deaf


def measured_by(fault: Fault) -> tuple[str, ...]:
    """Return the counters of a direction, one of which must have moved for the fault to have had an effect; "frames"
    for impairments that every frame meets. Empty: any counter."""
    if not isinstance(fault, Impair):
        return ()
    decisive = {
        "loss": "loss", "gemodel": "gemodel", "loss_pattern": "loss_pattern", "corrupt": "corrupted",
        "duplicate": "duplicated", "reorder": "reordered", "rules": "decided",
    }  # fmt: skip
    explicit = fault.explicit()
    counters = [decisive[key] for key in explicit if key in decisive and explicit[key]]
    if any(key not in (*decisive, "corrupt_bits") or not explicit[key] for key in explicit):
        counters.append("frames")
    return tuple(counters)
