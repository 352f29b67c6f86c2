"""Description of a protocol's headers, extracted from its Scapy layers as plain data for code generation.

A layer's Python functions cannot be translated to Lua. A function that decides whether a field is present is called for all
values of the fields that it reads, and the results are stored as a table. A function that computes a field's length must be
a linear function of one field.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Final, cast

from scapy.fields import (
    AnyField,
    BitEnumField,
    BitField,
    ConditionalField,
    Field,
    FlagsField,
    IP6Field,
    IPField,
    LEThreeBytesField,
    MACField,
    StrField,
    StrFixedLenField,
    StrLenField,
    ThreeBytesField,
)
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from protocols.core.frame_kinds import Kind
from protocols.core.frames import CheckField, LastByteField, RouteField

_MAX_COMBINATIONS: Final = 1 << 16
"""Maximum number of value combinations for which a layer's function is called."""
_BITS: Final = (BitField, BitEnumField, FlagsField)
_ADDRESSES: Final = {MACField: ("ether", 6), IPField: ("ipv4", 4), IP6Field: ("ipv6", 16)}


@dataclass(frozen=True, slots=True)
class Length:
    """Length in bytes: `times` the value of a field, plus `more`. of: name of the field; empty: the length is `more`; "*":
    the item extends to the end of the frame."""

    of: str = ""
    times: int = 0
    more: int = 0


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition for the presence of an item. of: names of fields. values: combinations of their values for which the item
    is present."""

    of: tuple[str, ...]
    values: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Bits:
    """A bit field of a number: name, size and shift in bits, the names of its values, and the names of single bits."""

    name: str
    size: int
    shift: int
    names: Mapping[int, str]
    flags: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Item:
    """A field of a header, or the bit fields of a word. kind: "uint", "int", "float", "ether", "ipv4", "ipv6", "bytes",
    "bits" (a number that consists of `parts`), "route" (bytes with their top bit set), "crc8" (the frame's last byte), or
    "crc32" (after the payload). size: bytes; 0 if `length` defines it, or if the item has no fixed place. little: whether
    the number is little-endian. hexadecimal: whether it is shown in hexadecimal. names: names of its values."""

    kind: str
    name: str
    size: int
    little: bool = False
    hexadecimal: bool = False
    names: Mapping[int, str] = field(default_factory=dict)
    parts: tuple[Bits, ...] = ()
    length: Length = Length()
    condition: Condition | None = None


@dataclass(frozen=True, slots=True)
class Header:
    """A header. title: name for display. items: in the order of the bytes. follows: pairs of field values and the name of
    the header that follows for these values."""

    name: str
    title: str
    items: tuple[Item, ...]
    follows: tuple[tuple[Mapping[str, int], str], ...]


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol. headers: by name, the outermost first. below: name of the other protocol's header that the protocol
    follows; empty: it follows Ethernet. announced: field values of that header. fixed: offset, size and value of numbers in
    the first header that are equal in all frames. lengths: the fields with the payload's length; a frame has at most one of
    them. trailer: the field after the payload, or empty. kind, kinds: texts for its frames (`protocols.core.frame_kinds`).
    """

    name: str
    ethertype: int
    below: str
    announced: Mapping[str, int]
    headers: Mapping[str, Header]
    fixed: tuple[tuple[int, int, int], ...]
    lengths: tuple[str, ...]
    trailer: str
    kind: str
    kinds: Mapping[int, Kind]

    def check_names(self) -> None:
        """Raise TypeError if several fields have the same name."""
        counts = Counter(name for header in self.headers.values() for item in header.items for name in _names_of(item))
        for name, number in counts.items():
            if number > 1:
                raise TypeError(f"{self.name}: {number} fields have the name {name!r}")


def extract_protocol(name: str, frames: ModuleType) -> Protocol:
    """Extract a protocol from its module of layers. Raises TypeError for layers that a dissector cannot express."""
    by_type = [(int(values["type"]), layer) for values, layer in Ether.payload_guess if set(values) == {"type"}]
    stacked = {layer for stack in getattr(frames, "STACKS", {}).values() for layer in stack} - {Ether}
    bound: list[tuple[int, str, dict[str, int], type[Packet]]] = []
    for ethertype, layer in by_type:
        if layer.__module__ == frames.__name__:
            bound.append((ethertype, "", {}, layer))
        elif layer in stacked:
            above = [(values, upper) for values, upper in layer.payload_guess if upper.__module__ == frames.__name__]
            bound += [(ethertype, layer.__name__, values, upper) for values, upper in above]
    if len(bound) != 1:
        raise TypeError(f"{name}: {len(bound)} of its layers are bound to an EtherType, not 1")
    ethertype, below, announced, first = bound[0]
    layers = _reachable(first)
    names = Counter(field.name for layer in layers for field in layer.fields_desc)
    headers = {layer.__name__: _LayerReader(layer, names).header() for layer in layers}
    extracted = Protocol(
        name,
        ethertype,
        below,
        announced,
        headers,
        tuple(_fixed(headers[first.__name__])),
        tuple(_lengths(layers, names, getattr(frames, "LENGTH", ()))),
        next((item.name for header in headers.values() for item in header.items if item.kind == "crc32"), ""),
        getattr(frames, "KIND", ""),
        getattr(frames, "KINDS", {}),
    )
    extracted.check_names()
    return extracted


def _lengths(layers: list[type[Packet]], names: Counter[str], lengths: str | tuple[str, ...]) -> Iterator[str]:
    """Yield the fields with the payload's length, by their names in rules. lengths: their names in the layers."""
    length_names = (lengths,) if isinstance(lengths, str) else lengths
    for layer in layers:
        for scapy_field in layer.fields_desc:
            if scapy_field.name in length_names:
                yield _LayerReader(layer, names).rule_name(scapy_field.name)


def _reachable(first: type[Packet]) -> list[type[Packet]]:
    """Return a layer and all layers of the same protocol that may follow it."""
    layers = [first]
    for layer in layers:
        layers += [above for _, above in _above(layer) if above not in layers]
    return layers


def _above(layer: type[Packet]) -> Iterator[tuple[dict[str, int], type[Packet]]]:
    """Yield the layers of the same protocol that are bound to this layer."""
    for values, above in layer.payload_guess:
        if above.__module__ == layer.__module__:
            yield values, above


def _fixed(header: Header) -> Iterator[tuple[int, int, int]]:
    """Yield offset, size and value of numbers with a single enumerated value, up to the first item that is conditional or
    has no fixed size."""
    offset = 0
    for item in header.items:
        if item.condition is not None or not item.size:
            return
        if len(item.names) == 1 and item.kind == "uint" and item.size <= 4 and not item.little:
            yield offset, item.size, next(iter(item.names))
        offset += item.size


def _names_of(item: Item) -> Iterator[str]:
    yield from (part.name for part in item.parts) if item.parts else (item.name,)


class _LayerReader:
    """Reader of one Scapy layer."""

    def __init__(self, layer: type[Packet], names: Counter[str]) -> None:
        """names: number of the protocol's layers that have a field, by the field's name."""
        self._layer = layer
        self._names = names
        self._fields = {field.name: _inner(field) for field in layer.fields_desc}

    def header(self) -> Header:
        """Return the layer's header. Raises TypeError for a field that a dissector cannot express."""
        follows = tuple(
            ({self.rule_name(key): value for key, value in values.items()}, above.__name__)
            for values, above in _above(self._layer)
        )
        return Header(self._layer.__name__, str(self._layer().name), tuple(self._items()), follows)

    def rule_name(self, name: str) -> str:
        """Return the field's name in rules: with the layer's name if several layers have the field."""
        return f"{self._layer.__name__.lower()}.{name}" if self._names[name] > 1 else name

    def _items(self) -> Iterator[Item]:
        bits: list[tuple[AnyField, int]] = []
        for scapy_field in self._layer.fields_desc:
            condition = None
            if isinstance(scapy_field, ConditionalField):
                condition = self._condition(scapy_field.name, scapy_field.cond)
                scapy_field = _inner(scapy_field)
            if isinstance(scapy_field, _BITS):
                if scapy_field.rev or condition is not None:
                    raise self._unsupported(scapy_field, "bits in reverse order, or optional bits")
                bits.append((scapy_field, scapy_field.size))
                if sum(size for _, size in bits) % 8 == 0:
                    yield self._word(bits)
                    bits = []
            elif bits:
                raise self._unsupported(scapy_field, "the bits before it do not fill whole bytes")
            else:
                yield self._item(scapy_field, condition)
        if bits:
            raise self._unsupported(bits[-1][0], "the last bits do not fill whole bytes")

    def _word(self, bits: list[tuple[AnyField, int]]) -> Item:
        size = sum(size for _, size in bits)
        first = bits[0][0]
        if len(bits) == 1 and not isinstance(first, FlagsField) and size in (8, 16, 24, 32, 64):
            return Item("uint", self.rule_name(first.name), size // 8, names=_values(first))
        if size > 32:
            raise self._unsupported(first, f"{size} bits that are not aligned to bytes")
        parts, shift = [], size
        for scapy_field, width in bits:
            shift -= width
            flags = (
                {1 << bit: str(flag) for bit, flag in enumerate(scapy_field.names)}
                if isinstance(scapy_field, FlagsField)
                else {}
            )
            parts.append(Bits(self.rule_name(scapy_field.name), width, shift, _values(scapy_field), flags))
        return Item("bits", parts[0].name, size // 8, parts=tuple(parts))

    def _item(self, field: AnyField, condition: Condition | None) -> Item:
        name = self.rule_name(field.name)
        for field_type, (kind, size) in _ADDRESSES.items():
            if isinstance(field, field_type):
                return Item(kind, name, size, condition=condition)
        if isinstance(field, RouteField):
            return Item("route", name, 0)
        if isinstance(field, LastByteField):
            return Item("crc8", name, 1)
        if isinstance(field, CheckField):
            return Item("crc32", name, 0)
        if isinstance(field, StrFixedLenField | StrLenField):
            return Item("bytes", name, 0, length=self._length(field.name, field.length_from), condition=condition)
        if isinstance(field, StrField):
            return Item("bytes", name, 0, length=Length("*"), condition=condition)
        plain = isinstance(field, Field) and type(field).getfield is Field.getfield and type(field).m2i is Field.m2i
        letter, size = field.fmt[-1:], int(field.sz)
        if not (plain or isinstance(field, ThreeBytesField | LEThreeBytesField)) or letter not in "bBhHiIqQfd":
            raise self._unsupported(field, f"a {type(field).__name__}")
        return Item(
            "float" if letter in "fd" else "int" if letter.islower() else "uint",
            name,
            size,
            field.fmt.startswith("<") or isinstance(field, LEThreeBytesField),
            type(field).__name__.startswith("X"),
            _values(field),
            condition=condition,
        )

    def _condition(self, name: str, is_present: Callable[[Packet], object]) -> Condition:
        """Tabulate a function for all values of the fields that it reads. name: the conditional field."""
        dependencies: list[str] = []
        while True:
            domains = [self._domain(name, dependency) for dependency in dependencies]
            combinations, fields_read = [], set[str]()
            for values in itertools.product(*domains):
                probe = _Probe(self._fields, dict(zip(dependencies, values, strict=True)))
                if self._call(name, is_present, probe):
                    combinations.append(values)
                fields_read |= probe.fields_read
            if not fields_read - set(dependencies):
                return Condition(tuple(map(self.rule_name, dependencies)), tuple(combinations))
            dependencies += sorted(fields_read - set(dependencies))

    def _domain(self, name: str, dependency: str) -> range:
        field = self._fields[dependency]
        bits = field.size if isinstance(field, _BITS) else 8 * int(field.sz)
        if 1 << bits > _MAX_COMBINATIONS:
            raise self._unsupported(
                self._fields[name], f"it depends on {dependency}, which has too many values to enumerate"
            )
        return range(1 << bits)

    def _length(self, name: str, length_from: Callable[[Packet], object] | None) -> Length:
        """Express a length function as a multiple of a field's value plus a constant."""
        if length_from is None:
            raise self._unsupported(self._fields[name], "its length is unknown")
        probe = _Probe(self._fields, {})
        constant = self._call(name, length_from, probe)
        dependencies = sorted(probe.fields_read)
        if not dependencies:
            return Length(more=_number(constant))
        dependency = dependencies[0]
        lengths = [
            _number(self._call(name, length_from, _Probe(self._fields, {dependency: value}))) for value in range(256)
        ]
        times = lengths[101] - lengths[100]
        more = lengths[100] - 100 * times
        # The function may return 0 where the formula is negative.
        if len(dependencies) > 1 or any(length != max(0, times * value + more) for value, length in enumerate(lengths)):
            raise self._unsupported(self._fields[name], "its length is not a multiple of one field's value")
        return Length(self.rule_name(dependency), times, more)

    def _call(self, name: str, function: Callable[[Packet], object], probe: _Probe) -> object:
        try:
            return function(cast(Packet, probe))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise self._unsupported(
                self._fields[name], f"it depends on more than its layer's fields ({error})"
            ) from error

    def _unsupported(self, field: AnyField, reason: str) -> TypeError:
        return TypeError(f"{self._layer.__name__}.{field.name}: no dissector can be made for this field: {reason}")


class _Probe:
    """Substitute for a packet, with these field values and 0 in all other fields. fields_read: names of the fields that were
    read."""

    def __init__(self, fields: Mapping[str, AnyField], values: Mapping[str, int]) -> None:
        self._fields = fields
        self._values = values
        self.fields_read: set[str] = set()

    def __getattr__(self, name: str) -> object:
        if name not in self._fields:
            raise AttributeError(f"{name} is not a field")
        self.fields_read.add(name)
        field = self._fields[name]
        value = self._values.get(name, 0)
        return field.i2h(None, value) if isinstance(field, FlagsField) else value


def _inner(field: AnyField) -> AnyField:
    """Return the field without its condition."""
    return field.fld if isinstance(field, ConditionalField) else field


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"a length must be an integer, got {value!r}")
    return value


def _values(field: AnyField) -> dict[int, str]:
    values = getattr(field, "i2s", None)
    return {int(value): str(name) for value, name in values.items()} if isinstance(values, dict) else {}
