"""An endpoint's page: all state that NIC and host share; in the NIC's memory while the endpoint is resident, otherwise
in the host's.

"Exactly one virtual memory page of backing store" (section "Endpoints"): 8 KB. A header of 1 KB, then four rings of 16
entries of 112 bytes: 4 x K_user with the paper's four credits, "enough for four senders at full rate". The paper
defines no layout; this one is ours.

The first byte of an entry states its owner. Rings have no head and tail, since packets are answered in any order, and
since an unloaded endpoint's packets that were taken back are sent again. Behind the entry's head is the message in the
format of frames (`codec`: AM2Message and the arguments), so that what the host has written once is not rewritten.
"""

from __future__ import annotations

import struct
from typing import Final

SIZE: Final = 8192
ENTRIES: Final = 16
ENTRY: Final = 112
_HEADER: Final = 1024

# Slots are numbered consecutively over the four rings.
REQUESTS: Final = 0
"""First slot of the requests to be sent; those of the other rings follow."""
REPLIES: Final = 16
ARRIVED_REQUESTS: Final = 32
ARRIVED_REPLIES: Final = 48
SLOTS: Final = 64

PLACES: Final = tuple(_HEADER + slot * ENTRY for slot in range(SLOTS))
"""Offset of each slot's entry."""

# The first byte of an entry: its owner and state.
FREE: Final = 0
"""Owned by the writer: the host in send rings, the NIC in receive rings."""
READY: Final = 1
"""Owned by the reader: the entry is complete."""
UNDER_WAY: Final = 2
"""Owned by the NIC, in send rings: not answered yet."""
RETURNED: Final = 3
"""Owned by the host, in send rings: undeliverable; the second byte is the reason (`active_messages.am_errors.Status`)."""
ANSWERED: Final = 4
"""Owned by the host, for a bulk message in a send ring: its data can be freed."""

MAX_ARGUMENTS: Final = 16

HEAD: Final = struct.Struct("!BBHIQI")
"""An entry's head: owner, status, NIC at the other end, bytes of data, their address, that NIC's incarnation."""
MESSAGE: Final = 20
"""Offset of the message in an entry."""
MESSAGE_HEADER: Final = 28
"""Bytes of its header, as in frames."""
ARGUMENTS: Final = MESSAGE + MESSAGE_HEADER

_ENTRY: Final = "!BBHIQIBBBBHHQIII"
WRITE: Final = tuple(struct.Struct(f"{_ENTRY}{count}I").pack_into for count in range(MAX_ARGUMENTS + 1))
"""Writers of an entry, by number of arguments: head, form, flags, handler, number of arguments, origin, endpoint, tag,
message (for a reply, its request's), offset, total, arguments."""
READ: Final = struct.Struct(_ENTRY).unpack_from
"""Read an entry without its arguments; fields as for WRITE."""
READ_ARGUMENTS: Final = tuple(struct.Struct(f"!{count}I").unpack_from for count in range(MAX_ARGUMENTS + 1))
"""Readers of the arguments, by their number, from the first argument's offset."""
SENT: Final = struct.Struct("!xxHIQIBBBBHH").unpack_from
"""Read an entry to be sent: NIC at the other end, bytes of data, their address, that NIC's incarnation (for a request
0: any), form, flags, handler, number of arguments, origin, endpoint."""
TAG: Final = struct.Struct("@Q")
"""The endpoint's tag, at the beginning of the page. Like addresses it is in native byte order, so that it is written
atomically: otherwise another process could read half of it."""
_SEGMENT_AT: Final = 8
_ADDRESSES_AT: Final = 24
MASK: Final = 16
"""Offset of the event mask."""
WANTS: Final = 17
"""Offset of the flag by which the host asks to be notified of a free send slot."""


def tag_of(page: memoryview) -> int:
    """Read the endpoint's tag."""
    tag: int = TAG.unpack_from(page)[0]
    return tag


def set_tag(page: memoryview, tag: int) -> None:
    TAG.pack_into(page, 0, tag)


def segment_of(page: memoryview) -> int:
    """Read the size of the endpoint's segment in bytes, 0 if it has none."""
    length: int = TAG.unpack_from(page, _SEGMENT_AT)[0]
    return length


def set_segment(page: memoryview, length: int) -> None:
    TAG.pack_into(page, _SEGMENT_AT, length)


def address_of(page: memoryview, subject: int) -> int:
    """Read the address of STAGED, STAGING or SEGMENT, for a NIC that finds regions by address; 0: not allocated yet."""
    address: int = TAG.unpack_from(page, _ADDRESSES_AT + 8 * (subject - STAGED))[0]
    return address


def set_address(page: memoryview, subject: int, address: int) -> None:
    TAG.pack_into(page, _ADDRESSES_AT + 8 * (subject - STAGED), address)


# Forms of the entries of a privileged endpoint, beside those of messages; also the numbers of their handlers.
PROBE: Final = 4
"""A complete frame of the mappers'."""
ROUTES: Final = 5
"""A part of a route table; without data: a request for the table."""

# Memory of an endpoint outside its page, which the NIC reaches if the host's kernel has mapped it. A region is the
# endpoint's number and one of these, or a slot: the data of a bulk message to be sent.
STAGED: Final = 64
"""Data of medium messages to be sent."""
STAGING: Final = 65
"""Receive buffers for the data of medium messages."""
SEGMENT: Final = 66
"""Destination of the data of bulk messages."""

# Doorbells and notifications: an endpoint's number, or for some a region, and a subject.
SUBJECTS: Final = 7
"""Bits below the endpoint's number."""
SUBJECT: Final = (1 << SUBJECTS) - 1

# Doorbells beside the slots of messages to be sent; only the host's kernel may ring them.
CREATE: Final = 64
"""The endpoint has been created."""
DESTROY: Final = 65
"""The endpoint has been destroyed; its frame is free."""
LOAD: Final = 66
"""The endpoint's page is in the frame that is bound to it."""
UNLOAD: Final = 67
"""The endpoint's frame is wanted for another one."""
RELEASED: Final = 68
"""The host no longer writes into the endpoint's page."""
MAPPED: Final = 72
"""The region can be reached now."""
ABSENT: Final = 73
"""The region does not exist."""

PRIVILEGE: Final = 70
"""The endpoint is a mapper daemon's (`mapping_port`)."""

# Notifications to the host, beside the slots: a message has arrived, or a send slot that it waits for is free.
LOADED: Final = 64
RELEASE: Final = 67
"""The host must stop writing into the endpoint's page."""
UNLOADED: Final = 68
FAULT: Final = 69
"""A message has arrived for an endpoint that is not resident."""
UNMAPPED: Final = 74
"""The NIC needs the region, and cannot reach it."""
GONE: Final = 75
"""An endpoint of another NIC, named by that NIC's number and its own, no longer exists and will not reply to requests."""
NAMES: Final = 16
"""Bits of an endpoint's number below its NIC's."""
RESTARTED: Final = 71
"""A NIC, named instead of an endpoint, has restarted and has lost all requests."""

OF_REGIONS: Final = frozenset((MAPPED, ABSENT, UNMAPPED))
"""The subjects that are about regions, in either direction."""
