"""Which nodes and links a user means: by name, "all", or by a tag, ``@rack1``, which means everything that has it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from testbed.errors import NotFoundError
from testbed.spec.layout import Layout

SELECTOR: Final = "@"
"""Before a tag, where names are expected: no name, end or direction begins so, and no shell takes it for its own."""

_SHOWN = 8  # names in an error


def expanded(layout: Layout, targets: Sequence[str]) -> list[str]:
    """The targets, each once; a tag is replaced by the names of the nodes, then of the links that have it. Raises
    NotFoundError for a tag that nothing has."""
    found: dict[str, None] = {}
    for target in targets:
        if not target.startswith(SELECTOR):
            found[target] = None
            continue
        tag = target.removeprefix(SELECTOR)
        have = [node.name for node in layout.nodes if tag in node.tags]
        have += [link.name for link in layout.links if tag in link.tags]
        if not have:
            raise NotFoundError(f"nothing in cluster {layout.name} has the tag {tag!r}{_hint(layout, tag)}")
        found.update(dict.fromkeys(have))
    return list(found)


def nodes_of(layout: Layout, on: Sequence[str]) -> list[str]:
    """The nodes that are meant, in the layout's order. NotFoundError says which there are."""
    names = [node.name for node in layout.nodes]
    if "all" in on and "all" not in names:
        return names
    links = {link.name for link in layout.links}
    meant: set[str] = set()
    for target in on:
        some = expanded(layout, [target])
        if target.startswith(SELECTOR) and links.issuperset(some):
            raise NotFoundError(f"no node of cluster {layout.name} has the tag {target[1:]!r}: it is one of links")
        for name in some:
            if name in names:
                meant.add(name)
            elif not target.startswith(SELECTOR):
                guess = _nearest(name, names)
                hint = f"; did you mean {guess!r}?" if guess else f"; it has {', '.join(names[:_SHOWN])}"
                raise NotFoundError(f"cluster {layout.name} has no node {name!r}{hint}")
    return [name for name in names if name in meant]


def node_of(layout: Layout, target: str) -> str:
    """The one node that is meant. NotFoundError where several are."""
    found = nodes_of(layout, [target])
    if len(found) > 1:
        names = ", ".join(found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
        raise NotFoundError(f"{target} means {len(found)} nodes ({names}), and one is needed")
    return found[0]


def _hint(layout: Layout, tag: str) -> str:
    tags = sorted(
        {*(tag for node in layout.nodes for tag in node.tags), *(tag for link in layout.links for tag in link.tags)}
    )
    guess = _nearest(tag, tags)
    if guess:
        return f"; did you mean {SELECTOR + guess!r}?"
    there = ", ".join(tags[:_SHOWN]) + (", ..." if len(tags) > _SHOWN else "")
    return f"; there are {there}" if tags else ": it has no tags"


def _nearest(name: str, names: Iterable[str]) -> str:
    from testbed.spec.problems import nearest  # what compares names is imported for who has mistaken one

    return nearest(name, names)
