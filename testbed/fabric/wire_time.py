"""Bytes that a frame occupies on the wire, and the default size of a queue."""

from __future__ import annotations

from typing import Final

from testbed.spec.layout import Impairment

SECOND: Final = 10**9

SMALLEST_QUEUE: Final = 128 * 1024
"""Bytes. Two of the kernel's largest segments of TCP (64 KiB), or 86 frames of 1514 bytes."""


def wire_size(impairment: Impairment, size: int) -> int:
    """Return the bytes that a frame of this size occupies on the wire.

    At least the minimum frame, then the overhead; if there are cells, as many as the result fills, each with its own
    overhead. The order is netem's, and AAL5's with an overhead of 8 for its trailer.
    """
    size = max(max(size, impairment.minimum_frame) + impairment.overhead, 0)
    if impairment.cell_size:
        cells = -(-size // impairment.cell_size)
        return cells * (impairment.cell_size + impairment.cell_overhead)
    return size


def default_queue(rate: int, delay: int) -> int:
    """Return the default size of a queue in bytes: the bandwidth-delay product of the round trip, but at least 128 KiB.

        max(128 KiB, rate / 8 * 2 * delay)

    rate in bit/s, delay one-way in nanoseconds and with its jitter. One product keeps a wire busy while one TCP halves
    its window (Villamizar and Song, "High Performance TCP in ANSNET", CCR 24(5), 1994). Frames under way are not in the
    queue: however long the delay, no frame is lost for it.
    """
    return max(SMALLEST_QUEUE, -(-rate * 2 * delay // (8 * SECOND)))
