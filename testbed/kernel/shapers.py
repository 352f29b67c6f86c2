"""TBF: the rate of one direction of a link on a kernel without netem.

A token bucket differs from a wire: after a pause it passes as many bytes at once as the bucket holds, and only frames that
find too few tokens wait. Over a long time, the rate is exact. HTB is a token bucket with classes, which a direction does not
need.

The bucket must hold the largest frame, and the bytes that the rate allows while the kernel's timer is late: otherwise tokens
are lost, and the rate is not reached. A larger bucket allows longer bursts.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Final

from testbed.errors import UnsupportedError
from testbed.fabric.wire_time import NS_PER_SECOND, default_queue, wire_size
from testbed.kernel import qdiscs
from testbed.kernel.netlink import attribute, attributes
from testbed.kernel.qdiscs import SizeTable, largest_frame, size_table
from testbed.spec.layout import Impairment

KIND: Final = "tbf"
HANDLE: Final = 0x0002_0000
"""Differs from netem's handle, since a qdisc cannot be changed into one of another kind."""

LATENESS: Final = 1_000_000
"""Lateness of the kernel's timer, in nanoseconds, up to which no tokens are lost."""

TCA_TBF_PARMS, TCA_TBF_RATE64, TCA_TBF_BURST = 1, 4, 6
TC_LINKLAYER_ETHERNET = 1

_RATESPEC = struct.Struct("=BBHhHI")  # cell log, link layer, overhead, cell align, minimum, rate
_QOPT_TAIL = struct.Struct("=III")  # limit, buffer, mtu; after the two ratespecs
_U32 = struct.Struct("=I")
_U64 = struct.Struct("=Q")
_U32_MAX = 0xFFFF_FFFF
_TICK = 6  # PSCHED_SHIFT: the kernel reports times in units of 64 ns


@dataclass(frozen=True, slots=True)
class Options:
    """Options that TBF takes or reports.

    rate: bytes/s. burst: size of the bucket, bytes. limit: limit of the queue, in frames if `in_frames`, else in bytes.
    sizes: the size table, if any. The kernel reports neither `in_frames` nor `sizes`.
    """

    rate: int
    burst: int
    limit: int
    in_frames: bool = False
    sizes: SizeTable | None = None

    def matches(self, report: Options) -> bool:
        """Whether reported options are those of a qdisc with these options. The kernel reports the burst as a time, in
        32 bits and units of 64 ns: a burst that does not fit is not compared."""
        fits = self.burst * NS_PER_SECOND // self.rate >> _TICK <= _U32_MAX
        step = -(-self.rate * (2 << _TICK) // NS_PER_SECOND) + 1
        if fits and abs(report.burst - self.burst) > step:
            return False
        return replace(report, burst=0) == replace(self, burst=0, in_frames=False, sizes=None)


def burst_of(impairment: Impairment, mtu: int) -> int:
    """Return the size of the bucket in bytes: the largest frame, plus the bytes that the rate allows in `LATENESS`."""
    return wire_size(impairment, largest_frame(mtu) + qdiscs.VLAN_TAG) + impairment.rate * LATENESS // (
        8 * NS_PER_SECOND
    )


def options_of(impairment: Impairment, *, mtu: int) -> Options:
    """Convert an impairment's rate to TBF's options. mtu: of the link.

    With a minimum frame, overhead or cells, a queue in bytes counts bytes on the wire. Raises UnsupportedError for
    sizes that the kernel cannot represent.
    """
    if not impairment.rate:
        raise ValueError("an impairment without a rate needs no shaper")
    shaped = impairment.minimum_frame or impairment.overhead or impairment.cell_size
    queue = impairment.queue_frames or impairment.queue or default_queue(impairment.rate, 0)
    burst = burst_of(impairment, mtu)
    if burst > _U32_MAX or queue > _U32_MAX:
        raise UnsupportedError(f"TBF's bucket and queue hold {_U32_MAX:,} bytes at most")
    return Options(
        rate=max(round(impairment.rate / 8), 1),
        burst=burst,
        limit=queue,
        in_frames=bool(impairment.queue_frames),
        sizes=size_table(lambda size: wire_size(impairment, size), mtu) if shaped else None,
    )


def requests(index: int, options: Options, before: Options | None = None) -> list[bytes]:
    """Encode the requests that set an interface's TBF options. A TBF with this handle is changed in place and keeps its
    queue.

    before: the options in force, if any. If their limit is in the other unit (frames or bytes), the queue is replaced
    and its frames are lost: TBF itself has a queue in bytes, and a queue in frames is a pfifo below it.
    """
    rate = _RATESPEC.pack(0, TC_LINKLAYER_ETHERNET, 0, 0, 0, min(options.rate, _U32_MAX))
    encoded = attribute(TCA_TBF_PARMS, rate + bytes(_RATESPEC.size) + _QOPT_TAIL.pack(options.limit, 0, 0))
    encoded += attribute(TCA_TBF_BURST, _U32.pack(options.burst))
    if options.rate > _U32_MAX:
        encoded += attribute(TCA_TBF_RATE64, _U64.pack(options.rate))
    messages = [qdiscs.request(index, KIND, HANDLE, encoded, sizes=options.sizes)]
    if options.in_frames or (before is not None and before.in_frames):
        # TBF sets the limit of the FIFO below it, in that FIFO's unit.
        kind = "pfifo" if options.in_frames else "bfifo"
        handle = HANDLE + (0x1_0000 if options.in_frames else 0x2_0000)
        messages.append(qdiscs.request(index, kind, handle, _U32.pack(options.limit), parent=HANDLE | 1))
    return messages


def decode(raw: bytes) -> Options:
    """Decode options from the payload of TCA_OPTIONS in a dump. The burst has the kernel's precision."""
    attributes_by_type = attributes(memoryview(raw))
    *_, rate = _RATESPEC.unpack_from(attributes_by_type[TCA_TBF_PARMS])
    limit, buffer, _ = _QOPT_TAIL.unpack_from(attributes_by_type[TCA_TBF_PARMS], 2 * _RATESPEC.size)
    if TCA_TBF_RATE64 in attributes_by_type:
        rate = max(rate, *_U64.unpack_from(attributes_by_type[TCA_TBF_RATE64]))
    return Options(rate, round((buffer << _TICK) * rate / NS_PER_SECOND), limit)
