"""Parser of the templates of `frame_kinds.Kind`, for tools that describe frames and for the code generator."""

from __future__ import annotations

import re
from collections.abc import Iterator
from string import Formatter
from typing import Final

from protocols.core.frame_kinds import Kind

Piece = tuple[str, str, str]
"""Text, then a field's name and its number format; an empty name means no field."""

_OPTIONAL: Final = re.compile(r"\[([^][]*)]")


def spans(words: str) -> Iterator[tuple[tuple[Piece, ...], bool]]:
    """Yield the template's spans, and whether each is optional. Raises ValueError for unbalanced braces."""
    for number, text in enumerate(_OPTIONAL.split(words)):
        pieces = tuple([(before, name or "", how or "") for before, name, how, _ in Formatter().parse(text)])
        if pieces:
            yield pieces, bool(number % 2)


def fields_of(kind: Kind) -> Iterator[str]:
    """Yield all field names that a kind uses."""
    for pieces, _ in spans(kind.words):
        yield from (name for _, name, _ in pieces if name)
    yield from (*kind.message, *kind.within, *(field for _, field in kind.handles))
    yield from (name for name in (kind.part, kind.total) if name)
