"""Bytes that a frame occupies on the wire, and the default size of a queue."""

from __future__ import annotations

from typing import Final

from testbed.spec.layout import Impairment

NS_PER_SECOND: Final = 10**9

MIN_QUEUE: Final = 128 * 1024
"""Minimum bytes of a default queue: two of the kernel's largest TCP segments (64 KiB), or 86 frames of 1514 bytes."""


def wire_size(impairment: Impairment, size: int) -> int:
    """Return the bytes that a frame of `size` bytes occupies on the wire.

    The minimum frame is applied first, then the overhead. The result is then divided into cells, if there is a cell
    size, each with the cell overhead. The order is that of netem, and of AAL5 with an overhead of 8 for its trailer.
    """
    size = max(max(size, impairment.minimum_frame) + impairment.overhead, 0)
    if impairment.cell_size:
        cells = -(-size // impairment.cell_size)
        return cells * (impairment.cell_size + impairment.cell_overhead)
    return size


def default_queue(rate: int, delay: int) -> int:
    """Return the default size of a queue in bytes: the bandwidth-delay product of the round trip, but at least 128 KiB.

        max(128 KiB, rate / 8 * 2 * delay)

    rate: bit/s. delay: one-way delay in nanoseconds, including jitter. A queue of this product keeps a wire busy while a TCP
    connection halves its window (Villamizar and Song, "High Performance TCP in ANSNET", CCR 24(5), 1994). Frames in flight
    are not in the queue, so that a long delay alone causes no loss.
    """
    return max(MIN_QUEUE, -(-rate * 2 * delay // (8 * NS_PER_SECOND)))
