"""The words of a `telling.Kind`, read: for those who tell of frames, and for what makes codecs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from string import Formatter
from typing import Final

from protocols.core.telling import Kind

Piece = tuple[str, str, str]
"""Text, then a field's name and how its number is written; an empty name is none."""

_OPTIONAL: Final = re.compile(r"\[([^][]*)]")


def spans(words: str) -> Iterator[tuple[tuple[Piece, ...], bool]]:
    """The words' spans, and whether they may be left out. Raises ValueError for braces that are not closed."""
    for number, text in enumerate(_OPTIONAL.split(words)):
        pieces = tuple([(before, name or "", how or "") for before, name, how, _ in Formatter().parse(text)])
        if pieces:
            yield pieces, bool(number % 2)


def fields_of(kind: Kind) -> Iterator[str]:
    """All that a kind names."""
    for pieces, _ in spans(kind.words):
        yield from (name for _, name, _ in pieces if name)
    yield from (*kind.message, *kind.within, *(field for _, field in kind.handles))
    yield from (name for name in (kind.part, kind.total) if name)
