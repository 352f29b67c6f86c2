"""Base classes of Scapy layers and fields: headers with a length and a checksum, and fields that change between hops
and are not in codecs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from scapy.fields import StrField, XByteField, XIntField
from scapy.packet import Packet

from protocols.core.checksum import crc32

MAX_HOPS: Final = 64
"""Maximum length of a source route, which has one byte per hop."""


class MutableField:
    """Mixin of a field that changes between hops: it is not in codecs, and no CRC-32 covers it."""


class RouteField(MutableField, StrField):
    """A source route: the leading bytes with the top bit set."""

    def getfield(self, pkt: Packet | None, s: bytes) -> tuple[bytes, bytes]:  # noqa: ARG002
        offset, max_size = 0, min(len(s), MAX_HOPS)
        while offset < max_size and s[offset] & 0x80:
            offset += 1
        return s[offset:], s[:offset]


class LastByteField(MutableField, XByteField):
    """A byte after the layer's whole payload, which the layer's `post_build` appends. 0 for a frame without it."""

    def getfield(self, pkt: Packet | None, s: bytes) -> tuple[bytes, int]:  # noqa: ARG002
        return s[:-1], s[-1] if s else 0

    def addfield(self, pkt: Packet | None, s: bytes, val: int | None) -> bytes:  # noqa: ARG002
        return s


class CheckField(MutableField, XIntField):
    """The CRC-32 (zlib's) of the frame up to the payload's end; it follows the payload. For `TrailingCheckLayer`
    only."""

    def getfield(self, pkt: Packet | None, s: bytes) -> tuple[bytes, int]:
        assert isinstance(pkt, TrailingCheckLayer)
        offset = pkt.payload_end(s)
        return s[:offset] + s[offset + self.sz :], int.from_bytes(s[offset : offset + self.sz], "big")

    def addfield(self, pkt: Packet | None, s: bytes, val: int | None) -> bytes:  # noqa: ARG002
        return s


class TrailingCheckLayer(Packet):
    """A protocol's first header. Its last field is a `CheckField` named `check`, which is computed if it is None."""

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        check = crc32(_headers_below(self) + pkt + pay) if self.check is None else self.check
        return pkt + pay + check.to_bytes(4, "big")

    def post_dissect(self, s: bytes) -> bytes:
        self.raw_packet_cache = None  # the cached bytes include a part of the payload
        return s

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        end = self.payload_end(s)
        return s[:end], s[end:]

    def payload_end(self, rest: bytes) -> int:
        """Return the size of the next header and its payload in bytes. rest: the bytes after this header. If the next
        header does not define its size, the result counts all bytes except the check."""
        above = self.guess_payload_class(rest)
        return above.total_size(rest) if issubclass(above, SizedLayer) else max(0, len(rest) - 4)


class SizedLayer(Packet):
    """A header above a `TrailingCheckLayer`. payload_size: name of the field with the payload's size, which is computed
    if it is None; empty: no payload."""

    payload_size = ""

    @classmethod
    def total_size(cls, rest: bytes) -> int:
        """Return the size of the header and its payload in bytes. rest: the bytes from this header on."""
        size, length = header_size(cls), 0
        if cls.payload_size and len(rest) >= size:
            begin, width = field_location(cls, cls.payload_size)
            length = int.from_bytes(rest[begin : begin + width], "big")
        return min(size + length, len(rest))

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        if self.payload_size and self.getfieldval(self.payload_size) is None:
            begin, width = field_location(type(self), self.payload_size)
            pkt = pkt[:begin] + len(pay).to_bytes(width, "big") + pkt[begin + width :]
        return pkt + pay


class LengthTrailerLayer(TrailingCheckLayer):
    """A `TrailingCheckLayer` with the field `length`, which is computed if it is None: the bytes of payload after all
    headers of the protocol."""

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        return super().post_build(_with_length(self, pkt, pay), pay)

    def payload_end(self, rest: bytes) -> int:
        return _next_header_size(self, rest) + (self.length or 0)


class LengthCheckLayer(Packet):
    """A protocol's first header, with the fields `length` and `check`, which are computed if they are None.

    length: bytes of payload after all headers of the protocol. check: CRC-32 (zlib's) of the frame from its first byte
    to the end of the payload, without this field and without fields that change between hops. Bytes after the payload
    are not included."""

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        pkt = _with_length(self, pkt, pay)
        if self.check is None:
            begin, size = field_location(type(self), "check")
            others = pkt[:begin] + pkt[begin + size :]
            pkt = _with_field(self, pkt, "check", crc32(pay, crc32(_headers_below(self) + others)))
        return pkt + pay

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        end = _next_header_size(self, s) + (self.length or 0)
        return s[:end], s[end:]


def _with_length(layer: Packet, pkt: bytes, pay: bytes) -> bytes:
    """Set the field `length` of a built header, unless it was given: the bytes of payload after all headers of the
    protocol. pay: the bytes after the built header."""
    if layer.length is not None:
        return pkt
    return _with_field(layer, pkt, "length", len(pay) - _next_header_size(layer, pay))


def _next_header_size(layer: Packet, rest: bytes) -> int:
    """Return the size of the protocol's next header in bytes; 0 if the payload follows. rest: the bytes after the
    layer."""
    above = layer.guess_payload_class(rest)
    return min(header_size(above), len(rest)) if above.__module__ == type(layer).__module__ else 0


def _with_field(layer: Packet, pkt: bytes, name: str, value: int) -> bytes:
    begin, size = field_location(type(layer), name)
    return pkt[:begin] + value.to_bytes(size, "big") + pkt[begin + size :]


def header_size(layer: type[Packet]) -> int:
    """Return the size in bytes of a layer whose fields have fixed sizes."""
    return int(sum([field.sz for field in layer.fields_desc]))


def trailing_size(layers: Iterable[type[Packet]]) -> int:
    """Return the number of bytes that layers append after the payload and that change between hops."""
    return sum([isinstance(field, LastByteField) for layer in layers for field in layer.fields_desc])


def _headers_below(packet: Packet) -> bytes:
    """Return the bytes of the headers below a layer, without fields that change between hops."""
    layer, raw = packet.underlayer, b""
    while layer is not None:
        raw = _stable_bytes(layer) + raw
        layer = layer.underlayer
    return raw


def _stable_bytes(layer: Packet) -> bytes:
    raw = b""
    for field in layer.fields_desc:
        if not isinstance(field, MutableField):
            raw = field.addfield(layer, raw, layer.getfieldval(field.name))
    return raw


def field_location(layer: type[Packet], name: str) -> tuple[int, int]:
    """Return the offset of a field in its header, and its size, both in bytes."""
    begin = 0.0
    for field in layer.fields_desc:
        if field.name == name:
            return int(begin), int(field.sz)
        begin += float(field.sz)
    raise AssertionError(name)
