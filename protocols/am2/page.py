"""Layout of an endpoint's page, which contains all state that NIC and host share. The page is in the NIC's memory while
the endpoint is resident, otherwise in host memory.

"Exactly one virtual memory page of backing store" (section "Endpoints"): 8 KB. A header of 1 KB is followed by four
rings of 16 entries of 112 bytes. A ring has 4 x K_user entries for the paper's four credits, "enough for four senders
at full rate". The paper defines no layout; this one is ours. The header has, at these offsets:

- 0: the endpoint's tag;
- 8: length of its segment;
- 17: flag by which the host asks to be notified of a free send slot;
- 18, 19: the NIC's positions in the receive rings, while the endpoint is not resident;
- 24, 32, 40: addresses of the regions for sent data, received data and the segment.

The first byte of an entry states its owner. The send rings have no head and tail, since packets are answered in any
order, and since withdrawn packets of an unloaded endpoint are sent again. The NIC fills each receive ring in order, and
saves its position in the header when the endpoint is unloaded. An entry's head is followed by the message in the format
of frames (`codec`: AM2Message and the arguments), so that the NIC can copy it into a frame.
"""

from __future__ import annotations

import struct
from typing import Final

SIZE: Final = 8192
RING_SIZE: Final = 16
"""Entries of a ring."""
ENTRY_SIZE: Final = 112
_HEADER_SIZE: Final = 1024

# Slots are numbered consecutively over the four rings.
REQUESTS: Final = 0
"""First slot of the requests to be sent. The next constants are the first slots of the other rings."""
REPLIES: Final = 16
ARRIVED_REQUESTS: Final = 32
ARRIVED_REPLIES: Final = 48
SLOTS: Final = 64

SLOT_OFFSETS: Final = tuple(_HEADER_SIZE + slot * ENTRY_SIZE for slot in range(SLOTS))
"""Offset of each slot's entry."""

# The first byte of an entry: its owner and state.
FREE: Final = 0
"""Owned by the writer: the host in send rings, the NIC in receive rings."""
READY: Final = 1
"""Owned by the reader. In send rings, the entry is complete. In receive rings, it is complete once its notification has
been posted: until then, the NIC may still be writing the message."""
IN_FLIGHT: Final = 2
"""Owned by the NIC, in send rings: the NIC has read the message, which is not answered yet."""
RETURNED: Final = 3
"""Owned by the host, in send rings: the message is undeliverable; the second byte is the reason
(`active_messages.am_errors.Status`)."""
ANSWERED: Final = 4
"""Owned by the host, in send rings: a bulk message is answered, and its data can be freed."""

MAX_ARGUMENTS: Final = 16

HEAD: Final = struct.Struct("!BBHIQI")
"""An entry's head: owner, status, number of the peer's NIC, bytes of data, address of the data, incarnation of the
peer's NIC. In the ring of arrived replies, a status other than 0 announces a returned message: in place of the
bytes of data, the head has the message's slot, 0 to 31, since both send rings' messages are returned there."""
MESSAGE_OFFSET: Final = 20
"""Offset of the message in an entry."""
MESSAGE_HEADER_SIZE: Final = 28
"""Bytes of the message's header, as in frames."""
ARGUMENTS_OFFSET: Final = MESSAGE_OFFSET + MESSAGE_HEADER_SIZE

_ENTRY: Final = "!BBHIQIBBBBHHQIII"
WRITE_ENTRY: Final = tuple(struct.Struct(f"{_ENTRY}{count}I").pack_into for count in range(MAX_ARGUMENTS + 1))
"""Functions that write an entry, by number of arguments. Fields: head, form, flags, handler, number of arguments,
origin, endpoint, tag, message (of a reply: the request's), offset, total, arguments."""
READ_ENTRY: Final = struct.Struct(_ENTRY).unpack_from
"""Function that reads an entry without its arguments; fields as for WRITE_ENTRY."""
READ_ARGUMENTS: Final = tuple(struct.Struct(f"!{count}I").unpack_from for count in range(MAX_ARGUMENTS + 1))
"""Functions that read an entry's arguments at their offset, by number of arguments."""
READ_SEND_ENTRY: Final = struct.Struct("!xxHIQIBBBBHH").unpack_from
"""Function that reads an entry to be sent: number of the destination's NIC, bytes of data, address of the data,
incarnation of that NIC (of a request: 0, for any), form, flags, handler, number of arguments, origin, endpoint."""
TAG: Final = struct.Struct("@Q")
"""Format in which the endpoint's tag, at the beginning of the page, lengths and addresses are read: native byte order.
They are written by `_write_word`."""
_TAG_OFFSET: Final = 0
_SEGMENT_LENGTH_OFFSET: Final = 8
NOTIFY_OFFSET: Final = 17
NEXT_REQUEST_OFFSET: Final = 18
NEXT_REPLY_OFFSET: Final = 19
_ADDRESSES_OFFSET: Final = 24


def _write_word(page: memoryview, offset: int, value: int) -> None:
    """Write 64 bits by one store, so that another process reads the old or the new value. `struct` does not: it clears
    the bytes first."""
    page[offset : offset + 8].cast("Q")[0] = value


def set_tag(page: memoryview, tag: int) -> None:
    """Write the endpoint's tag."""
    _write_word(page, _TAG_OFFSET, tag)


def segment_length(page: memoryview) -> int:
    """Read the length of the endpoint's segment in bytes; 0 if it has none."""
    length: int = TAG.unpack_from(page, _SEGMENT_LENGTH_OFFSET)[0]
    return length


def set_segment_length(page: memoryview, length: int) -> None:
    """Write the length of the endpoint's segment in bytes; 0 if it has none."""
    _write_word(page, _SEGMENT_LENGTH_OFFSET, length)


def address_of(page: memoryview, subject: int) -> int:
    """Read the address of a region, for a NIC that finds regions by address; 0: the region is not allocated yet.
    subject: SEND_STAGING, RECEIVE_STAGING or SEGMENT."""
    address: int = TAG.unpack_from(page, _ADDRESSES_OFFSET + 8 * (subject - SEND_STAGING))[0]
    return address


def set_address(page: memoryview, subject: int, address: int) -> None:
    """Write the address of a region; see `address_of`."""
    _write_word(page, _ADDRESSES_OFFSET + 8 * (subject - SEND_STAGING), address)


# Forms of a privileged endpoint's entries, in addition to those of messages. They are also the numbers of the handlers.
# In frames, the codec's FORM_LOST_REPLY and FORM_KEEPALIVE have these numbers; such frames never become entries.
PROBE: Final = 4
"""A complete frame to or from a mapper."""
ROUTES: Final = 5
"""A part of a route table; without data: a request for the table."""

# Regions: memory of an endpoint outside its page, which the NIC accesses if the host's kernel has mapped it. A region
# is named by the endpoint's number and one of these subjects, or the slot of the bulk message whose data it contains.
SEND_STAGING: Final = 64
"""Data of medium messages to be sent."""
RECEIVE_STAGING: Final = 65
"""Receive buffers for the data of medium messages."""
SEGMENT: Final = 66
"""Destination of the data of bulk messages."""

# Doorbells and notifications: the number of an endpoint or a region, and a subject.
SUBJECT_BITS: Final = 7
"""Bits of the subject, below the endpoint's number."""
SUBJECT_MASK: Final = (1 << SUBJECT_BITS) - 1

# Doorbells of the host's kernel. The doorbell of a message to be sent has its slot as the subject.
CREATE: Final = 64
"""The endpoint has been created."""
DESTROY: Final = 65
"""The endpoint has been destroyed. The NIC may use its page until it answers UNLOADED."""
LOAD: Final = 66
"""The endpoint's page is in the endpoint frame that is bound to it."""
UNLOAD: Final = 67
"""The endpoint frame is needed for another endpoint."""
RELEASED: Final = 68
"""The host no longer writes into the endpoint's page."""
MAPPED: Final = 72
"""The region is mapped now."""
ABSENT: Final = 73
"""The region does not exist."""

AWAITED: Final = 77
"""Answer to OWED: the endpoint waits for replies of a NIC. The NIC's number is above the endpoint's."""
PRIVILEGE: Final = 70
"""The endpoint is a mapper daemon's (`mapping_port`)."""

# Notifications to the host. The subject for an arrived message, or for a free send slot, is the slot.
LOADED: Final = 64
"""The endpoint is resident."""
RELEASE: Final = 67
"""The host must stop writing into the endpoint's page."""
UNLOADED: Final = 68
"""The endpoint frame is free; also for a destroyed endpoint, whether it was resident or not."""
FAULT: Final = 69
"""A message has arrived for an endpoint that is not resident, or is leaving its endpoint frame."""
UNMAPPED: Final = 74
"""The NIC needs the region, which is not mapped."""
GONE: Final = 75
"""An endpoint of another NIC no longer exists, and will not reply to requests. The number consists of the NIC's and, in
the ENDPOINT_BITS below, the endpoint's."""
ENDPOINT_BITS: Final = 16
"""Bits of the endpoint's number below the NIC's number, in GONE, AWAITED and LOST_REPLY."""
NODE_BITS: Final = 16
"""Bits of the NIC's number below the request's, in LOST_REPLY."""
REQUEST_MASK: Final = 0xFF_FFFF
"""Bits of a request's number in LOST_REPLY, so that a notification has 64 bits at most."""
LOST_REPLY: Final = 76
"""The reply to an endpoint's request was given up or refused. The number consists of the request's, the replier's NIC
and the endpoint's."""
OWED: Final = 78
"""Question: does the host wait for replies of a NIC that has sent none for long? The NIC's number is in place of the
endpoint's."""
LOST: Final = 71
"""A NIC has restarted or is unreachable, and will not reply to the requests that it has accepted. The NIC's number is
in place of the endpoint's."""

REGION_EVENTS: Final = frozenset((MAPPED, ABSENT, UNMAPPED))
"""Subjects of the doorbells and notifications whose number is a region's."""
