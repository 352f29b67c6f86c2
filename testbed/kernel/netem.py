"""netem: conversion of an impairment to the kernel's options, the request that sets them, and the options in a dump.

`options_of` converts an impairment to `Options`, which correspond to the options of sch_netem. `request` encodes them, and
`decode` reads them from a dump, so that they can be compared. How exactly netem implements each impairment is listed in
`datapaths`; this module only rejects impairments that netem has no option for.

Units are those of include/uapi/linux/pkt_sched.h: probabilities are shares of 2^32 - 1, times are nanoseconds in 64
bits, rates are bytes/s in 64 bits, and distributions have up to 16,384 numbers of 16 bits in units of 1/8192 of the jitter.
A request always has every option that can be changed, since the kernel keeps the values of omitted options.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace
from typing import Final

from testbed.errors import UnsupportedError
from testbed.fabric.wire_time import NS_PER_SECOND, default_queue, wire_size
from testbed.fates.jitter import table_of
from testbed.kernel import qdiscs
from testbed.kernel.netlink import attribute, attributes
from testbed.kernel.qdiscs import SizeTable, largest_frame, size_table
from testbed.spec.layout import Impairment

KIND: Final = "netem"
HANDLE: Final = 0x0001_0000
"""A fixed handle, so that a request changes the qdisc in place."""

MAX_TABLE_ENTRIES: Final = 16_384
"""Maximum number of entries of a distribution (NETEM_DIST_MAX)."""

MAX_JITTER: Final = 2**31 - 1
"""Maximum jitter in nanoseconds. The kernel silently reduces a longer jitter to this value."""

MAX_FRAME_RATE: Final = 148_809_524
"""Frames per second of 100 Gbit/s Ethernet with its smallest frames (84 bytes on the wire). One queue of the kernel forwards
fewer, so that a limit computed from this rate never drops a frame."""

# From -1 to 1 in steps of 1/8192, the unit of a table, without the 0 in the middle.
_UNIFORM: Final = (*range(-MAX_TABLE_ENTRIES // 2, 0), *range(1, MAX_TABLE_ENTRIES // 2 + 1))

_PROBABILITY_1: Final = 0xFFFF_FFFF
_MAX_LIMIT: Final = 2**31 - 1
_TICK: Final = 6
"""PSCHED_SHIFT: the older 32-bit fields are in units of 64 ns."""

(
    TCA_NETEM_CORR, TCA_NETEM_DELAY_DIST, TCA_NETEM_REORDER, TCA_NETEM_CORRUPT, TCA_NETEM_LOSS, TCA_NETEM_RATE,
    TCA_NETEM_ECN, TCA_NETEM_RATE64, TCA_NETEM_PAD, TCA_NETEM_LATENCY64, TCA_NETEM_JITTER64, TCA_NETEM_SLOT,
    TCA_NETEM_SLOT_DIST, TCA_NETEM_PRNG_SEED,
) = range(1, 15)  # fmt: skip
NETEM_LOSS_GE: Final = 2
_QOPT = struct.Struct("=6I")  # latency, limit, loss, gap, duplicate, jitter
_PAIR = struct.Struct("=2I")  # probability, correlation
_RATE = struct.Struct("=IiIi")  # rate, packet overhead, cell size, cell overhead
_GE = struct.Struct("=4I")
_CORR_SIZE, _SLOT_SIZE = 12, 40  # struct tc_netem_corr, tc_netem_slot
_S64 = struct.Struct("=q")
_U64 = struct.Struct("=Q")


@dataclass(frozen=True, slots=True)
class Options:
    """Options that netem takes or reports, in netem's units.

    latency, jitter: ns. limit: frames, queued and in flight. loss, duplicate, reorder, corrupt: shares of 2^32-1, see
    `share`. gap: 1 with reordering, else 0. rate: bytes/s; 0: none. packet_overhead, cell_size, cell_overhead: bytes.
    gemodel: p, r, h and 1-k; empty: none. seed: None if the kernel does not report one. table: table of the jitter's
    distribution. sizes: the size table. The kernel reports neither table nor sizes.
    """

    latency: int = 0
    jitter: int = 0
    limit: int = 0
    loss: int = 0
    duplicate: int = 0
    reorder: int = 0
    gap: int = 0
    corrupt: int = 0
    rate: int = 0
    packet_overhead: int = 0
    cell_size: int = 0
    cell_overhead: int = 0
    gemodel: tuple[int, ...] = ()
    seed: int | None = None
    table: tuple[int, ...] = ()
    sizes: SizeTable | None = None

    @property
    def reportable(self) -> Options:
        """The options without those that the kernel does not report."""
        return replace(self, table=(), sizes=None)


def share(probability: float) -> int:
    """Convert a probability to the nearest value in netem's units. Only 0 becomes 0, and only 1 becomes 2^32 - 1."""
    if not 0.0 <= probability <= 1.0:
        raise ValueError(f"probability must be 0 to 1, got {probability}")
    if probability in (0.0, 1.0):
        return int(probability) * _PROBABILITY_1
    return min(max(round(probability * _PROBABILITY_1), 1), _PROBABILITY_1 - 1)


def limit_of(impairment: Impairment, mtu: int) -> int:
    """Return netem's limit on the number of frames, queued and in flight together, that corresponds to the wire's queue.

    Without a rate, no frame waits and none may be dropped: the limit is the number of frames that the fastest wire
    could send during the delay. With a rate, it is the sum of the queue, the frame being sent and the frames in flight,
    where a queue in bytes (also `default_queue`) and the frames in flight are counted in frames that fill the MTU.
    """
    spread = impairment.delay + impairment.jitter
    if not impairment.rate:
        return min(max(math.ceil(spread * MAX_FRAME_RATE / NS_PER_SECOND), 1000), _MAX_LIMIT)
    frame = largest_frame(mtu)
    queue_frames = impairment.queue_frames
    if not queue_frames:
        queue_frames = max((impairment.queue or default_queue(impairment.rate, spread)) // frame, 1)
    frames_in_flight = -(-impairment.rate * spread // (8 * NS_PER_SECOND * max(wire_size(impairment, frame), 1)))
    return min(queue_frames + 1 + frames_in_flight, _MAX_LIMIT)


def rate_of(rate: int) -> int:
    """Convert a rate in bit/s to the nearest rate in bytes/s, at least 1. 0, no limit, stays 0."""
    return max(round(rate / 8), 1) if rate else 0


def distribution_table(distribution: str, source: str = "", text: str = "") -> tuple[int, ...]:
    """Return the table from which netem draws jitter: the wire model's, which has netem's format.

    "uniform" has a table, too, of the maximum size: a qdisc's table can be replaced but not removed, so the kernel's own
    uniform distribution could not be restored. source: path of the table's file, if any. text: its text. Raises
    BrokenFileError, and UnsupportedError for a table that is too long.
    """
    table = table_of(distribution, source, text)
    if len(table) > MAX_TABLE_ENTRIES:
        raise UnsupportedError(f"{source} has {len(table):,} entries, and netem takes at most {MAX_TABLE_ENTRIES:,}")
    return table or _UNIFORM


def options_of(impairment: Impairment, *, mtu: int, seed: int | None = None, table: str = "") -> Options:
    """Convert an impairment to netem's options.

    mtu: MTU of the interface. seed: 64 bits; None: the kernel draws one. table: text of `jitter_file`, if there is one.
    Raises UnsupportedError for impairments that netem has no option for, BrokenFileError for an invalid table.
    """
    if reasons := unsupported(impairment):
        raise UnsupportedError("netem cannot do this: " + "; ".join(reasons))
    rate = rate_of(impairment.rate)
    gemodel: tuple[int, ...] = ()
    if impairment.gemodel:
        p, r, bad, good = impairment.gemodel
        gemodel = (share(p), share(r), _PROBABILITY_1 - share(bad), share(good))
    minimum = impairment.minimum_frame if rate else 0
    return Options(
        latency=impairment.delay,
        jitter=impairment.jitter,
        limit=limit_of(impairment, mtu),
        loss=share(impairment.loss),
        duplicate=share(impairment.duplicate),
        reorder=share(impairment.reorder),
        gap=1 if impairment.reorder else 0,
        corrupt=share(impairment.corrupt),
        rate=rate,
        packet_overhead=impairment.overhead if rate else 0,
        cell_size=impairment.cell_size if rate else 0,
        cell_overhead=impairment.cell_overhead if rate else 0,
        gemodel=gemodel,
        seed=seed,
        table=distribution_table(impairment.distribution, impairment.jitter_file, table) if impairment.jitter else (),
        sizes=size_table(lambda size: max(size, minimum), mtu) if minimum else None,
    )


def unsupported(impairment: Impairment) -> list[str]:
    """List the impairments that netem has no option for, one phrase each."""
    phrases = {
        "it has no fault rules": bool(impairment.rules),
        "it loses frames at random only, not by a pattern": bool(impairment.loss_pattern),
        "its rate is a number, not a trace": bool(impairment.rate_trace),
        "its jitter is drawn, not read from a trace": impairment.distribution == "trace",
        "it flips one bit of a corrupted frame, not several": impairment.corrupt_bits > 1,
        "it has one model of loss at a time": bool(impairment.loss and impairment.gemodel),
        f"its jitter is {MAX_JITTER:,} ns at most": impairment.jitter > MAX_JITTER,
    }
    return [phrase for phrase, applies in phrases.items() if applies]


def request(index: int, options: Options) -> bytes:
    """Encode the request that sets an interface's netem options. A netem with this handle is changed in place and keeps its
    queue."""
    return qdiscs.request(index, KIND, HANDLE, _encode(options), sizes=options.sizes)


def _encode(options: Options) -> bytes:
    """Encode the payload of TCA_OPTIONS. Unused options (correlations, ECN, slots) are set to 0."""
    attrs = [
        (TCA_NETEM_CORR, bytes(_CORR_SIZE)),
        (TCA_NETEM_REORDER, _PAIR.pack(options.reorder, 0)),
        (TCA_NETEM_CORRUPT, _PAIR.pack(options.corrupt, 0)),
        (
            TCA_NETEM_RATE,
            _RATE.pack(
                min(options.rate, _PROBABILITY_1), options.packet_overhead, options.cell_size, options.cell_overhead
            ),
        ),
        (TCA_NETEM_ECN, bytes(4)),
        (TCA_NETEM_LATENCY64, _S64.pack(options.latency)),
        (TCA_NETEM_JITTER64, _S64.pack(options.jitter)),
        (TCA_NETEM_SLOT, bytes(_SLOT_SIZE)),
    ]
    if options.rate > _PROBABILITY_1:
        attrs.append((TCA_NETEM_RATE64, _U64.pack(options.rate)))
    if options.gemodel:
        attrs.append((TCA_NETEM_LOSS, attribute(NETEM_LOSS_GE, _GE.pack(*options.gemodel))))
    if options.table:
        attrs.append((TCA_NETEM_DELAY_DIST, struct.pack(f"={len(options.table)}h", *options.table)))
    if options.seed is not None:
        attrs.append((TCA_NETEM_PRNG_SEED, _U64.pack(options.seed)))
    latency, jitter = (min(time >> _TICK, _PROBABILITY_1) for time in (options.latency, options.jitter))
    fixed = _QOPT.pack(latency, options.limit, options.loss, options.gap, options.duplicate, jitter)
    return fixed + b"".join(attribute(kind, value) for kind, value in attrs)


def decode(raw: bytes) -> Options:
    """Decode options from the payload of TCA_OPTIONS, in a dump or in a request."""
    latency, limit, loss, gap, duplicate, jitter = _QOPT.unpack_from(raw)
    attributes_by_type = attributes(memoryview(raw)[_QOPT.size :])

    def value(kind: int, layout: struct.Struct, default: int = 0) -> int:
        return int(layout.unpack_from(attributes_by_type[kind])[0]) if kind in attributes_by_type else default

    rate, overhead, cell_size, cell_overhead = _RATE.unpack_from(
        attributes_by_type.get(TCA_NETEM_RATE, bytes(_RATE.size))
    )
    model = attributes(attributes_by_type[TCA_NETEM_LOSS]) if TCA_NETEM_LOSS in attributes_by_type else {}
    table = attributes_by_type.get(TCA_NETEM_DELAY_DIST, b"")
    return Options(
        latency=value(TCA_NETEM_LATENCY64, _S64, latency << _TICK),
        jitter=value(TCA_NETEM_JITTER64, _S64, jitter << _TICK),
        limit=limit,
        loss=loss,
        duplicate=duplicate,
        reorder=value(TCA_NETEM_REORDER, _PAIR),
        gap=gap,
        corrupt=value(TCA_NETEM_CORRUPT, _PAIR),
        rate=max(rate, value(TCA_NETEM_RATE64, _U64)),
        packet_overhead=overhead,
        cell_size=cell_size,
        cell_overhead=cell_overhead,
        gemodel=_GE.unpack_from(model[NETEM_LOSS_GE]) if NETEM_LOSS_GE in model else (),
        seed=value(TCA_NETEM_PRNG_SEED, _U64) if TCA_NETEM_PRNG_SEED in attributes_by_type else None,
        table=struct.unpack(f"={len(table) // 2}h", table),
    )
