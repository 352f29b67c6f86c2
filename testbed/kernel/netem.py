"""netem: conversion of an impairment to the kernel's options, the request that sets them, and the options in a dump.

`options_of` converts an impairment to `Options`, which hold exactly what sch_netem takes; `request` encodes them and
`reported` reads them from a dump, so that the two can be compared. How exactly netem does what was asked is listed in
`datapaths`; only what it cannot be told at all is refused here.

Units are those of include/uapi/linux/pkt_sched.h: probabilities are shares of 2^32 - 1, times nanoseconds in 64 bits,
rates bytes/s in 64 bits, distributions up to 16,384 numbers of 16 bits in units of 1/8192 of the jitter. A request always
has every option that can be changed: the kernel keeps those that are left out.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace
from typing import Final

from pyroute2.netlink import nla

from testbed.errors import UnsupportedError
from testbed.fabric.wire_time import SECOND, default_queue, wire_size
from testbed.fates.jitter import normal_table, pareto_table, parse_table
from testbed.kernel import qdiscs
from testbed.kernel.netlink import attributes
from testbed.kernel.qdiscs import Qdisc, QdiscMessage, SizeTable, largest_frame, size_table
from testbed.spec.layout import Impairment

KIND: Final = "netem"
HANDLE: Final = 0x0001_0000
"""A fixed handle, with which a request changes the discipline in place."""

MAX_TABLE_ENTRIES: Final = 16_384
"""NETEM_DIST_MAX."""

LONGEST_JITTER: Final = 2**31 - 1
"""Nanoseconds. The kernel quietly cuts a longer one to this."""

FASTEST: Final = 148_809_524
"""Frames per second of 100 Gbit/s Ethernet with its smallest frames (84 bytes of the wire): more than one queue of the
kernel forwards, so that a limit computed from it never drops anything."""

# From -1 to 1 in steps of 1/8192, the unit of a table, without the 0 in the middle.
_UNIFORM: Final = (*range(-MAX_TABLE_ENTRIES // 2, 0), *range(1, MAX_TABLE_ENTRIES // 2 + 1))

_CERTAIN: Final = 0xFFFF_FFFF
_LARGEST_LIMIT: Final = 2**31 - 1
_TICK: Final = 6
"""PSCHED_SHIFT: the old 32-bit fields count in 64 ns."""

(
    TCA_NETEM_CORR, TCA_NETEM_DELAY_DIST, TCA_NETEM_REORDER, TCA_NETEM_CORRUPT, TCA_NETEM_LOSS, TCA_NETEM_RATE,
    TCA_NETEM_ECN, TCA_NETEM_RATE64, TCA_NETEM_PAD, TCA_NETEM_LATENCY64, TCA_NETEM_JITTER64, TCA_NETEM_SLOT,
    TCA_NETEM_SLOT_DIST, TCA_NETEM_PRNG_SEED,
) = range(1, 15)  # fmt: skip
NETEM_LOSS_GI, NETEM_LOSS_GE = 1, 2

_QOPT = struct.Struct("=6I")  # latency, limit, loss, gap, duplicate, jitter
_CORR = struct.Struct("=3I")  # delay, loss, duplicate
_PAIR = struct.Struct("=2I")  # probability, correlation
_RATE = struct.Struct("=IiIi")  # rate, packet overhead, cell size, cell overhead
_SLOT = struct.Struct("=qqiiqq")
_GI = struct.Struct("=5I")
_GE = struct.Struct("=4I")
_U32 = struct.Struct("=I")
_S64 = struct.Struct("=q")
_U64 = struct.Struct("=Q")


class _Message(QdiscMessage):
    class options(nla):  # type: ignore[misc]  # noqa: N801  pyroute2 finds it by this name
        """struct tc_netem_qopt, and attributes behind it."""

        fields = (
            ("latency", "I"),
            ("limit", "I"),
            ("loss", "I"),
            ("gap", "I"),
            ("duplicate", "I"),
            ("jitter", "I"),
        )
        nla_map = (
            ("TCA_NETEM_UNSPEC", "none"),
            ("TCA_NETEM_CORR", "corr"),
            ("TCA_NETEM_DELAY_DIST", "cdata"),
            ("TCA_NETEM_REORDER", "pair"),
            ("TCA_NETEM_CORRUPT", "pair"),
            ("TCA_NETEM_LOSS", "loss_model"),
            ("TCA_NETEM_RATE", "rate"),
            ("TCA_NETEM_ECN", "uint32"),
            ("TCA_NETEM_RATE64", "uint64"),
            ("TCA_NETEM_PAD", "none"),
            ("TCA_NETEM_LATENCY64", "int64"),
            ("TCA_NETEM_JITTER64", "int64"),
            ("TCA_NETEM_SLOT", "slot"),
            ("TCA_NETEM_SLOT_DIST", "cdata"),
            ("TCA_NETEM_PRNG_SEED", "uint64"),
        )

        class corr(nla):  # type: ignore[misc]  # noqa: N801
            fields = (("delay_corr", "I"), ("loss_corr", "I"), ("dup_corr", "I"))

        class pair(nla):  # type: ignore[misc]  # noqa: N801
            fields = (("probability", "I"), ("correlation", "I"))

        class rate(nla):  # type: ignore[misc]  # noqa: N801
            fields = (("rate", "I"), ("packet_overhead", "i"), ("cell_size", "I"), ("cell_overhead", "i"))

        class slot(nla):  # type: ignore[misc]  # noqa: N801
            fields = (
                ("min_delay", "q"),
                ("max_delay", "q"),
                ("max_packets", "i"),
                ("max_bytes", "i"),
                ("dist_delay", "q"),
                ("dist_jitter", "q"),
            )

        class loss_model(nla):  # type: ignore[misc]  # noqa: N801
            nla_map = (("NETEM_LOSS_UNSPEC", "none"), ("NETEM_LOSS_GI", "gi"), ("NETEM_LOSS_GE", "ge"))

            class gi(nla):  # type: ignore[misc]  # noqa: N801
                fields = (("p13", "I"), ("p31", "I"), ("p32", "I"), ("p14", "I"), ("p23", "I"))

            class ge(nla):  # type: ignore[misc]  # noqa: N801
                fields = (("p", "I"), ("r", "I"), ("h", "I"), ("k1", "I"))


@dataclass(frozen=True, slots=True)
class Slot:
    """Slots at whose ends frames leave in bursts. They follow each other after min_delay to max_delay ns (uniform) or
    after delay +- jitter ns. packets, bytes: at most in a slot, 0 for any number."""

    min_delay: int = 0
    max_delay: int = 0
    packets: int = 0
    bytes: int = 0
    delay: int = 0
    jitter: int = 0


@dataclass(frozen=True, slots=True)
class Extras:
    """Options of netem that an impairment does not have. Correlations, 0 to 1, are those of a draw with the one before it.

    gap: with reorder, only every gap-th frame may be reordered. ecn: a frame of an ECN-capable sender is marked instead of
    lost. gimodel: the four-state model of loss, p13 p31 p32 p14 p23.
    """

    delay_correlation: float = 0.0
    loss_correlation: float = 0.0
    duplicate_correlation: float = 0.0
    reorder_correlation: float = 0.0
    corrupt_correlation: float = 0.0
    gap: int = 0
    ecn: bool = False
    slot: Slot | None = None
    gimodel: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Correlations:
    """Correlations in netem's units, like its probabilities."""

    delay: int = 0
    loss: int = 0
    duplicate: int = 0
    reorder: int = 0
    corrupt: int = 0


@dataclass(frozen=True, slots=True)
class Options:
    """Options that netem takes or reports, in its own units.

    latency and jitter: ns. limit: frames, queued and under way together. loss, duplicate, reorder, corrupt: shares of
    2^32 - 1. rate: bytes/s, 0 for none. gemodel: p, r, h, 1-k; gimodel: p13, p31, p32, p14, p23. seed: None where the
    kernel reports none. table: of the jitter's distribution. sizes: bytes that frames count at the rate. The kernel reports
    neither table nor sizes.
    """

    latency: int = 0
    jitter: int = 0
    limit: int = 0
    loss: int = 0
    duplicate: int = 0
    reorder: int = 0
    gap: int = 0
    corrupt: int = 0
    correlations: Correlations = Correlations()
    rate: int = 0
    packet_overhead: int = 0
    cell_size: int = 0
    cell_overhead: int = 0
    gemodel: tuple[int, ...] = ()
    gimodel: tuple[int, ...] = ()
    ecn: bool = False
    slot: Slot | None = None
    seed: int | None = None
    table: tuple[int, ...] = ()
    sizes: SizeTable | None = None

    @property
    def reportable(self) -> Options:
        """Return the part that the kernel reports."""
        return replace(self, table=(), sizes=None)


def share(probability: float) -> int:
    """Convert a probability to netem's units: the nearest, but 0 only for 0 and 2^32 - 1 only for 1."""
    if not 0.0 <= probability <= 1.0:
        raise ValueError(f"{probability} is no probability")
    if probability in (0.0, 1.0):
        return int(probability) * _CERTAIN
    return min(max(round(probability * _CERTAIN), 1), _CERTAIN - 1)


def limit_of(impairment: Impairment, mtu: int) -> int:
    """Return how many frames netem may hold, waiting and under way together, so that it drops what the wire's queue would.

    Without a rate nothing waits and nothing may be dropped: all that the fastest wire could send during the delay. With a
    rate: the queue, the frame being sent, and those under way. A queue in bytes (also `default_queue`) is counted in frames
    that fill the MTU, and so are those under way.
    """
    spread = impairment.delay + impairment.jitter
    if not impairment.rate:
        return min(max(math.ceil(spread * FASTEST / SECOND), 1000), _LARGEST_LIMIT)
    frame = largest_frame(mtu)
    waiting = impairment.queue_frames
    if not waiting:
        waiting = max((impairment.queue or default_queue(impairment.rate, spread)) // frame, 1)
    under_way = -(-impairment.rate * spread // (8 * SECOND * max(wire_size(impairment, frame), 1)))
    return min(waiting + 1 + under_way, _LARGEST_LIMIT)


def rate_of(rate: int) -> int:
    """Convert a rate in bit/s to the kernel's bytes/s: the nearest, but never 0, which would be no limit."""
    return max(round(rate / 8), 1) if rate else 0


def distribution_table(distribution: str, source: str = "", text: str = "") -> tuple[int, ...]:
    """Return the table from which netem draws jitter: that of the wire model, in netem's own format.

    "uniform" has a table too, as fine as the kernel takes it: a discipline's table can be replaced but not removed, so that
    the kernel's own uniform distribution could not come back. text: of a table's file, read from source. Raises
    BrokenFileError, and UnsupportedError for a table that is too long.
    """
    if distribution == "normal":
        return normal_table()
    if distribution == "pareto":
        return pareto_table()
    if distribution == "table":
        table = parse_table(text, source)
        if len(table) > MAX_TABLE_ENTRIES:
            raise UnsupportedError(
                f"{source} has {len(table):,} entries; netem takes tables of {MAX_TABLE_ENTRIES:,} at most"
            )
        return table
    return _UNIFORM


def options_of(
    impairment: Impairment, *, mtu: int, seed: int | None = None, table: str = "", extras: Extras | None = None
) -> Options:
    """Convert an impairment to netem's options.

    mtu: of the interface. seed: 64 bits; without one the kernel draws one. table: the text of the jitter's file. Raises
    UnsupportedError for what netem cannot be told, BrokenFileError for a broken table.
    """
    extras = extras or Extras()
    if lacks := lacking(impairment, extras):
        raise UnsupportedError("netem cannot do this: " + "; ".join(lacks))
    rate = rate_of(impairment.rate)
    gemodel: tuple[int, ...] = ()
    if impairment.gemodel:
        p, r, bad, good = impairment.gemodel
        gemodel = (share(p), share(r), _CERTAIN - share(bad), share(good))
    minimum = impairment.minimum_frame if rate else 0
    return Options(
        latency=impairment.delay,
        jitter=impairment.jitter,
        limit=limit_of(impairment, mtu),
        loss=share(impairment.loss),
        duplicate=share(impairment.duplicate),
        reorder=share(impairment.reorder),
        gap=(extras.gap or 1) if impairment.reorder else 0,
        corrupt=share(impairment.corrupt),
        correlations=Correlations(
            share(extras.delay_correlation),
            share(extras.loss_correlation),
            share(extras.duplicate_correlation),
            share(extras.reorder_correlation),
            share(extras.corrupt_correlation),
        ),
        rate=rate,
        packet_overhead=impairment.overhead if rate else 0,
        cell_size=impairment.cell_size if rate else 0,
        cell_overhead=impairment.cell_overhead if rate else 0,
        gemodel=gemodel,
        gimodel=tuple(share(probability) for probability in extras.gimodel),
        ecn=extras.ecn,
        slot=extras.slot,
        seed=seed,
        table=distribution_table(impairment.distribution, impairment.jitter_file, table) if impairment.jitter else (),
        sizes=size_table(lambda size: max(size, minimum), mtu) if minimum else None,
    )


def lacking(impairment: Impairment, extras: Extras | None = None) -> list[str]:
    """List what netem cannot be told, and which of the extras contradict the rest; a phrase each."""
    extras = extras or Extras()
    models = [bool(impairment.loss), bool(impairment.gemodel), bool(extras.gimodel)]
    phrases = {
        "it has no fault rules": bool(impairment.rules),
        "it loses by chance only, not by a pattern": bool(impairment.loss_pattern),
        "its rate is a number, not a trace": bool(impairment.rate_trace),
        "its jitter is drawn, not read from a trace": impairment.distribution == "trace",
        "it flips one bit of a corrupted frame, not several": impairment.corrupt_bits > 1,
        "it has one model of loss at a time": sum(models) > 1,
        f"its jitter is {LONGEST_JITTER:,} ns at most": impairment.jitter > LONGEST_JITTER,
        "a gap needs frames to reorder": bool(extras.gap) and not impairment.reorder,
        "a loss correlation needs an independent loss": bool(extras.loss_correlation) and not impairment.loss,
        "the four-state model has five probabilities": len(extras.gimodel) not in (0, 5),
    }
    return [phrase for phrase, applies in phrases.items() if applies]


def request(index: int, options: Options, *, create: bool = True) -> bytes:
    """Encode the request that sets an interface's netem options; a netem with our handle is changed in place, and keeps its
    queue.

    create False: refused where there is none to change.
    """
    return qdiscs.request(_Message, index, KIND, HANDLE, _encoded(options), sizes=options.sizes, create=create)


def _encoded(options: Options) -> dict[str, object]:
    slot = options.slot or Slot()
    correlations = options.correlations
    attrs: list[tuple[str, object]] = [
        (
            "TCA_NETEM_CORR",
            {"delay_corr": correlations.delay, "loss_corr": correlations.loss, "dup_corr": correlations.duplicate},
        ),
        ("TCA_NETEM_REORDER", {"probability": options.reorder, "correlation": correlations.reorder}),
        ("TCA_NETEM_CORRUPT", {"probability": options.corrupt, "correlation": correlations.corrupt}),
        (
            "TCA_NETEM_RATE",
            {
                "rate": min(options.rate, _CERTAIN),
                "packet_overhead": options.packet_overhead,
                "cell_size": options.cell_size,
                "cell_overhead": options.cell_overhead,
            },
        ),
        ("TCA_NETEM_ECN", int(options.ecn)),
        ("TCA_NETEM_LATENCY64", options.latency),
        ("TCA_NETEM_JITTER64", options.jitter),
        (
            "TCA_NETEM_SLOT",
            {
                "min_delay": slot.min_delay,
                "max_delay": slot.max_delay,
                "max_packets": slot.packets,
                "max_bytes": slot.bytes,
                "dist_delay": slot.delay,
                "dist_jitter": slot.jitter,
            },
        ),
    ]
    if options.rate > _CERTAIN:
        attrs.append(("TCA_NETEM_RATE64", options.rate))
    if options.gemodel:
        ge = dict(zip(("p", "r", "h", "k1"), options.gemodel, strict=True))
        attrs.append(("TCA_NETEM_LOSS", {"attrs": [("NETEM_LOSS_GE", ge)]}))
    elif options.gimodel:
        gi = dict(zip(("p13", "p31", "p32", "p14", "p23"), options.gimodel, strict=True))
        attrs.append(("TCA_NETEM_LOSS", {"attrs": [("NETEM_LOSS_GI", gi)]}))
    if options.table:
        attrs.append(("TCA_NETEM_DELAY_DIST", struct.pack(f"={len(options.table)}h", *options.table)))
    if options.seed is not None:
        attrs.append(("TCA_NETEM_PRNG_SEED", options.seed))
    return {
        "latency": min(options.latency >> _TICK, _CERTAIN),
        "limit": options.limit,
        "loss": options.loss,
        "gap": options.gap,
        "duplicate": options.duplicate,
        "jitter": min(options.jitter >> _TICK, _CERTAIN),
        "attrs": attrs,
    }


def reported(qdisc: Qdisc) -> Options:
    """Return the options of a netem in a dump. Kernels before 6.6 keep no seed."""
    return decoded(qdisc.options)


def decoded(raw: bytes) -> Options:
    """Decode options from the payload of TCA_OPTIONS, in a dump or in a request."""
    latency, limit, loss, gap, duplicate, jitter = _QOPT.unpack_from(raw)
    latency, jitter = latency << _TICK, jitter << _TICK
    delay_corr = loss_corr = dup_corr = reorder = reorder_corr = corrupt = corrupt_corr = 0
    rate = overhead = cell_size = cell_overhead = 0
    gemodel: tuple[int, ...] = ()
    gimodel: tuple[int, ...] = ()
    table: tuple[int, ...] = ()
    slot: Slot | None = None
    seed: int | None = None
    ecn = False
    rate64 = 0
    for attribute, value in attributes(memoryview(raw)[_QOPT.size :]):
        if attribute == TCA_NETEM_CORR:
            delay_corr, loss_corr, dup_corr = _CORR.unpack_from(value)
        elif attribute == TCA_NETEM_REORDER:
            reorder, reorder_corr = _PAIR.unpack_from(value)
        elif attribute == TCA_NETEM_CORRUPT:
            corrupt, corrupt_corr = _PAIR.unpack_from(value)
        elif attribute == TCA_NETEM_RATE:
            rate, overhead, cell_size, cell_overhead = _RATE.unpack_from(value)
        elif attribute == TCA_NETEM_RATE64:
            (rate64,) = _U64.unpack_from(value)
        elif attribute == TCA_NETEM_LATENCY64:
            (latency,) = _S64.unpack_from(value)
        elif attribute == TCA_NETEM_JITTER64:
            (jitter,) = _S64.unpack_from(value)
        elif attribute == TCA_NETEM_ECN:
            ecn = bool(_U32.unpack_from(value)[0])
        elif attribute == TCA_NETEM_SLOT:
            slot = _slot(value)
        elif attribute == TCA_NETEM_PRNG_SEED:
            (seed,) = _U64.unpack_from(value)
        elif attribute == TCA_NETEM_DELAY_DIST:
            table = struct.unpack(f"={len(value) // 2}h", value)
        elif attribute == TCA_NETEM_LOSS:
            for model, parameters in attributes(value):
                if model == NETEM_LOSS_GE:
                    gemodel = _GE.unpack_from(parameters)
                elif model == NETEM_LOSS_GI:
                    gimodel = _GI.unpack_from(parameters)
    return Options(
        latency=latency,
        jitter=jitter,
        limit=limit,
        loss=loss,
        duplicate=duplicate,
        reorder=reorder,
        gap=gap,
        corrupt=corrupt,
        correlations=Correlations(delay_corr, loss_corr, dup_corr, reorder_corr, corrupt_corr),
        rate=max(rate, rate64),
        packet_overhead=overhead,
        cell_size=cell_size,
        cell_overhead=cell_overhead,
        gemodel=gemodel,
        gimodel=gimodel,
        ecn=ecn,
        slot=slot,
        seed=seed,
        table=table,
    )


def _slot(value: memoryview) -> Slot | None:
    """Decode a slot; None for an empty one. The kernel reports a limit that was not set as the largest number."""
    first, last, packets, size, delay, jitter = _SLOT.unpack_from(value)
    unlimited = 2**31 - 1
    slot = Slot(first, last, packets % unlimited, size % unlimited, delay, jitter)
    return slot if slot != Slot() else None
