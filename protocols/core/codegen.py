"""Makes a protocol's codec from its Scapy layers: `python -m protocols.core.codegen protocols.emp` writes its codec.py.

What `frames.py` has to say for it is told in `protocols.core.formats`. With PREFIX there is a second pair of functions for
each stack, for frames whose first bytes are known: they take and give only what is behind these.

The codec has one `struct.Struct` for all headers of a stack. A field is fixed if a binding or an enumeration leaves one
value; the codec fills in those, LENGTH and CHECK by itself, and neither takes nor gives them.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Final

from scapy.fields import FlagsField

from protocols.core.formats import Format, Part, Stack, enumeration
from protocols.core.telling import Kind

_INDENT: Final = "    "


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
    crc = "from protocols.core.checksum import crc32\n" if format_.check else ""
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

{crc}from protocols.core.firmware import Buffer
from protocols.core.malformed import MalformedError
{kinds}'''


def _constants(format_: Format) -> str:
    lines = [f"ETHERTYPE: Final = 0x{format_.ethertype:04X}"]
    seen: set[str] = set()
    for part in chain(*(stack.parts for stack in format_.stacks)):
        name = part.field.name.upper()
        if not format_.own(part.layer) or name in seen:
            continue
        values = {text: value for value, text in enumeration(part.field).items()}
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
    values = enumeration(part.field)
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
