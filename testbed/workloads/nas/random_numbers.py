"""NPB's random numbers: x(n) = 5^13 x(n - 1) mod 2^46 from x(0) = 314159265 on (RNR-94-007, section 2.3). Number n is
x(n) / 2^46; any of them is reached at once, so that each rank makes its own. IS makes its keys of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np

from testbed.workloads.nas.problem_classes import IsClass

_BITS: Final = 46
_SEED: Final = 314_159_265
_FACTOR: Final = 5**13
_MODULUS: Final = 1 << _BITS
_OF_A_KEY: Final = 4  # random numbers
_CHUNK: Final = 1 << 20  # keys that are made at once
_DRAWN: Final = 1 << 16  # numbers that a stream makes at once

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def states(first: int, count: int) -> Array:
    """Return x(first), x(first + 1), ...: `count` of them, 1 or more."""
    found = np.empty(count, np.uint64)
    found[0] = _SEED * pow(_FACTOR, first, _MODULUS) % _MODULUS
    filled = 1
    while filled < count:
        step = min(filled, count - filled)
        # Products wrap at 2^64, of which 2^46 is a divisor: their low bits are right.
        np.multiply(found[:step], np.uint64(pow(_FACTOR, filled, _MODULUS)), out=found[filled : filled + step])
        filled += step
    found &= np.uint64(_MODULUS - 1)
    return found


def numbers(first: int, count: int) -> Array:
    """Return random numbers between 0 and 1, from number `first` on."""
    return states(first, count) * 2.0**-_BITS


def stream(first: int) -> Iterator[float]:
    """Yield the same numbers one by one, without an end."""
    while True:
        yield from numbers(first, _DRAWN).tolist()
        first += _DRAWN


def make_keys(problem: IsClass, first: int, count: int) -> Array:
    """Return keys of the sequence: a quarter of the greatest key times the sum of four random numbers."""
    sums = states(_OF_A_KEY * first + 1, _OF_A_KEY * count).reshape(count, _OF_A_KEY).sum(axis=1)
    keys: Array = (sums >> np.uint64(_BITS - problem.log_max + 2)).astype(np.int32)
    return keys


def key_chunks(problem: IsClass, first: int, count: int) -> Iterator[Array]:
    """Yield the same keys in pieces."""
    for begin in range(first, first + count, _CHUNK):
        yield make_keys(problem, begin, min(_CHUNK, first + count - begin))
