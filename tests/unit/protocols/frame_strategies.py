"""Random frames of any protocol, drawn from its Scapy layers and not from the generated codec."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import reduce
from operator import truediv
from pathlib import Path
from types import ModuleType

from hypothesis import settings
from hypothesis import strategies as st
from scapy.fields import MACField
from scapy.packet import NoPayload, Packet, Padding, Raw

import protocols
from protocols.core.frames import MutableField, SizedLayer, trailing_size
from protocols.myrinet.envelope import add_envelope

_ROOT = Path(protocols.__path__[0])
PACKAGES = sorted(
    ".".join(("protocols", *path.parent.relative_to(_ROOT).parts))
    for path in _ROOT.glob("**/frames.py")
    if path.with_name("codec.py").exists()
)

PER_STACK = settings(max_examples=settings().max_examples // 4)
"""Half of the usual number of examples, for tests of each stack of layers: there are some thirty."""


@dataclass(frozen=True)
class DrawnFrame:
    """Frame as arguments of its codec, and as Scapy's packet of its layers."""

    arguments: tuple[int | bytes, ...]
    payload: bytes
    packet: Packet
    layers: tuple[type[Packet], ...]

    @property
    def raw(self) -> bytes:
        """Bytes of the frame without the trailing fields that switches change."""
        raw_bytes = bytes(self.packet)
        return raw_bytes[: len(raw_bytes) - trailing_size(self.layers)]

    @property
    def headers(self) -> int:
        """Bytes of the headers, after which the payload begins."""
        fields = [field for layer in self.layers for field in layer.fields_desc if not isinstance(field, MutableField)]
        return int(sum([field.sz for field in fields]))


def frames_of(package: str) -> ModuleType:
    return importlib.import_module(f"{package}.frames")


def lengths_of(module: ModuleType) -> tuple[str, ...]:
    """Return the names of the length fields."""
    lengths: str | tuple[str, ...] = getattr(module, "LENGTH", ())
    return (lengths,) if isinstance(lengths, str) else lengths


def with_envelope(layers: tuple[type[Packet], ...], raw: bytes) -> bytes:
    """Return a frame of a codec as it is on a link, where Scapy dissects it."""
    return add_envelope(raw, b"") if trailing_size(layers) else raw


def own_layers(module: ModuleType, stack: str) -> list[type[Packet]]:
    """Return the stack's layers that the protocol defines."""
    return [layer for layer in module.STACKS[stack] if layer.__module__ == module.__name__]


def binding(lower: type[Packet], upper: type[Packet]) -> dict[str, int]:
    return next(values for values, layer in lower.payload_guess if layer is upper)


def values_of_upper_layers(layer: type[Packet], field: object) -> set[int]:
    """Return the values of a field that announce a further layer."""
    return {values[field.name] for values, _ in layer.payload_guess if field.name in values}


def enum_values(layer: type[Packet], field: object) -> list[int]:
    """Return the values of an enumeration that announce no further layer; empty for other fields."""
    return [value for value in getattr(field, "i2s", None) or () if value not in values_of_upper_layers(layer, field)]


def field_values(layer: type[Packet], field: object) -> st.SearchStrategy[int | bytes]:
    if isinstance(field, MACField):
        return st.binary(min_size=6, max_size=6)
    if values := enum_values(layer, field):
        return st.sampled_from(values)
    bits = field.size if hasattr(field, "size") else 8 * field.sz
    numbers = st.sampled_from([0, 1, (1 << bits) - 1]) | st.integers(0, (1 << bits) - 1)
    return numbers.filter(lambda number: number not in values_of_upper_layers(layer, field))


@st.composite
def drawn_frames(draw: st.DrawFn, module: ModuleType, stack: str, max_payload: int = 200) -> DrawnFrame:
    """Draw a frame of a stack. max_payload: bytes of payload."""
    layers = module.STACKS[stack]
    computed_fields = {*lengths_of(module), getattr(module, "CHECK", None)}
    arguments: list[int | bytes] = []
    headers: list[Packet] = []
    for layer, upper in zip(layers, (*layers[1:], None), strict=True):
        fixed = binding(layer, upper) if upper else {}
        values: dict[str, object] = {}
        for field in layer.fields_desc:
            if (
                isinstance(field, MutableField)
                or field.name in fixed
                or (layer is not layers[0] and field.name in computed_fields)
            ):
                continue
            value = draw(field_values(layer, field))
            values[field.name] = value.hex(":") if isinstance(value, bytes) else value
            if len(enum_values(layer, field)) != 1:
                arguments.append(value)
        headers.append(layer(**values))
    has_no_payload = issubclass(layers[-1], SizedLayer) and not layers[-1].payload_size
    payload = b"" if has_no_payload else draw(st.binary(max_size=max_payload))
    packet = reduce(truediv, [*headers, Raw(payload)] if payload else headers)
    return DrawnFrame(tuple(arguments), payload, packet, layers)


def dissect(layers: tuple[type[Packet], ...], packet: Packet) -> list[dict[str, int | bytes]]:
    """Return the fields of each layer, as numbers and bytes; then the payload, without padding."""
    fields: list[dict[str, int | bytes]] = []
    for layer in layers:
        assert type(packet) is layer
        constant_fields = [field.name for field in layer.fields_desc if not isinstance(field, MutableField)]
        fields.append({name: number(packet.getfieldval(name)) for name in constant_fields})
        packet = packet.payload
    fields.append({"payload": b"" if isinstance(packet, (NoPayload, Padding)) else bytes(packet.load)})
    return fields


def number(value: object) -> int | bytes:
    return bytes.fromhex(value.replace(":", "")) if isinstance(value, str) else int(value)
