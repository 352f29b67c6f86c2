"""TBF: the rate of a link's direction where the kernel has no netem.

A token bucket is not a wire: after a pause it lets as many bytes through at once as the bucket holds, a first frame takes
no time, and only a frame that finds the bucket empty waits. Over a long time the rate is exact. HTB is the same bucket
with classes around it, which a link's direction has no use for.

The bucket's size is a choice between two errors. It must hold the largest frame; and it must hold what comes at the rate
while the kernel's timer is late, or those tokens are lost and the rate is missed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Final

from pyroute2.netlink import nla

from testbed.errors import UnsupportedError
from testbed.kernel import qdiscs
from testbed.kernel.netlink import attributes
from testbed.kernel.qdiscs import FifoMessage, Qdisc, QdiscMessage, SizeTable, largest_frame, size_table
from testbed.spec.layout import Impairment
from testbed.wire.serialising import SECOND, default_queue, wire_size

KIND: Final = "tbf"
HANDLE: Final = 0x0002_0000
"""Another than netem's: a discipline cannot be changed into one of another kind."""

LATENESS: Final = 1_000_000
"""Nanoseconds that a timer of the kernel may be late without loss of tokens."""

TCA_TBF_PARMS, TCA_TBF_RATE64, TCA_TBF_BURST = 1, 4, 6
TC_LINKLAYER_ETHERNET = 1

_RATESPEC = struct.Struct("=BBHhHI")  # cell log, link layer, overhead, cell align, minimum, rate
_REST = struct.Struct("=III")  # limit, buffer, mtu; behind two ratespecs
_FIFO = struct.Struct("=I")
_U64 = struct.Struct("=Q")
_MOST = 0xFFFF_FFFF
_TICK = 6  # PSCHED_SHIFT: the kernel reports times in 64 ns


class _Message(QdiscMessage):
    class options(nla):  # type: ignore[misc]  # noqa: N801  pyroute2 finds it by this name
        nla_map = (
            ("TCA_TBF_UNSPEC", "none"),
            ("TCA_TBF_PARMS", "parms"),
            ("TCA_TBF_RTAB", "none"),
            ("TCA_TBF_PTAB", "none"),
            ("TCA_TBF_RATE64", "uint64"),
            ("TCA_TBF_PRATE64", "uint64"),
            ("TCA_TBF_BURST", "uint32"),
            ("TCA_TBF_PBURST", "uint32"),
        )

        class parms(nla):  # type: ignore[misc]  # noqa: N801
            """struct tc_tbf_qopt."""

            fields = (
                ("rate_cell_log", "B"),
                ("rate_linklayer", "B"),
                ("rate_overhead", "H"),
                ("rate_cell_align", "h"),
                ("rate_mpu", "H"),
                ("rate", "I"),
                ("peak_cell_log", "B"),
                ("peak_linklayer", "B"),
                ("peak_overhead", "H"),
                ("peak_cell_align", "h"),
                ("peak_mpu", "H"),
                ("peak", "I"),
                ("limit", "I"),
                ("buffer", "I"),
                ("mtu", "I"),
            )


@dataclass(frozen=True, slots=True)
class Options:
    """What TBF is told, or reports. rate: bytes/s. burst: bytes in the bucket. limit: what may wait, in bytes, or in
    frames if in_frames. sizes: what frames count; neither is reported."""

    rate: int
    burst: int
    limit: int
    in_frames: bool = False
    sizes: SizeTable | None = None

    def matches(self, report: Options) -> bool:
        """The report is of a discipline that was told this. The kernel reports a burst as a time, in 32 bits and steps of
        64 ns: where it does not fit, it is not compared."""
        told = self.burst * SECOND // self.rate >> _TICK <= _MOST
        step = -(-self.rate * (2 << _TICK) // SECOND) + 1
        if told and abs(report.burst - self.burst) > step:
            return False
        return replace(report, burst=0) == replace(self, burst=0, in_frames=False, sizes=None)


def burst_of(impairment: Impairment, mtu: int) -> int:
    """Bytes in the bucket: one of the largest frames, and what comes at the rate while a timer is late."""
    return wire_size(impairment, largest_frame(mtu) + qdiscs.VLAN) + impairment.rate * LATENESS // (8 * SECOND)


def options_of(impairment: Impairment, *, mtu: int) -> Options:
    """What TBF is to be told for a rate. Raises UnsupportedError for sizes that the kernel's table cannot hold.

    A queue in bytes counts, where frames have a minimum, overhead or cells, what they take of the rate.
    """
    if not impairment.rate:
        raise ValueError("an impairment without a rate needs no shaper")
    shaped = impairment.minimum_frame or impairment.overhead or impairment.cell_size
    queue = impairment.queue_frames or impairment.queue or default_queue(impairment.rate, 0)
    burst = burst_of(impairment, mtu)
    if burst > _MOST or queue > _MOST:
        raise UnsupportedError(f"TBF's bucket and queue hold {_MOST:,} bytes at most")
    return Options(
        rate=max(round(impairment.rate / 8), 1),
        burst=burst,
        limit=queue,
        in_frames=bool(impairment.queue_frames),
        sizes=size_table(lambda size: wire_size(impairment, size), mtu) if shaped else None,
    )


def requests(index: int, options: Options, before: Options | None = None) -> list[bytes]:
    """Give the interface these options: a TBF with our handle is changed in place, with what is queued in it.

    before: those in force, if it has them. Only where the queue was counted otherwise, it is a new one, and frames that
    waited in the old one are lost: a queue in bytes is TBF's own, one in frames a pfifo in it.
    """
    parms = {
        "rate_linklayer": TC_LINKLAYER_ETHERNET,
        "rate": min(options.rate, _MOST),
        "limit": options.limit,
    }
    attrs: list[tuple[str, object]] = [("TCA_TBF_PARMS", parms), ("TCA_TBF_BURST", options.burst)]
    if options.rate > _MOST:
        attrs.append(("TCA_TBF_RATE64", options.rate))
    made = [qdiscs.request(_Message, index, KIND, HANDLE, {"attrs": attrs}, sizes=options.sizes)]
    if options.in_frames or (before is not None and before.in_frames):
        # TBF sets the limit of whatever fifo is in it, in that one's units.
        kind = "pfifo" if options.in_frames else "bfifo"
        handle = HANDLE + (0x1_0000 if options.in_frames else 0x2_0000)
        limit = {"limit": options.limit}
        made.append(qdiscs.request(FifoMessage, index, kind, handle, limit, parent=HANDLE | 1))
    return made


def reported(qdisc: Qdisc) -> Options:
    """The options of a TBF in a dump."""
    return decoded(qdisc.options)


def decoded(raw: bytes) -> Options:
    """Options from the payload of TCA_OPTIONS in a dump; the burst as near as the kernel tells it."""
    rate = limit = buffer = rate64 = 0
    for attribute, value in attributes(memoryview(raw)):
        if attribute == TCA_TBF_PARMS:
            *_, rate = _RATESPEC.unpack_from(value)
            limit, buffer, _ = _REST.unpack_from(value, 2 * _RATESPEC.size)
        elif attribute == TCA_TBF_RATE64:
            (rate64,) = _U64.unpack_from(value)
    rate = max(rate, rate64)
    return Options(rate, round((buffer << _TICK) * rate / SECOND), limit)
