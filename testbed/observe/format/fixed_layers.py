"""Fast formatting of frames with all fields. The text is equal to Scapy's, but no Scapy packets are built.

It works for layers of fixed fields, as the testbed's protocols have: the fields are unpacked together, and each value is
formatted by its Scapy field. All other frames, such as truncated ones, are left to Scapy.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any, Final

from scapy.fields import AnyField, Field, MACField
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from protocols.core.formats import words_of
from protocols.core.frames import (
    CheckField,
    LastByteField,
    LengthCheckLayer,
    LengthTrailerLayer,
    RouteField,
    SizedLayer,
    TrailingCheckLayer,
)
from testbed.fates.header_fields import skip_route

Show = Callable[[Any], str]

_MAX_RAW_BYTES: Final = 32  # undissected bytes shown
_CHECK_BYTES: Final = 4  # bytes of a checksum after the payload
_MAX_CACHED: Final = 1 << 12  # cache entries for each field, or for each layer's payloads


class UnfitError(Exception):
    """The frame or layer must be left to Scapy."""


class FixedLayers:
    """Formatter for the layers in these modules and for Ethernet below them."""

    def __init__(self, modules: Collection[str]) -> None:
        self._modules = modules
        self._ethernet = _Shape(Ether)
        self._above: dict[type[Packet], _Shape | None] = {}

    def format(self, frame: bytes) -> list[str]:
        """Format a frame, one line for each layer. Raises UnfitError."""
        shape, at, end, padding = self._ethernet, 0, len(frame), b""
        lines = []
        while True:
            first, at = at, skip_route(frame, at) if shape.route is not None else at
            last = end - 1 if shape.last is not None else end
            if last < at + shape.size:
                raise UnfitError
            values = shape.unpack(frame, at)
            texts = [
                show(values[word] >> shift & mask if mask else values[word]) for word, shift, mask, show in shape.parts
            ]
            if shape.route is not None:
                texts.insert(0, f"{shape.route.name} {shape.route.i2repr(None, frame[first:at])}")
            if shape.last is not None:
                shape.probe.pre_dissect(frame[first:end])
                texts.append(f"{shape.last.name} {shape.last.i2repr(shape.probe, frame[last])}")
            at, end = at + shape.size, last
            above = shape.above(values)
            if shape is self._ethernet and above is None:
                raise UnfitError
            next_shape = None if above is None else self._shape(above)
            payload_end = end
            if shape.length is not None:
                inner = next_shape.size if next_shape is not None and above.__module__ == shape.layer.__module__ else 0
                payload_end = min(end, at + inner + values[shape.length])
            elif shape.check is not None:
                if above is None or not issubclass(above, SizedLayer):
                    raise UnfitError
                payload_end = at + above.end(frame[at:end])
            behind = payload_end
            if shape.check is not None:
                behind += _CHECK_BYTES
                if behind > end:
                    raise UnfitError
                check = int.from_bytes(frame[payload_end:behind], "big")
                texts.append(f"{shape.check.name} {shape.check.i2repr(shape.probe, check)}")
            if behind < end:
                padding = frame[behind:end]
            end = payload_end
            lines.append(f"{shape.name}: {', '.join(texts)}")
            if next_shape is None:
                break
            shape = next_shape
        lines += [
            f"{name}: {format_bytes(rest)}" for name, rest in (("Raw", frame[at:end]), ("Padding", padding)) if rest
        ]
        return lines

    def _shape(self, layer: type[Packet]) -> _Shape:
        if layer not in self._above:
            try:
                self._above[layer] = _Shape(layer) if layer.__module__ in self._modules else None
            except UnfitError:
                self._above[layer] = None
        shape = self._above[layer]
        if shape is None:
            raise UnfitError
        return shape


class _Shape:
    """A layer: its unpack function, and for each field its word, shift, mask (0: the whole word) and formatter."""

    __slots__ = (
        "_above_by_values",
        "_guess",
        "_locations",
        "_names",
        "check",
        "last",
        "layer",
        "length",
        "name",
        "parts",
        "probe",
        "route",
        "size",
        "unpack",
    )  # fmt: skip

    def __init__(self, layer: type[Packet]) -> None:
        """Raises UnfitError."""
        self.layer: Final = layer
        self.probe: Final = layer()
        self.name: Final = str(self.probe.name)
        fields = list(layer.fields_desc)
        self.route = fields.pop(0) if isinstance(fields[0], RouteField) else None
        self.check = fields.pop() if isinstance(fields[-1], CheckField) else None
        self.last = fields.pop() if isinstance(fields[-1], LastByteField) else None
        self.parts: list[tuple[int, int, int, Show]] = []
        locations: dict[str, tuple[int, int, int]] = {}
        format_ = "!"
        try:
            for word, (letter, _, parts) in enumerate(words_of(layer)):
                format_ += letter
                shift = sum(size for _, size in parts)
                for field, size in parts:
                    shift -= size
                    locations[field.name] = word, shift, (1 << size) - 1 if len(parts) > 1 else 0
        except TypeError as error:
            raise UnfitError from error
        if not self._is_plain():
            raise UnfitError
        self.parts = [(*locations[field.name], _text(field)) for field in fields]
        packed = struct.Struct(format_)
        self.size: Final = packed.size
        self.unpack: Final = packed.unpack_from
        self.length = locations["length"][0] if issubclass(layer, LengthCheckLayer | LengthTrailerLayer) else None
        self._guess = list(layer.payload_guess)
        self._names = list(dict.fromkeys(name for condition, _ in self._guess for name in condition))
        self._locations = [locations[name] for name in self._names]
        self._above_by_values: dict[tuple[int, ...], type[Packet] | None] = {}

    def above(self, values: tuple[Any, ...]) -> type[Packet] | None:
        """Return the layer that follows for these values."""
        key = tuple([values[word] >> shift & mask if mask else values[word] for word, shift, mask in self._locations])
        if key not in self._above_by_values:
            by_name = dict(zip(self._names, key, strict=True))
            layers = (layer for condition, layer in self._guess if condition.items() <= by_name.items())
            if len(self._above_by_values) >= _MAX_CACHED:
                self._above_by_values.clear()
            self._above_by_values[key] = next(layers, None)
        return self._above_by_values[key]

    def _is_plain(self) -> bool:
        """Whether the layer uses the dissection of `Packet`, or of a class that this module supports."""
        layer = self.layer
        if layer is Ether:
            return True
        base = next((kind for kind in (LengthCheckLayer, TrailingCheckLayer) if issubclass(layer, kind)), Packet)
        names = ["do_dissect", "guess_payload_class", "do_dissect_payload"]
        names += [] if self.last is not None else ["pre_dissect", "post_dissect"]
        return layer.extract_padding is base.extract_padding and all(
            getattr(layer, name) is getattr(base, name) for name in names
        )


def _text(field: AnyField) -> Show:
    name = field.name
    if isinstance(field, MACField):
        return lambda raw: f"{name} {raw.hex(':')}"
    if isinstance(field, Field) and type(field).i2repr is Field.i2repr and type(field).i2h is Field.i2h:
        return lambda value: f"{name} {value}"

    @lru_cache(maxsize=_MAX_CACHED)
    def show(value: int) -> str:
        return f"{name} {printable(field.i2repr(None, field.any2i(None, value)))}"

    return show


def format_bytes(rest: bytes) -> str:
    """Format bytes: their number and the first bytes in hexadecimal."""
    more = " ..." if len(rest) > _MAX_RAW_BYTES else ""
    return f"{len(rest)} bytes, {rest[:_MAX_RAW_BYTES].hex(' ')}{more}"


def printable(value: object) -> str:
    """Format a value on one line; unprintable text as `repr` does."""
    text = str(value)
    return text if text.isprintable() and text else repr(text)
