"""Makes a protocol's codec from its Scapy layers: `python -m protocols.core.codegen protocols.emp` writes its codec.py.

A protocol's `frames.py` says, beside its layers: STACKS, name -> the layers of a frame from Ethernet on; FLOW, the fields
that tell flows apart; and, if it has them, LENGTH, the field for the bytes of payload, CHECK, the 32-bit field for the
CRC-32 of the frame up to the payload's end, without itself, and PREFIX, the field up to which all frames of one kind
between two NICs begin alike; KIND and KINDS, how its frames are told of to people (`protocols.core.telling`). What binds
one layer to the next is read from Scapy's bindings.

A layer between Ethernet and the protocol's own, such as Myrinet's, says by its values whose frame it is: these are BEGINS
in the codec. Fields that change on the way (`protocols.core.frames`) are none of the codec's.

With PREFIX there is a second pair of functions for each stack, for frames whose first bytes are known: they take and give
only what is behind these.

The codec has one `struct.Struct` for all headers of a stack. A field is fixed if a binding or an enumeration leaves one
value; the codec fills in those, LENGTH and CHECK by itself, and neither takes nor gives them. Layers have fields of fixed
size in network byte order: numbers, MAC addresses, bits and flags.
"""

from __future__ import annotations

import builtins
import importlib
import re
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
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
_INDENT: Final = "    "
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
            if len(values := _enumeration(field)) > 1
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
            for format_, size, fields in _words(layer):
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
        listed = _enumeration(field)
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


def _enumeration(field: AnyField) -> dict[int, str]:
    values = getattr(field, "i2s", None)
    return {value: str(name) for value, name in values.items()} if isinstance(values, dict) else {}


def _words(layer: type[Packet]) -> Iterator[tuple[str, int, list[tuple[AnyField, int]]]]:
    """Format, bytes, fields and their bits, of what does not change on the way."""
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


# The text.


def generate(frames: ModuleType, command: str) -> str:
    """The codec's source, not yet formatted."""
    format_ = Format(frames)
    parts = [_head(format_, command), _constants(format_), *_selectors(format_)]
    for stack in format_.stacks:
        parts += [_pack(format_, stack), _unpack(format_, stack)]
        if format_.prefix:
            parts += [_pack(format_, stack, behind=True), _unpack(format_, stack, behind=True)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _head(format_: Format, command: str) -> str:
    package = format_.name.rpartition(".")[0]
    crc = "from zlib import crc32\n" if format_.check else ""
    kinds = "from protocols.core.telling import Kind\n" if format_.kinds else ""
    behind = ""
    if format_.prefix:
        behind = """

`*_behind` are for frames whose first PREFIX_SIZE bytes are known: they take these as they are, and give only the rest."""
    return f'''"""The frames of {package}, packed and unpacked. Generated: change frames.py, then

    {command}

Frames are whole, from the destination address on. `pack_*` takes every field that is not fixed and gives a frame;
`unpack_*` gives the same fields and the payload, a view into the frame, or raises MalformedError. MAC addresses are 6
bytes. A number that is too large for its field is struct.error, in a field of bits only its low bits count.{behind}
"""

from __future__ import annotations

import struct
from typing import Final
{crc}
from protocols.core.firmware import Buffer
from protocols.core.malformed import MalformedError
{kinds}'''


def _constants(format_: Format) -> str:
    lines = [f"ETHERTYPE: Final = 0x{format_.ethertype:04X}"]
    seen: set[str] = set()
    for part in chain(*(stack.parts for stack in format_.stacks)):
        name = part.field.name.upper()
        if not format_.own(part.layer) or name in seen:
            continue
        values = {text: value for value, text in _enumeration(part.field).items()}
        if isinstance(part.field, FlagsField):
            values = {flag: 1 << bit for bit, flag in enumerate(part.field.names)}
        if values:
            seen.add(name)
        if len(values) == 1 and not isinstance(part.field, FlagsField):
            lines.append(f"{name}: Final = {min(values.values())}")
        else:
            lines += [f"{name}_{text.upper()}: Final = {value}" for text, value in values.items()]
    lines.append("")
    for stack in format_.stacks:
        lines.append(f"{stack.name.upper()}: Final = struct.Struct({stack.format!r})")
        lines.append(f'"""{format_.title(stack)}."""')
    lines.append("")
    for stack in format_.stacks:
        lines.append(f"{stack.name.upper()}_SIZE: Final = {stack.size}")
    if format_.prefix:
        lines.append(f"PREFIX_SIZE: Final = {format_.prefix_size}")
    lines += ["", "FIELDS: Final[dict[str, tuple[object, ...]]] = {"]
    for name, (offset, width, mask, guard) in format_.rule_fields().items():
        place = (
            f"{offset}, {width}"
            + (f", 0x{mask:X}" if mask else ", 0" if guard else "")
            + (f", {guard}" if guard else "")
        )
        lines.append(f"    {name!r}: ({place}),")
    lines += ["}", '"""For rules: offset behind Ethernet, width, mask, and what other fields must be."""', ""]
    lines += [f"FLOW: Final = {format_.flow!r}", '"""The fields that tell flows apart."""', ""]
    if format_.begins:
        lines.append(f"BEGINS: Final = {format_.begins!r}")
        lines += ['"""Behind Ethernet, what says that it is one of these frames."""', ""]
    if format_.routed:
        lines += ["ROUTED: Final = True", '"""A source route may stand in front of the header."""', ""]
    names = format_.value_names()
    lines += [f"NAMES: Final[dict[str, dict[int, str]]] = {names!r}", '"""What values of fields are called."""', ""]
    if format_.kinds:
        lines += [f"KIND: Final = {format_.kind!r}"]
        lines.append("KINDS: Final[dict[int, Kind]] = {")
        for value, kind in format_.kinds.items():
            text = names.get(format_.kind, {}).get(value)
            constant = f"{format_.kind}_{text}".upper() if text else value
            lines.append(f"    {constant}: {_told(kind)},")
        lines += ["}", '"""How the sorts of frames are told of, by the values of KIND."""', ""]
    for stack in format_.stacks:
        lines += _structs(format_, stack)
    if format_.check:
        lines.append("_pack_check = struct.Struct('!I').pack")
    return "\n".join(lines)


def _told(kind: Kind) -> str:
    """Without what has its default."""
    words = "".join(f"\n{line!r}" for line in textwrap.wrap(kind.words, 90, drop_whitespace=False))
    said = [repr(kind.role), words]
    for name in ("message", "within", "part", "total", "back", "handles"):
        if value := getattr(kind, name):
            said.append(f"{name}={value!r}")
    return f"Kind({', '.join(said)})"


def _structs(format_: Format, stack: Stack) -> Iterator[str]:
    """What packs and unpacks the headers: the latter as one, the former without the check, which comes last."""
    name, check = stack.name, format_.find(stack, format_.check)
    place = check[0].offset if check else stack.size

    def formats(begin: int, end: int) -> str:
        return "".join(word.format for word in stack.words if begin <= word.offset < end)

    yield f"_pack_{name} = struct.Struct({'!' + formats(0, place)!r}).pack"
    yield f"_unpack_{name} = {name.upper()}.unpack_from"
    if rest := formats(place + 4, stack.size):
        yield f"_pack_{name}_rest = struct.Struct({'!' + rest!r}).pack"
    if size := format_.prefix_size:
        yield f"_pack_{name}_behind = struct.Struct({f'!{size}s' + formats(size, place)!r}).pack"
        yield f"_unpack_{name}_behind = struct.Struct({f'!{size}x' + formats(size, stack.size)!r}).unpack_from"


def _selectors(format_: Format) -> Iterator[str]:
    """A function for each field of the protocol that says what comes next: which `unpack_*` is the right one."""
    for word, part in format_.selectors():
        field, end = part.field.name, word.offset + word.size
        value = f"raw[{word.offset}]"
        if word.size > 1:
            value = f'int.from_bytes(raw[{word.offset}:{end}], "big")'
        if len(word.parts) > 1:
            value = f"{value} >> {part.shift} & 0x{part.mask:X}"
        yield f'''def {field}_of(raw: Buffer) -> int:
    """The {field} alone, of a frame that may be any; it says by which `unpack_*` the frame is read."""
    if len(raw) < {end}:
        raise MalformedError("short")
    return {value}'''


def _pack(format_: Format, stack: Stack, behind: bool = False) -> str:
    """behind: the first bytes, up to and with PREFIX, are given as they are."""
    begin = format_.prefix_size if behind else 0
    free = [f"{part.name}: {part.kind}" for part in format_.free(stack, begin)]
    given = ", ".join([*(["prefix: bytes"] if behind else []), *free])
    values = {
        word.offset: " | ".join(_value(format_, part, len(word.parts) > 1) for part in word.parts)
        for word in stack.words
        if word.offset >= begin
    }
    name = f"{stack.name}_behind" if behind else stack.name
    lines = [
        f"def pack_{name}({given}, payload: Buffer = b'') -> bytes:",
        f'    """{format_.title(stack)}{", of whose beginning prefix is" if behind else ""}."""',
    ]
    check = format_.find(stack, format_.check)
    place = check[0].offset if check else stack.size
    head = ", ".join([*(["prefix"] if behind else []), *(value for at, value in values.items() if at < place)])
    if check is None:
        lines.append(f"    return _pack_{name}({head}) + payload")
    else:
        tail = ", ".join(value for at, value in values.items() if at > place)
        rest = "rest" if tail else "payload"
        if tail:
            lines.append(f"    rest = _pack_{stack.name}_rest({tail}) + payload")
        lines += [
            f"    header = _pack_{name}({head})",
            f"    return header + _pack_check(crc32({rest}, crc32(header))) + {rest}",
        ]
    return "\n".join(lines)


def _value(format_: Format, part: Part, bits: bool) -> str:
    if format_.made(part):
        text = "len(payload)" if part.field.name == format_.length else "0"
    elif len(part.allowed) == 1:
        text = _number(format_, part, part.allowed[0])
    else:
        text = part.name
    if not bits:
        return text
    return f"({text} & 0x{part.mask:X})" + (f" << {part.shift}" if part.shift else "")


def _number(format_: Format, part: Part, value: int) -> str:
    """A field's value, by the name of its constant if it has one."""
    if not format_.own(part.layer):
        return "ETHERTYPE" if value == format_.ethertype else str(value)
    values = _enumeration(part.field)
    name = part.field.name.upper()
    return str(value) if value not in values else name if len(values) == 1 else f"{name}_{values[value].upper()}"


def _unpack(format_: Format, stack: Stack, behind: bool = False) -> str:
    """behind: what is behind PREFIX only; the payload is as the frame is, a view only of a view."""
    begin = format_.prefix_size if behind else 0
    free, words = format_.free(stack, begin), [word for word in stack.words if word.offset >= begin]
    view, name = ("raw", f"{stack.name}_behind") if behind else ("memoryview(raw)", stack.name)
    kinds = ", ".join([*(part.kind for part in free), "Buffer" if behind else "memoryview"])
    given = ", ".join([*(part.name for part in free), "payload"])
    names = ", ".join(word.parts[0].name if len(word.parts) == 1 else f"word{word.offset}" for word in words)
    beginning = ", whose beginning is known" if behind else ""
    lines = [
        f"def unpack_{name}(raw: Buffer) -> tuple[{kinds}]:",
        *textwrap.wrap(
            f'"""{format_.title(stack)}{beginning}: {given}."""',
            115,
            initial_indent=_INDENT,
            subsequent_indent=_INDENT,
        ),
        "    try:",
        f"        {names}{',' * (len(words) == 1)} = _unpack_{name}(raw)",
        "    except struct.error:",
        "        raise MalformedError('short') from None",
    ]
    for word in words:
        for part in word.parts if len(word.parts) > 1 else ():
            shift = f" >> {part.shift}" if part.shift else ""
            lines.append(f"    {part.name} = word{word.offset}{shift} & 0x{part.mask:X}")
    for part in (part for word in words for part in word.parts):
        if part.allowed:
            values = [_number(format_, part, value) for value in part.allowed]
            wrong = f"!= {values[0]}" if len(values) == 1 else f"not in ({', '.join(values)})"
        elif part.barred:
            wrong = f"in {part.barred}" if len(part.barred) > 1 else f"== {part.barred[0]}"
        else:
            continue
        lines += [f"    if {part.name} {wrong}:", f"        raise MalformedError({part.name.strip('_')!r})"]
    end = ""
    if length := format_.find(stack, format_.length):
        end = "end"
        lines += [
            f"    end = {stack.size} + {length[1].name}",
            "    if end > len(raw):",
            f"        raise MalformedError({format_.length!r})",
        ]
    if check := format_.find(stack, format_.check):
        place = check[0].offset
        payload = f"rest[{stack.size - place - 4}:]" if stack.size > place + 4 else "rest"
        lines += [
            f"    rest = {view}[{place + 4}:{end}]",
            f"    if crc32(rest, crc32(raw[:{place}])) != {check[1].name}:",
            f"        raise MalformedError({format_.check!r})",
        ]
    else:
        payload = f"{view}[{stack.size}:{end}]"
    lines.append(f"    return {', '.join([*(part.name for part in free), payload])}")
    return "\n".join(lines)


def formatted(source: str, path: Path) -> str:
    """As ruff formats a file at that path."""
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(path), "-"]
    return subprocess.run(command, input=source, capture_output=True, check=True, text=True).stdout


def codec(package: str) -> tuple[Path, str]:
    """Where a package's codec is, and its source."""
    frames = importlib.import_module(f"{package}.frames")
    path = Path(str(frames.__file__)).with_name("codec.py")
    return path, formatted(generate(frames, f"python -m protocols.core.codegen {package}"), path)


if __name__ == "__main__":
    for package in sys.argv[1:]:
        path, source = codec(package)
        path.write_text(source)
