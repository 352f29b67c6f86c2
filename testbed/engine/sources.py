"""Random sources: each component has a source that depends only on the run's seed and the component's name.

So a component's draws do not depend on those of other components. A source is SplitMix64 (Steele, Lea, Flood, OOPSLA
2014), started at a hash of seed and name; the steps are those of `testbed.fates.fate_hash`:

    start = absorb over: 0, seed, number of bytes in the name, the name in little-endian words of eight, SOURCE
    n-th word = mix64(start + n * GOLDEN)                                                       n = 1, 2, 3, ...

All draws are equal on every machine, except those of `exponential`, which depend on the C library's logarithm.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from typing import Final, TypeVar

from testbed.fates.fate_hash import MASK, absorb, draw

T = TypeVar("T")

SOURCE: Final = 0x736F_7572_6365
"""Separates a component's draws from the fates of a link of the same name: "source" in ASCII."""

_WORD_VALUES: Final = 1 << 64


class Source:
    """A stream of random draws. start: start of the stream, 0 to 2^64 - 1."""

    __slots__ = ("_drawn", "_start")

    def __init__(self, start: int) -> None:
        self._start = start
        self._drawn = 0

    def word(self) -> int:
        """Draw 64 random bits."""
        self._drawn += 1
        return draw(self._start, self._drawn)

    def random(self) -> float:
        """Draw a multiple of 2^-53 from 0 up to, but not including, 1."""
        return (self.word() >> 11) * 2.0**-53

    def below(self, bound: int) -> int:
        """Draw 0 to bound - 1, uniformly. bound: 1 to 2^64."""
        if not 1 <= bound <= _WORD_VALUES:
            raise ValueError(f"bound must be 1 to 2^64, got {bound}")
        # Lemire, "Fast Random Integer Generation in an Interval", 2019: draws that would make some results more probable
        # are rejected.
        product = self.word() * bound
        if product & MASK < bound:
            surplus = _WORD_VALUES % bound
            while product & MASK < surplus:
                product = self.word() * bound
        return product >> 64

    def uniform(self, low: float, high: float) -> float:
        """Draw a number between `low` and `high`, uniformly."""
        return low + (high - low) * self.random()

    def exponential(self, mean: float) -> float:
        """Draw the time to the next event of a Poisson process whose events are `mean` apart."""
        return -mean * math.log(1.0 - self.random())

    def choice(self, items: Sequence[T]) -> T:
        """Draw one item. Raises ValueError if `items` is empty."""
        return items[self.below(len(items))]

    def shuffle(self, items: MutableSequence[T]) -> None:
        """Shuffle in place (Fisher and Yates)."""
        for last in range(len(items) - 1, 0, -1):
            index = self.below(last + 1)
            items[last], items[index] = items[index], items[last]

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """Draw `count` items without replacement, in random order. Raises ValueError if there are fewer."""
        if not 0 <= count <= len(items):
            raise ValueError(f"count must be 0 to {len(items)}, the number of items, got {count}")
        remaining = list(items)
        for index in range(count):
            chosen = index + self.below(len(remaining) - index)
            remaining[index], remaining[chosen] = remaining[chosen], remaining[index]
        return remaining[:count]


def source(seed: int, name: str) -> Source:
    """Make the random source of the component with this name. seed: seed of the run, 0 to 2^64 - 1."""
    if not 0 <= seed <= MASK:
        raise ValueError(f"seed must be 0 to 2^64 - 1, got {seed}")
    text = name.encode()
    state = absorb(absorb(0, seed), len(text))
    for offset in range(0, len(text), 8):
        state = absorb(state, int.from_bytes(text[offset : offset + 8], "little"))
    return Source(absorb(state, SOURCE))
