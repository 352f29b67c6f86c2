"""The hash's steps, in Python. `native_hash.c` has `chain` and `draw`, too."""

from __future__ import annotations

from typing import Final

MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
GOLDEN: Final = 0x9E37_79B9_7F4A_7C15
"""2^64 divided by the golden ratio, odd: SplitMix64's increment."""

MULTIPLIER_1: Final = 0xBF58_476D_1CE4_E5B9
MULTIPLIER_2: Final = 0x94D0_49BB_1331_11EB
"""The multipliers of Stafford's variant 13."""


def chain(state: int, words: tuple[int, ...]) -> int:
    """Absorb all words, each below 2^64; return the chain's next state. Absorbing one more word 0 gives a stream's first
    draw."""
    for word in words:
        word ^= (state + GOLDEN) & MASK
        word = ((word ^ (word >> 30)) * MULTIPLIER_1) & MASK
        word = ((word ^ (word >> 27)) * MULTIPLIER_2) & MASK
        state = word ^ (word >> 31)
    return state


def draw(start: int, n: int) -> int:
    """Return the n-th number of a stream, 64 bits: mix64(start + n * GOLDEN). n counts from 1."""
    word = (start + n * GOLDEN) & MASK
    word = ((word ^ (word >> 30)) * MULTIPLIER_1) & MASK
    word = ((word ^ (word >> 27)) * MULTIPLIER_2) & MASK
    return word ^ (word >> 31)
