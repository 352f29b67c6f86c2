"""Hash that decides fates: a chain of 64-bit multiply-xorshift steps, which a BPF program can compute, too.

It uses only additions, multiplications, exclusive ors and shifts of unsigned 64-bit words (all arithmetic is modulo 2^64).
The step is the finaliser of SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014,
in Stafford's variant 13), and the n-th draw of a stream is SplitMix64's n-th output from the stream's start:

    absorb(h, w)   = mix64((h + GOLDEN) ^ w)
    direction key  = absorb over: seed, number of bytes in the link's name, the name, 0 (forward) or 1 (backward)
    flow key       = absorb over: direction key; destination MAC << 16 | EtherType; source MAC << 16 | number of key
                     fields; every key field
    stream start   = absorb(flow key, stream)      for a state of the direction: absorb(direction key, stream)
    draw           = mix64(stream start + n * GOLDEN)                                           n = 1, 2, 3, ...
    event if       (draw >> 11) < threshold, threshold = ceil(probability * 2^53)

A link's name is absorbed as its UTF-8 bytes in little-endian words of eight bytes, padded with zeros; a MAC is the 48-bit
number of its text form. All words before those of the flow can be absorbed in advance: a program in the kernel needs the
direction key, and for each flow a stream start and n. Test vectors: tests/unit/fates/vectors.json.
"""

from __future__ import annotations

import contextlib
import math
from typing import Final

MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
GOLDEN: Final = 0x9E37_79B9_7F4A_7C15
"""2^64 divided by the golden ratio, odd: SplitMix64's increment."""

MULTIPLIER_1: Final = 0xBF58_476D_1CE4_E5B9
MULTIPLIER_2: Final = 0x94D0_49BB_1331_11EB
"""The multipliers of Stafford's variant 13."""

# Streams of the independent draws of one frame. A change of these numbers would change all fates.
LOSS: Final = 1
CORRUPT: Final = 2
DUPLICATE: Final = 3
REORDER: Final = 4
JITTER: Final = 5
BITS: Final = 6
"""The n-th draw of this stream is the start of the stream that chooses the bits to flip (`field_changes.choose_indexes`)."""
TRANSITION: Final = 7
"""Gilbert-Elliott: whether the state changes. A stream of the direction, with a draw for each frame."""
STATE_LOSS: Final = 8
"""Gilbert-Elliott: whether the frame is lost in the current state. A stream of the direction, with a draw for each frame."""

CERTAIN: Final = 1 << 53
"""The threshold of probability 1."""

DIRECTIONS: Final = ("forward", "backward")


def chain(state: int, words: tuple[int, ...]) -> int:
    """Absorb all words, each below 2^64; return the chain's next state."""
    for word in words:
        word ^= (state + GOLDEN) & MASK
        word = ((word ^ (word >> 30)) * MULTIPLIER_1) & MASK
        word = ((word ^ (word >> 27)) * MULTIPLIER_2) & MASK
        state = word ^ (word >> 31)
    return state


def draw(start: int, n: int) -> int:
    """Return the n-th number of a stream, 64 bits. n counts from 1."""
    word = (start + n * GOLDEN) & MASK
    word = ((word ^ (word >> 30)) * MULTIPLIER_1) & MASK
    word = ((word ^ (word >> 27)) * MULTIPLIER_2) & MASK
    return word ^ (word >> 31)


def absorb(state: int, word: int) -> int:
    """Return the chain's next state. word: below 2^64."""
    return chain(state, (word,))


def threshold(probability: float) -> int:
    """Convert a probability to the threshold for ``draw >> 11``. The conversion is exact: a float times 2^53 is not rounded,
    and a probability above 0 never gives 0."""
    if not 0.0 <= probability <= 1.0:
        raise ValueError(f"probability must be 0 to 1, got {probability}")
    return math.ceil(probability * CERTAIN)


def below(word: int, bound: int) -> int:
    """Scale a draw to a number from 0 to bound - 1, as the kernel's reciprocal_scale does. bound: at most 2^32."""
    return ((word >> 32) * bound) >> 32


def direction_key(seed: int, link: str, direction: str) -> int:
    """Return the state from which all hashes of one direction of a link start. seed: 0 to 2^64 - 1. direction: "forward" or
    "backward"."""
    if not 0 <= seed <= MASK:
        raise ValueError(f"seed must be 0 to 2^64 - 1, got {seed}")
    name = link.encode()
    name_words = [int.from_bytes(name[offset : offset + 8], "little") for offset in range(0, len(name), 8)]
    return chain(0, (seed, len(name), *name_words, DIRECTIONS.index(direction)))


def flow_words(ethertype: int, destination: int, source: int, fields: tuple[int, ...]) -> tuple[int, ...]:
    """Return the words to absorb for a flow. Of a field wider than 64 bits, the lowest 64 bits are used."""
    return (destination << 16 | ethertype, source << 16 | len(fields), *[value & MASK for value in fields])


def flow_start(
    key: int, ethertype: int, destination: bytes, source: bytes, fields: tuple[int, ...], stream: int
) -> int:
    """Return the start of one of a flow's streams of draws. key: key of the direction. destination, source: MACs; those of a
    truncated frame are read as if zeros followed."""
    numbers = int.from_bytes(destination.ljust(6, b"\0"), "big"), int.from_bytes(source.ljust(6, b"\0"), "big")
    return chain(key, (*flow_words(ethertype, *numbers, fields), stream))


def flow_key(key: int, ethertype: int, destination: int, source: int, fields: tuple[int, ...]) -> int:
    """Return the state from which the hashes of one flow start. key: key of the direction."""
    return chain(key, flow_words(ethertype, destination, source, fields))


with contextlib.suppress(ImportError):  # the compiled build has these functions in C, see `native_hash.c`
    from testbed.fates import native_hash

    chain, draw, flow_start = native_hash.chain, native_hash.draw, native_hash.flow_start
