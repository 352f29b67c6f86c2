"""What a fault's words mean on one cluster: nodes, and what is laid on links, alike in both modes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from testbed.cluster.injections import Injection, Place, links_of, places_of
from testbed.cluster.partitions import deaf_across, rules_between
from testbed.engine.sources import source
from testbed.errors import NotFoundError
from testbed.spec.faults import Down, Fault, Impair, Incast, OnNodes, Partition, Rule, Traffic
from testbed.spec.layout import Layout
from testbed.spec.problems import nearest


def nodes_of(layout: Layout, on: Sequence[str]) -> list[str]:
    """The nodes that are meant, in the layout's order. NotFoundError says which there are."""
    names = [node.name for node in layout.nodes]
    if "all" in on and "all" not in names:
        return names
    for name in on:
        if name not in names:
            guess = nearest(name, names)
            hint = f"; did you mean {guess!r}?" if guess else f"; it has {', '.join(names[:8])}"
            raise NotFoundError(f"cluster {layout.name} has no node {name!r}{hint}")
    return [name for name in names if name in on]


def touched_nodes(layout: Layout, fault: Fault) -> list[str]:
    """The nodes to which the fault does something. NotFoundError."""
    if isinstance(fault, OnNodes):
        return nodes_of(layout, fault.on)
    if isinstance(fault, Traffic):
        return nodes_of(layout, (*fault.senders, fault.receiver))
    if isinstance(fault, Incast):
        return nodes_of(layout, (fault.receiver,))
    return []


def senders_of(layout: Layout, fault: Traffic | Incast) -> list[str]:
    """Who sends what loads links. NotFoundError."""
    if isinstance(fault, Traffic):
        return nodes_of(layout, fault.senders)
    return [node.name for node in layout.nodes if node.name != nodes_of(layout, (fault.receiver,))[0]]


def injection_of(fault: Fault, layout: Layout) -> Injection | None:
    """What the fault lays on links; None for one that is about nodes. Raises NotFoundError for what there is not."""
    if isinstance(fault, Impair):
        keys = fault.said()
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


def _places(layout: Layout, on: Sequence[str], direction: str) -> tuple[Place, ...]:
    found = [place for target in on for place in places_of(links_of(layout, target), target, direction)]
    return tuple(dict.fromkeys(found))


def _placed(places: Sequence[Place], rules: Sequence[str]) -> tuple[tuple[Place, str], ...]:
    return tuple((place, text) for place in places for text in rules)


def deaf_nodes(fault: Partition, layout: Layout) -> Mapping[str, Sequence[str]]:
    """Who does not hear whom. NotFoundError."""
    names = [node.name for node in layout.nodes]
    if fault.shape == "ring-majority":
        return _ring(_drawn(names, fault))
    if fault.groups is not None:
        for group in fault.groups:
            nodes_of(layout, group)
        groups: list[Sequence[str]] = list(fault.groups)
    elif fault.shape == "halves":
        order = _drawn(names, fault)
        groups = [order[: len(order) // 2], order[len(order) // 2 :]]
    else:
        alone = nodes_of(layout, (fault.node,))[0] if fault.node is not None else _drawn(names, fault)[0]
        groups = [[alone], [name for name in names if name != alone]]
    deaf: Mapping[str, Sequence[str]] = deaf_across(groups)
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
    """Each hears itself and its neighbours on a ring, a majority together, and no two the same one. (Jepsen's
    "majorities ring" partition.)"""
    count = len(order)
    heard = count // 2 + 1
    deaf: dict[str, Sequence[str]] = {}
    for place, name in enumerate(order):
        first = place - (heard - 1) // 2
        near = {order[(first + step) % count] for step in range(heard)}
        deaf[name] = tuple(other for other in order if other not in near)
    return deaf


def measured_by(fault: Fault) -> tuple[str, ...]:
    """The counters of a direction of which one must have moved; a frame that passed is enough for what every frame meets.
    Empty: any that there is."""
    if not isinstance(fault, Impair):
        return ()
    decisive = {
        "loss": "loss", "gemodel": "gemodel", "loss_pattern": "loss_pattern", "corrupt": "corrupted",
        "duplicate": "duplicated", "reorder": "reordered", "rules": "decided",
    }  # fmt: skip
    said = fault.said()
    found = [decisive[key] for key in said if key in decisive and said[key]]
    if any(key not in (*decisive, "corrupt_bits") or not said[key] for key in said):
        found.append("frames")
    return tuple(found)
