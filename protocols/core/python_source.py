"""Layout of generated Python source, as ruff formats it: literals, and long lines folded at their brackets.

A line that is too long is broken after a bracket. The arguments of a call share a line if they fit; otherwise, and in
all other brackets, every item has a line of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

WIDTH: Final = 120
_INDENT: Final = "    "
_OPEN, _CLOSE = "([{", ")]}"


def literal(value: object) -> str:
    """Format a string, bytes, a number, or a tuple or dictionary of these, with double quotes."""
    if isinstance(value, (str, bytes)):
        text = repr(value)
        prefix, quoted = ("b", text[1:]) if isinstance(value, bytes) else ("", text)
        return text if quoted[0] == '"' or '"' in quoted else f'{prefix}"{quoted[1:-1]}"'
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' * (len(value) == 1)})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{literal(key)}: {literal(item)}' for key, item in value.items())}}}"
    return repr(value)


def fold(line: str) -> list[str]:
    """Fold a line of code without a comment into lines of at most WIDTH characters, as far as its brackets permit."""
    if len(line) <= WIDTH or line.lstrip().startswith('"""'):
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    targets, equals, value = line.partition(" = ")
    if equals and "(" not in targets and len(_items(targets)) > 1:  # an assignment to several targets
        if len(f"{targets} = (") <= WIDTH:
            return [f"{targets} = (", f"{indent}{_INDENT}{value}", f"{indent})"]
        return _group(indent, "(", targets.strip(), f") = {value}", one_per_line=True)
    if line.strip().startswith("return ") and len(_items(line)) > 1:
        return _group(indent, "return (", line.strip().removeprefix("return "), ")", one_per_line=True)
    depth, groups = 0, []
    for position, char in _code(line):
        if char in _OPEN:
            if depth == 0:
                groups.append([position, len(line)])
            depth += 1
        elif char in _CLOSE and depth:  # without depth, the bracket was opened on an earlier line
            depth -= 1
            if depth == 0:
                groups[-1][1] = position
    if not groups:
        return [indent + part for part in _strings(line.strip())]
    is_def = line.lstrip().startswith("def ")
    begin, end = groups[0] if is_def else groups[-1]
    inner = line[begin + 1 : end]
    is_call = line[begin] == "(" and not line[:begin].endswith(" in ")
    one_per_line = is_def or (not is_call and len(_items(inner)) > 1)
    return _group(indent, line[: begin + 1].strip(), inner, line[end:], one_per_line=one_per_line)


def _group(indent: str, head: str, inner: str, tail: str, *, one_per_line: bool) -> list[str]:
    item_indent = indent + _INDENT
    if not one_per_line and len(item_indent + inner) <= WIDTH:
        return [indent + head, item_indent + inner, indent + tail]
    items = [part for item in _items(inner) for part in fold(f"{item_indent}{item.strip()},")]
    return [indent + head, *items, *fold(indent + tail)]


def _items(text: str) -> list[str]:
    """Split text at the commas outside of brackets."""
    depth, begin, items = 0, 0, []
    for position, char in _code(text):
        depth += (char in _OPEN) - (char in _CLOSE)
        if char == "," and depth == 0:
            items.append(text[begin:position])
            begin = position + 1
    return [item for item in (*items, text[begin:]) if item.strip()]


def _strings(text: str) -> list[str]:
    """Split text between adjacent string literals."""
    return text.replace('" "', '"\n"').split("\n")


def _code(text: str) -> Iterator[tuple[int, str]]:
    """Yield the position and the character of all text outside of string literals."""
    quote, skip = "", False
    for position, char in enumerate(text):
        if skip:
            skip = False
        elif quote:
            skip = char == "\\"
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        else:
            yield position, char
