"""How a protocol's frames are described to users: wording for each kind of frame, and how frames of one message are
found.

A protocol defines it beside its layers, in `frames.py`: KIND, the field that distinguishes the kinds of frames, and
KINDS, its value -> a `Kind`. Both are copied into the codec, so that tools that describe frames need neither Scapy nor
the protocol's code:

    KIND = "type"
    KINDS = {
        DATA: Kind("data", "MINE DATA[ {flags}] message {id} part {part}, {length} bytes", message=("id",), part="part"),
        ACK: Kind("ack", "MINE ACK message {id} part {part}", message=("id",), part="part", back=True),
    }
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from string import Formatter
from typing import Final, Literal

Role = Literal["data", "ack", "nack", "control"]
"""A frame's function for its message: carry it, acknowledge it, refuse it, or something else."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of frame.

    words: a template. Braces hold fields, as numbers (``{tag:#x}``) or value names; text in brackets is left out where
    its fields are 0. message: the fields that form the message's id among those from one NIC to another; empty if the
    frame belongs to no message, or only `handles` tell which. within: fields that distinguish messages with equal ids
    but are not shown to users as part of the id, such as a NIC's incarnation. part: the field for the piece of the
    message that this frame carries or acknowledges. total: the field for the bytes of the whole message. back: the
    frame travels against its message, as acknowledgements do. handles: pairs of a name and a field, for other numbers
    that identify a message; frames with equal numbers under one name belong together, until a message's first frame
    assigns the number anew.
    """

    role: Role
    words: str
    message: tuple[str, ...] = ()
    within: tuple[str, ...] = ()
    part: str = ""
    total: str = ""
    back: bool = False
    handles: tuple[tuple[str, str], ...] = ()


FormatField = tuple[str, str, str]
"""Text, then a field's name and its number format; an empty name means no field."""

_OPTIONAL: Final = re.compile(r"\[([^][]*)]")


def spans(words: str) -> Iterator[tuple[tuple[FormatField, ...], bool]]:
    """Yield the template's spans, and whether each is optional. Raises ValueError for unbalanced braces."""
    for number, text in enumerate(_OPTIONAL.split(words)):
        fields = tuple([(before, name or "", how or "") for before, name, how, _ in Formatter().parse(text)])
        if fields:
            yield fields, bool(number % 2)


def fields_of(kind: Kind) -> Iterator[str]:
    """Yield all field names that a kind uses."""
    for fields, _ in spans(kind.words):
        yield from (name for _, name, _ in fields if name)
    yield from (*kind.message, *kind.within, *(field for _, field in kind.handles))
    yield from (name for name in (kind.part, kind.total) if name)
