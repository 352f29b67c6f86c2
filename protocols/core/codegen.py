"""Generate a protocol's codec from its Scapy layers: `python -m protocols.core.codegen protocols.emp` writes
protocols/emp/codec.py.

`protocols.core.formats` documents the definitions in `frames.py`. With PREFIX, each stack has a second pair of
functions for frames whose first bytes are known: they take and return only the fields after the prefix.

The codec has one `struct.Struct` for all headers of a stack. A field is fixed if a binding or an enumeration leaves one
value. The codec sets fixed fields, LENGTH and CHECK itself, and neither takes nor returns them.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import textwrap
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Final

from scapy.fields import FlagsField

from protocols.core.formats import Format, FormatError, FrameField, Stack, enumeration
from protocols.core.frame_kinds import Kind
from protocols.core.python_source import fold, literal

_INDENT: Final = "    "
_ETHERNET_SIZE: Final = 14
_CHECK_SIZE: Final = 4
_MAX_LITERAL_LENGTH: Final = 109  # maximum length of a string literal on a line of its own, in characters


def generate(frames: ModuleType, command: str) -> str:
    """Generate the codec's source. Raises FormatError."""
    format_ = Format(frames)
    sections = [f"{_head(format_, command).strip()}\n\n{_constants(format_).strip()}", *_selectors(format_)]
    for stack in format_.stacks:
        sections += [_pack(format_, stack), _unpack(format_, stack)]
        if format_.prefix:
            sections += [_pack(format_, stack, behind=True), _unpack(format_, stack, behind=True)]
    if format_.has_trailing_check:
        sections.append(_trailer_check_function(format_))
    elif format_.check:
        sections.append(_check_function(format_))
    source = "\n\n\n".join(section.strip() for section in sections) + "\n"
    return "\n".join(folded for line in source.split("\n") for folded in fold(line))


def _head(format_: Format, command: str) -> str:
    package = format_.name.rpartition(".")[0]
    crc = "from protocols.core.checksum import crc32\n" if format_.check or format_.has_trailing_check else ""
    kinds = "from protocols.core.frame_kinds import Kind\n" if format_.kinds else ""
    behind = ""
    if format_.prefix:
        behind = """

`*_behind` are for frames whose first PREFIX_SIZE bytes are known: these are given as bytes; only the rest is unpacked."""
    return f'''"""The frames of {package}, packed and unpacked. Generated: change frames.py, then

    {command}

Frames are complete, from the destination address on. `pack_*` takes every field that is not fixed and returns a
frame; `unpack_*` returns the same fields and the payload, a slice of the frame, or raises MalformedError. MAC addresses
are 6 bytes. A number that is too large for its field raises struct.error; in a bit field only its low bits count.{behind}
"""

from __future__ import annotations

import struct
from typing import Final

{crc}from protocols.core.firmware import Buffer
{kinds}from protocols.core.malformed import MalformedError
'''


def _constants(format_: Format) -> str:
    lines = [f"ETHERTYPE: Final = 0x{format_.ethertype:04X}"]
    seen: set[str] = set()
    for field in chain(*(stack.fields for stack in format_.stacks)):
        name = field.scapy_field.name.upper()
        if not format_.is_own(field.layer) or name in seen:
            continue
        values = {text: value for value, text in enumeration(field.scapy_field).items()}
        if isinstance(field.scapy_field, FlagsField):
            values = {flag: 1 << bit for bit, flag in enumerate(field.scapy_field.names)}
        if values:
            seen.add(name)
        if len(values) == 1 and not isinstance(field.scapy_field, FlagsField):
            lines.append(f"{name}: Final = {min(values.values())}")
        else:
            lines += [f"{name}_{text.upper()}: Final = {value}" for text, value in values.items()]
    lines.append("")
    for stack in format_.stacks:
        lines.append(f"{stack.name.upper()}: Final = struct.Struct({literal(stack.format)})")
        lines.append(f'"""{format_.title(stack)}."""')
    lines.append("")
    for stack in format_.stacks:
        lines.append(f"{stack.name.upper()}_SIZE: Final = {stack.size}")
    if format_.prefix:
        lines.append(f"PREFIX_SIZE: Final = {format_.prefix_size}")
    lines += ["", "FIELDS: Final[dict[str, tuple[object, ...]]] = {"]
    for name, (offset, width, mask, guard) in format_.rule_fields().items():
        offsets = (
            f"{offset}, {width}"
            + (f", 0x{mask:X}" if mask else ", 0" if guard else "")
            + (f", {literal(guard)}" if guard else "")
        )
        lines.append(f"    {literal(name)}: ({offsets}),")
    lines += ["}", '"""For rules: offset after Ethernet, width, mask, and required values of other fields."""', ""]
    lines += [f"FLOW: Final = {literal(format_.flow)}", '"""The fields that identify a flow."""', ""]
    if format_.begins:
        lines.append(f"BEGINS: Final = {literal(format_.begins)}")
        lines += ['"""After Ethernet, the fields that identify these frames."""', ""]
    if format_.routed:
        lines += ["ROUTED: Final = True", '"""A source route may precede the header."""', ""]
    names = format_.value_names()
    lines += [
        f"NAMES: Final[dict[str, dict[int, str]]] = {literal(names)}",
        '"""Names of field values."""',
        "",
    ]
    if format_.check:
        lines += [f"CHECK: Final = {literal(format_.check)}", '"""The field that is computed from all others."""', ""]
    if format_.kinds:
        lines += [f"KIND: Final = {literal(format_.kind)}"]
        lines.append("KINDS: Final[dict[int, Kind]] = {")
        for value, kind in format_.kinds.items():
            text = names.get(format_.kind, {}).get(value)
            constant = f"{format_.kind}_{text}".upper() if text else value
            lines.append(f"    {constant}: {_format_kind(kind)},")
        lines += ["}", '"""Formats of the summaries of frames, by the values of KIND."""', ""]
    for stack in format_.stacks:
        lines += _structs(format_, stack)
    if format_.check or format_.has_trailing_check:
        lines.append('_pack_check: Final = struct.Struct("!I").pack')
    return "\n".join(lines)


def _format_kind(kind: Kind) -> str:
    """Format a kind, without the arguments that equal their defaults."""
    words = [kind.words]
    if len(literal(kind.words)) > _MAX_LITERAL_LENGTH:
        words = textwrap.wrap(kind.words, 90, drop_whitespace=False)
    arguments = [literal(kind.role), " ".join(map(literal, words))]
    for name in ("message", "within", "part", "total", "back", "handles"):
        if value := getattr(kind, name):
            arguments.append(f"{name}={literal(value)}")
    return f"Kind({', '.join(arguments)})"


def _structs(format_: Format, stack: Stack) -> Iterator[str]:
    """Yield the `struct.Struct` definitions of a stack's headers: one to unpack all fields, and one to pack the fields
    before the check; and others for the fields after the check and for frames with a known prefix."""
    name, check = stack.name, format_.find(stack, format_.check)
    check_offset = check[0].offset if check else stack.size

    def formats(begin: int, end: int) -> str:
        return "".join(word.format for word in stack.words if begin <= word.offset < end)

    yield f"_pack_{name}: Final = struct.Struct({literal('!' + formats(0, check_offset))}).pack"
    yield f"_unpack_{name}: Final = {name.upper()}.unpack_from"
    if rest := formats(check_offset + 4, stack.size):
        yield f"_pack_{name}_rest: Final = struct.Struct({literal('!' + rest)}).pack"
    if size := format_.prefix_size:
        yield f"_pack_{name}_behind: Final = struct.Struct({literal(f'!{size}s' + formats(size, check_offset))}).pack"
        yield f"_unpack_{name}_behind: Final = struct.Struct({literal(f'!{size}x' + formats(size, stack.size))}).unpack_from"


def _selectors(format_: Format) -> Iterator[str]:
    """Yield a function for each field that announces the next layer; the field's value selects the `unpack_*` to
    use."""
    for word, field in format_.selectors():
        name, end = field.scapy_field.name, word.offset + word.size
        value = f"raw[{word.offset}]"
        if word.size > 1:
            value = f'int.from_bytes(raw[{word.offset}:{end}], "big")'
        if len(word.fields) > 1:
            value = f"{value} >> {field.shift} & 0x{field.mask:X}"
        yield f'''def {name}_of(raw: Buffer) -> int:
    """Return the {name} of any of the frames; it selects the `unpack_*`."""
    if len(raw) < {end}:
        raise MalformedError("short")
    return {value}'''


def _pack(format_: Format, stack: Stack, behind: bool = False) -> str:
    """Generate a `pack_*` function. behind: it takes the first bytes, up to and including PREFIX, as bytes."""
    begin = format_.prefix_size if behind else 0
    free = [f"{field.name}: {field.type_name}" for field in format_.free_fields(stack, begin)]
    payload = [] if format_.has_trailing_check and not format_.find_length(stack) else ['payload: Buffer = b""']
    parameters = ", ".join([*(["prefix: bytes"] if behind else []), *free, *payload])
    values = {
        word.offset: " | ".join(_pack_expression(format_, field, len(word.fields) > 1) for field in word.fields)
        for word in stack.words
        if word.offset >= begin
    }
    name = f"{stack.name}_behind" if behind else stack.name
    lines = [
        f"def pack_{name}({parameters}) -> bytes:",
        f'    """{format_.title(stack)}{", which begins with prefix" if behind else ""}."""',
    ]
    check = format_.find(stack, format_.check)
    check_offset = check[0].offset if check else stack.size
    head = ", ".join([*(["prefix"] if behind else []), *(value for at, value in values.items() if at < check_offset)])
    if format_.has_trailing_check:
        lines.append(f"    frame = _pack_{name}({head})")
        if format_.find_length(stack):
            lines.append("    frame += payload")
        lines.append("    return frame + _pack_check(crc32(frame))")
    elif check is None:
        lines.append(f"    return _pack_{name}({head}) + payload")
    else:
        tail = ", ".join(value for at, value in values.items() if at > check_offset)
        rest = "rest" if tail else "payload"
        if tail:
            lines.append(f"    rest = _pack_{stack.name}_rest({tail}) + payload")
        lines += [
            f"    header = _pack_{name}({head})",
            f"    return header + _pack_check(crc32({rest}, crc32(header))) + {rest}",
        ]
    return "\n".join(lines)


def _pack_expression(format_: Format, field: FrameField, bits: bool) -> str:
    if format_.is_computed(field):
        text = "len(payload)" if field.scapy_field.name in format_.lengths else "0"
    elif len(field.allowed) == 1:
        text = _constant(format_, field, field.allowed[0])
    else:
        text = field.name
    if not bits:
        return text
    return f"({text} & 0x{field.mask:X})" + (f" << {field.shift}" if field.shift else "")


def _constant(format_: Format, field: FrameField, value: int) -> str:
    """Format a field's value, as the name of its constant if it has one."""
    if not format_.is_own(field.layer):
        return "ETHERTYPE" if value == format_.ethertype else str(value)
    values = enumeration(field.scapy_field)
    name = field.scapy_field.name.upper()
    return str(value) if value not in values else name if len(values) == 1 else f"{name}_{values[value].upper()}"


def _unpack(format_: Format, stack: Stack, behind: bool = False) -> str:
    """Generate an `unpack_*` function. behind: it unpacks only the fields after PREFIX, and the payload."""
    begin = format_.prefix_size if behind else 0
    free, words = format_.free_fields(stack, begin), [word for word in stack.words if word.offset >= begin]
    name = f"{stack.name}_behind" if behind else stack.name
    kinds = ", ".join([*(field.type_name for field in free), "Buffer"])
    results = ", ".join([*(field.name for field in free), "payload"])
    names = ", ".join(word.fields[0].name if len(word.fields) == 1 else f"word{word.offset}" for word in words)
    beginning = ", whose beginning is known" if behind else ""
    lines = [
        f"def unpack_{name}(raw: Buffer) -> tuple[{kinds}]:",
        *textwrap.wrap(
            f'"""{format_.title(stack)}{beginning}: {results}."""',
            115,
            initial_indent=_INDENT,
            subsequent_indent=_INDENT,
        ),
        "    try:",
        f"        {names}{',' * (len(words) == 1)} = _unpack_{name}(raw)",
        "    except struct.error:",
        '        raise MalformedError("short") from None',
    ]
    for word in words:
        for field in word.fields if len(word.fields) > 1 else ():
            shift = f" >> {field.shift}" if field.shift else ""
            lines.append(f"    {field.name} = word{word.offset}{shift} & 0x{field.mask:X}")
    for field in (field for word in words for field in word.fields):
        if field.allowed:
            values = [_constant(format_, field, value) for value in field.allowed]
            failing = f"!= {values[0]}" if len(values) == 1 else f"not in ({', '.join(values)})"
        elif field.barred:
            failing = f"in {field.barred}" if len(field.barred) > 1 else f"== {field.barred[0]}"
        else:
            continue
        lines += [f"    if {field.name} {failing}:", f"        raise MalformedError({literal(field.name.strip('_'))})"]
    end = ""
    check_size = f" + {_CHECK_SIZE}" if format_.has_trailing_check else ""
    if length := format_.find_length(stack):
        end = "end"
        lines += [
            f"    end = {stack.size} + {length[1].name}",
            f"    if end{check_size} > len(raw):",
            f"        raise MalformedError({literal(length[1].scapy_field.name)})",
        ]
    elif format_.has_trailing_check:
        end = str(stack.size)
        lines += [f"    if len(raw) < {stack.size + _CHECK_SIZE}:", '        raise MalformedError("short")']
    if format_.has_trailing_check:
        check_place = "end : end + 4" if end == "end" else f"{end}:{stack.size + _CHECK_SIZE}"
        lines += [
            f"    if raw[{check_place}] != _pack_check(crc32(raw[:{end}])):",
            '        raise MalformedError("check")',
        ]
    if check := format_.find(stack, format_.check):
        check_offset = check[0].offset
        payload = f"rest[{stack.size - check_offset - 4}:]" if stack.size > check_offset + 4 else "rest"
        lines += [
            f"    rest = raw[{check_offset + 4}:{end}]",
            f"    if crc32(rest, crc32(raw[:{check_offset}])) != {check[1].name}:",
            f"        raise MalformedError({literal(format_.check)})",
        ]
    else:
        payload = f"raw[{stack.size}:{end}]"
    lines.append(f"    return {', '.join([*(field.name for field in free), payload])}")
    return "\n".join(lines)


def _check_function(format_: Format) -> str:
    """Generate the function that recomputes the check of a frame, whose header may follow a source route."""
    check = format_.field_slice(format_.check)
    lines = [
        "def mended(raw: bytes, begin: int = 14) -> bytes:",
        *textwrap.wrap(
            f'"""Return the frame with its {format_.check} recomputed; a frame that is too short is unchanged. begin: '
            'offset of the header, after a source route if there is one."""',
            115,
            initial_indent=_INDENT,
            subsequent_indent=_INDENT,
        ),
        "    header = raw[begin:]",
        f"    if len(header) < {check.stop}:",
        "        return raw",
    ]
    end = f"len(header) - {format_.trailing_size}" if format_.trailing_size else ""
    if format_.lengths:
        first, *others = sorted(format_.stacks, key=lambda stack: len(format_.announcing_values(stack)))
        lines.append(f"    size = {first.size - _ETHERNET_SIZE}")
        for stack in others:
            tests = [
                f"{_field_expression(format_, name)} == {value}" for name, value in format_.announcing_values(stack)
            ]
            lines += [f"    if {' and '.join(tests)}:", f"        size = {stack.size - _ETHERNET_SIZE}"]
        end = f"size + {_field_expression(format_, format_.lengths[0])}"
    if end:
        lines.append(f"    end = {end}")
    lines += [
        f"    check = crc32(header[{check.stop}:{'end' if end else ''}], crc32(header[:{check.start}], crc32(raw[:14])))",
        f"    return raw[:begin] + header[:{check.start}] + _pack_check(check) + header[{check.stop}:]",
    ]
    return "\n".join(lines)


def _trailer_check_function(format_: Format) -> str:
    """Generate the function that recomputes the CRC-32 after the payload of a frame."""
    lines = [
        "def mended(raw: bytes, begin: int = 14) -> bytes:",
        '    """Return the frame with its CRC-32 recomputed; one that is too short, or of no known kind, is unchanged."""',
        "    header = raw[begin:]",
        "    end = 0",
    ]
    for stack in sorted(format_.stacks, key=lambda stack: len(format_.announcing_values(stack))):
        pairs = format_.announcing_values(stack)
        size = stack.size - _ETHERNET_SIZE
        longest = max([size, *(format_.field_slice(name).stop for name, _ in pairs)])
        tests = [
            f"len(header) >= {longest}",
            *(f"{_field_expression(format_, name)} == {value}" for name, value in pairs),
        ]
        length = format_.find_length(stack)
        end = f"begin + {size}"
        if length:
            first, width = length[0].offset - _ETHERNET_SIZE, length[0].size
            end += f' + int.from_bytes(header[{first}:{first + width}], "big")'
        lines += [f"    if {' and '.join(tests)}:", f"        end = {end}"]
    lines += [
        f"    if not end or end + {_CHECK_SIZE} > len(raw):",
        "        return raw",
        f"    return raw[:end] + _pack_check(crc32(raw[:end])) + raw[end + {_CHECK_SIZE} :]",
    ]
    return "\n".join(lines)


def _field_expression(format_: Format, name: str) -> str:
    """Generate the expression that reads a field from `header`."""
    position = format_.field_slice(name)
    _, _, mask, _ = format_.rule_fields()[name]
    if position.stop - position.start == 1:
        value = f"header[{position.start}]"
    else:
        value = f'int.from_bytes(header[{position.start}:{position.stop}], "big")'
    if not mask:
        return value
    shift = (mask & -mask).bit_length() - 1
    return f"({value} & 0x{mask:X})" + (f" >> {shift}" if shift else "")


def generate_codec(package: str) -> tuple[Path, str]:
    """Generate the codec of a package. Returns the path of its file and its source. Raises FormatError, and ImportError
    for a package without frames.py."""
    frames = importlib.import_module(f"{package}.frames")
    path = Path(str(frames.__file__)).with_name("codec.py")
    return path, generate(frames, f"python -m protocols.core.codegen {package}")


def main(arguments: Sequence[str]) -> int:
    """Write the codecs of packages. Returns 0, or 2 at the first codec that cannot be generated; its file and those of
    later packages stay unchanged. Raises SystemExit for `--help` and invalid arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m protocols.core.codegen",
        description="Write PACKAGE/codec.py, which packs and unpacks frames without Scapy, from the layers and constants of "
        "PACKAGE/frames.py (STACKS, LENGTH, CHECK, FLOW, KIND, KINDS). The package is imported.",
    )
    parser.add_argument("packages", nargs="+", metavar="PACKAGE", help="a package's name, such as protocols.emp")
    for package in parser.parse_args(arguments).packages:
        try:
            path, source = generate_codec(package)
        except FormatError as error:
            sys.stderr.write(f"{package}: {error}\n")
            return 2
        except ModuleNotFoundError as error:
            if not f"{package}.frames".startswith(str(error.name)):
                raise  # a module that frames.py imports is missing
            sys.stderr.write(
                f"{package}: there is no module {error.name}; the Scapy layers must be in {package}.frames\n"
            )
            return 2
        path.write_text(source, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
