"""Tags by the table of a description, ``[tags]``, and of its builders: for nodes and links that a shape has made.

::

    [tags]
    client = ["n1", "n2"]
    uplink = ["s1--s2"]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from testbed.errors import Problem
from testbed.spec.elements import Element, Link, Node
from testbed.spec.names import check_tag
from testbed.spec.problems import MismatchError, below, item, nearest, shown


def with_tags(
    nodes: Sequence[Node], links: Sequence[Link], table: object, path: str = "tags"
) -> tuple[tuple[Node, ...], tuple[Link, ...], list[Problem]]:
    """The elements with the table's tags after their own, and what is wrong with the table."""
    problems: list[Problem] = []
    if not isinstance(table, Mapping):
        return tuple(nodes), tuple(links), [Problem(path, shown(table), "a table: TAG = [nodes and links]")]
    places: dict[str, list[Element]] = {}
    for node in nodes:
        places.setdefault(node.name, []).append(node)
    for link in links:
        for name in _names(link):
            places.setdefault(name, []).append(link)
    given: dict[int, list[str]] = {}
    for tag, names in table.items():
        where = below(path, str(tag))
        try:
            check_tag(tag)
        except MismatchError as error:
            problems.append(Problem(path, shown(tag), error.expected, error.suggestion))
        if not isinstance(names, (list, tuple)):
            problems.append(Problem(where, shown(names), "a list of nodes and links"))
            continue
        for number, name in enumerate(names):
            if not isinstance(name, str) or name not in places:
                expected = "a node or link of this cluster ('n1', 'n1--s1')"
                problems.append(Problem(item(where, number), shown(name), expected, nearest(name, places)))
                continue
            for element in places[name]:
                given.setdefault(id(element), []).append(tag)
    return (
        tuple(
            node.model_copy(update=_together(node.tags, given[id(node)])) if id(node) in given else node
            for node in nodes
        ),
        tuple(
            link.model_copy(update=_together(link.tags, given[id(link)])) if id(link) in given else link
            for link in links
        ),
        problems,
    )


def _names(link: Link) -> set[str]:
    """By its ends as they are written, and by what they belong to; in both orders."""
    return {f"{a}--{b}" for one in (link.ends, link.owners) for a, b in (one, one[::-1])}


def _together(own: Sequence[str], more: Sequence[str]) -> dict[str, object]:
    return {"tags": tuple(dict.fromkeys((*own, *more)))}
