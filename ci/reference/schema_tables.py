"""Tables of keys, from the JSON Schemas that `testbed schema` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from reference.markdown import cell, code, table

Schema = Mapping[str, Any]


def description() -> str:
    """Keys of a description. Impairments, which links share, have a page of their own."""
    from testbed.spec.toml_writer import json_schema

    schema = json_schema()
    definitions = schema["$defs"]
    impaired = definitions["Impairments"]["properties"]
    parts = ["### The file\n", _keys(schema)]
    for head, name in (
        ("`[[node]]`", "Node"), ("`[[node.nic]]`", "Nic"), ("`[[switch]]`", "Switch"), ("`[[link]]`", "Link"),
        ("`[defaults]`", "Defaults"),
    ):  # fmt: skip
        parts += [f"### {head}\n", f"{cell(definitions[name]['description'])}\n"]
        if name == "Link":
            parts.append("Further keys are the [impairments](impairments.md), of both directions.\n")
        parts.append(_keys(definitions[name], without=impaired if name == "Link" else ()))
    parts += ["### `[generate]`\n", "Shapes and their keys.\n", _shapes(schema["properties"]["generate"]["oneOf"])]
    return "\n".join(parts)


def impairments() -> str:
    """Keys of one direction of a link."""
    from testbed.spec.toml_writer import json_schema

    return _keys(json_schema()["$defs"]["Impairments"])


def scenario() -> str:
    """Keys of a scenario, kind by kind."""
    from testbed.spec.scenario import json_schema

    schema = json_schema()
    faults: list[Schema] = schema["properties"]["fault"]["items"]["oneOf"]
    common = set.intersection(*[set(fault["properties"]) for fault in faults])
    parts = ["### The file\n", _keys(schema), "### Keys of every `[[fault]]`\n", _keys(faults[0], only=common)]
    for fault in faults:
        parts += [f"### {code(fault['title'])}\n", f"{cell(fault.get('description', ''))}\n"]
        own = [key for key in fault["properties"] if key not in common]
        parts.append(_keys(fault, only=own) if own else "No further keys.\n")
    return "\n".join(parts)


def machines() -> str:
    """Keys of a machine in a machines file."""
    from testbed.spec.machines import json_schema

    return _keys(json_schema()["properties"]["machine"]["items"])


def documents() -> str:
    """Fields of the document that each command prints with `--json`."""
    from testbed.cli.documents import DOCUMENTS

    parts = []
    for name, schema in DOCUMENTS.items():
        rows = [
            (code(key), cell(_type(field)), cell(field.get("description", "")))
            for key, field in _fields(schema["properties"])  # type: ignore[arg-type]
        ]
        parts += [f"### {code(name)}\n", table(("field", "type", "description"), rows)]
    return "\n".join(parts)


def _fields(properties: Schema, above: str = "") -> Iterator[tuple[str, Schema]]:
    for key, field in properties.items():
        yield above + key, field
        inner = field.get("items", field)
        if "properties" in inner:
            yield from _fields(inner["properties"], f"{above}{key}{'[]' if 'items' in field else ''}.")


def _keys(schema: Schema, *, only: Any = None, without: Any = ()) -> str:
    required = schema.get("required", ())
    rows = []
    for key, field in schema["properties"].items():
        if key in without or (only is not None and key not in only):
            continue
        default = "required" if key in required else _default(field)
        rows.append((code(key), cell(_type(field)), default, cell(field.get("description", ""))))
    return table(("key", "type", "default", "description"), rows)


def _default(field: Schema) -> str:
    value = field.get("default")
    return "" if value in (None, "", [], {}) else code(json.dumps(value))


def _type(field: Schema) -> str:
    """Format the type of a value, with its bounds and an example."""
    if "const" in field:
        return json.dumps(field["const"])
    if "enum" in field:
        return ", ".join(json.dumps(value) for value in field["enum"])
    if "$ref" in field:
        return f"table of {field['$ref'].rpartition('/')[2]}"
    for union in ("anyOf", "oneOf"):
        if union in field:
            forms = [_type(form) for form in field[union] if form.get("type") != "null"]
            return " or ".join(dict.fromkeys(forms))
    kind = field.get("type", "any")
    text = " or ".join(each for each in kind if each != "null") if isinstance(kind, list) else str(kind)
    if text == "array":
        items = field.get("items", {})
        return f"list of {_type(items)}" if items else "list"
    bounds = [
        f"{sign} {field[key]}"
        for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
        if key in field and abs(field[key]) < 2**53
    ]
    text = f"{text} {', '.join(bounds)}".strip()
    examples = field.get("examples", ())
    return f"{text}, such as {json.dumps(examples[0])}" if examples else text


def _shapes(shapes: list[Schema]) -> str:
    rows = []
    for shape in shapes:
        keys = [
            f"{code(key)} ({cell(field.get('description', '')).rstrip('.')}"
            f"{'' if _default(field) == '' else ', ' + _default(field)})"
            for key, field in shape["properties"].items()
            if key != "shape"
        ]
        named = shape["properties"]["shape"]["const"]
        rows.append((code(named), cell(shape.get("description", "")), "; ".join(keys)))
    return table(("`shape`", "description", "keys"), rows)
