"""The queueing discipline at the root of an interface: the request that sets it, and its state in a dump.

The kernel changes a discipline in place, with the frames in it, if handle and kind stay. Another handle, or none, makes
a new one, and the frames queued in the old one are lost. So each kind has a handle of its own here, and a root discipline
that is to stay is never removed.

Sizes: a discipline can have a table of the bytes that a frame of each size counts (TCA_STAB). It is in the core of traffic
control, below every discipline, and implements a minimum frame, overhead and cells.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pyroute2.netlink import nla, nlmsg

from testbed.errors import UnsupportedError
from testbed.kernel.netlink import RouteSocket, attributes

RTM_NEWQDISC, RTM_GETQDISC = 36, 38
NLM_F_REQUEST, NLM_F_REPLACE, NLM_F_CREATE = 0x1, 0x100, 0x400
NLM_F_REQUEST_DUMP = 0x301
TC_H_ROOT = 0xFFFF_FFFF
TCA_KIND, TCA_OPTIONS, TCA_STATS2, TCA_STAB = 1, 2, 7, 8
TCA_STATS_BASIC, TCA_STATS_QUEUE, TCA_STATS_PKT64 = 1, 3, 8
TC_LINKLAYER_UNAWARE = 0

ETHERNET: Final = 14
"""Bytes of an Ethernet header: a frame is this much longer than its MTU."""

VLAN: Final = 4
"""Bytes of a tag."""

_HEADER = struct.Struct("=IHHII")
_QDISC = struct.Struct("=BxxxiIII")  # family, index, handle, parent, info
_BASIC = struct.Struct("=QI")  # bytes, packets
_QUEUE = struct.Struct("=5I")  # qlen, backlog, drops, requeues, overlimits
_U64 = struct.Struct("=Q")

# An attribute's length is a number of 16 bits, with its header of 4 bytes; the table stands in one with the 24 bytes of
# struct tc_sizespec, all three with a header and filled up to words. An entry has 2 bytes.
_MAX_SLOTS = (0xFFFC - 3 * 4 - 24) // 2
_LARGEST_ENTRY = 0xFFFF


class QdiscMessage(nlmsg):  # type: ignore[misc]  # pyroute2 is not typed
    """struct tcmsg and its attributes, with the table of sizes. A kind's own message adds its options.

    No subclass of pyroute2's tcmsg: a class whose parent has encoded a message uses the parent's attributes for its own.
    """

    fields = (
        ("family", "B"),
        ("pad1", "B"),
        ("pad2", "H"),
        ("index", "i"),
        ("handle", "I"),
        ("parent", "I"),
        ("info", "I"),
    )
    nla_map = (
        ("TCA_UNSPEC", "none"),
        ("TCA_KIND", "asciiz"),
        ("TCA_OPTIONS", "options"),
        ("TCA_STATS", "none"),
        ("TCA_XSTATS", "none"),
        ("TCA_RATE", "none"),
        ("TCA_FCNT", "none"),
        ("TCA_STATS2", "none"),
        ("TCA_STAB", "stab"),
    )

    class options(nla):  # type: ignore[misc]  # noqa: N801  pyroute2 finds it by this name
        """Options of a kind that has none."""

    class stab(nla):  # type: ignore[misc]  # noqa: N801
        nla_map = (("TCA_STAB_UNSPEC", "none"), ("TCA_STAB_BASE", "base"), ("TCA_STAB_DATA", "cdata"))

        class base(nla):  # type: ignore[misc]  # noqa: N801
            """struct tc_sizespec."""

            fields = (
                ("cell_log", "B"),
                ("size_log", "B"),
                ("cell_align", "h"),
                ("overhead", "i"),
                ("linklayer", "I"),
                ("mpu", "I"),
                ("mtu", "I"),
                ("tsize", "I"),
            )


class FifoMessage(QdiscMessage):
    """pfifo, whose limit is in frames, and bfifo, in bytes."""

    class options(nla):  # type: ignore[misc]  # noqa: N801
        fields = (("limit", "I"),)


@dataclass(frozen=True, slots=True)
class SizeTable:
    """Bytes that frames of 0, 1, 2, ... bytes count."""

    sizes: tuple[int, ...]

    @property
    def attribute(self) -> tuple[str, object]:
        base = {"linklayer": TC_LINKLAYER_UNAWARE, "tsize": len(self.sizes)}
        data = struct.pack(f"={len(self.sizes)}H", *self.sizes)
        return "TCA_STAB", {"attrs": [("TCA_STAB_BASE", base), ("TCA_STAB_DATA", data)]}


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
    if max(sizes) > _LARGEST_ENTRY:
        raise UnsupportedError(
            f"in the kernel's table of frame sizes a frame counts {_LARGEST_ENTRY:,} bytes at most, and on this link up "
            f"to {max(sizes):,}"
        )
    return SizeTable(sizes)


def largest_frame(mtu: int) -> int:
    """Return the bytes of a frame that fills the MTU, without a tag."""
    return mtu + ETHERNET


def request(
    layer: type[QdiscMessage],
    index: int,
    kind: str,
    handle: int,
    options: Mapping[str, object],
    *,
    parent: int = TC_H_ROOT,
    sizes: SizeTable | None = None,
    create: bool = True,
) -> bytes:
    """Encode the request that gives an interface this discipline, changed in place where one of this handle and kind is.

    create False: refused (ENOENT) where there is none to change. sizes None removes a present table.
    """
    message = layer()
    message["header"]["type"] = RTM_NEWQDISC
    message["header"]["flags"] = NLM_F_REQUEST | NLM_F_REPLACE | (NLM_F_CREATE if create else 0)
    message["index"] = index
    message["handle"] = handle
    message["parent"] = parent
    message["attrs"] = [("TCA_KIND", kind), ("TCA_OPTIONS", options)]
    if sizes is not None:
        message["attrs"].append(sizes.attribute)
    message.encode()
    return bytes(message.data)


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
    requeued: int


def qdiscs(route: RouteSocket) -> dict[int, Qdisc]:
    """Read the root disciplines of a namespace by interface index, without the kernel's default ones."""
    body = _QDISC.pack(0, 0, 0, 0, 0)
    dump = route.dump(_HEADER.pack(_HEADER.size + len(body), RTM_GETQDISC, NLM_F_REQUEST_DUMP, 1, 0) + body)
    roots = {}
    for entry in dump:
        _, index, handle, parent, _ = _QDISC.unpack_from(entry)
        if parent == TC_H_ROOT and handle:
            roots[index] = _qdisc(index, handle, entry)
    return roots


def _qdisc(index: int, handle: int, entry: memoryview) -> Qdisc:
    kind, options, sized = "", b"", False
    frames = size = dropped = queued = backlog = requeued = 0
    for attribute, value in attributes(entry[_QDISC.size :]):
        if attribute == TCA_KIND:
            kind = bytes(value).rstrip(b"\0").decode()
        elif attribute == TCA_OPTIONS:
            options = bytes(value)
        elif attribute == TCA_STAB:
            sized = True
        elif attribute == TCA_STATS2:
            for statistic, numbers in attributes(value):
                if statistic == TCA_STATS_BASIC:
                    size, frames32 = _BASIC.unpack_from(numbers)
                    frames = max(frames, frames32)
                elif statistic == TCA_STATS_PKT64:
                    (frames,) = _U64.unpack_from(numbers)
                elif statistic == TCA_STATS_QUEUE:
                    queued, backlog, dropped, requeued, _ = _QUEUE.unpack_from(numbers)
    return Qdisc(index, kind, handle, options, sized, frames, size, dropped, queued, backlog, requeued)
