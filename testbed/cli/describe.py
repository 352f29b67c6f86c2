"""Commands ``validate``, ``topologies``, ``graph`` and ``schema``: they read descriptions, and change nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from testbed.cli.collector import collector_off
from testbed.cli.consoles import echo, json_option, print_json, print_warnings, require_compatible
from testbed.cli.progress_display import step_progress

if TYPE_CHECKING:
    from testbed.spec.layout import Layout


@click.command("validate")
@click.argument("source", metavar="FILE|NAME")
@click.option("--toml", "as_toml", is_flag=True, help="Print the complete description as TOML.")
@json_option
@collector_off()
def validate_command(source: str, as_toml: bool, as_json: bool) -> None:
    """Check a description and summarize the cluster; all errors are reported together, each with its location.

    NICs of different MTUs in one network are a warning.
    """
    from testbed.cluster.records.status import summary
    from testbed.errors import DescriptionError
    from testbed.spec.layout_json import to_json
    from testbed.spec.loader import load
    from testbed.spec.resolver import resolve
    from testbed.spec.toml_writer import to_toml

    require_compatible(("--toml", as_toml), ("--json", as_json))
    try:
        with step_progress("checking " + source):
            loaded = load(source)
            layout = resolve(loaded.description)
    except DescriptionError as error:
        if not as_json:
            raise
        problems = [
            {
                "path": problem.path,
                "found": problem.found,
                "expected": problem.expected,
                "suggestion": problem.suggestion,
            }
            for problem in error.problems
        ]
        print_json("validate", {"valid": False, "origin": error.source, "problems": problems, "warnings": []})
        raise click.exceptions.Exit(error.exit_code) from error
    warnings = loaded.description.warnings()
    print_warnings(warnings)
    if as_json:
        document = {"valid": True, "origin": loaded.origin, "problems": [], "warnings": warnings}
        print_json("validate", {**document, "layout": to_json(layout)})
    elif as_toml:
        echo(to_toml(loaded.description), nl=False)
    else:
        echo(f"{layout.name} is valid: {summary(layout)}")


@click.command("topologies")
@json_option
def topologies_command(as_json: bool) -> None:
    """List the clusters that come with testbed; star-N works for any N."""
    from testbed.spec.shipped import topologies

    shipped = topologies()
    if as_json:
        print_json("topologies", {"topologies": [{"name": name, "purpose": purpose} for name, purpose in shipped]})
        return
    width = max(len(name) for name, _ in shipped)
    for name, purpose in shipped:
        echo(f"{name.ljust(width)}  {purpose}")


@click.command("graph")
@click.argument("source", metavar="FILE|NAME")
@click.option("--dot", is_flag=True, help="Print Graphviz DOT: testbed graph --dot star-4 | dot -Tsvg > star-4.svg")
@json_option
@collector_off()
def graph_command(source: str, dot: bool, as_json: bool) -> None:
    """Draw a cluster as a tree in the terminal, or as DOT for Graphviz. With --json, print the resolved layout."""
    from testbed.spec.graphviz import to_dot
    from testbed.spec.layout_json import to_json
    from testbed.spec.loader import load
    from testbed.spec.resolver import resolve

    require_compatible(("--dot", dot), ("--json", as_json))
    with step_progress("reading " + source):
        layout = resolve(load(source).description)
    if as_json:
        print_json("graph", {"layout": to_json(layout)})
    elif dot:
        echo(to_dot(layout), nl=False)
    else:
        _draw(layout)


def _draw(layout: Layout) -> None:
    """Draw a spanning tree from the first switch, or from the first node if there is no switch. A link that closes a cycle
    is drawn as a leaf marked with an arrow. A cluster that is not connected has several trees."""
    from rich.text import Text
    from rich.tree import Tree

    from testbed.cli.table_layout import console

    neighbours: dict[str, list[tuple[int, str, str]]] = {}
    for number, link in enumerate(layout.links):
        neighbours.setdefault(link.a.owner, []).append((number, f"{link.a.port} — {link.b.port}", link.b.owner))
        neighbours.setdefault(link.b.owner, []).append((number, f"{link.b.port} — {link.a.port}", link.a.owner))
    kinds = {switch.name: f" ({switch.kind} switch)" for switch in layout.switches}
    addresses = {node.name: f" {node.address}" for node in layout.nodes}
    root = Tree(Text(layout.name, style="bold"))
    visited: set[str] = set()
    drawn_links: set[int] = set()
    for start in [*(switch.name for switch in layout.switches), *(node.name for node in layout.nodes)]:
        if start in visited:
            continue
        visited.add(start)
        stack = [(start, root.add(Text(start + kinds.get(start, "") + addresses.get(start, ""))))]
        while stack:
            name, branch = stack.pop()
            for number, cable, neighbour in neighbours.get(name, []):
                if number in drawn_links:
                    continue
                drawn_links.add(number)
                label = f"{cable}  {neighbour}"
                if neighbour in visited:
                    branch.add(Text(f"{label} ↑", style="dim"))
                else:
                    visited.add(neighbour)
                    stack.append(
                        (neighbour, branch.add(Text(label + kinds.get(neighbour, "") + addresses.get(neighbour, ""))))
                    )
    console().print(root, highlight=False)


@click.command("schema")
@click.argument("document", default="description")
def schema_command(document: str) -> None:
    """Print the JSON Schema of descriptions, scenarios, machines files, or of a command's output with --json: up, ...

    An editor that supports JSON Schema for TOML completes and checks descriptions by it.
    """
    from testbed.cli.documents import DOCUMENTS, schema_of

    if document == "description":
        from testbed.spec.toml_writer import json_schema

        echo(json.dumps(json_schema(), indent=2))
    elif document == "scenario":
        from testbed.spec.scenario import json_schema as of_scenarios

        echo(json.dumps(of_scenarios(), indent=2))
    elif document == "machines":
        from testbed.spec.machines import json_schema as of_machines

        echo(json.dumps(of_machines(), indent=2))
    elif document in DOCUMENTS:
        echo(json.dumps(schema_of(document), indent=2))
    else:
        raise click.UsageError(
            f"there is no document {document!r}; there are description, scenario, machines, {', '.join(DOCUMENTS)}"
        )
