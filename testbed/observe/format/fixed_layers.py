"""Fast formatting of frames with all fields. The text equals that of `layers.format_by_scapy`, but no Scapy packets are
built.

It works for layers of fixed fields, such as those of the testbed's protocols: the fields are unpacked together, and each
value is formatted by its Scapy field. All other frames, such as truncated ones, are left to Scapy.
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

ValueFormatter = Callable[[Any], str]

_MAX_RAW_BYTES: Final = 32  # undissected bytes shown
_CHECK_BYTES: Final = 4  # bytes of a checksum after the payload
_MAX_CACHED: Final = 1 << 12  # cache entries for each field, or for each layer's payloads


class UnfitError(Exception):
    """The frame or layer must be left to Scapy."""


class FixedLayers:
    """Formatter for the layers of some modules, and for Ethernet below them."""

    def __init__(self, modules: Collection[str]) -> None:
        """modules: names of the modules."""
        self._modules = modules
        self._ethernet = _FixedLayer(Ether)
        self._above: dict[type[Packet], _FixedLayer | None] = {}

    def format(self, frame: bytes) -> list[str]:
        """Format a frame, one line for each layer. Raises UnfitError."""
        layer, at, end, padding = self._ethernet, 0, len(frame), b""
        lines = []
        while True:
            first, at = at, skip_route(frame, at) if layer.route is not None else at
            last = end - 1 if layer.last is not None else end
            if last < at + layer.size:
                raise UnfitError
            values = layer.unpack(frame, at)
            texts = [
                show(values[word] >> shift & mask if mask else values[word]) for word, shift, mask, show in layer.parts
            ]
            if layer.route is not None:
                texts.insert(0, f"{layer.route.name} {layer.route.i2repr(None, frame[first:at])}")
            if layer.last is not None:
                layer.probe.pre_dissect(frame[first:end])
                texts.append(f"{layer.last.name} {layer.last.i2repr(layer.probe, frame[last])}")
            at, end = at + layer.size, last
            above = layer.above(values)
            if layer is self._ethernet and above is None:
                raise UnfitError
            next_layer = None if above is None else self._fixed_layer(above)
            payload_end = end
            if layer.length is not None:
                inner_size = (
                    next_layer.size
                    if next_layer is not None and above.__module__ == layer.packet_class.__module__
                    else 0
                )
                payload_end = min(end, at + inner_size + values[layer.length])
            elif layer.check is not None:
                if above is None or not issubclass(above, SizedLayer):
                    raise UnfitError
                payload_end = at + above.total_size(frame[at:end])
            trailer_end = payload_end
            if layer.check is not None:
                trailer_end += _CHECK_BYTES
                if trailer_end > end:
                    raise UnfitError
                check = int.from_bytes(frame[payload_end:trailer_end], "big")
                texts.append(f"{layer.check.name} {layer.check.i2repr(layer.probe, check)}")
            if trailer_end < end:
                padding = frame[trailer_end:end]
            end = payload_end
            lines.append(f"{layer.name}: {', '.join(texts)}")
            if next_layer is None:
                break
            layer = next_layer
        lines += [
            f"{name}: {format_bytes(rest)}" for name, rest in (("Raw", frame[at:end]), ("Padding", padding)) if rest
        ]
        return lines

    def _fixed_layer(self, packet_class: type[Packet]) -> _FixedLayer:
        """Return the formatter of a layer. Raises UnfitError."""
        if packet_class not in self._above:
            try:
                is_known = packet_class.__module__ in self._modules
                self._above[packet_class] = _FixedLayer(packet_class) if is_known else None
            except UnfitError:
                self._above[packet_class] = None
        layer = self._above[packet_class]
        if layer is None:
            raise UnfitError
        return layer


class _FixedLayer:
    """A layer of fixed fields. unpack: unpacks its words from a frame. parts: word, shift, mask (0: the complete word) and
    formatter of each field. route, check, last: the source route before the layer, the checksum after the payload, and the
    frame's last byte, if the layer has them."""

    __slots__ = (
        "_above_by_values",
        "_guess",
        "_locations",
        "_names",
        "check",
        "last",
        "length",
        "name",
        "packet_class",
        "parts",
        "probe",
        "route",
        "size",
        "unpack",
    )  # fmt: skip

    def __init__(self, packet_class: type[Packet]) -> None:
        """Raises UnfitError."""
        self.packet_class: Final = packet_class
        self.probe: Final = packet_class()
        self.name: Final = str(self.probe.name)
        fields = list(packet_class.fields_desc)
        self.route = fields.pop(0) if isinstance(fields[0], RouteField) else None
        self.check = fields.pop() if isinstance(fields[-1], CheckField) else None
        self.last = fields.pop() if isinstance(fields[-1], LastByteField) else None
        self.parts: list[tuple[int, int, int, ValueFormatter]] = []
        locations: dict[str, tuple[int, int, int]] = {}
        format_ = "!"
        try:
            for word, (letter, _, parts) in enumerate(words_of(packet_class)):
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
        self.length = (
            locations["length"][0] if issubclass(packet_class, LengthCheckLayer | LengthTrailerLayer) else None
        )
        self._guess = list(packet_class.payload_guess)
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
        packet_class = self.packet_class
        if packet_class is Ether:
            return True
        base = next((kind for kind in (LengthCheckLayer, TrailingCheckLayer) if issubclass(packet_class, kind)), Packet)
        names = ["do_dissect", "guess_payload_class", "do_dissect_payload"]
        names += [] if self.last is not None else ["pre_dissect", "post_dissect"]
        return packet_class.extract_padding is base.extract_padding and all(
            getattr(packet_class, name) is getattr(base, name) for name in names
        )


def _text(field: AnyField) -> ValueFormatter:
    name = field.name
    if isinstance(field, MACField):
        return lambda raw: f"{name} {raw.hex(':')}"
    if isinstance(field, Field) and type(field).i2repr is Field.i2repr and type(field).i2h is Field.i2h:
        return lambda value: f"{name} {value}"

    @lru_cache(maxsize=_MAX_CACHED)
    def show(value: int) -> str:
        return f"{name} {printable(field.i2repr(None, field.any2i(None, value)))}"

    return show


def format_bytes(data: bytes) -> str:
    """Format bytes: their number and the first bytes in hexadecimal."""
    ellipsis = " ..." if len(data) > _MAX_RAW_BYTES else ""
    return f"{len(data)} bytes, {data[:_MAX_RAW_BYTES].hex(' ')}{ellipsis}"


def printable(value: object) -> str:
    """Format a value on one line; unprintable text as `repr` does."""
    text = str(value)
    return text if text.isprintable() and text else repr(text)
