"""The JSON documents that the command prints, as JSON Schema.

Each has ``format``, the version of its form, and ``kind``, the command. Within a version fields may be added; what is
there keeps its name and meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from testbed.cli.options import FORMAT

Schema: TypeAlias = Mapping[str, object]

_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "integer"}
_FLAG: Schema = {"type": "boolean"}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": sorted(properties)}


def _said(schema: Schema, description: str) -> Schema:
    return {**schema, "description": description}


_DIRECTION = _object(
    frames=_said(_NUMBER, "frames since the link was made"),
    bytes=_said(_NUMBER, "their bytes"),
    dropped=_said(_NUMBER, "frames that the kernel dropped"),
)
_NIC = _object(
    name=_TEXT,
    mac=_TEXT,
    mtu=_NUMBER,
    addresses=_said(_list(_TEXT), "with prefix length"),
    link=_said(_TEXT, "the name of its link"),
)
_NODE = _object(
    name=_TEXT,
    namespace=_said(_TEXT, "the path of its network namespace"),
    there=_said(_FLAG, "whether the namespace exists"),
    programs=_said(_list(_NUMBER), "process numbers of the programs in it"),
    nics=_list(_NIC),
)
_PORT = _object(number=_NUMBER, link=_TEXT)
_SWITCH = _object(
    name=_TEXT,
    kind={"enum": ["ethernet", "myrinet", "atm"]},
    learns=_said(_FLAG, "false: it forwards by the plan"),
    ports=_list(_PORT),
)
_LINK = _object(
    name=_TEXT,
    a=_said(_TEXT, "OWNER:PORT"),
    b=_said(_TEXT, "OWNER:PORT"),
    datapath=_said(_TEXT, "who carries its frames"),
    there=_said(_FLAG, "whether both ends exist"),
    up=_FLAG,
    forward=_said(_DIRECTION, "a to b"),
    backward=_said(_DIRECTION, "b to a"),
)
_CLUSTER = _object(
    name=_TEXT,
    origin=_said(_TEXT, "the path of its file, or topology:NAME, or python"),
    phase={"enum": ["building", "up", "changing", "removing"]},
    lasting=_said(_FLAG, "false: it ends with its owner"),
    owner=_said(_NUMBER, "the process that made it"),
    created=_said(_NUMBER, "seconds of the epoch"),
    nodes=_list(_NODE),
    switches=_list(_SWITCH),
    links=_list(_LINK),
)
_LAYOUT: Schema = {
    "type": "object",
    "description": "the cluster with everything derived; what has its default is left out",
}
_PROBLEM = _object(path=_TEXT, found=_TEXT, expected=_TEXT, suggestion=_TEXT)

DOCUMENTS: Mapping[str, Schema] = {
    "status": _object(clusters=_list(_CLUSTER)),
    "up": _object(
        cluster=_TEXT,
        origin=_TEXT,
        dry_run=_FLAG,
        operations=_said(_list(_TEXT), "what was done, or with dry_run would be"),
    ),
    "down": _object(clusters=_list(_TEXT)),
    "gc": _object(findings=_list(_object(what=_TEXT, removed=_FLAG, reason=_TEXT))),
    "validate": {
        **_object(valid=_FLAG, origin=_TEXT, problems=_list(_PROBLEM), layout=_LAYOUT),
        "required": ["origin", "problems", "valid"],  # an invalid description has no layout
    },
    "graph": _object(layout=_LAYOUT),
    "topologies": _object(topologies=_list(_object(name=_TEXT, purpose=_TEXT))),
    "doctor": _object(
        abilities=_list(_object(name=_TEXT, there=_FLAG, detail=_TEXT, meaning=_TEXT, remedy=_TEXT)),
    ),
}


def schema_of(kind: str) -> Schema:
    """The JSON Schema of a document; `kind` is one of DOCUMENTS."""
    schema = dict(DOCUMENTS[kind])
    properties = schema["properties"]
    assert isinstance(properties, dict)
    schema["properties"] = {"format": {"const": FORMAT}, "kind": {"const": kind}, **properties}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"testbed {kind} --json", **schema}
