"""Parts that the Scapy layers of several protocols share: a header that counts and checks its payload, and fields that
change on a frame's way, of which a codec knows nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from scapy.fields import StrField, XByteField, XIntField
from scapy.packet import Packet

from protocols.core.checksum import crc32

MAX_HOPS: Final = 64
"""Bytes that are looked through for a route's end."""


class Passing:
    """A field that changes on the way: no codec has it, and no CRC-32 counts it."""


class RouteField(Passing, StrField):
    """A source route: all bytes that have their top bit set, before the first that has not."""

    def getfield(self, pkt: Packet | None, s: bytes) -> tuple[bytes, bytes]:  # noqa: ARG002
        end, most = 0, min(len(s), MAX_HOPS)
        while end < most and s[end] & 0x80:
            end += 1
        return s[end:], s[:end]


class LastByteField(Passing, XByteField):
    """A number behind the layer's whole payload, which the layer's `post_build` puts there. Of a frame without it 0."""

    def getfield(self, pkt: Packet | None, s: bytes) -> tuple[bytes, int]:  # noqa: ARG002
        return s[:-1], s[-1] if s else 0

    def addfield(self, pkt: Packet | None, s: bytes, val: int | None) -> bytes:  # noqa: ARG002
        return s


class CheckField(Passing, XIntField):
    """The CRC-32 as in zlib of the frame up to the payload's end, behind which it stands. Only a `Trailed` layer has it."""

    def getfield(self, pkt: Packet | None, s: bytes) -> tuple[bytes, int]:
        assert isinstance(pkt, Trailed)
        end = pkt.payload_end(s)
        return s[:end] + s[end + self.sz :], int.from_bytes(s[end : end + self.sz], "big")

    def addfield(self, pkt: Packet | None, s: bytes, val: int | None) -> bytes:  # noqa: ARG002
        return s


class Trailed(Packet):
    """A protocol's first header, with a `CheckField` named `check` as its last field. If that is None it is filled in."""

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        check = crc32(_below(self) + pkt + pay) if self.check is None else self.check
        return pkt + pay + check.to_bytes(4, "big")

    def post_dissect(self, s: bytes) -> bytes:
        self.raw_packet_cache = None  # it would have bytes of the payload
        return s

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        end = self.payload_end(s)
        return s[:end], s[end:]

    def payload_end(self, rest: bytes) -> int:
        """Return how many of the bytes behind this header are the next header and its payload. Where that is not known, all
        but the check are."""
        above = self.guess_payload_class(rest)
        return above.end(rest) if issubclass(above, Sized) else max(0, len(rest) - 4)


class Sized(Packet):
    """A header above a `Trailed` one. payload_size: the field for the bytes of payload, which is filled in where it is
    None; empty: there is no payload."""

    payload_size = ""

    @classmethod
    def end(cls, rest: bytes) -> int:
        """Return how many of the bytes from this header on are the header and its payload."""
        size, length = header_size(cls), 0
        if cls.payload_size and len(rest) >= size:
            begin, width = place(cls, cls.payload_size)
            length = int.from_bytes(rest[begin : begin + width], "big")
        return min(size + length, len(rest))

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        if self.payload_size and self.getfieldval(self.payload_size) is None:
            begin, width = place(type(self), self.payload_size)
            pkt = pkt[:begin] + len(pay).to_bytes(width, "big") + pkt[begin + width :]
        return pkt + pay


class Counted(Packet):
    """A protocol's first header, with a field `length`, the bytes of payload behind all the protocol's headers, and a field
    `check`, the CRC-32 as in zlib over the frame from its first byte to the end of the payload, without this field and
    without what changes on the way. Where they are None they are filled in; what is behind the payload is none of it."""

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        if self.length is None:
            pkt = self._filled(pkt, "length", len(pay) - self._inner(pay))
        if self.check is None:
            begin, size = place(type(self), "check")
            others = pkt[:begin] + pkt[begin + size :]
            pkt = self._filled(pkt, "check", crc32(pay, crc32(_below(self) + others)))
        return pkt + pay

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        end = self._inner(s) + (self.length or 0)
        return s[:end], s[end:]

    def _inner(self, rest: bytes) -> int:
        """Bytes of the protocol's next header, if one stands between this one and the payload."""
        above = self.guess_payload_class(rest)
        return min(header_size(above), len(rest)) if above.__module__ == type(self).__module__ else 0

    def _filled(self, pkt: bytes, name: str, value: int) -> bytes:
        begin, size = place(type(self), name)
        return pkt[:begin] + value.to_bytes(size, "big") + pkt[begin + size :]


def header_size(layer: type[Packet]) -> int:
    """Bytes of a layer whose fields are of fixed size; those of bits have a share of them."""
    return int(sum([field.sz for field in layer.fields_desc]))


def trailing(layers: Iterable[type[Packet]]) -> int:
    """Bytes that these layers put behind the payload, which change on the way."""
    return sum([isinstance(field, LastByteField) for layer in layers for field in layer.fields_desc])


def _below(packet: Packet) -> bytes:
    """The headers under it, without what changes on the way."""
    layer, raw = packet.underlayer, b""
    while layer is not None:
        raw = _header(layer) + raw
        layer = layer.underlayer
    return raw


def _header(layer: Packet) -> bytes:
    raw = b""
    for field in layer.fields_desc:
        if not isinstance(field, Passing):
            raw = field.addfield(layer, raw, layer.getfieldval(field.name))
    return raw


def place(layer: type[Packet], name: str) -> tuple[int, int]:
    """Where a field begins in its header, and its bytes."""
    begin = 0.0
    for field in layer.fields_desc:
        if field.name == name:
            return int(begin), int(field.sz)
        begin += float(field.sz)
    raise AssertionError(name)
