"""The queueing discipline at the root of an interface: the request that sets it, and its state in a dump.

The kernel changes a discipline in place, with the frames in it, if handle and kind stay. Another kind or handle makes a
new one, and the frames queued in the old one are lost. So each kind has a handle of its own here, and a root discipline
that is to stay is never removed.

Sizes: a discipline can have a table of the bytes that a frame of each size counts (TCA_STAB). It is in the core of traffic
control, below every discipline, and implements a minimum frame, overhead and cells.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from testbed.errors import UnsupportedError
from testbed.kernel.netlink import (
    NLM_F_CREATE,
    NLM_F_REPLACE,
    NLM_F_REQUEST,
    RTM_GETQDISC,
    RTM_NEWQDISC,
    TC_H_ROOT,
    TC_MESSAGE,
    TCA_KIND,
    TCA_OPTIONS,
    TCA_STAB,
    TCA_STATS2,
    TCA_STATS_BASIC,
    TCA_STATS_PKT64,
    TCA_STATS_QUEUE,
    RouteSocket,
    attribute,
    attributes,
    message,
    text,
)
from testbed.lazy_dataclass import dataclass

TCA_STAB_BASE, TCA_STAB_DATA = 1, 2
ETHERNET: Final = 14
"""Bytes of an Ethernet header: a frame is this much longer than its MTU."""

VLAN: Final = 4
"""Bytes of a tag."""

_BASIC = struct.Struct("=QI")  # bytes, packets
_QUEUE = struct.Struct("=5I")  # qlen, backlog, drops, requeues, overlimits
_U64 = struct.Struct("=Q")
_SIZES = struct.Struct(
    "=BBhiIIII"
)  # struct tc_sizespec: logs, alignment, overhead, link layer, least size, mtu, entries
# An attribute's length is a number of 16 bits, with its header of 4 bytes; the table is nested in one with the 24 bytes of
# struct tc_sizespec; all three have a header and are padded to words. An entry has 2 bytes.
_MAX_SLOTS = (0xFFFC - 3 * 4 - 24) // 2
_MAX_ENTRY = 0xFFFF


@dataclass(frozen=True, slots=True)
class SizeTable:
    """A size table (TCA_STAB). sizes: for frames of 0, 1, 2, ... bytes, the bytes that they count against the rate."""

    sizes: tuple[int, ...]

    @property
    def encoded(self) -> bytes:
        """The payload of TCA_STAB."""
        data = struct.pack(f"={len(self.sizes)}H", *self.sizes)
        base = _SIZES.pack(0, 0, 0, 0, 0, 0, 0, len(self.sizes))
        return attribute(TCA_STAB_BASE, base) + attribute(TCA_STAB_DATA, data)


def size_table(counts: Callable[[int], int], mtu: int) -> SizeTable:
    """Make the size table of a link of this MTU, with room for a VLAN tag. counts: size -> bytes. Raises
    UnsupportedError."""
    slots = mtu + ETHERNET + VLAN + 1
    if slots > _MAX_SLOTS:
        raise UnsupportedError(
            f"the kernel's table of frame sizes has room for an MTU of {_MAX_SLOTS - ETHERNET - VLAN - 1:,} bytes at "
            f"most, and this one is {mtu:,}"
        )
    sizes = tuple(counts(size) for size in range(slots))
    if max(sizes) > _MAX_ENTRY:
        raise UnsupportedError(
            f"overhead and cells make a frame up to {max(sizes):,} bytes long, and the kernel's table of frame sizes allows "
            f"{_MAX_ENTRY:,}"
        )
    return SizeTable(sizes)


def largest_frame(mtu: int) -> int:
    """Return the bytes of a frame that fills the MTU, without a tag."""
    return mtu + ETHERNET


def request(
    index: int, kind: str, handle: int, options: bytes, *, parent: int = TC_H_ROOT, sizes: SizeTable | None = None
) -> bytes:
    """Encode the request that gives an interface this discipline, changed in place where one of this handle and kind is.

    options: the payload of TCA_OPTIONS. sizes None removes a present table.
    """
    body = TC_MESSAGE.pack(0, index, handle, parent, 0) + attribute(TCA_KIND, kind.encode() + b"\0")
    body += attribute(TCA_OPTIONS, options)
    if sizes is not None:
        body += attribute(TCA_STAB, sizes.encoded)
    return message(RTM_NEWQDISC, NLM_F_REQUEST | NLM_F_REPLACE | NLM_F_CREATE, body)


@dataclass(frozen=True, slots=True)
class Qdisc:
    """State of an interface's root discipline, as the kernel reports it.

    options: its kind's, undecoded. sized: it has a size table. frames and bytes: those that have left it. dropped: frames,
    by any cause. queued and backlog: frames and bytes that are in it now.
    """

    index: int
    kind: str
    handle: int
    options: bytes
    sized: bool
    frames: int
    bytes: int
    dropped: int
    queued: int
    backlog: int


def qdiscs(route: RouteSocket) -> dict[int, Qdisc]:
    """Read the root disciplines of a namespace by interface index, without the kernel's default ones."""
    roots = {}
    for entry in route.dump(RTM_GETQDISC, bytes(TC_MESSAGE.size)):
        _, index, handle, parent, _ = TC_MESSAGE.unpack_from(entry)
        if parent == TC_H_ROOT and handle:
            roots[index] = _qdisc(index, handle, entry)
    return roots


def _qdisc(index: int, handle: int, entry: memoryview) -> Qdisc:
    values = attributes(entry[TC_MESSAGE.size :])
    statistics = attributes(values[TCA_STATS2])
    size, frames = _BASIC.unpack_from(statistics[TCA_STATS_BASIC])
    if TCA_STATS_PKT64 in statistics:
        (frames,) = _U64.unpack_from(statistics[TCA_STATS_PKT64])
    queued, backlog, dropped, _, _ = _QUEUE.unpack_from(statistics[TCA_STATS_QUEUE])
    kind, options, sized = text(values[TCA_KIND]), bytes(values.get(TCA_OPTIONS, b"")), TCA_STAB in values
    return Qdisc(index, kind, handle, options, sized, frames, size, dropped, queued, backlog)
