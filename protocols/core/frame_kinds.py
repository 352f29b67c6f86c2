"""Kinds of frames: templates that describe frames to users, and the fields that identify the message of a frame.

A protocol defines them in `frames.py`, beside its layers: KIND, the field that distinguishes the kinds of frames, and
KINDS, its values -> `Kind`. Codegen copies both to the codec, so that tools that describe frames need neither Scapy nor
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
"""Function of a frame for its message: carry it, acknowledge it or reject it; "control": none of these."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of frame.

    words: a template. Braces contain fields, shown as numbers (``{tag:#x}``) or value names; text in brackets is
    omitted if its fields are 0. message: the fields that identify the message among those from one NIC to another;
    empty if the frame does not belong to a message, or is assigned to one by its `handles` only. within: fields that
    distinguish messages with equal ids but are not shown to users as part of the id, such as a NIC's incarnation. part:
    the field for the part of the message that this frame carries or acknowledges. total: the field for the bytes of the
    whole message. back: the receiver of the message sends the frame, for example an acknowledgement. handles: pairs of
    a name and a field, for other numbers that identify a message; frames with equal numbers under one name belong
    together, until the first frame of another message reuses the number.
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
"""Text, name of the field that follows, and its number format; an empty name: no field follows."""

_OPTIONAL: Final = re.compile(r"\[([^][]*)]")


def spans(words: str) -> Iterator[tuple[tuple[FormatField, ...], bool]]:
    """Yield the spans of a template, and whether each is optional. Raises ValueError for unbalanced braces."""
    for index, text in enumerate(_OPTIONAL.split(words)):
        fields = tuple([(before, name or "", spec or "") for before, name, spec, _ in Formatter().parse(text)])
        if fields:
            yield fields, bool(index % 2)


def fields_of(kind: Kind) -> Iterator[str]:
    """Yield the names of all fields that a kind uses."""
    for fields, _ in spans(kind.words):
        yield from (name for _, name, _ in fields if name)
    yield from (*kind.message, *kind.within, *(field for _, field in kind.handles))
    yield from (name for name in (kind.part, kind.total) if name)
