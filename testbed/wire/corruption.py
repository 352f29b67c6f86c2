"""Flipping bits of a frame: which ones, the hash decides, anywhere in the frame, each at most once.

The header is not spared, as on a real wire; a frame whose address was hit may go astray.
"""

from __future__ import annotations

from testbed.wire import hashing


def choose(start: int, n: int, flips: int, size: int) -> tuple[int, ...]:
    """Positions of the bits to flip, in order. start: of the flow's stream for bits; size: the frame's, in bytes.

    The draws are those of a stream that starts at the n-th draw of the flow's; a bit that was chosen already counts as
    the next one that was not.
    """
    bits = size * 8
    own = hashing.draw(start, n)
    chosen: set[int] = set()
    for number in range(1, min(flips, bits) + 1):
        bit = hashing.below(hashing.draw(own, number), bits)
        while bit in chosen:
            bit = (bit + 1) % bits
        chosen.add(bit)
    return tuple(sorted(chosen))


def flip(frame: bytes, positions: tuple[int, ...]) -> bytes:
    """The frame with these bits flipped; bit 0 is the highest of the first byte, one behind the end is left out."""
    changed = bytearray(frame)
    for position in positions:
        if position < len(changed) * 8:
            changed[position >> 3] ^= 0x80 >> (position & 7)
    return bytes(changed)
