"""Writer of descriptions in TOML, and the JSON Schema of that TOML for editors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tomli_w

from testbed.spec import units
from testbed.spec.element import Element
from testbed.spec.element_schema import element_schema, variant_schema
from testbed.spec.elements import Defaults, Impairments, Link, Nic, Node, Switch
from testbed.spec.generators import SHAPES
from testbed.spec.losses import format_gemodel
from testbed.spec.model import Description, Heading
from testbed.spec.names import TAG_PATTERN, format_cpus

Table = dict[str, Any]

_DRAFT = "https://json-schema.org/draft/2020-12/schema"

_FORMATS: dict[str, Callable[[Any], str]] = {
    "delay": units.format_duration,
    "jitter": units.format_duration,
    "rate": units.format_limit,
    "queue": units.format_size,
    "memory": units.format_size,
    "loss": units.format_probability,
    "corrupt": units.format_probability,
    "duplicate": units.format_probability,
    "reorder": units.format_probability,
    "gemodel": format_gemodel,
    "minimum_frame": units.format_size,
    "cell_size": units.format_size,
    "cpus": format_cpus,
}
"""Formatters of keys whose values have a text form; other values are plain TOML."""


def to_toml(description: Description) -> str:
    """Format the values other than defaults as TOML, with units; the inverse of `loader.parse`."""
    heading = _table(description, Heading)
    defaults = _table(description.defaults, Defaults)
    link = _table(description.defaults.link, Impairments)
    defaults.pop("link", None)
    if link:
        defaults["link"] = link
    heading.pop("defaults", None)
    if defaults:
        heading["defaults"] = defaults
    lists = {
        "node": [_node(node) for node in description.nodes],
        "switch": [_table(switch, Switch) for switch in description.switches],
        "link": [_link(link) for link in description.links],
    }
    text = tomli_w.dumps(heading)
    for key, tables in lists.items():
        text += "".join(f"\n[[{key}]]\n{_body(key, table)}" for table in tables)
    return text


def _body(key: str, table: Table) -> str:
    """Format the content of ``[[key]]``, with nested tables below it: tomli_w would write them inline, which is hard to
    read."""
    plain = {name: value for name, value in table.items() if not _is_nested(value)}
    text = tomli_w.dumps(plain)
    for name, value in table.items():
        if isinstance(value, dict):
            text += f"\n[{key}.{name}]\n{tomli_w.dumps(value)}"
        elif _is_nested(value):
            text += "".join(f"\n[[{key}.{name}]]\n{tomli_w.dumps(nested)}" for nested in value)
    return text


def _is_nested(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(entry, dict) for entry in value))


def _table(element: Element, model: type[Element]) -> Table:
    """Return the keys of `model` whose values differ from their defaults."""
    table: Table = {}
    for name, field in model.model_fields.items():
        value = getattr(element, name)
        if value != field.get_default() and not isinstance(value, Element):
            key = field.key or name
            table[key] = _FORMATS[key](value) if key in _FORMATS else list(value) if isinstance(value, tuple) else value
    return table


def _node(node: Node) -> Table:
    table = _table(node, Node)
    if node.nics:
        table["nic"] = [_table(nic, Nic) for nic in node.nics]
    return table


def _link(link: Link) -> Table:
    table: Table = {"ends": list(link.ends)}
    table |= _table(link, Link)
    for direction in ("forward", "backward"):
        impairments: Impairments | None = getattr(link, direction)
        if impairments is not None:
            table[direction] = _table(impairments, Impairments)
    return table


def json_schema() -> Table:
    """Return the JSON Schema (draft 2020-12) of a TOML description, for editors. It does not have the checks of elements
    against each other."""
    definitions: Table = {}
    schema = element_schema(Description, definitions)
    shapes = [variant_schema(model, definitions, "shape", name) for name, model in SHAPES.items()]
    schema["properties"]["generate"] = {
        "description": "A shape that is expanded to nodes, switches and links; listed elements are added.",
        "oneOf": shapes,
    }
    schema["properties"]["tags"] = {
        "description": "Nodes ('n1') and links ('n1--s1') by tag, in addition to the tags of the elements themselves.",
        "type": "object",
        "propertyNames": {"pattern": TAG_PATTERN},
        "additionalProperties": {"type": "array", "items": {"type": "string"}},
    }
    schema["required"] = []  # the default of the name is the file's name
    schema["anyOf"] = [{"required": ["node"]}, {"required": ["generate"]}]
    schema["title"] = "Cluster description"
    schema["description"] = "A cluster of virtual nodes: nodes, switches and links."
    return {"$schema": _DRAFT, "$defs": dict(sorted(definitions.items())), **schema}
