"""Conversion of the mistakes that validators find to problems for users, with the nearest valid names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from testbed.errors import Problem

if TYPE_CHECKING:
    from testbed.spec.annotations import Mistake

_WIDTH = 60  # characters of a value in a message


class MismatchError(ValueError):
    """An invalid value of a key. expected: the valid values, as a phrase. suggestion: the intended value, or empty."""

    def __init__(self, expected: str, suggestion: str = "") -> None:
        self.expected = expected
        self.suggestion = suggestion
        super().__init__(expected)


def format_value(value: object) -> str:
    """Format a value as in TOML, on one line of at most 60 characters."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a table"
    # Truncate before quoting, so that a long text is not copied.
    text = repr(value[: 2 * _WIDTH] if isinstance(value, (str, list, tuple)) else value)
    if isinstance(value, tuple):
        text = repr(list(value[: 2 * _WIDTH]))
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 10]}...{text[-1]}"


def nearest(name: object, names: Iterable[str]) -> str:
    """Return the most similar name, or an empty string."""
    if not isinstance(name, str) or len(name) > _WIDTH:
        return ""
    import difflib

    candidates = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), candidates, n=1)
    return candidates[close[0]] if close else ""


def join_alternatives(names: Iterable[object], last: str = "or") -> str:
    """Join names as ``a, b or c``. last: the word before the last name."""
    *first, end = [str(name) for name in names]
    return f"{', '.join(first)} {last} {end}" if first else end


def item(key: str, index: int, name: object = "") -> str:
    """Return the path of an element of a list of tables, counted from 1, with its name if it is printable: ``node[2]
    (n2)``."""
    label = f" ({name})" if isinstance(name, str) and name.isprintable() and 0 < len(name) <= _WIDTH else ""
    return f"{key}[{index + 1}]{label}"


def below(path: str, key: str) -> str:
    """Return the path of a key in the table at a path; either may be empty."""
    return f"{path}.{key}" if path and key else path or key


def translate(mistake: Mistake, path: str, raw: object, known: Sequence[str] = ()) -> Problem:
    """Convert a mistake to a Problem.

    path: path of the validated element. raw: the element. known: the valid keys at its top level, if they differ from the
    element's.
    """
    location = mistake.location
    if mistake.known is not None:
        names = known if known and len(location) == 1 else mistake.known
        key = str(location[-1])
        expected = f"one of the keys {join_alternatives(names)}"
        return Problem(
            _path(path, location[:-1], raw), f"unknown key {format_value(key)}", expected, nearest(key, names)
        )
    if mistake.is_missing:
        return Problem(_path(path, location[:-1], raw), "", f"the key {str(location[-1])!r}")
    return Problem(_path(path, location, raw), format_value(mistake.found), mistake.expected, mistake.suggestion)


def _path(path: str, location: Sequence[int | str], raw: object) -> str:
    for part in location:
        if isinstance(part, int):
            raw = raw[part] if isinstance(raw, (list, tuple)) and part < len(raw) else None
            name = raw.get("name", "") if isinstance(raw, Mapping) else ""
            path = item(path, part, name)
        elif part != "[key]":
            raw = raw.get(part) if isinstance(raw, Mapping) else None
            path = below(
                path, str(part) if str(part).isprintable() and len(str(part)) <= _WIDTH else format_value(part)
            )
    return path
