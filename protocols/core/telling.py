"""How a protocol's frames are told of to people: a sort of frames in words, and what belongs together to one message.

A protocol says it beside its layers, in `frames.py`, as KIND, the field that tells the sorts of frames apart, and KINDS,
its value -> a `Kind`. Both go into the codec, so that whoever tells of frames needs neither Scapy nor the protocol's code:

    KIND = "type"
    KINDS = {
        DATA: Kind("data", "MINE DATA[ {flags}] message {id} part {part}, {length} bytes", message=("id",), part="part"),
        ACK: Kind("ack", "MINE ACK message {id} part {part}", message=("id",), part="part", back=True),
    }
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["data", "ack", "nack", "control"]
"""What a frame does for its message: carries it, says that it has come, says that it has not, or another thing."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One sort of frames.

    words: in braces fields, as numbers (``{tag:#x}``), or as what their values are called; in brackets what is left out
    where its fields are 0. message: the fields that are the message's id among those from one NIC to another; none: the
    frame is no message's, or only `handles` say which. within: fields that tell messages of one id apart, but are no part
    of it for people, such as a NIC's incarnation. part: the field that says which piece of the message this is, or which
    one is acknowledged. total: the field for the bytes of the whole message. back: the frame goes against its message, as
    acknowledgements do. handles: pairs of a name and a field: other numbers by which frames mean a message; those with the
    same number under the same name belong together, until a message's first frame gives it away anew.
    """

    role: Role
    words: str
    message: tuple[str, ...] = ()
    within: tuple[str, ...] = ()
    part: str = ""
    total: str = ""
    back: bool = False
    handles: tuple[tuple[str, str], ...] = ()
