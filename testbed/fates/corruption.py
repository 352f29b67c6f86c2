"""Corruption of a frame: bits chosen by the hash, anywhere in the frame, each at most once, are flipped.

Headers are hit too, as on a real wire; a frame whose address is corrupt may go astray.
"""

from __future__ import annotations

from testbed.fates import fate_hash


def choose(start: int, n: int, flips: int, size: int) -> tuple[int, ...]:
    """Choose the positions of the bits to flip, in order. start: of the flow's stream for bits; size: bytes of the frame.

    The draws are those of a stream that starts at the n-th draw of the flow's; in place of a bit that was chosen already
    the next one that was not is taken.
    """
    bits = size * 8
    own = fate_hash.draw(start, n)
    chosen: set[int] = set()
    for number in range(1, min(flips, bits) + 1):
        bit = fate_hash.below(fate_hash.draw(own, number), bits)
        while bit in chosen:
            bit = (bit + 1) % bits
        chosen.add(bit)
    return tuple(sorted(chosen))


def flip(frame: bytes, positions: tuple[int, ...]) -> bytes:
    """Flip bits of a frame; bit 0 is the highest of the first byte, positions behind the end are ignored."""
    changed = bytearray(frame)
    for position in positions:
        if position < len(changed) * 8:
            changed[position >> 3] ^= 0x80 >> (position & 7)
    return bytes(changed)
