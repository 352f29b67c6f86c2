"""What a protocol's `frames.py` says of its frames, for what makes codecs of it, or does as one.

It says, beside its layers: STACKS, name -> the layers of a frame from Ethernet on; FLOW, the fields that tell flows apart;
and, if it has them, LENGTH, the field for the bytes of payload, CHECK, the 32-bit field for the CRC-32 of the frame up to
the payload's end, without itself, and PREFIX, the field up to which all frames of one kind between two NICs begin alike;
KIND and KINDS, how its frames are told of to people (`protocols.core.telling`). What binds one layer to the next is read
from Scapy's bindings.

A layer between Ethernet and the protocol's own, such as Myrinet's, says by its values whose frame it is: these are BEGINS
in the codec. Fields that change on the way (`protocols.core.frames`) are none of the codec's. Layers have fields of fixed
size in network byte order: numbers, MAC addresses, bits and flags.
"""

from __future__ import annotations

import builtins
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from types import ModuleType
from typing import Final

from scapy.fields import (
    AnyField,
    BitEnumField,
    BitField,
    ByteField,
    EnumField,
    FlagsField,
    IntField,
    LongField,
    MACField,
    ShortField,
)
from scapy.packet import Packet

from protocols.core.frames import Passing, RouteField
from protocols.core.telling import Kind
from protocols.core.wording import fields_of

_BITS: Final = (BitField, BitEnumField, FlagsField)
_WHOLE: Final = (ByteField, ShortField, IntField, LongField, EnumField, MACField)
_WORDS: Final = {8: "B", 16: "H", 32: "I", 64: "Q"}


@dataclass(frozen=True, slots=True)
class Part:
    """One field of a frame. name: of the codec's variable. Its bits stand `shift` above the lowest of its word.
    allowed: the values that it may have, empty for any; barred: those that it may not, as they announce a layer that is
    not there."""

    layer: type[Packet]
    field: AnyField
    name: str
    bits: int
    shift: int
    allowed: tuple[int, ...]
    barred: tuple[int, ...]

    @property
    def kind(self) -> str:
        return "bytes" if isinstance(self.field, MACField) else "int"

    @property
    def mask(self) -> int:
        return (1 << self.bits) - 1


@dataclass(frozen=True, slots=True)
class Word:
    """What `struct` packs as one: a field, or bit fields that fill a number together."""

    format: str
    offset: int
    size: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Stack:
    """The headers of one sort of frame."""

    name: str
    words: tuple[Word, ...]

    @property
    def parts(self) -> list[Part]:
        return [part for word in self.words for part in word.parts]

    @property
    def size(self) -> int:
        return self.words[-1].offset + self.words[-1].size

    @property
    def format(self) -> str:
        return "!" + "".join(word.format for word in self.words)


class Format:
    """A protocol's frames. Raises TypeError for a layer that no codec can be made for."""

    def __init__(self, frames: ModuleType) -> None:
        self.name = frames.__name__
        self.flow: tuple[str, ...] = frames.FLOW
        self.length: str = getattr(frames, "LENGTH", "")
        self.check: str = getattr(frames, "CHECK", "")
        self.prefix: str = getattr(frames, "PREFIX", "")
        self.kind: str = getattr(frames, "KIND", "")
        self.kinds: dict[int, Kind] = getattr(frames, "KINDS", {})
        self.layers: dict[str, tuple[type[Packet], ...]] = frames.STACKS
        ethernet, first = next(iter(self.layers.values()))[:2]
        self.ethertype: int = _binding(ethernet, first)["type"]
        every = chain.from_iterable(self.layers.values())
        self.routed = any(isinstance(field, RouteField) for layer in every for field in layer.fields_desc)
        """A source route may stand behind the Ethernet header."""
        for name in (self.length, self.check, self.prefix):
            if self._names()[name] > 1:
                raise TypeError(f"several layers have a field {name}: which one is meant is not clear")
        self.stacks = [self._stack(name, layers) for name, layers in self.layers.items()]
        self.prefix_size = self._prefix_size() if self.prefix else 0
        """Bytes, PREFIX among them; 0: there is none."""
        self.begins = self._begins()
        """What tells its frames from others of the EtherType: the values of layers between Ethernet and its own."""
        self._check_kinds()

    def own(self, layer: type[Packet]) -> bool:
        """The layer is the protocol's, not Ethernet."""
        return bool(layer.__module__ == self.name)

    def own_layers(self, stack: Stack) -> list[type[Packet]]:
        return [layer for layer in self.layers[stack.name] if self.own(layer)]

    def title(self, stack: Stack) -> str:
        return " / ".join(layer.__name__ for layer in self.layers[stack.name])

    def free(self, stack: Stack, begin: int = 0) -> list[Part]:
        """The fields that a caller gives and gets, from that byte on."""
        parts = (part for word in stack.words for part in word.parts if word.offset >= begin)
        return [part for part in parts if len(part.allowed) != 1 and not self.made(part)]

    def made(self, part: Part) -> bool:
        """The codec computes it."""
        return self.own(part.layer) and part.field.name in (self.length, self.check)

    def find(self, stack: Stack, field: str) -> tuple[Word, Part] | None:
        """A field of the protocol by its name in Scapy."""
        for word in stack.words:
            for part in word.parts:
                if part.field.name == field and self.own(part.layer):
                    return word, part
        return None

    def selectors(self) -> Iterator[tuple[Word, Part]]:
        """The protocol's fields that say what comes next, and so which of its stacks a frame is; none twice."""
        done: set[str] = set()
        for stack in self.stacks:
            for below, above in pairwise(self.own_layers(stack)):
                for field in _binding(below, above):
                    found = self.find(stack, field)
                    if found is not None and field not in done:
                        done.add(field)
                        yield found

    def rule_fields(self) -> dict[str, tuple[object, ...]]:
        """Name -> offset behind Ethernet, width, mask, guard: a field whose name several layers have is called by its
        layer, too; a flag by its field."""
        names = self._names()
        places: dict[str, tuple[object, ...]] = {}
        for stack in self.stacks:
            ethernet, layers = self._ethernet(stack), self.own_layers(stack)
            guards: dict[type[Packet], tuple[tuple[str, int], ...]] = {layers[0]: ()}
            for below, layer in pairwise(layers):
                bound = [(_rule_name(below, name, names), value) for name, value in _binding(below, layer).items()]
                guards[layer] = (*guards[below], *bound)
            for word in stack.words:
                for part in word.parts if word.parts[0].layer in layers else ():
                    name = _rule_name(part.layer, part.field.name, names)
                    whole, guard = len(word.parts) == 1, guards[part.layer]
                    masks = {name: 0 if whole else part.mask << part.shift}
                    if isinstance(part.field, FlagsField):
                        for bit, flag in enumerate(part.field.names):
                            masks[f"{name}.{flag.lower()}"] = 1 << bit + part.shift
                    for own, mask in masks.items():
                        place = (word.offset - ethernet, word.size, mask, guard)
                        if places.setdefault(own, place) != place:
                            raise TypeError(f"{own} stands in several places")
        return places

    def _ethernet(self, stack: Stack) -> int:
        """Bytes of the Ethernet header."""
        ethernet = self.layers[stack.name][0]
        return sum(word.size for word in stack.words if word.parts[0].layer is ethernet)

    def _begins(self) -> bytes:
        found = set()
        for stack in self.stacks:
            begins = b""
            for word in stack.words:
                if word.offset >= self._ethernet(stack) and not self.own(word.parts[0].layer):
                    if any(len(part.allowed) != 1 for part in word.parts):
                        raise TypeError(f"{word.parts[0].field.name} does not say that {self.title(stack)} is meant")
                    number = sum(part.allowed[0] << part.shift for part in word.parts)
                    begins += number.to_bytes(word.size, "big")
            found.add(begins)
        if len(found) > 1:
            raise TypeError(f"{self.name}: its frames are told from others of the EtherType in several ways")
        return found.pop()

    def _check_kinds(self) -> None:
        """What is told of frames names their fields."""
        fields = self.rule_fields()
        for kind in self.kinds.values():
            for name in (self.kind, *fields_of(kind)):
                if name not in fields:
                    raise TypeError(f"{self.name} tells of {name!r}, which is no field: {kind.words!r}")

    def value_names(self) -> dict[str, dict[int, str]]:
        """What the values of fields are called that have several, by the names of `rule_fields`."""
        names = self._names()
        layers = {layer: None for layers in self.layers.values() for layer in layers if self.own(layer)}
        return {
            _rule_name(layer, field.name, names): values
            for layer in layers
            for field in layer.fields_desc
            if len(values := enumeration(field)) > 1
        }

    def _prefix_size(self) -> int:
        ends = set()
        for stack in self.stacks:
            found = self.find(stack, self.prefix)
            size = found[0].offset + found[0].size if found else 0
            made = [word.offset for word in stack.words if any(map(self.made, word.parts))]
            ends.add(size if size <= min(made, default=size) else 0)
        if len(ends) > 1 or 0 in ends:
            raise TypeError(f"{self.prefix} ends no beginning of all frames that the codec has nothing to fill in")
        return ends.pop()

    def _names(self) -> Counter[str]:
        """In how many of the protocol's layers there is a field of that name."""
        layers = {layer for layers in self.layers.values() for layer in layers if self.own(layer)}
        return Counter(field.name for layer in layers for field in layer.fields_desc)

    def _stack(self, name: str, layers: tuple[type[Packet], ...]) -> Stack:
        words: list[Word] = []
        offset = 0
        names = _identifiers(sorted(layers, key=self.own, reverse=True))
        for layer, above in zip(layers, (*layers[1:], None), strict=True):
            for format_, size, fields in words_of(layer):
                shift, parts = 8 * size, []
                for field, bits in fields:
                    shift -= bits
                    allowed, barred = self._values(layer, field, above)
                    parts.append(Part(layer, field, names[layer, field.name], bits, shift, allowed, barred))
                words.append(Word(format_, offset, size, tuple(parts)))
                offset += size
        return Stack(name, tuple(words))

    def _values(
        self, layer: type[Packet], field: AnyField, above: type[Packet] | None
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Allowed and barred, by the binding to the layer above, the enumeration, and the bindings to other layers."""
        bound = _binding(layer, above) if above else {}
        if field.name in bound:
            return (bound[field.name],), ()
        if not self.own(layer):
            return (), ()
        elsewhere = {values[field.name] for values, _ in layer.payload_guess if set(values) == {field.name}}
        listed = enumeration(field)
        if not listed:
            return (), tuple(sorted(elsewhere))
        if allowed := tuple(value for value in listed if value not in elsewhere):
            return allowed, ()
        raise TypeError(f"{layer.__name__}.{field.name}: every value announces a layer that is not there")


def _identifiers(layers: list[type[Packet]]) -> dict[tuple[type[Packet], str], str]:
    """Names of variables for fields: not Python's, not the codec's own, none twice; the first layer has the choice."""
    names: dict[tuple[type[Packet], str], str] = {}
    taken = {"crc32", "end", "header", "payload", "raw", "rest", "struct"}
    for layer in layers:
        for field in layer.fields_desc:
            name = field.name
            if name in taken:
                name = f"{layer.__name__.lower()}_{name}"
            elif hasattr(builtins, name):
                name = f"{name}_"
            names[layer, field.name] = name
            taken |= {name, field.name}
    return names


def _binding(below: type[Packet], above: type[Packet]) -> dict[str, int]:
    """The fields of the layer below that say what comes next, and their values."""
    bindings = [values for values, layer in below.payload_guess if layer is above]
    if len(bindings) != 1:
        raise TypeError(f"{above.__name__} is bound to {below.__name__} {len(bindings)} times, not once")
    return bindings[0]


def _rule_name(layer: type[Packet], name: str, names: Counter[str]) -> str:
    return f"{layer.__name__.lower()}.{name}" if names[name] > 1 else name


def enumeration(field: AnyField) -> dict[int, str]:
    values = getattr(field, "i2s", None)
    return {value: str(name) for value, name in values.items()} if isinstance(values, dict) else {}


def words_of(layer: type[Packet]) -> Iterator[tuple[str, int, list[tuple[AnyField, int]]]]:
    """Of what does not change on the way: format, bytes, fields and their bits. Raises TypeError for other fields."""
    bits: list[tuple[AnyField, int]] = []
    for field in layer.fields_desc:
        if isinstance(field, Passing):
            continue
        total = sum(size for _, size in bits)
        if isinstance(field, _BITS) and not field.rev:
            bits.append((field, field.size))
            total += field.size
            if total in _WORDS:
                yield _WORDS[total], total // 8, bits
                bits = []
        elif not bits and isinstance(field, _WHOLE) and re.fullmatch(r"!([BHIQ]|\d+s)", field.fmt):
            yield field.fmt[1:], int(field.sz), [(field, 8 * int(field.sz))]
        else:
            raise TypeError(f"{layer.__name__}.{field.name}: no codec can be made for this field, where it stands")
    if bits:
        raise TypeError(f"{layer.__name__}: its last bits fill no number of 8, 16, 32 or 64 bits")
