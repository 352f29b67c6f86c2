"""Selection of nodes and links by name, by "all", or by a tag: ``@rack1`` selects every element with the tag "rack1"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from testbed.errors import NotFoundError
from testbed.spec.layout import Layout

SELECTOR: Final = "@"
"""Prefix of a tag among names. No name, end or direction begins with it, and shells do not interpret it."""

_MAX_SHOWN = 8  # names in an error


def expand_tags(layout: Layout, targets: Sequence[str]) -> list[str]:
    """Replace each tag by the names of the nodes, then of the links, that have it; remove duplicates. Raises NotFoundError
    for a tag that no element has."""
    names: dict[str, None] = {}
    for target in targets:
        if not target.startswith(SELECTOR):
            names[target] = None
            continue
        tag = target.removeprefix(SELECTOR)
        selected = [node.name for node in layout.nodes if tag in node.tags]
        selected += [link.name for link in layout.links if tag in link.tags]
        if not selected:
            raise NotFoundError(f"nothing in cluster {layout.name} has the tag {tag!r}{_hint(layout, tag)}")
        names.update(dict.fromkeys(selected))
    return list(names)


def nodes_of(layout: Layout, on: Sequence[str]) -> list[str]:
    """Return the selected nodes, in the layout's order. Raises NotFoundError with valid names."""
    names = [node.name for node in layout.nodes]
    if "all" in on and "all" not in names:
        return names
    links = {link.name for link in layout.links}
    selected: set[str] = set()
    for target in on:
        expanded = expand_tags(layout, [target])
        if target.startswith(SELECTOR) and links.issuperset(expanded):
            raise NotFoundError(f"no node of cluster {layout.name} has the tag {target[1:]!r}: only links have it")
        for name in expanded:
            if name in names:
                selected.add(name)
            elif not target.startswith(SELECTOR):
                if sentence := elsewhere(layout, name):
                    raise NotFoundError(sentence)
                guess = _nearest(name, names)
                hint = f"; did you mean {guess!r}?" if guess else f"; it has {', '.join(names[:_MAX_SHOWN])}"
                raise NotFoundError(f"cluster {layout.name} has no node {name!r}{hint}")
    return [name for name in names if name in selected]


def node_of(layout: Layout, target: str) -> str:
    """Return the selected node. Raises NotFoundError if there is none, or several."""
    nodes = nodes_of(layout, [target])
    if len(nodes) > 1:
        names = ", ".join(nodes[:_MAX_SHOWN]) + (", ..." if len(nodes) > _MAX_SHOWN else "")
        raise NotFoundError(f"{target} selects {len(nodes)} nodes ({names}): name one of them")
    return nodes[0]


def elsewhere(layout: Layout, name: str) -> str:
    """Return a sentence that says that a node is on another machine; empty for any other name."""
    if name not in {node.name for node in layout.nodes_elsewhere()}:
        return ""
    return f"node {name} is on another machine: 'testbed machines shell' and 'testbed machines exec' run programs there"


def _hint(layout: Layout, tag: str) -> str:
    tags = sorted(
        {*(tag for node in layout.nodes for tag in node.tags), *(tag for link in layout.links for tag in link.tags)}
    )
    guess = _nearest(tag, tags)
    if guess:
        return f"; did you mean {SELECTOR + guess!r}?"
    existing = ", ".join(tags[:_MAX_SHOWN]) + (", ..." if len(tags) > _MAX_SHOWN else "")
    return f"; there are {existing}" if tags else ": it has no tags"


def _nearest(name: str, names: Iterable[str]) -> str:
    from testbed.spec.problems import nearest  # imported only for unknown names

    return nearest(name, names)
