"""Text for the frames of registered protocols, by their codecs' descriptions (`protocols.core.frame_kinds`), without
Scapy.

Frames of a protocol whose codec has no such description are shown by their fields. The codec checks each frame: a frame that
the protocol would discard is shown as broken.

Protocols that share an EtherType have separate codecs. The codec registered for all of them may have a function
`stripped`, which removes from a frame the parts that the separate codecs do not have: it returns the remaining frame, the
source route, and whether the CRC-8 is correct. Frames of that EtherType with a wrong CRC-8 that match no separate codec are
left out. If a codec is above another protocol's header, frames that its protocol would discard are shown as frames of the
lower protocol.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final

from protocols.core.frame_kinds import Kind, spans
from protocols.core.malformed import MalformedError
from testbed import registry
from testbed.errors import TestbedError
from testbed.fates.header_fields import ETHERNET_HEADER, Fields, skip_route
from testbed.fields import known_fields

FieldReader = Callable[[bytes], int]
ValueFormatter = Callable[[tuple[int, ...], int], str]
"""Formats one value, given all values and its index."""

Strip = Callable[[bytes], tuple[bytes, tuple[int, ...], bool]]
"""Removes the parts of a frame that a codec does not have; see `FrameFormatter.strip`."""

_STRUCT_CODES: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}
_SHORT: Final = "short"
_OTHER_PROTOCOL: Final = "another protocol's"


class FrameFormatter:
    """Formatter for the frames of one protocol. name: as registered. kinds: frame kinds, by the value of the field that
    distinguishes them."""

    def __init__(
        self,
        name: str,
        codec: Any,
        fields: Fields,
        strip: Strip | None = None,
        below: FrameFormatter | None = None,
    ) -> None:
        """codec: a module as `protocols.core.codegen` writes it, possibly without NAMES and KINDS. strip: the function
        `stripped` of the codec registered for the EtherType. below: formatter of the protocol whose header is below."""
        self.name: Final = name
        self.ethertype: Final = int(codec.ETHERTYPE)
        self.begins: Final[bytes] = getattr(codec, "BEGINS", b"")
        self._strip = strip
        self.below: Final = below
        self._is_shared_codec = strip is not None and not self.begins
        self.kinds: Final[Mapping[int, Kind]] = getattr(codec, "KINDS", {})
        self._fields = fields
        self._routed = bool(getattr(codec, "ROUTED", False))
        self._rule_names = [f"{name}.{field}" for field in codec.FIELDS]
        self._names: Mapping[str, Mapping[int, str]] = getattr(codec, "NAMES", {})
        self._unpack: list[Callable[[bytes], object]] = [
            function
            for attribute, function in vars(codec).items()
            if attribute.startswith("unpack_") and not attribute.endswith("_behind")
        ]
        # Fields with one constant value: a frame with another value is of another protocol.
        self._fixed = {field for field in codec.FIELDS if isinstance(getattr(codec, field.upper(), None), int)}
        self._kind = self.read(codec.KIND) if self.kinds else None
        self._kind_field: str = getattr(codec, "KIND", "")
        self._kind_formatters = {
            value: _KindFormatter(self, value, kind.words).write for value, kind in self.kinds.items()
        }
        # The function that unpacked the last frame of each kind.
        self._last_unpack: dict[int, Callable[[bytes], object]] = {}

    def strip(self, frame: bytes) -> tuple[bytes, tuple[int, ...], bool]:
        """Remove from a frame without tags the parts that the codec does not have.

        Returns the remaining frame, the source route if known, and whether the removed parts are intact. All methods except
        `format` expect a frame without these parts.
        """
        if self._strip is not None:
            return self._strip(frame)
        payload_offset = skip_route(frame, ETHERNET_HEADER) if self._routed else ETHERNET_HEADER
        return (
            frame if payload_offset == ETHERNET_HEADER else frame[:ETHERNET_HEADER] + frame[payload_offset:],
            (),
            True,
        )

    def read(self, field: str) -> FieldReader:
        """Make a reader of a field, by the field's name in the protocol; the reader returns -1 if a frame does not have the
        field."""
        reader = self._fields.reader(f"{self.name}.{field}")
        ethertype = self.ethertype

        def guarded(frame: bytes) -> int:
            return reader(frame, (ethertype, ETHERNET_HEADER, -1, -1))

        located_field = self._fields[f"{self.name}.{field}"]
        if located_field.guard or self._routed:
            return guarded
        begin = ETHERNET_HEADER + located_field.offset
        end = begin + located_field.width
        mask, shift = located_field.mask, located_field.shift
        if mask:
            return lambda frame: (int.from_bytes(frame[begin:end], "big") & mask) >> shift if len(frame) >= end else -1
        return lambda frame: int.from_bytes(frame[begin:end], "big") if len(frame) >= end else -1

    def kind_of(self, frame: bytes) -> int:
        """Return the frame's kind: a key of `kinds`, or -1."""
        value = self._kind(frame) if self._kind is not None else -1
        return value if value in self.kinds else -1

    def format(self, frame: bytes) -> str:
        """Format a frame, with or without a source route; empty for a frame of another protocol."""
        if self._strip is None and not self._routed:
            return self._format_stripped(frame)
        frame, route, intact = self.strip(frame)
        if not intact and self._is_shared_codec:
            return ""
        text = self._format_stripped(frame)
        if route and text:
            text += f", route {' '.join([f'{delta:+}' for delta in route])}"
        return text if intact or not text else f"{text}, wrong CRC-8"

    def _format_stripped(self, frame: bytes) -> str:
        kind = self.kind_of(frame)
        if reason := self._defect(frame, kind):
            if self.below is not None:
                return f"{self.below.format(frame)}, no {self.name.upper()} ({reason})"
            return "" if reason == _OTHER_PROTOCOL else f"{self.name.upper()}, broken ({reason})"
        write = self._kind_formatters.get(kind)
        try:
            return write(frame) if write is not None else self._format_fields(frame)
        except struct.error:  # too short, and not checked by the codec
            return self._format_fields(frame)

    def defect(self, frame: bytes) -> str:
        """Return the reason why the frame is not a valid frame of the protocol; empty if it is valid."""
        return self._defect(frame, self.kind_of(frame))

    def _defect(self, frame: bytes, kind: int) -> str:
        last_unpack = self._last_unpack.get(kind)
        if last_unpack is not None:
            try:
                last_unpack(frame)
            except MalformedError:
                pass
            else:
                return ""
        reasons = []
        for unpack in self._unpack:
            try:
                unpack(frame)
            except MalformedError as error:
                reasons.append(error.reason)
            else:
                self._last_unpack[kind] = unpack
                return ""
        if not reasons:  # the codec has no unpack functions
            return ""
        if set(reasons) == {_SHORT}:
            return _SHORT if self.begins or self.below is not None else _OTHER_PROTOCOL
        if not self._fixed.isdisjoint(reasons):
            return _OTHER_PROTOCOL
        if self.kinds and kind < 0:
            return self._kind_field
        # A mismatch of the kind only means that the frame was unpacked as the wrong kind.
        return next((reason for reason in reasons if reason != self._kind_field), reasons[0])

    def _format_fields(self, frame: bytes) -> str:
        """Format all fields that the frame has."""
        located = (self.ethertype, ETHERNET_HEADER, -1, -1)
        field_texts = []
        for name_in_rules in self._rule_names:
            field = name_in_rules.removeprefix(f"{self.name}.")
            value = self._fields.reader(name_in_rules)(frame, located)
            if value >= 0 and field not in self._fixed and not self._is_flag(field):
                field_texts.append(f"{field} {self._names.get(field, {}).get(value, value)}")
        return f"{self.name.upper()} {', '.join(field_texts)}".rstrip()

    def _is_flag(self, field: str) -> bool:
        """Whether the field is one bit of another field, which is shown instead."""
        return f"{self.name}.{field.rpartition('.')[0]}" in self._fields

    def position(self, field: str, kind: int) -> tuple[int, int]:
        """Return offset and width in bytes of a field in frames of that kind; (0, 0) for bits, and for fields that not all
        of these frames have."""
        located_field = self._fields[f"{self.name}.{field}"]
        kind_guard = f"{self.name}.{self._kind_field}", kind
        if located_field.mask or any(guard != kind_guard for guard in located_field.guard):
            return 0, 0
        return ETHERNET_HEADER + located_field.offset, located_field.width

    def names_of(self, field: str) -> Callable[[int], str] | None:
        """Return a function from the field's values to their names; None if the values have no names."""
        if flags := self._flags(field):
            return lambda value: "+".join([flag for bit, flag in flags if value & bit])
        names = self._names.get(field)
        if names is None:
            return None
        name_of = names
        return lambda value: name_of.get(value) or str(value)

    def _flags(self, name: str) -> list[tuple[int, str]]:
        """Return the bits of a field's value that have a name, each with the name."""
        containing = self._fields[f"{self.name}.{name}"]
        flags = []
        for name_in_rules in self._rule_names:
            prefix, _, flag = name_in_rules.rpartition(".")
            if prefix == containing.name:
                flags.append((self._fields[name_in_rules].mask >> containing.shift, flag.upper()))
        return flags


class _KindFormatter:
    """Formatter of frames of one kind: it reads their fields and inserts them into a text."""

    __slots__ = ("_format", "_parts", "_reads", "_unpack")

    def __init__(self, formatter: FrameFormatter, kind: int, words: str) -> None:
        names = {name: None for parts, _ in spans(words) for _, name, _ in parts if name}
        numbers = self._locate(formatter, kind, list(names))
        self._parts: list[tuple[int, ValueFormatter | None]] = []
        texts = []
        for parts, optional in spans(words):
            first, text = len(self._parts), ""
            for literal, name, format_spec in parts:
                text += literal.replace("%", "%%")
                if name:
                    name_of = formatter.names_of(name)
                    self._parts.append((numbers[name], None if name_of is None else _name_formatter(name_of)))
                    text += f"%{format_spec or 'd'}" if name_of is None else "%s"
            if optional:
                self._parts[first:] = [(0, _unless_zero(text, self._parts[first:]))]
                text = "%s"
            texts.append(text)
        self._format = "".join(texts)

    def write(self, frame: bytes) -> str:
        values = self._unpack(frame)
        if self._reads:
            values += tuple([read(frame) for read in self._reads])
        return self._format % tuple(
            [values[index] if show is None else show(values, index) for index, show in self._parts]
        )

    def _locate(self, formatter: FrameFormatter, kind: int, names: list[str]) -> dict[str, int]:
        """Set up the reading of these fields: most are unpacked together; bits and optional fields are read separately.
        Return the indexes of their values, by name."""
        end, format_, packed, separate = 0, "!", list[str](), list[str]()
        for (begin, width), name in sorted((formatter.position(name, kind), name) for name in names):
            if begin < end or width not in _STRUCT_CODES:
                separate.append(name)
                continue
            format_ += f"{begin - end}x{_STRUCT_CODES[width]}"
            end = begin + width
            packed.append(name)
        self._unpack: Callable[[bytes], tuple[int, ...]] = struct.Struct(format_).unpack_from
        self._reads = [formatter.read(name) for name in separate]
        return {name: number for number, name in enumerate([*packed, *separate])}


def _name_formatter(name_of: Callable[[int], str]) -> ValueFormatter:
    return lambda values, index: name_of(values[index])


def _unless_zero(text: str, inner: Sequence[tuple[int, ValueFormatter | None]]) -> ValueFormatter:
    """Return a formatter of an optional span of a template; its text is empty if all its values are 0. inner: indexes and
    formatters of these values."""

    def show(values: tuple[int, ...], _: int) -> str:
        if all(values[index] <= 0 for index, _ in inner):
            return ""
        return text % tuple([values[index] if show is None else show(values, index) for index, show in inner])

    return show


class SharedEtherType:
    """Formatters of the protocols of an EtherType."""

    def __init__(self) -> None:
        self._by_begin: dict[bytes, FrameFormatter] = {}
        self._size = 0
        self._routed = False
        self._common: FrameFormatter | None = None
        """Formatter of frames whose first bytes no codec has registered."""

    def __iter__(self) -> Iterator[FrameFormatter]:
        return iter(self._by_begin.values())

    def add(self, formatter: FrameFormatter, routed: bool) -> None:
        self._by_begin[formatter.begins] = formatter
        self._size = max(self._size, len(formatter.begins))
        self._routed = routed
        self._common = self._by_begin.get(b"")

    def formatter_of(self, frame: bytes) -> FrameFormatter | None:
        """Return the formatter of the protocol of a frame without tags."""
        if not self._size:
            return self._common
        offset = skip_route(frame, ETHERNET_HEADER) if self._routed else ETHERNET_HEADER
        return self._by_begin.get(frame[offset : offset + self._size], self._common)


@cache
def formatters() -> Mapping[int, SharedEtherType]:
    """Return the formatters of all protocols with fields for rules, by EtherType. Protocols that cannot be imported are left
    out."""
    codecs: dict[str, Any] = {}
    for name in registry.offered(registry.FIELDS):
        with suppress(TestbedError):
            codecs[name] = registry.load(registry.FIELDS, name)
    return make_formatters(codecs, known_fields())


def make_formatters(codecs: Mapping[str, Any], fields: Fields) -> Mapping[int, SharedEtherType]:
    """Make formatters from codecs, by name. Invalid codecs, and codecs whose fields are unknown, are left out. A codec above
    another protocol's header replaces that protocol's codec."""
    strips: dict[int, Strip] = {}
    for codec in codecs.values():
        with suppress(AttributeError):
            strips[codec.ETHERTYPE] = codec.stripped
    shared: dict[int, SharedEtherType] = {}
    by_name: dict[str, FrameFormatter] = {}
    for name, codec in sorted(codecs.items(), key=lambda item: getattr(item[1], "ABOVE", "")):
        with suppress(AttributeError, LookupError, ValueError, TypeError):
            below = by_name.get(getattr(codec, "ABOVE", ""))
            by_name[name] = formatter = FrameFormatter(name, codec, fields, strips.get(codec.ETHERTYPE), below)
            shared.setdefault(formatter.ethertype, SharedEtherType()).add(
                formatter, fields.is_routed(formatter.ethertype)
            )
    return shared
