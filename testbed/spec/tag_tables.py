"""Tags in the table ``[tags]`` of a description, or in the option of a builder: also for generated nodes and links.

::

    [tags]
    client = ["n1", "n2"]
    uplink = ["s1--s2"]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from testbed.errors import Problem
from testbed.spec.element import Element
from testbed.spec.elements import Link, Node
from testbed.spec.names import check_tag
from testbed.spec.problems import MismatchError, below, format_value, item, nearest

_PATH = "tags"


def add_tags(
    nodes: Sequence[Node], links: Sequence[Link], table: object
) -> tuple[tuple[Node, ...], tuple[Link, ...], list[Problem]]:
    """Return the nodes and links with the table's tags added to their own, and the problems of the table."""
    problems: list[Problem] = []
    if not isinstance(table, Mapping):
        return tuple(nodes), tuple(links), [Problem(_PATH, format_value(table), "a table: TAG = [nodes and links]")]
    elements: dict[str, list[Element]] = {}
    for node in nodes:
        elements.setdefault(node.name, []).append(node)
    for link in links:
        for name in _names(link):
            elements.setdefault(name, []).append(link)
    tags_of: dict[int, list[str]] = {}
    suggestions_left = 20  # the search for the nearest name is slow, and more suggestions do not help
    for tag, names in table.items():
        tag_path = below(_PATH, str(tag))
        try:
            check_tag(tag)
        except MismatchError as error:
            problems.append(Problem(_PATH, format_value(tag), error.expected, error.suggestion))
        if not isinstance(names, (list, tuple)):
            problems.append(Problem(tag_path, format_value(names), "a list of nodes and links"))
            continue
        for number, name in enumerate(names):
            if not isinstance(name, str) or name not in elements:
                expected = "a node or link of this cluster ('n1', 'n1--s1')"
                guess = nearest(name, elements) if suggestions_left > 0 else ""
                suggestions_left -= 1
                problems.append(Problem(item(tag_path, number), format_value(name), expected, guess))
                continue
            for element in elements[name]:
                tags_of.setdefault(id(element), []).append(tag)
    return (
        tuple(
            node.model_copy(update=_merge_tags(node.tags, tags_of[id(node)])) if id(node) in tags_of else node
            for node in nodes
        ),
        tuple(
            link.model_copy(update=_merge_tags(link.tags, tags_of[id(link)])) if id(link) in tags_of else link
            for link in links
        ),
        problems,
    )


def _names(link: Link) -> set[str]:
    """Return the names of a link: by its ends as written, and by their owners, each in both orders."""
    return {f"{a}--{b}" for ends in (link.ends, link.owners) for a, b in (ends, ends[::-1])}


def _merge_tags(declared: Sequence[str], added: Sequence[str]) -> dict[str, object]:
    return {"tags": tuple(dict.fromkeys((*declared, *added)))}
