"""One-way times of LAM/MPI over the kernel's TCP on the paper's hosts, computed from the same costs as VIA's.

This is a check of `profile`: TCP and VIA share the costs of processors, copies, interrupts, PCI, wire and switch, and
LAM's layers, and few costs are specific to TCP. The model is a pipeline without loss, acknowledgements or window
limits. Every segment passes the stages in order, and a stage has one segment at a time: sending processor, NIC's fetch,
two wires with the switch between them, NIC's store, receiving processor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from protocols.core.host_work import COPY, INTERRUPT, SWITCH
from protocols.core.profile import SECOND, Profile
from protocols.mpi.via.endpoint import MPI

SEGMENT_SIZE: Final = 1_448
"""Bytes of data in an Ethernet frame of 1500: without the headers of IP and TCP and the time stamp option (RFC
1323)."""
HEADERS_SIZE: Final = 1_500 - SEGMENT_SIZE + 14
"""Bytes of the headers of IP and TCP, with the option, and of Ethernet."""
LOCAL_SEGMENT_SIZE: Final = 3_924 - (1_500 - SEGMENT_SIZE)
"""Bytes of data in a packet of the loopback interface of Linux 2.2, whose MTU is a page minus the space for headers."""
ENVELOPE_SIZE: Final = 24
"""Bytes of LAM's header before a message."""

# Our choices, without a source: round figures for a Pentium II of 450 MHz with Linux 2.2.
SEGMENT_TIME: Final = 10_000
"""Nanoseconds of TCP, IP and the driver for one segment, once at its sender and once at its receiver."""
CALL_TIME: Final = 5_000
"""Nanoseconds of a system call on a socket."""
CALL_COUNT: Final = 4
"""System calls of a message: one to write envelope and data; select, and a read for each of the two, to receive it."""

# The wire of the cluster lam-via-2000: bit/s, bytes and nanoseconds. Frame sizes exclude the frame check sequence, which
# is part of the overhead.
WIRE_RATE: Final = 100_000_000
WIRE_OVERHEAD: Final = 24
MIN_FRAME: Final = 60
LINK_DELAY: Final = 2_000

SIZES: Final = tuple(1 << power for power in range(16))
"""Message sizes of table 1, in bytes."""


def rows(profile: Profile, sizes: Iterable[int] = SIZES) -> list[dict[str, object]]:
    """Return one-way times between nodes and within a node (`local`), as rows of a run."""
    return [
        {
            "size_bytes": size,
            "local": local,
            "p50_ns": (_local_time(profile, size) if local else _remote_time(profile, size)),
        }
        for local in (False, True)
        for size in sizes
    ]


def _remote_time(profile: Profile, size: int) -> int:
    segments = _segments(size + ENVELOPE_SIZE, SEGMENT_SIZE)
    wire = [_wire_time(HEADERS_SIZE + data) for data in segments]
    kernel = profile.work[INTERRUPT].fixed + SEGMENT_TIME
    stages = (
        [SEGMENT_TIME + _copy_time(profile, data, cached=True) for data in segments],
        [_dma_time(profile, HEADERS_SIZE + data) for data in segments],
        wire,
        wire,
        [_dma_time(profile, HEADERS_SIZE + data) for data in segments],
        [kernel] * len(segments),
    )
    return (
        _per_message(profile) + 2 * LINK_DELAY + _pipeline_time(stages) + _copy_time(profile, segments[-1], cached=True)
    )


def _local_time(profile: Profile, size: int) -> int:
    segments = _segments(size + ENVELOPE_SIZE, LOCAL_SEGMENT_SIZE)
    stages = (
        [2 * SEGMENT_TIME + _copy_time(profile, data, cached=True) for data in segments],
        [_copy_time(profile, data, cached=False) for data in segments],
    )
    return _per_message(profile) + _pipeline_time(stages)


def _per_message(profile: Profile) -> int:
    """Return the nanoseconds per message: LAM at both ends, system calls, and the context switch to the receiver."""
    return 2 * profile.work[MPI].fixed + CALL_COUNT * CALL_TIME + profile.work[SWITCH].fixed


def _pipeline_time(stages: Sequence[Sequence[int]]) -> int:
    """Return the time at which the last segment leaves the last stage. stages: for each stage, the times of the segments.
    All times are in nanoseconds."""
    done = [0] * (len(stages) + 1)
    for times in zip(*stages, strict=True):
        done[0] = 0
        for stage, time in enumerate(times, 1):
            done[stage] = max(done[stage - 1], done[stage]) + time
    return done[-1]


def _segments(size: int, max_segment: int) -> list[int]:
    return [min(max_segment, size - begin) for begin in range(0, size, max_segment)]


def _wire_time(frame: int) -> int:
    return (max(frame, MIN_FRAME) + WIRE_OVERHEAD) * 8 * SECOND // WIRE_RATE


def _dma_time(profile: Profile, size: int) -> int:
    bursts = -(-size // profile.bus_burst)
    return profile.fetch + bursts * profile.bus_transaction + size * 8 * SECOND // profile.bus_rate


def _copy_time(profile: Profile, size: int, *, cached: bool) -> int:
    cost = profile.work[COPY]
    return cost.fixed + size * 8 * SECOND // (cost.same_rate if cached else cost.rate)
