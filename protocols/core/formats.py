"""Frame formats of a protocol's `frames.py`, parsed for the code generator and the Scapy codec.

`frames.py` defines the protocol's layers, and:

- STACKS: the layers of each kind of frame, from Ethernet on, by name;
- FLOW: the fields that distinguish flows;
- LENGTH, optional: the field for the bytes of payload, or several fields, of which a stack has at most one;
- CHECK, optional: the 32-bit field for the CRC-32 of the frame up to the payload's end, excluding the field;
  with a `frames.CheckField` in the protocol's first layer instead, the CRC-32 follows the payload;
- PREFIX, optional: the last field of the first bytes that all frames of a stack between two NICs have in common;
- KIND and KINDS, optional: descriptions of frames for users (`protocols.core.frame_kinds`).

Scapy's bindings define which layer follows which.

The values of a layer between Ethernet and the protocol's own, such as Myrinet's, identify the protocol: they become
BEGINS in the codec. Fields that change between hops (`protocols.core.frames`) are not in the codec. Layers have fields
of fixed size in network byte order: numbers, MAC addresses, bits and flags.
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

from protocols.core.frame_kinds import Kind, fields_of
from protocols.core.frames import CheckField, MutableField, RouteField, trailing_size

_BITS: Final = (BitField, BitEnumField, FlagsField)
_WHOLE: Final = (ByteField, ShortField, IntField, LongField, EnumField, MACField)
_WORDS: Final = {8: "B", 16: "H", 32: "I", 64: "Q"}


@dataclass(frozen=True, slots=True)
class FrameField:
    """One field of a frame. name: name of its variable in the codec. shift: position of its lowest bit in its word.
    allowed: its valid values; empty: all. barred: values that announce a layer that the stack does not have, and are
    invalid."""

    layer: type[Packet]
    scapy_field: AnyField
    name: str
    bits: int
    shift: int
    allowed: tuple[int, ...]
    barred: tuple[int, ...]

    @property
    def type_name(self) -> str:
        """Python type of the field's values."""
        return "bytes" if isinstance(self.scapy_field, MACField) else "int"

    @property
    def mask(self) -> int:
        return (1 << self.bits) - 1


@dataclass(frozen=True, slots=True)
class Word:
    """A number or byte string that `struct` packs: one field, or several bit fields. format: of `struct`. offset, size:
    in bytes."""

    format: str
    offset: int
    size: int
    fields: tuple[FrameField, ...]


@dataclass(frozen=True, slots=True)
class Stack:
    """The headers of one kind of frame, as words."""

    name: str
    words: tuple[Word, ...]

    @property
    def fields(self) -> list[FrameField]:
        return [frame_field for word in self.words for frame_field in word.fields]

    @property
    def size(self) -> int:
        return self.words[-1].offset + self.words[-1].size

    @property
    def format(self) -> str:
        return "!" + "".join(word.format for word in self.words)


RuleLocation = tuple[int, int, int, tuple[tuple[str, int], ...]]
"""Location of a field for rules: offset after the Ethernet header and width, both in bytes; mask, 0 for the whole width;
and required values of other fields."""


class FormatError(TypeError):
    """No codec can be generated for a definition in a `frames.py`."""


class Format:
    """The frame formats of a protocol. Raises FormatError if no codec can be generated."""

    def __init__(self, frames: ModuleType) -> None:
        self.name = frames.__name__
        for required in ("STACKS", "FLOW"):
            if not hasattr(frames, required):
                raise FormatError(f"{self.name} has no {required}")
        self.flow: tuple[str, ...] = frames.FLOW
        lengths: str | tuple[str, ...] = getattr(frames, "LENGTH", ())
        self.lengths = (lengths,) if isinstance(lengths, str) else lengths
        self.check: str = getattr(frames, "CHECK", "")
        self.prefix: str = getattr(frames, "PREFIX", "")
        self.kind: str = getattr(frames, "KIND", "")
        self.kinds: dict[int, Kind] = getattr(frames, "KINDS", {})
        self.layers: dict[str, tuple[type[Packet], ...]] = frames.STACKS
        ethernet, first = next(iter(self.layers.values()))[:2]
        self.ethertype: int = _binding(ethernet, first)["type"]
        fields = [field for layer in chain.from_iterable(self.layers.values()) for field in layer.fields_desc]
        self.routed = any(isinstance(field, RouteField) for field in fields)
        """Whether a source route may follow the Ethernet header."""
        self.trailing_size = trailing_size(next(iter(self.layers.values())))
        """Number of bytes that the layers below the protocol's append to its payload."""
        self.has_trailing_check = any(isinstance(field, CheckField) for field in fields)
        """Whether a CRC-32 follows the payload."""
        self._check_lengths()
        for role, name in (("CHECK", self.check), ("PREFIX", self.prefix)):
            self._check_role(role, name)
        self.stacks = [self._stack(name, layers) for name, layers in self.layers.items()]
        self.prefix_size = self._prefix_size() if self.prefix else 0
        """Number of bytes up to and including PREFIX; 0 without a prefix."""
        self.begins = self._begins()
        """Values of the layers between Ethernet and the protocol's own, which distinguish its frames from others of the
        EtherType."""
        self._check_kinds()
        self._check_flow()
        self._check_check()

    def is_own(self, layer: type[Packet]) -> bool:
        """Return whether a layer is the protocol's own, and not below it."""
        return bool(layer.__module__ == self.name)

    def own_layers(self, stack: Stack) -> list[type[Packet]]:
        return [layer for layer in self.layers[stack.name] if self.is_own(layer)]

    def title(self, stack: Stack) -> str:
        return " / ".join(layer.__name__ for layer in self.layers[stack.name])

    def free_fields(self, stack: Stack, begin: int = 0) -> list[FrameField]:
        """Return the fields that are arguments of `pack_*` and results of `unpack_*`, from byte `begin` on."""
        frame_fields = (frame_field for word in stack.words for frame_field in word.fields if word.offset >= begin)
        return [
            frame_field
            for frame_field in frame_fields
            if len(frame_field.allowed) != 1 and not self.is_computed(frame_field)
        ]

    def is_computed(self, frame_field: FrameField) -> bool:
        """Return whether the codec computes a field."""
        return self.is_own(frame_field.layer) and frame_field.scapy_field.name in (*self.lengths, self.check)

    def find(self, stack: Stack, field: str) -> tuple[Word, FrameField] | None:
        """Find a field of the protocol's own layers by its name in Scapy; None if the stack does not have it."""
        for word in stack.words:
            for frame_field in word.fields:
                if frame_field.scapy_field.name == field and self.is_own(frame_field.layer):
                    return word, frame_field
        return None

    def find_length(self, stack: Stack) -> tuple[Word, FrameField] | None:
        """Find the field with the payload's size; None if the stack does not have one."""
        return next(
            (length_field for name in self.lengths if (length_field := self.find(stack, name)) is not None), None
        )

    def selectors(self) -> Iterator[tuple[Word, FrameField]]:
        """Yield the protocol's fields that announce the next layer and so distinguish its stacks, each once."""
        seen: set[str] = set()
        for stack in self.stacks:
            for below, above in pairwise(self.own_layers(stack)):
                for field in _binding(below, above):
                    selector = self.find(stack, field)
                    if selector is not None and field not in seen:
                        seen.add(field)
                        yield selector

    def announcing_values(self, stack: Stack) -> tuple[tuple[str, int], ...]:
        """Return the fields and values that announce the stack's own layers above the first, by the fields' names for
        rules."""
        name_counts = self._count_names()
        pairs: list[tuple[str, int]] = []
        for below, layer in pairwise(self.own_layers(stack)):
            pairs += [(_rule_name(below, name, name_counts), value) for name, value in _binding(below, layer).items()]
        return tuple(pairs)

    def field_slice(self, name: str) -> slice:
        """Return the position of a field, in bytes after the Ethernet header. name: the field's name for rules."""
        offset, width, *_ = self.rule_fields()[name]
        return slice(offset, offset + width)

    def rule_fields(self) -> dict[str, RuleLocation]:
        """Return the locations of fields, by their names for rules: the field's name; with the layer's name before it,
        if several layers have a field of this name; with the flag's name after it, for a single flag."""
        name_counts = self._count_names()
        locations: dict[str, RuleLocation] = {}
        for stack in self.stacks:
            ethernet_size, layers = self._ethernet_size(stack), self.own_layers(stack)
            guards: dict[type[Packet], tuple[tuple[str, int], ...]] = {layers[0]: ()}
            for below, layer in pairwise(layers):
                bound = [
                    (_rule_name(below, name, name_counts), value) for name, value in _binding(below, layer).items()
                ]
                guards[layer] = (*guards[below], *bound)
            for word in stack.words:
                for frame_field in word.fields if word.fields[0].layer in layers else ():
                    name = _rule_name(frame_field.layer, frame_field.scapy_field.name, name_counts)
                    guard = guards[frame_field.layer]
                    masks = {name: 0 if len(word.fields) == 1 else frame_field.mask << frame_field.shift}
                    if isinstance(frame_field.scapy_field, FlagsField):
                        for bit, flag in enumerate(frame_field.scapy_field.names):
                            masks[f"{name}.{flag.lower()}"] = 1 << bit + frame_field.shift
                    for rule_name, mask in masks.items():
                        location = (word.offset - ethernet_size, word.size, mask, guard)
                        if locations.setdefault(rule_name, location) != location:
                            raise FormatError(f"the field {rule_name} has different locations in several stacks")
        return locations

    def _ethernet_size(self, stack: Stack) -> int:
        """Return the size of the Ethernet header in bytes."""
        ethernet = self.layers[stack.name][0]
        return sum(word.size for word in stack.words if word.fields[0].layer is ethernet)

    def _begins(self) -> bytes:
        first_bytes = set()
        for stack in self.stacks:
            begins = b""
            for word in stack.words:
                if word.offset >= self._ethernet_size(stack) and not self.is_own(word.fields[0].layer):
                    for frame_field in word.fields:
                        if len(frame_field.allowed) != 1:
                            raise FormatError(
                                f"{self.title(stack)}: the layer above must determine the value of "
                                f"{frame_field.scapy_field.name}"
                            )
                    number = sum(frame_field.allowed[0] << frame_field.shift for frame_field in word.fields)
                    begins += number.to_bytes(word.size, "big")
            first_bytes.add(begins)
        if len(first_bytes) > 1:
            raise FormatError(
                f"{self.name}: all stacks must have equal values in the layers between Ethernet and the protocol's own"
            )
        return first_bytes.pop()

    def _check_kinds(self) -> None:
        """Check that KIND and KINDS name existing fields."""
        fields = self.rule_fields()
        if self.kinds and self.kind not in fields:
            raise FormatError(
                f"{self.name}: KIND is {self.kind!r}; with KINDS, it must be a field of the protocol's layers: "
                f"{', '.join(fields)}"
            )
        for kind in self.kinds.values():
            for name in fields_of(kind):
                if name not in fields:
                    raise FormatError(
                        f"{self.name}: KINDS names {name!r}, which is not a field of the protocol's layers: {kind.words!r}"
                    )

    def _check_role(self, role: str, name: str) -> None:
        """Check that a role's name is empty or names exactly one field of the protocol's layers."""
        name_counts = self._count_names()
        if name and not name_counts[name]:
            raise FormatError(
                f"{role} is {name!r}, which is not a field of the protocol's layers: {', '.join(sorted(name_counts))}"
            )
        if name_counts[name] > 1:
            raise FormatError(f"{role}: the field {name} must be in one layer only, and is in several")

    def _check_lengths(self) -> None:
        """Check that LENGTH names existing fields, that a single LENGTH field is in one layer only, and that each stack has
        at most one of several LENGTH fields."""
        name_counts = self._count_names()
        for name in self.lengths:
            if len(self.lengths) == 1 or not name_counts[name]:
                self._check_role("LENGTH", name)
        for stack, layers in self.layers.items():
            fields = [field.name for layer in layers if self.is_own(layer) for field in layer.fields_desc]
            if len(length_fields := [name for name in fields if name in self.lengths]) > 1:
                raise FormatError(
                    f"LENGTH: a frame must have at most one of these fields, {stack} has {', '.join(length_fields)}"
                )

    def _check_check(self) -> None:
        """Check that CHECK is a field of 32 bits that shares no word with other fields."""
        for stack in self.stacks:
            check_field = self.find(stack, self.check)
            if check_field is not None and (check_field[0].size, len(check_field[0].fields)) != (4, 1):
                raise FormatError(
                    f"CHECK is {self.check!r}, of {check_field[1].bits} bits: a CRC-32 takes a field of 32 bits"
                )

    def _check_flow(self) -> None:
        fields = self.rule_fields()
        for name in self.flow:
            if name not in fields:
                raise FormatError(
                    f"FLOW names {name!r}, which is not a field of the protocol's layers: {', '.join(fields)}"
                )

    def value_names(self) -> dict[str, dict[int, str]]:
        """Return the value names of enumerated fields, by their names for rules."""
        name_counts = self._count_names()
        layers = {layer: None for layers in self.layers.values() for layer in layers if self.is_own(layer)}
        return {
            _rule_name(layer, field.name, name_counts): values
            for layer in layers
            for field in layer.fields_desc
            if len(values := enumeration(field)) > 1
        }

    def _prefix_size(self) -> int:
        ends = set()
        for stack in self.stacks:
            prefix_field = self.find(stack, self.prefix)
            size = prefix_field[0].offset + prefix_field[0].size if prefix_field else 0
            computed = [word.offset for word in stack.words if any(map(self.is_computed, word.fields))]
            ends.add(size if size <= min(computed, default=size) else 0)
        if len(ends) > 1 or 0 in ends:
            raise FormatError(
                f"PREFIX is {self.prefix!r}: it must end at the same byte in all stacks, before computed fields"
            )
        return ends.pop()

    def _count_names(self) -> Counter[str]:
        """Return the number of the protocol's own layers that have a field, by field name."""
        layers = {layer for layers in self.layers.values() for layer in layers if self.is_own(layer)}
        return Counter(field.name for layer in layers for field in layer.fields_desc)

    def _stack(self, name: str, layers: tuple[type[Packet], ...]) -> Stack:
        words: list[Word] = []
        offset = 0
        names = _identifiers(sorted(layers, key=self.is_own, reverse=True))
        for layer, above in zip(layers, (*layers[1:], None), strict=True):
            for format_, size, fields in words_of(layer):
                shift, frame_fields = 8 * size, []
                for field, bits in fields:
                    shift -= bits
                    allowed, barred = self._values(layer, field, above)
                    frame_fields.append(
                        FrameField(layer, field, names[layer, field.name], bits, shift, allowed, barred)
                    )
                words.append(Word(format_, offset, size, tuple(frame_fields)))
                offset += size
        return Stack(name, tuple(words))

    def _values(
        self, layer: type[Packet], field: AnyField, above: type[Packet] | None
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the allowed and the barred values of a field, which follow from the binding to the layer above, the
        enumeration, and the bindings to other layers."""
        bound = _binding(layer, above) if above else {}
        if field.name in bound:
            return (bound[field.name],), ()
        if not self.is_own(layer):
            return (), ()
        others = {values[field.name] for values, _ in layer.payload_guess if set(values) == {field.name}}
        enumerated = enumeration(field)
        if not enumerated:
            return (), tuple(sorted(others))
        if allowed := tuple(value for value in enumerated if value not in others):
            return allowed, ()
        raise FormatError(f"{layer.__name__}.{field.name}: every value announces a layer that the stack does not have")


def _identifiers(layers: list[type[Packet]]) -> dict[tuple[type[Packet], str], str]:
    """Choose unique variable names for fields, distinct from Python's builtins and the codec's variables; earlier
    layers take precedence."""
    names: dict[tuple[type[Packet], str], str] = {}
    used = {"crc32", "end", "header", "payload", "prefix", "raw", "rest", "struct"}
    for layer in layers:
        for field in layer.fields_desc:
            name = field.name
            if name in used:
                name = f"{layer.__name__.lower()}_{name}"
            elif hasattr(builtins, name):
                name = f"{name}_"
            names[layer, field.name] = name
            used |= {name, field.name}
    return names


def _binding(below: type[Packet], above: type[Packet]) -> dict[str, int]:
    """Return the fields of the layer below that announce the layer above, with their values. Raises FormatError unless
    there is one binding."""
    bindings = [values for values, layer in below.payload_guess if layer is above]
    if len(bindings) != 1:
        raise FormatError(f"{above.__name__} must be bound to {below.__name__} once, is bound {len(bindings)} times")
    return bindings[0]


def _rule_name(layer: type[Packet], name: str, name_counts: Counter[str]) -> str:
    return f"{layer.__name__.lower()}.{name}" if name_counts[name] > 1 else name


def enumeration(field: AnyField) -> dict[int, str]:
    values = getattr(field, "i2s", None)
    return {value: str(name) for value, name in values.items()} if isinstance(values, dict) else {}


def words_of(layer: type[Packet]) -> Iterator[tuple[str, int, list[tuple[AnyField, int]]]]:
    """Yield the words of a layer, without fields that change between hops: format, size in bytes, and fields with their
    sizes in bits. Raises FormatError for unsupported fields."""
    bits: list[tuple[AnyField, int]] = []
    for field in layer.fields_desc:
        if isinstance(field, MutableField):
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
        elif bits:
            raise FormatError(
                f"{layer.__name__}.{field.name}: the bit fields before it have {total} bits and must fill 8, 16, 32 or 64"
            )
        else:
            raise FormatError(
                f"{layer.__name__}.{field.name}: not a number, a MAC address or bit fields of 8, 16, 32 or 64 bits"
            )
    if bits:
        raise FormatError(f"{layer.__name__}: its last bit fields must fill 8, 16, 32 or 64 bits")
