"""JSON Schema (draft 2020-12) of elements in TOML."""

from __future__ import annotations

import inspect
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from testbed.spec.annotations import Bounds, Schema
from testbed.spec.element import Element, FieldInfo

Table = dict[str, Any]

_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def element_schema(model: type[Element], definitions: Table) -> Table:
    """Return the schema of an element. Schemas to which it refers are added to definitions."""
    annotations = get_type_hints(model, include_extras=True)
    fields = model.model_fields.items()
    properties = {field.key or name: _property(name, field, annotations[name], definitions) for name, field in fields}
    schema: Table = {"additionalProperties": False}
    if model.__doc__:
        schema["description"] = inspect.cleandoc(model.__doc__)
    schema["properties"] = properties
    required = [field.key or name for name, field in fields if field.is_required]
    if required:
        schema["required"] = required
    return {**schema, "title": model.__name__, "type": "object"}


def variant_schema(model: type[Element], definitions: Table, key: str, title: str) -> Table:
    """Return the schema of an element that is one of several variants. key: the key that distinguishes the variants."""
    schema = element_schema(model, definitions)
    schema["required"] = sorted({key, *schema.get("required", ())})
    schema["title"] = title
    return schema


def _property(name: str, field: FieldInfo, annotation: Any, definitions: Table) -> Table:
    schema = _schema(annotation, definitions)
    if not field.is_required and field.default_factory is None:
        default = field.default
        schema["default"] = list(default) if isinstance(default, tuple) else default
    if field.description:
        schema["description"] = field.description
    if not any("$ref" in form for form in (schema, *schema.get("anyOf", ()))):
        schema["title"] = (field.key or name).replace("_", " ").title()
    return {keyword: _sorted(value) for keyword, value in sorted({**schema, **field.schema}.items())}


def _sorted(value: Any) -> Any:
    """Return the value of a keyword, with nested keywords in alphabetical order."""
    if isinstance(value, dict):
        return {keyword: _sorted(value[keyword]) for keyword in sorted(value)}
    return [_sorted(entry) for entry in value] if isinstance(value, list) else value


def _schema(annotation: Any, definitions: Table) -> Table:
    if get_origin(annotation) is not Annotated:
        return _of_type(annotation, definitions)
    annotated, *metadata = get_args(annotation)
    explicit = [mark.schema for mark in metadata if isinstance(mark, Schema)]
    schema = dict(explicit[-1]) if explicit else _of_type(annotated, definitions)
    for bounds in metadata:
        if isinstance(bounds, Bounds) and not explicit:
            schema |= _bounds(bounds, schema["type"])
    return schema


def _bounds(bounds: Bounds, kind: str) -> Table:
    keywords = {
        "minimum": bounds.ge,
        "exclusiveMinimum": bounds.gt,
        "maximum": bounds.le,
        "exclusiveMaximum": bounds.lt,
        "maxLength" if kind == "string" else "maxItems": bounds.max_length,
        "minLength" if kind == "string" else "minItems": bounds.min_length or None,
    }
    return {key: bound for key, bound in keywords.items() if bound is not None}


def _of_type(annotation: Any, definitions: Table) -> Table:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        (inner,) = (argument for argument in arguments if argument is not NoneType)
        return {"anyOf": [_schema(inner, definitions), {"type": "null"}]}
    if origin is Literal:
        allowed = {"const": arguments[0]} if len(arguments) == 1 else {"enum": list(arguments)}
        return {**allowed, "type": "string"}
    if origin is tuple:
        return {"items": _schema(arguments[0], definitions), "type": "array"}
    if origin is dict:
        return {"additionalProperties": _schema(arguments[1], definitions), "type": "object"}
    if isinstance(annotation, type) and issubclass(annotation, Element):
        if annotation.__name__ not in definitions:
            definitions[annotation.__name__] = {}
            definitions[annotation.__name__] = element_schema(annotation, definitions)
        return {"$ref": f"#/$defs/{annotation.__name__}"}
    return {"type": _TYPES[annotation]}
