"""Assembly of a description from a TOML document. Its heading, generated shape and listed parts are checked together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TypeVar

from testbed.errors import DescriptionError, Problem
from testbed.lazy_dataclass import dataclass
from testbed.spec.elements import Defaults, Link, Node, Switch
from testbed.spec.generators import SHAPES
from testbed.spec.model import DEFAULT_NETWORK, NO_NODE, Description, read_heading
from testbed.spec.names import check_name
from testbed.spec.parser import read, read_list
from testbed.spec.problems import MismatchError, format_value, join_alternatives, nearest
from testbed.spec.tag_tables import add_tags
from testbed.spec.validation import Parts, check

D = TypeVar("D", bound=Description)

_LISTS = ("generate", "node", "switch", "link", "tags")


@dataclass(slots=True)
class _Generated:
    nodes: tuple[Node, ...] = ()
    switches: tuple[Switch, ...] = ()
    links: tuple[Link, ...] = ()
    heading: dict[str, object] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def assemble(data: Mapping[str, object], source: str, cls: type[D], name: str = "") -> D:
    """Assemble a description of class cls. source: name for error messages. name: the file's name without its suffix, which
    names the cluster if the document has no name; empty: there is no file.

    Raises DescriptionError with all problems.
    """
    generated = _generate(data["generate"]) if "generate" in data else _Generated()
    raw = generated.heading | {key: value for key, value in data.items() if key not in _LISTS}
    name_problems: list[Problem] = []
    if name and "name" not in data:
        raw["name"], name_problems = _name_of_file(name, str(raw.get("name", "")))
    heading, problems = read_heading(raw)
    problems += name_problems
    # If only the name is invalid, the heading's other keys still take part in the checks.
    heading_for_checks = heading or read_heading(raw | {"name": "x"})[0]
    nodes = read_list(Node, data.get("node", ()), "node")
    switches = read_list(Switch, data.get("switch", ()), "switch")
    links = read_list(Link, data.get("link", ()), "link")
    problems += [*generated.problems, *nodes.problems, *switches.problems, *links.problems]
    all_nodes, all_links = generated.nodes + nodes.elements, generated.links + links.elements
    if "tags" in data:
        all_nodes, all_links, tag_problems = add_tags(all_nodes, all_links, data["tags"])
        problems += tag_problems
    parts = Parts(
        nodes=all_nodes,
        switches=generated.switches + switches.elements,
        links=all_links,
        defaults=heading_for_checks.defaults if heading_for_checks else Defaults(),
        network=heading_for_checks.network if heading_for_checks else DEFAULT_NETWORK,
        network6=heading_for_checks.network6 if heading_for_checks else None,
        node_indices=(None,) * len(generated.nodes) + nodes.indices,
        switch_indices=(None,) * len(generated.switches) + switches.indices,
        link_indices=(None,) * len(generated.links) + links.indices,
        doubtful_nodes=frozenset(len(generated.nodes) + index for index in nodes.doubtful),
        doubtful_links=frozenset(len(generated.links) + index for index in links.doubtful),
        doubtful_defaults=heading_for_checks is None
        or any(problem.path.startswith("defaults") for problem in problems),
        incomplete=nodes.lost or switches.lost or links.lost or bool(generated.problems),
    )
    problems += check(parts)
    if not data.get("node") and "generate" not in data:
        problems.append(NO_NODE)
    if problems or heading is None:
        raise DescriptionError(source, problems)
    values = {key: getattr(heading, key) for key in type(heading).model_fields}
    return cls.model_construct(**values, nodes=parts.nodes, switches=parts.switches, links=parts.links)


def _name_of_file(name: str, generated: str) -> tuple[str, list[Problem]]:
    """Return the cluster's name and its problems. name: name of the file. generated: name of the generated shape, which is
    used if that of the file is invalid; empty: no shape."""
    try:
        return check_name(name), []
    except MismatchError as error:
        if generated:
            return generated, []
        remedy = f'add a line such as name = "{error.suggestion or "lab"}"'
        return "x", [Problem("name", f"{format_value(name)} from the file's name", f"{error.expected}: {remedy}")]


def _generate(raw: object) -> _Generated:
    if not isinstance(raw, Mapping):
        return _Generated(problems=[Problem("generate", format_value(raw), "a table with a shape and its parameters")])
    name = raw.get("shape")
    model = SHAPES.get(name) if isinstance(name, str) else None
    if model is None:
        actual = format_value(name) if name is not None else ""
        problem = Problem("generate.shape", actual, join_alternatives(SHAPES), nearest(name, SHAPES))
        return _Generated(problems=[problem])
    shape, problems = read(model, raw, "generate")
    if shape is None or problems:
        return _Generated(problems=problems)
    heading: dict[str, object] = {"name": shape.cluster_name(), "description": shape.purpose()}
    return _Generated(shape.make_nodes(), shape.make_switches(), shape.make_links(), heading)
