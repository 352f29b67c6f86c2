"""An endpoint's page: all of its state that NIC and host share, in the NIC's memory while it is resident, else in the
host's.

"Exactly one virtual memory page of backing store" (section "Endpoints"): 8 KB. A header of 1 KB, then four rings of 16
entries of 112 bytes: 4 x K_user with the paper's four credits, "enough for four senders at full rate". The paper has no
layout; this one is ours.

An entry is owned by whoever its first byte says; that, not a head and a tail, since packets are answered in any order,
and since what an unloaded endpoint takes back is to be sent again. Behind the entry's own head it has the message as
frames have it (`codec`: AM2Message and the arguments), so that what the host has written once is written by nobody
again."""

from __future__ import annotations

import struct
from typing import Final

SIZE: Final = 8192
ENTRIES: Final = 16
ENTRY: Final = 112
_HEADER: Final = 1024

# Slots are numbered through the four rings.
REQUESTS: Final = 0
"""The first slot of the requests to be sent; then those of the other rings."""
REPLIES: Final = 16
ARRIVED_REQUESTS: Final = 32
ARRIVED_REPLIES: Final = 48
SLOTS: Final = 64

PLACES: Final = tuple(_HEADER + slot * ENTRY for slot in range(SLOTS))
"""Where a slot's entry begins."""

# The first byte of an entry.
FREE: Final = 0
"""The writer's: the host's of what is sent, the NIC's of what arrives."""
READY: Final = 1
"""The reader's: it is whole."""
UNDER_WAY: Final = 2
"""The NIC's, of what is sent: it is not answered yet."""
RETURNED: Final = 3
"""The host's, of what is sent: it could not be delivered; the second byte says why (`host.errors.Status`)."""
ANSWERED: Final = 4
"""The host's, of a bulk message that is sent: its data may be forgotten."""

MOST_ARGUMENTS: Final = 16

HEAD: Final = struct.Struct("!BBHIQI")
"""Who owns it; a status; the NIC at the other end; bytes of data; where they are; that NIC's incarnation."""
MESSAGE: Final = 20
"""Where the message begins in an entry."""
MESSAGE_HEADER: Final = 28
"""Bytes of its header, as in frames."""
ARGUMENTS: Final = MESSAGE + MESSAGE_HEADER

_ENTRY: Final = "!BBHIQIBBBBHHQIII"
WRITE: Final = tuple(struct.Struct(f"{_ENTRY}{count}I").pack_into for count in range(MOST_ARGUMENTS + 1))
"""By the number of arguments: write an entry: its head, form, flags, handler, number of arguments, origin, endpoint, tag,
message (of a reply its request's), offset, total, arguments."""
READ: Final = struct.Struct(_ENTRY).unpack_from
"""The same back, without the arguments."""
READ_ARGUMENTS: Final = tuple(struct.Struct(f"!{count}I").unpack_from for count in range(MOST_ARGUMENTS + 1))
"""From where the arguments begin."""
SENT: Final = struct.Struct("!xxHIQIBBBBHH").unpack_from
"""Of an entry to be sent: the NIC at the other end, bytes of data, where they are, that NIC's incarnation (of a request 0:
whichever it is), form, flags, handler, number of arguments, origin, endpoint."""
TAG: Final = struct.Struct("@Q")
"""At the beginning: the endpoint's tag. In the machine's own order it is written as a whole, as addresses are: else another
process could see half of one."""
_SEGMENT_AT: Final = 8
_ADDRESSES_AT: Final = 24
MASK: Final = 16
"""Where the event mask is."""
WANTS: Final = 17
"""Whether the host waits for a slot to send: then the NIC tells it of one."""


def tag_of(page: memoryview) -> int:
    """The endpoint's."""
    tag: int = TAG.unpack_from(page)[0]
    return tag


def set_tag(page: memoryview, tag: int) -> None:
    TAG.pack_into(page, 0, tag)


def segment_of(page: memoryview) -> int:
    """Bytes of the endpoint's segment, 0 if it has none."""
    length: int = TAG.unpack_from(page, _SEGMENT_AT)[0]
    return length


def set_segment(page: memoryview, length: int) -> None:
    TAG.pack_into(page, _SEGMENT_AT, length)


def address_of(page: memoryview, subject: int) -> int:
    """Where STAGED, STAGING or SEGMENT of the endpoint is, for a NIC that finds them so; 0: nowhere yet."""
    address: int = TAG.unpack_from(page, _ADDRESSES_AT + 8 * (subject - STAGED))[0]
    return address


def set_address(page: memoryview, subject: int, address: int) -> None:
    TAG.pack_into(page, _ADDRESSES_AT + 8 * (subject - STAGED), address)


# Memory of an endpoint beside its page that the NIC reaches where the host's kernel lets it: a region is the endpoint's
# number and one of these, or a slot: a bulk message's data, to be sent.
STAGED: Final = 64
"""The data of medium messages to be sent."""
STAGING: Final = 65
"""Where the data of medium messages arrives."""
SEGMENT: Final = 66
"""Where the data of bulk messages arrives."""

# What a number means by which host and NIC tell each other something: the endpoint, or for some its region, and what of it.
SUBJECTS: Final = 7
"""Bits below the endpoint's number."""
SUBJECT: Final = (1 << SUBJECTS) - 1

# From the host, beside the slots of what is to be sent: what only its kernel may say.
CREATE: Final = 64
"""There is such an endpoint now."""
DESTROY: Final = 65
"""There is none any more; its frame is free."""
LOAD: Final = 66
"""Its page is in the frame that is bound to it."""
UNLOAD: Final = 67
"""Its frame is wanted for another one."""
RELEASED: Final = 68
"""The host does not write into its page any more."""
MAPPED: Final = 72
"""Of a region: it has been made reachable."""
ABSENT: Final = 73
"""Of a region: there is none."""

# To the host, beside the slots: of what has arrived, and, if it wants one, of one that is free to send.
LOADED: Final = 64
RELEASE: Final = 67
"""It shall not write into the endpoint's page any more."""
UNLOADED: Final = 68
FAULT: Final = 69
"""A message has come for an endpoint that is not resident."""
UNMAPPED: Final = 74
"""Of a region: the NIC needs it, and cannot reach it."""
GONE: Final = 75
"""Of an endpoint of another NIC, by that one's number and its own: it is there no more, and replies to nothing that it has
been asked."""
NAMES: Final = 16
"""Bits of an endpoint's number behind its NIC's."""
RESTARTED: Final = 71
"""Of a NIC instead of an endpoint: it has started again, and knows nothing of what it was asked before."""

OF_REGIONS: Final = frozenset((MAPPED, ABSENT, UNMAPPED))
"""What is said of regions, either way."""
