"""Figures of frames and tables of their fields, from the protocols' Scapy layers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from typing import Any, Final

from scapy.fields import BitEnumField, BitField, EnumField, FlagsField, StrFixedLenField
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from protocols.core.frames import CheckField, LastByteField, RouteField
from reference.markdown import cell, code, table

WORD: Final = 32  # bits of a figure's row
LARGE: Final = 3 * WORD  # bits; the complete rows of a larger field are figure_field as one
_FIELD: Final = re.compile(r'^\s*\w+\(\s*"(\w+)"')


Cell = tuple[str, int, str]
"""A cell of a figure: text, bits, HTML attributes."""


@dataclass(frozen=True, slots=True)
class FigureField:
    """A field of a figure. bits: its size, or 0 if the size varies."""

    name: str
    bits: int


def of_protocol(system: str) -> str:
    """Return strips of the layers of each frame, then a figure and a table of the fields of each layer."""
    frames = import_module(f"protocols.{system}.frames")
    stacks: Mapping[str, tuple[type[Packet], ...]] = frames.STACKS
    layers = dict.fromkeys(layer for stack in stacks.values() for layer in stack if layer is not Ether)
    blocks = [_stacks(stacks)]
    for layer in layers:
        blocks += [f"### {_name(layer)}\n", f"{cell(inspect.getdoc(layer) or '')}\n", figure(layer), _fields(layer)]
    return "\n".join(blocks)


def _name(layer: type[Packet]) -> str:
    return str(layer().name)


def _stacks(stacks: Mapping[str, Sequence[type[Packet]]]) -> str:
    """Draw each frame as a strip of its layers, with their bytes."""
    strips = []
    for layers in dict.fromkeys(stacks.values()):
        boxes = "".join(f"<span>{escape(_name(layer))}<b>{size_of(layer)}</b></span>" for layer in layers)
        strips.append(f'<div class="frame-layers">{boxes}{_payload(layers[-1])}{_behind(layers)}</div>')
    return "\n".join(strips) + "\n"


def size_of(layer: type[Packet]) -> str:
    """Return the number of a layer's bytes before its payload, with a + if the size of a field varies."""
    fields = [_figure_field(field) for field in layer.fields_desc if not is_behind(field)]
    return f"{sum(field.bits for field in fields) // 8}{'+' if any(not field.bits for field in fields) else ''}"


def _payload(layer: type[Packet]) -> str:
    """Draw the payload behind a frame's last header, unless that header's layer has no payload."""
    is_last = "extract_padding" in vars(layer) and not layer().extract_padding(b"payload")[0]
    return "" if is_last else '<span class="rest">payload</span>'


def _behind(layers: Sequence[type[Packet]]) -> str:
    """Draw the fields behind the payload."""
    results = [field for layer in reversed(layers) for field in layer.fields_desc if is_behind(field)]
    return "".join(f"<span>{escape(field.name)}<b>{field.sz}</b></span>" for field in results)


def is_behind(field: Any) -> bool:
    """Whether a field is behind the payload."""
    return isinstance(field, CheckField | LastByteField)


def _figure_field(field: Any) -> FigureField:
    if isinstance(field, RouteField):
        return FigureField(field.name, 0)
    if isinstance(field, BitField | BitEnumField | FlagsField):
        return FigureField(field.name, int(field.size))
    if isinstance(field, StrFixedLenField):
        return FigureField(field.name, 8 * len(field.default))
    return FigureField(field.name, 8 * int(field.sz))


def figure(layer: type[Packet]) -> str:
    """Draw a layer as rows of 32 bits, as RFCs do."""
    rows = "".join(
        f'<tr><th scope="row">{first}</th>'
        + "".join(f'<td colspan="{bits}"{mark}>{escape(name)}</td>' for name, bits, mark in cells)
        + "</tr>\n"
        for first, cells in _rows(layer)
    )
    bits = "".join(f'<th scope="col" colspan="8">{first}</th>' for first in range(0, WORD, 8))
    caption = f"{escape(_name(layer))}: bytes from the header's first, rows of {WORD} bits"
    return (
        f'<table class="frame-figure"><caption>{caption}</caption>'
        f"<thead><tr><th></th>{bits}</tr></thead>\n<tbody>\n{rows}</tbody></table>\n"
    )


def _rows(layer: type[Packet]) -> Iterator[tuple[str, list[Cell]]]:
    """Yield each row: the offset of its first byte, and its cells. The rows that a large field fills alone are drawn as
    one."""
    row: list[Cell] = []
    row_start = used = 0  # bits before the row, and in it
    for field in (_figure_field(field) for field in layer.fields_desc if not is_behind(field)):
        if not field.bits:
            yield "", [(f"{field.name}, any number of bytes", WORD, ' class="large"')]
            continue
        remaining, mark = field.bits, ""
        while remaining:
            if not used and remaining > LARGE:
                yield str(row_start // 8), [(f"{field.name}, {field.bits // 8} bytes", WORD, ' class="large"')]
                row_start, remaining, mark = row_start + remaining - remaining % WORD, remaining % WORD, ' class="more"'
                continue
            size = min(remaining, WORD - used)
            row.append((field.name, size, mark))
            remaining, used, mark = remaining - size, used + size, ' class="more"'
            if used == WORD:
                yield str(row_start // 8), row
                row_start, used, row = row_start + WORD, 0, []
    if row:
        yield str(row_start // 8), [*row, ("", WORD - used, ' class="none"')]


def _fields(layer: type[Packet]) -> str:
    """Return a table of a layer's fields, with their values and the comments in the layer's source."""
    descriptions = comments(layer)
    rows, offset = [], 0  # bits
    for field in layer.fields_desc:
        figure_field = _figure_field(field)
        place = (
            "behind the payload" if is_behind(field) else f"{offset // 8}" + (f".{offset % 8}" if offset % 8 else "")
        )
        size = (
            "varies"
            if not figure_field.bits
            else f"{figure_field.bits} bits"
            if figure_field.bits % 8
            else str(figure_field.bits // 8)
        )
        rows.append((code(field.name), place, size, _values(field), cell(descriptions.get(field.name, ""))))
        offset += 0 if is_behind(field) else figure_field.bits
    heads = ("field", "byte", "bytes", "values", "description")
    filled = [column for column in range(len(heads)) if any(row[column] for row in rows)]
    return table([heads[column] for column in filled], [[row[column] for column in filled] for row in rows])


def _values(field: Any) -> str:
    if isinstance(field, FlagsField):
        return ", ".join(f"{code(name)} {1 << place}" for place, name in enumerate(field.names))
    if isinstance(field, EnumField) or hasattr(field, "i2s"):
        return ", ".join(f"{code(name)} {value}" for value, name in sorted(getattr(field, "i2s", {}).items()))
    return ""


def comments(layer: type[Packet]) -> dict[str, str]:
    """Return the comment of each field in the layer's source, from the field's line or from the lines before it."""
    comments_by_name: dict[str, str] = {}
    above: list[str] = []
    for line in re.sub(r"\(\n\s*", "(", inspect.getsource(layer)).splitlines():
        text = line.strip()
        if text.startswith("#"):
            above.append(text.lstrip("# "))
            continue
        match = _FIELD.match(line)
        if match:
            behind = line.rpartition("  # ")[2] if "  # " in line and "noqa" not in line else ""
            comments_by_name[match[1]] = behind or " ".join(above)
        above = []
    return comments_by_name
