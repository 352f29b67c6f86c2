"""TBF: the rate of a link's direction where the kernel has no netem.

A token bucket is not a wire: after a pause it passes as many bytes at once as the bucket holds, a first frame takes no
time, and only a frame that finds the bucket empty waits. Over a long time the rate is exact. HTB is a token bucket with
classes, which a link's direction does not need.

The bucket must hold the largest frame, and the bytes that the rate allows while the kernel's timer is late, or those
tokens are lost and the rate is missed. A larger bucket makes longer bursts.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Final

from pyroute2.netlink import nla

from testbed.errors import UnsupportedError
from testbed.fabric.wire_time import SECOND, default_queue, wire_size
from testbed.kernel import qdiscs
from testbed.kernel.netlink import attributes
from testbed.kernel.qdiscs import FifoMessage, Qdisc, QdiscMessage, SizeTable, largest_frame, size_table
from testbed.spec.layout import Impairment

KIND: Final = "tbf"
HANDLE: Final = 0x0002_0000
"""Differs from netem's: a discipline cannot be changed into one of another kind."""

LATENESS: Final = 1_000_000
"""Nanoseconds that a timer of the kernel may be late without loss of tokens."""

TCA_TBF_PARMS, TCA_TBF_RATE64, TCA_TBF_BURST = 1, 4, 6
TC_LINKLAYER_ETHERNET = 1

_RATESPEC = struct.Struct("=BBHhHI")  # cell log, link layer, overhead, cell align, minimum, rate
_REST = struct.Struct("=III")  # limit, buffer, mtu; behind two ratespecs
_FIFO = struct.Struct("=I")
_U64 = struct.Struct("=Q")
_MAX = 0xFFFF_FFFF
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
    """Options that TBF takes or reports. rate: bytes/s. burst: bytes in the bucket. limit: of the queue, in bytes, or in
    frames if in_frames. sizes: bytes that frames count. The kernel reports neither in_frames nor sizes."""

    rate: int
    burst: int
    limit: int
    in_frames: bool = False
    sizes: SizeTable | None = None

    def matches(self, report: Options) -> bool:
        """Whether a report is of a discipline with these options. The kernel reports a burst as a time, in 32 bits and steps
        of 64 ns: where it does not fit, it is not compared."""
        fits = self.burst * SECOND // self.rate >> _TICK <= _MAX
        step = -(-self.rate * (2 << _TICK) // SECOND) + 1
        if fits and abs(report.burst - self.burst) > step:
            return False
        return replace(report, burst=0) == replace(self, burst=0, in_frames=False, sizes=None)


def burst_of(impairment: Impairment, mtu: int) -> int:
    """Return the bytes in the bucket: the largest frame, and those that the rate allows while a timer is late."""
    return wire_size(impairment, largest_frame(mtu) + qdiscs.VLAN) + impairment.rate * LATENESS // (8 * SECOND)


def options_of(impairment: Impairment, *, mtu: int) -> Options:
    """Convert an impairment's rate to TBF's options. Raises UnsupportedError for sizes that the kernel's table cannot hold.

    Where frames have a minimum, overhead or cells, a queue in bytes counts their bytes on the wire.
    """
    if not impairment.rate:
        raise ValueError("an impairment without a rate needs no shaper")
    shaped = impairment.minimum_frame or impairment.overhead or impairment.cell_size
    queue = impairment.queue_frames or impairment.queue or default_queue(impairment.rate, 0)
    burst = burst_of(impairment, mtu)
    if burst > _MAX or queue > _MAX:
        raise UnsupportedError(f"TBF's bucket and queue hold {_MAX:,} bytes at most")
    return Options(
        rate=max(round(impairment.rate / 8), 1),
        burst=burst,
        limit=queue,
        in_frames=bool(impairment.queue_frames),
        sizes=size_table(lambda size: wire_size(impairment, size), mtu) if shaped else None,
    )


def requests(index: int, options: Options, before: Options | None = None) -> list[bytes]:
    """Encode the requests that set an interface's TBF options; a TBF with our handle is changed in place, with its queue.

    before: the options in force, if any. Only where these count the queue in the other unit, it is replaced and its frames
    are lost: a queue in bytes is TBF's own, one in frames a pfifo in it.
    """
    parms = {
        "rate_linklayer": TC_LINKLAYER_ETHERNET,
        "rate": min(options.rate, _MAX),
        "limit": options.limit,
    }
    attrs: list[tuple[str, object]] = [("TCA_TBF_PARMS", parms), ("TCA_TBF_BURST", options.burst)]
    if options.rate > _MAX:
        attrs.append(("TCA_TBF_RATE64", options.rate))
    messages = [qdiscs.request(_Message, index, KIND, HANDLE, {"attrs": attrs}, sizes=options.sizes)]
    if options.in_frames or (before is not None and before.in_frames):
        # TBF sets the limit of the fifo in it, in the fifo's unit.
        kind = "pfifo" if options.in_frames else "bfifo"
        handle = HANDLE + (0x1_0000 if options.in_frames else 0x2_0000)
        limit = {"limit": options.limit}
        messages.append(qdiscs.request(FifoMessage, index, kind, handle, limit, parent=HANDLE | 1))
    return messages


def reported(qdisc: Qdisc) -> Options:
    """Return the options of a TBF in a dump."""
    return decoded(qdisc.options)


def decoded(raw: bytes) -> Options:
    """Decode options from the payload of TCA_OPTIONS in a dump; the burst to the kernel's precision."""
    rate = limit = buffer = rate64 = 0
    for attribute, value in attributes(memoryview(raw)):
        if attribute == TCA_TBF_PARMS:
            *_, rate = _RATESPEC.unpack_from(value)
            limit, buffer, _ = _REST.unpack_from(value, 2 * _RATESPEC.size)
        elif attribute == TCA_TBF_RATE64:
            (rate64,) = _U64.unpack_from(value)
    rate = max(rate, rate64)
    return Options(rate, round((buffer << _TICK) * rate / SECOND), limit)
