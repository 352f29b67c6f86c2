"""What the Scapy layers of a protocol say of their headers, in words that another language can be made of.

A layer's functions cannot be written in another language. Where Scapy asks one whether a field is there, or how long it
is, it is asked here for all values of the fields that it looks at, and what it answers is kept as a table.
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

from protocols.core.frames import LastByteField, Passing, RouteField
from protocols.core.telling import Kind

_MOST: Final = 1 << 16
"""Combinations of values for which a layer's function is asked."""
_BITS: Final = (BitField, BitEnumField, FlagsField)
_ADDRESSES: Final = {MACField: ("ether", 6), IPField: ("ipv4", 4), IP6Field: ("ipv6", 16)}


@dataclass(frozen=True, slots=True)
class Length:
    """Bytes of what follows: `times` the value of a field, and `more`. of: empty: only `more`; "*": all that is left."""

    of: str = ""
    times: int = 0
    more: int = 0


@dataclass(frozen=True, slots=True)
class Condition:
    """For which values of these fields something is there."""

    of: tuple[str, ...]
    values: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Bits:
    """A part of a number: its name, bits and their mask, what its values are called, and the names of single bits."""

    name: str
    size: int
    shift: int
    names: Mapping[int, str]
    flags: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Item:
    """What stands in a header, one behind the other. kind: "uint", "int", "float", "ether", "ipv4", "ipv6", "bytes", "bits"
    (a number that consists of `parts`), "route" (bytes with their top bit set), or "crc8" (behind everything else). size: in
    bytes; 0 where `length` says it. hexadecimal: how it is shown."""

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
    """A layer. title: what people call it. follows: the values of its fields that say which header is behind it."""

    name: str
    title: str
    items: tuple[Item, ...]
    follows: tuple[tuple[Mapping[str, int], str], ...]


@dataclass(frozen=True, slots=True)
class Protocol:
    """Headers by name; the first is the one behind Ethernet, or, where below names another protocol's header, behind that,
    which has the values of `announced` then. fixed: offset, size and value of numbers in the first header that every frame
    has. length: the field for the bytes of payload, or empty. kind, kinds: how its frames are told of
    (`protocols.core.telling`)."""

    name: str
    ethertype: int
    below: str
    announced: Mapping[str, int]
    headers: Mapping[str, Header]
    fixed: tuple[tuple[int, int, int], ...]
    length: str
    kind: str
    kinds: Mapping[int, Kind]

    def check_names(self) -> None:
        """Raises TypeError where two fields have one name."""
        counted = Counter(name for header in self.headers.values() for item in header.items for name in _names_of(item))
        for name, number in counted.items():
            if number > 1:
                raise TypeError(f"{self.name}: {number} fields are called {name!r}")


def protocol(name: str, frames: ModuleType) -> Protocol:
    """Of a module with layers. Raises TypeError for what cannot be said."""
    by_type = [(int(values["type"]), layer) for values, layer in Ether.payload_guess if set(values) == {"type"}]
    bound: list[tuple[int, str, dict[str, int], type[Packet]]] = []
    for ethertype, layer in by_type:
        if layer.__module__ == frames.__name__:
            bound.append((ethertype, "", {}, layer))
        elif any(isinstance(each, Passing) for each in layer.fields_desc):
            above = [(values, one) for values, one in layer.payload_guess if one.__module__ == frames.__name__]
            bound += [(ethertype, layer.__name__, values, one) for values, one in above]
    if len(bound) != 1:
        raise TypeError(f"{name}: {len(bound)} of its layers are bound to an EtherType, not one")
    ethertype, below, announced, first = bound[0]
    layers = _reachable(first)
    names = Counter(each.name for layer in layers for each in layer.fields_desc)
    headers = {layer.__name__: _Reading(layer, names).header() for layer in layers}
    found = Protocol(
        name,
        ethertype,
        below,
        announced,
        headers,
        tuple(_fixed(headers[first.__name__])),
        getattr(frames, "LENGTH", ""),
        getattr(frames, "KIND", ""),
        getattr(frames, "KINDS", {}),
    )
    found.check_names()
    return found


def _reachable(first: type[Packet]) -> list[type[Packet]]:
    found = [first]
    for layer in found:
        found += [above for _, above in _above(layer) if above not in found]
    return found


def _above(layer: type[Packet]) -> Iterator[tuple[dict[str, int], type[Packet]]]:
    """What is bound to it of the same protocol's."""
    for values, above in layer.payload_guess:
        if above.__module__ == layer.__module__:
            yield values, above


def _fixed(header: Header) -> Iterator[tuple[int, int, int]]:
    """Numbers of which an enumeration lists one value, as far as their places hang on nothing."""
    at = 0
    for item in header.items:
        if item.condition is not None or not item.size:
            return
        if len(item.names) == 1 and item.kind == "uint" and item.size <= 4 and not item.little:
            yield at, item.size, next(iter(item.names))
        at += item.size


def _names_of(item: Item) -> Iterator[str]:
    yield from (part.name for part in item.parts) if item.parts else (item.name,)


class _Reading:
    """One layer, while it is read."""

    def __init__(self, layer: type[Packet], names: Counter[str]) -> None:
        """names: in how many of the protocol's layers there is a field of that name."""
        self._layer = layer
        self._names = names
        self._fields = {each.name: _inner(each) for each in layer.fields_desc}

    def header(self) -> Header:
        follows = tuple(
            ({self._called(key): value for key, value in values.items()}, above.__name__)
            for values, above in _above(self._layer)
        )
        return Header(self._layer.__name__, str(self._layer().name), tuple(self._items()), follows)

    def _called(self, name: str) -> str:
        """As in rules: with the layer, where several have it."""
        return f"{self._layer.__name__.lower()}.{name}" if self._names[name] > 1 else name

    def _items(self) -> Iterator[Item]:
        bits: list[tuple[AnyField, int]] = []
        for one in self._layer.fields_desc:
            condition = None
            if isinstance(one, ConditionalField):
                condition = self._condition(one.name, one.cond)
                one = _inner(one)
            if isinstance(one, _BITS):
                if one.rev or condition is not None:
                    raise self._unknown(one, "bits in the other order, or that may be missing")
                bits.append((one, one.size))
                if sum(size for _, size in bits) % 8 == 0:
                    yield self._word(bits)
                    bits = []
            elif bits:
                raise self._unknown(one, "the bits before it fill no bytes")
            else:
                yield self._item(one, condition)
        if bits:
            raise self._unknown(bits[-1][0], "the last bits fill no bytes")

    def _word(self, bits: list[tuple[AnyField, int]]) -> Item:
        size = sum(size for _, size in bits)
        first = bits[0][0]
        if len(bits) == 1 and not isinstance(first, FlagsField) and size in (8, 16, 24, 32, 64):
            return Item("uint", self._called(first.name), size // 8, names=_values(first))
        if size > 32:
            raise self._unknown(first, f"{size} bits that only together fill bytes")
        parts, shift = [], size
        for each, width in bits:
            shift -= width
            flags = {1 << bit: str(flag) for bit, flag in enumerate(each.names)} if isinstance(each, FlagsField) else {}
            parts.append(Bits(self._called(each.name), width, shift, _values(each), flags))
        return Item("bits", parts[0].name, size // 8, parts=tuple(parts))

    def _item(self, one: AnyField, condition: Condition | None) -> Item:
        name = self._called(one.name)
        for kind, (what, size) in _ADDRESSES.items():
            if isinstance(one, kind):
                return Item(what, name, size, condition=condition)
        if isinstance(one, RouteField):
            return Item("route", name, 0)
        if isinstance(one, LastByteField):
            return Item("crc8", name, 1)
        if isinstance(one, StrFixedLenField | StrLenField):
            return Item("bytes", name, 0, length=self._length(one.name, one.length_from), condition=condition)
        if isinstance(one, StrField):
            return Item("bytes", name, 0, length=Length("*"), condition=condition)
        plain = isinstance(one, Field) and type(one).getfield is Field.getfield and type(one).m2i is Field.m2i
        letter, size = one.fmt[-1:], int(one.sz)
        if not (plain or isinstance(one, ThreeBytesField | LEThreeBytesField)) or letter not in "bBhHiIqQfd":
            raise self._unknown(one, f"a {type(one).__name__}")
        return Item(
            "float" if letter in "fd" else "int" if letter.islower() else "uint",
            name,
            size,
            one.fmt.startswith("<") or isinstance(one, LEThreeBytesField),
            type(one).__name__.startswith("X"),
            _values(one),
            condition=condition,
        )

    def _condition(self, name: str, decide: Callable[[Packet], object]) -> Condition:
        """What the function says of all values of the fields that it asks for."""
        of: list[str] = []
        while True:
            domains = [self._domain(name, each) for each in of]
            true, more = [], set[str]()
            for values in itertools.product(*domains):
                probe = _Probe(self._fields, dict(zip(of, values, strict=True)))
                if self._ask(name, decide, probe):
                    true.append(values)
                more |= probe.asked
            if not more - set(of):
                return Condition(tuple(map(self._called, of)), tuple(true))
            of += sorted(more - set(of))

    def _domain(self, name: str, asked: str) -> range:
        one = self._fields[asked]
        bits = one.size if isinstance(one, _BITS) else 8 * int(one.sz)
        if 1 << bits > _MOST:
            raise self._unknown(self._fields[name], f"it hangs on {asked}, which has too many values to try them all")
        return range(1 << bits)

    def _length(self, name: str, length: Callable[[Packet], object] | None) -> Length:
        """What the function says, if it is a field's value by a factor, and a constant."""
        if length is None:
            raise self._unknown(self._fields[name], "its length is not said")
        probe = _Probe(self._fields, {})
        more = self._ask(name, length, probe)
        of = sorted(probe.asked)
        if not of:
            return Length(more=_number(more))
        said = [_number(self._ask(name, length, _Probe(self._fields, {of[0]: value}))) for value in range(256)]
        times = said[101] - said[100]
        more = said[100] - 100 * times
        # Below some value a length may be 0, where it would be less.
        if len(of) > 1 or any(each != max(0, times * value + more) for value, each in enumerate(said)):
            raise self._unknown(self._fields[name], "its length is no multiple of one field's value")
        return Length(self._called(of[0]), times, more)

    def _ask(self, name: str, function: Callable[[Packet], object], probe: _Probe) -> object:
        try:
            return function(cast(Packet, probe))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise self._unknown(self._fields[name], f"it hangs on more than its layer's fields ({error})") from error

    def _unknown(self, one: AnyField, why: str) -> TypeError:
        return TypeError(f"{self._layer.__name__}.{one.name}: no dissector can be made for this field: {why}")


class _Probe:
    """Stands for a packet whose fields have these values, others 0, and notes which are asked for."""

    def __init__(self, fields: Mapping[str, AnyField], values: Mapping[str, int]) -> None:
        self._fields = fields
        self._values = values
        self.asked: set[str] = set()

    def __getattr__(self, name: str) -> object:
        if name not in self._fields:
            raise AttributeError(f"{name} is no field")
        self.asked.add(name)
        one = self._fields[name]
        value = self._values.get(name, 0)
        return one.i2h(None, value) if isinstance(one, FlagsField) else value


def _inner(one: AnyField) -> AnyField:
    """Without the condition on which it is there."""
    return one.fld if isinstance(one, ConditionalField) else one


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is no length")
    return value


def _values(one: AnyField) -> dict[int, str]:
    values = getattr(one, "i2s", None)
    return {int(value): str(name) for value, name in values.items()} if isinstance(values, dict) else {}
