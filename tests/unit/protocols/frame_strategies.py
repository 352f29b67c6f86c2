"""Frames of any protocol with random values, drawn from its Scapy layers and not from what the generator makes of them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import reduce
from operator import truediv
from pathlib import Path
from types import ModuleType

from hypothesis import strategies as st
from scapy.fields import MACField
from scapy.packet import NoPayload, Packet, Padding, Raw

import protocols

_ROOT = Path(protocols.__path__[0])
PACKAGES = sorted(".".join(("protocols", *path.parent.relative_to(_ROOT).parts)) for path in _ROOT.glob("**/frames.py"))


@dataclass(frozen=True)
class Drawn:
    """A frame: the arguments that its codec takes, and the same as Scapy's packet."""

    arguments: tuple[int | bytes, ...]
    payload: bytes
    packet: Packet


def frames_of(package: str) -> ModuleType:
    return importlib.import_module(f"{package}.frames")


def binding(below: type[Packet], above: type[Packet]) -> dict[str, int]:
    return next(values for values, layer in below.payload_guess if layer is above)


def bound(layer: type[Packet], field: object) -> set[int]:
    """The values of a field that say that another layer follows."""
    return {values[field.name] for values, _ in layer.payload_guess if field.name in values}


def possible(layer: type[Packet], field: object) -> list[int]:
    """The values of an enumeration in a layer that nothing is bound above; empty if it is none."""
    return [value for value in getattr(field, "i2s", None) or () if value not in bound(layer, field)]


def field_values(layer: type[Packet], field: object) -> st.SearchStrategy[int | bytes]:
    if isinstance(field, MACField):
        return st.binary(min_size=6, max_size=6)
    if values := possible(layer, field):
        return st.sampled_from(values)
    bits = field.size if hasattr(field, "size") else 8 * field.sz
    numbers = st.sampled_from([0, 1, (1 << bits) - 1]) | st.integers(0, (1 << bits) - 1)
    return numbers.filter(lambda number: number not in bound(layer, field))


@st.composite
def drawn_frames(draw: st.DrawFn, module: ModuleType, stack: str, most: int = 200) -> Drawn:
    """most: bytes of payload."""
    layers = module.STACKS[stack]
    made = {getattr(module, "LENGTH", None), getattr(module, "CHECK", None)}
    arguments: list[int | bytes] = []
    headers: list[Packet] = []
    for layer, above in zip(layers, (*layers[1:], None), strict=True):
        fixed = binding(layer, above) if above else {}
        values: dict[str, object] = {}
        for field in layer.fields_desc:
            if field.name in fixed or (layer is not layers[0] and field.name in made):
                continue
            value = draw(field_values(layer, field))
            values[field.name] = value.hex(":") if isinstance(value, bytes) else value
            if len(possible(layer, field)) != 1:
                arguments.append(value)
        headers.append(layer(**values))
    payload = draw(st.binary(max_size=most))
    return Drawn(tuple(arguments), payload, reduce(truediv, [*headers, Raw(payload)] if payload else headers))


def dissected(layers: tuple[type[Packet], ...], packet: Packet) -> list[dict[str, int | bytes]]:
    """The fields of each layer, as numbers and bytes; then the payload, without what fills up the frame."""
    out: list[dict[str, int | bytes]] = []
    for layer in layers:
        assert type(packet) is layer
        out.append({field.name: number(packet.getfieldval(field.name)) for field in layer.fields_desc})
        packet = packet.payload
    out.append({"payload": b"" if isinstance(packet, (NoPayload, Padding)) else bytes(packet.load)})
    return out


def number(value: object) -> int | bytes:
    return bytes.fromhex(value.replace(":", "")) if isinstance(value, str) else int(value)
