"""Injected impairments, overlaid on those that the description declares; partitions, expressed as fault rules.

Injections are kept in the order in which they were made. The latest one that sets a key wins; when it is lifted, the value
of an earlier injection or of the description applies again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final, TypeAlias

from testbed.errors import DescriptionError, NotFoundError, Problem
from testbed.kernel.processes import Identity
from testbed.lazy_dataclass import dataclass, fields_of
from testbed.spec.contradictions import contradictions
from testbed.spec.layout import BOTH as BOTH
from testbed.spec.layout import DirectionName as DirectionName
from testbed.spec.layout import Impairment, Layout, Link, Node
from testbed.spec.selection import SELECTOR, expand_tags

DirectionKey: TypeAlias = tuple[str, DirectionName]
"""A link's name and one of its directions."""

# Mutually exclusive keys: an injected one displaces the other.
_DISPLACED = {"rate": "rate_trace", "rate_trace": "rate", "queue": "queue_frames", "queue_frames": "queue"}


@dataclass(frozen=True, slots=True)
class Injection:
    """One injection, from its start until it is healed.

    number: unique during the cluster's lifetime. what: a description for users. places: the directions to which `keys` and
    `replay` apply. keys: impairment keys with their values. rules: fault rules, each with its direction. replay: the path of
    a log of fates that replaces random decisions. down: names of links whose cables are pulled. programs: processes that
    load nodes or links. until: time at which the injection heals by itself, monotonic nanoseconds; 0: never.
    """

    number: int
    what: str
    places: tuple[DirectionKey, ...] = ()
    keys: Mapping[str, Any] = field(default_factory=dict)
    rules: tuple[tuple[DirectionKey, str], ...] = ()
    replay: str = ""
    down: tuple[str, ...] = ()
    programs: tuple[Identity, ...] = ()
    until: int = 0

    @property
    def links(self) -> set[str]:
        """The names of the affected links."""
        return {*self.down, *(link for link, _ in self.places), *(link for (link, _), _ in self.rules)}

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "what": self.what,
            "places": [list(place) for place in self.places],
            "keys": {key: list(value) if isinstance(value, tuple) else value for key, value in self.keys.items()},
            "rules": [[*place, text] for place, text in self.rules],
            "replay": self.replay,
            "down": list(self.down),
            "programs": [str(program) for program in self.programs],
            "until": self.until,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Injection:
        """Parse the output of `to_json`; KeyError, TypeError, AttributeError or ValueError for anything else."""
        return cls(
            data["number"],
            data["what"],
            tuple((link, direction) for link, direction in data["places"]),
            {key: tuple(value) if isinstance(value, list) else value for key, value in data["keys"].items()},
            tuple(((link, direction), text) for link, direction, text in data["rules"]),
            data["replay"],
            tuple(data["down"]),
            tuple(Identity.parse(program) for program in data["programs"]),
            data["until"],
        )


@dataclass(frozen=True, slots=True)
class InForce:
    """The impairments in force on one direction.

    rules: texts of the injected rules, by names that an injection's rules keep until it is healed. replay: the path of a log
    of fates that replaces random decisions, or empty.
    """

    impairment: Impairment
    rules: Mapping[str, str] = field(default_factory=dict)
    replay: str = ""

    @property
    def complete(self) -> Impairment:
        """The impairment including the injected rules and the replay, which the datapath must support."""
        if not (self.rules or self.replay):
            return self.impairment
        replay = (f"replay {self.replay}",) if self.replay else ()
        return replace(self.impairment, rules=(*self.impairment.rules, *self.rules.values(), *replay))


def in_force(link: Link, direction: DirectionName, injected: Iterable[Injection]) -> InForce:
    """Overlay the injections on a link's declared impairment in one direction.

    Raises DescriptionError if the resulting impairments contradict each other.
    """
    declared: Impairment = getattr(link, direction)
    keys: dict[str, Any] = {}
    rules: dict[str, str] = {}
    replay = ""
    for injection in injected:
        if (link.name, direction) in injection.places:
            replay = injection.replay or replay
            for key, value in injection.keys.items():
                if value and key in _DISPLACED:
                    keys[_DISPLACED[key]] = _UNIMPAIRED_VALUES[_DISPLACED[key]]
                keys[key] = value
        for i, (place, text) in enumerate(injection.rules):
            if place == (link.name, direction):
                rules[f"{injection.number}.{i}"] = text
    impairment = replace(declared, **keys) if keys else declared
    if keys.get("jitter") == 0:
        impairment = replace(impairment, distribution="", jitter_file="")
    problems = [
        Problem(f"{link.name} {direction}: {key}", value, expected)
        for key, value, expected in contradictions(impairment, is_resolved=True)
    ]
    if problems:
        raise DescriptionError("the impairments that would be in force", problems)
    if replay:
        from testbed.fates.records import without_chance  # seldom needed; keeps `status` fast

        impairment = without_chance(impairment)
    return InForce(impairment, rules, replay)


_UNIMPAIRED = Impairment()
_UNIMPAIRED_VALUES: dict[str, Any] = {key: getattr(_UNIMPAIRED, key) for key in fields_of(Impairment)}


_LONG_LIST: Final = re.compile(r"\(([^(),]+)((?:,[^(),]+){3,})\)")
_MAX_RULE_LENGTH: Final = 80
"""Characters of a rule in a table."""


def shorten_rule(rule: str) -> str:
    """Shorten a rule for a table.

    A partition's rules name all NICs on its other side: of a list of four or more, only the first and the number of the
    others are shown. If the rule is still too long, its end is cut off.
    """
    shown = _LONG_LIST.sub(lambda match: f"({match[1]} and {match[2].count(',')} more)", rule)
    return shown if len(shown) <= _MAX_RULE_LENGTH else f"{shown[: _MAX_RULE_LENGTH - 4].rpartition(' ')[0]} ..."


def is_down(link: Link, injected: Iterable[Injection]) -> bool:
    """Whether an injection takes a link down."""
    return any(link.name in injection.down for injection in injected)


def follow_layout(before: Layout, after: Layout, injected: Iterable[Injection]) -> tuple[Injection, ...]:
    """Adapt the injections to a changed layout.

    A cable keeps its injections even if other cables have moved its ports; injections on removed cables are dropped.
    """
    names = {cable: name for name, cable in _cables(after).items()}
    renamed = {name: names.get(cable, name) for name, cable in _cables(before).items()}
    moved = [
        replace(
            injection,
            places=tuple((renamed.get(link, link), direction) for link, direction in injection.places),
            rules=tuple(((renamed.get(link, link), direction), text) for (link, direction), text in injection.rules),
            down=tuple(renamed.get(link, link) for link in injection.down),
        )
        for injection in injected
    ]
    return restrict(after, moved)


def _cables(layout: Layout) -> dict[str, tuple[str, ...]]:
    """Map the name of each link to an identity that does not depend on switch ports: its NICs and switches, and a number
    among parallel cables between two switches."""
    switches = {switch.name for switch in layout.switches}
    parallel: dict[frozenset[str], int] = {}
    cables = {}
    for link in layout.links:
        cable = tuple(end.owner if end.owner in switches else str(end) for end in (link.a, link.b))
        if switches >= {*cable}:
            number = parallel[frozenset(cable)] = parallel.get(frozenset(cable), 0) + 1
            cable = (*cable, str(number))
        cables[link.name] = cable
    return cables


def restrict(layout: Layout, injected: Iterable[Injection]) -> tuple[Injection, ...]:
    """Restrict injections to the links of a layout; drop injections that affect other links only."""
    links = {link.name for link in layout.links}
    restricted = []
    for injection in injected:
        if injection.links <= links:  # also true of injections that only load nodes
            restricted.append(injection)
            continue
        places = tuple(place for place in injection.places if place[0] in links)
        rules = tuple((place, text) for place, text in injection.rules if place[0] in links)
        down = tuple(name for name in injection.down if name in links)
        if places or rules or down:
            restricted.append(replace(injection, places=places, rules=rules, down=down))
    return tuple(restricted)


# Targets


def links_of(layout: Layout, target: str) -> list[Link]:
    """Resolve a user's target to links.

    target: "all"; a link by its name or its two ends in either order; a node or switch (all its links); one end
    (``n1:eth0``); or a tag (``@rack1``: all links that have it, and all links of nodes that have it). NotFoundError
    lists the choices.
    """
    if target == "all":
        return list(layout.links)
    if target.startswith(SELECTOR):
        names = {link.name for name in expand_tags(layout, [target]) for link in links_of(layout, name)}
        return [link for link in layout.links if link.name in names]
    exact = [link for link in layout.links if target in _names(link)]
    if exact:
        return exact
    owned = [link for link in layout.links if target in (link.a.owner, link.b.owner, str(link.a), str(link.b))]
    if owned:
        return owned
    raise NotFoundError(_no_link(layout, target))


def select_directions(layout: Layout, target: str | tuple[str, ...], direction: str) -> tuple[DirectionKey, ...]:
    """Resolve one or several targets, with a direction, to directions of links.

    target: see `links_of`. direction: see `directions_of`. A tag stands for all elements that have it.
    """
    targets = (target,) if isinstance(target, str) else target
    selected = [
        key for name in expand_tags(layout, targets) for key in directions_of(links_of(layout, name), name, direction)
    ]
    return tuple(dict.fromkeys(selected))


def _names(link: Link) -> set[str]:
    """Return the names by which a user can select a link: its two ends or their owners, in either order."""
    ends = [(str(link.a), str(link.b)), (link.a.owner, link.b.owner)]
    return {f"{near}--{far}" for a, b in ends for near, far in ((a, b), (b, a))}


def _no_link(layout: Layout, target: str) -> str:
    """Return the error message for a target that has no link."""
    from difflib import get_close_matches

    owners = [node.name for node in layout.nodes] + [switch.name for switch in layout.switches]
    if target in owners:
        return f"{target} has no link"
    names = sorted({name for link in layout.links for name in _names(link)})
    matches = get_close_matches(target, [*owners, *names], 1)
    hint = f"; did you mean {matches[0]!r}?" if matches else ""
    hint = hint or ("; a tag selects several" if "," in target else "")
    shown = ", ".join(link.name for link in layout.links[:4]) + (", ..." if len(layout.links) > 4 else "")
    return f"cluster {layout.name} has no link, node or switch {target!r}{hint} (links: {shown or 'none'})"


def directions_of(links: Sequence[Link], target: str, direction: str) -> tuple[DirectionKey, ...]:
    """Select directions of these links: both, or those that match `direction`.

    direction: "forward", "backward", "a-b" (from a to b, the ends' owners), or, for a node, switch or end as target,
    "out" (from it) or "in". NotFoundError lists the choices.
    """
    if not direction:
        return tuple((link.name, side) for link in links for side in BOTH)
    selected: list[DirectionKey] = []
    for link in links:
        selected += [(link.name, side) for side in BOTH if direction in _spellings(link, side, target)]
    if not selected:
        choices = [sorted(_spellings(link, side, target), key=len) for link in links[:1] for side in BOTH]
        spellings = "; ".join(" or ".join(repr(text) for text in texts[:4]) for texts in choices)
        raise NotFoundError(f"no direction {direction!r} there; {links[0].name} has {spellings}")
    return tuple(selected)


def _spellings(link: Link, direction: DirectionName, target: str) -> set[str]:
    """Return the values of `direction` by which a user can select this direction of a link."""
    source, sink = (link.a, link.b) if direction == "forward" else (link.b, link.a)
    texts = {direction, f"{source.owner}-{sink.owner}", f"{source}-{sink}"}
    if target in (source.owner, str(source)):
        texts.add("out")
    if target in (sink.owner, str(sink)):
        texts.add("in")
    return texts


def blocked_senders(groups: Sequence[Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Map each node to all nodes of other groups, from which it must not receive."""
    return {
        node: tuple(sender for other_group in groups if other_group is not group for sender in other_group)
        for group in groups
        for node in group
    }


def rules_between(layout: Layout, blocked: Mapping[str, Sequence[str]]) -> tuple[tuple[DirectionKey, str], ...]:
    """Make rules by which every NIC of a node drops the frames of some senders.

    Senders are recognised by MAC and, if nodes route, by address. blocked: node -> the names of its blocked senders.
    """
    nodes = {node.name: node for node in layout.nodes}
    routed = any(node.forwards for node in layout.nodes)
    conditions = {
        name: condition
        for name, senders in blocked.items()
        # Nodes without NICs send nothing, and a rule without a condition would match every frame.
        if (condition := _from_any((nodes[sender] for sender in senders), routed=routed))
    }
    return tuple(
        ((link.name, direction), f"drop {conditions[end.owner]}")
        for link in layout.links
        for end, direction in ((link.b, BOTH[0]), (link.a, BOTH[1]))
        if end.owner in conditions
    )


def _from_any(nodes: Iterable[Node], *, routed: bool) -> str:
    """Return the condition that a frame was sent by one of these nodes; empty if they have no NICs."""
    nics = [nic for node in nodes for nic in node.nics]
    sources = {"eth.src": [nic.mac for nic in nics]}
    if routed:
        addresses = [address.partition("/")[0] for nic in nics for address in nic.addresses]
        sources["ip.src"] = [address for address in addresses if ":" not in address]
        sources["ipv6.src"] = [address for address in addresses if ":" in address]
    return " or ".join(f"{field} in ({', '.join(values)})" for field, values in sources.items() if values)
