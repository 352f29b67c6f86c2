"""NPB's random numbers: x(n) = 5^13 x(n - 1) mod 2^46, x(0) = 314159265 (RNR-94-007, section 2.3). Number n is
x(n) / 2^46. Any number can be computed directly, so each rank computes only the numbers that it needs. IS makes its keys
from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np

from testbed.workloads.nas.problem_classes import IsClass

_BITS: Final = 46
_SEED: Final = 314_159_265
_MULTIPLIER: Final = 5**13
_MODULUS: Final = 1 << _BITS
_NUMBERS_PER_KEY: Final = 4
_KEYS_PER_CHUNK: Final = 1 << 20
_STREAM_CHUNK: Final = 1 << 16  # numbers that a stream computes together

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def states(first: int, count: int) -> Array:
    """Return x(first), x(first + 1), ...: `count` of them, 1 or more."""
    sequence = np.empty(count, np.uint64)
    sequence[0] = _SEED * pow(_MULTIPLIER, first, _MODULUS) % _MODULUS
    filled = 1
    while filled < count:
        step = min(filled, count - filled)
        # Products wrap at 2^64, which is a multiple of 2^46, so that their low 46 bits are right.
        np.multiply(
            sequence[:step], np.uint64(pow(_MULTIPLIER, filled, _MODULUS)), out=sequence[filled : filled + step]
        )
        filled += step
    sequence &= np.uint64(_MODULUS - 1)
    return sequence


def numbers(first: int, count: int) -> Array:
    """Return random numbers between 0 and 1, from number `first` on."""
    return states(first, count) * 2.0**-_BITS


def stream(first: int) -> Iterator[float]:
    """Yield the numbers of `numbers` one by one, without end."""
    while True:
        yield from numbers(first, _STREAM_CHUNK).tolist()
        first += _STREAM_CHUNK


def make_keys(problem: IsClass, first: int, count: int) -> Array:
    """Return keys of the sequence: floor(Bmax × sum / 4) of the sum of four random numbers, Bmax = 2^log_max."""
    sums = states(_NUMBERS_PER_KEY * first + 1, _NUMBERS_PER_KEY * count).reshape(count, _NUMBERS_PER_KEY).sum(axis=1)
    keys: Array = (sums >> np.uint64(_BITS - problem.log_max + 2)).astype(np.int32)
    return keys


def key_chunks(problem: IsClass, first: int, count: int) -> Iterator[Array]:
    """Yield the keys of `make_keys` in chunks."""
    for start in range(first, first + count, _KEYS_PER_CHUNK):
        yield make_keys(problem, start, min(_KEYS_PER_CHUNK, first + count - start))
