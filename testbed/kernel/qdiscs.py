"""The qdisc at the root of an interface: the request that sets it, and its state in a dump.

The kernel changes a qdisc in place, and keeps its frames, if kind and handle stay. A new kind or handle replaces the qdisc,
and the frames queued in the old one are lost. So each kind has a handle of its own here, and a root qdisc that is to stay is
never removed.

A qdisc can have a size table (TCA_STAB): the bytes that a frame of each size counts against the rate. The core of traffic
control applies it for every kind of qdisc. It implements a minimum frame, overhead and cells.
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
ETHERNET_HEADER: Final = 14
"""Bytes of an Ethernet header, which the MTU does not include."""

VLAN_TAG: Final = 4
"""Bytes of a VLAN tag."""

_BASIC = struct.Struct("=QI")  # bytes, packets
_QUEUE = struct.Struct("=5I")  # qlen, backlog, drops, requeues, overlimits
_U64 = struct.Struct("=Q")
# struct tc_sizespec: logs, alignment, overhead, link layer, least size, mtu, entries
_SIZES = struct.Struct("=BBhiIIII")
# The 16-bit length of TCA_STAB includes three attribute headers (its own, those of struct tc_sizespec and of the table) of
# 4 bytes, the 24 bytes of struct tc_sizespec and the table, with 2 bytes for each size. All are padded to 4 bytes.
_MAX_SLOTS = (0xFFFC - 3 * 4 - 24) // 2
_MAX_ENTRY = 0xFFFF


@dataclass(frozen=True, slots=True)
class SizeTable:
    """A size table (TCA_STAB). sizes: the bytes that frames of 0, 1, 2, ... bytes count against the rate."""

    sizes: tuple[int, ...]

    @property
    def encoded(self) -> bytes:
        """The payload of TCA_STAB."""
        data = struct.pack(f"={len(self.sizes)}H", *self.sizes)
        base = _SIZES.pack(0, 0, 0, 0, 0, 0, 0, len(self.sizes))
        return attribute(TCA_STAB_BASE, base) + attribute(TCA_STAB_DATA, data)


def size_table(counts: Callable[[int], int], mtu: int) -> SizeTable:
    """Make the size table of a link with this MTU, with room for a VLAN tag.

    counts: maps the size of a frame to the bytes that it counts. Raises UnsupportedError if the kernel's table is too small.
    """
    slots = mtu + ETHERNET_HEADER + VLAN_TAG + 1
    if slots > _MAX_SLOTS:
        raise UnsupportedError(
            f"the kernel's size table allows an MTU of at most {_MAX_SLOTS - ETHERNET_HEADER - VLAN_TAG - 1:,} bytes, got "
            f"{mtu:,}"
        )
    sizes = tuple(counts(size) for size in range(slots))
    if max(sizes) > _MAX_ENTRY:
        raise UnsupportedError(
            f"overhead and cells make a frame count up to {max(sizes):,} bytes, and the kernel's size table allows at most "
            f"{_MAX_ENTRY:,}"
        )
    return SizeTable(sizes)


def largest_frame(mtu: int) -> int:
    """Return the size in bytes of an untagged frame that fills the MTU."""
    return mtu + ETHERNET_HEADER


def request(
    index: int, kind: str, handle: int, options: bytes, *, parent: int = TC_H_ROOT, sizes: SizeTable | None = None
) -> bytes:
    """Encode the request that sets an interface's qdisc. A qdisc of this kind and handle is changed in place.

    options: the payload of TCA_OPTIONS. parent: TC_H_ROOT or the handle of a class. sizes: None removes a present table.
    """
    body = TC_MESSAGE.pack(0, index, handle, parent, 0) + attribute(TCA_KIND, kind.encode() + b"\0")
    body += attribute(TCA_OPTIONS, options)
    if sizes is not None:
        body += attribute(TCA_STAB, sizes.encoded)
    return message(RTM_NEWQDISC, NLM_F_REQUEST | NLM_F_REPLACE | NLM_F_CREATE, body)


@dataclass(frozen=True, slots=True)
class Qdisc:
    """State of an interface's root qdisc, as the kernel reports it.

    options: the payload of TCA_OPTIONS. frames, bytes: numbers of frames and bytes that have left it. dropped: number of
    frames that it has dropped, for any cause. queued, backlog: numbers of frames and bytes that are in it now.
    """

    index: int
    kind: str
    handle: int
    options: bytes
    has_size_table: bool
    frames: int
    bytes: int
    dropped: int
    queued: int
    backlog: int


def qdiscs(route: RouteSocket) -> dict[int, Qdisc]:
    """Read the root qdiscs of a namespace, by interface index, without the kernel's default qdiscs."""
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
    kind, options = text(values[TCA_KIND]), bytes(values.get(TCA_OPTIONS, b""))
    return Qdisc(index, kind, handle, options, TCA_STAB in values, frames, size, dropped, queued, backlog)
