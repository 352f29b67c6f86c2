"""A ring of numbers from one process to another in shared memory, and how its reader sleeps and is woken.

Three words belong to a ring, on cache lines of their own, and each has one writer: `tail`, how many numbers have ever been
put; `head`, how many have ever been taken; `asleep`, 0 while the reader looks by itself. All are native and aligned, so that
each is stored as a whole. An x86 processor keeps stores among themselves in order, and loads too: a number is there before
the tail that counts it.

What it does not keep is a store before a later load of another word. There no wake-up may be lost:

- the writer stores the tail, and then looks whether the reader sleeps;
- the reader says that it sleeps, and then looks at the tail once more.

If both loads could go first, each would miss the other's store, and the reader sleep for ever. So both have a full fence in
between. Python offers none by name; taking a lock that nobody else has is one, as its word is exchanged by an instruction
that locks the bus. Other processors may let stores pass each other as well: see `ORDERED`.

Who is at the other end is not trusted. A reader or writer goes by its own count and believes nothing of the other's but a
distance that can be; any other is a `MisconductError`.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable
from typing import Final

from testbed.errors import TestbedError

ORDERED: Final = platform.machine() in ("x86_64", "i686")
"""Whether this machine's processors order what they store and load as these rings need it."""

WORD: Final = 8  # bytes
APART: Final = 128
"""Bytes between two words with different writers: processors fetch cache lines of 64 bytes by pairs."""
WORDS: Final = 3
"""Of control, before a ring's numbers."""
SIZE: Final = WORDS * APART
"""Bytes of these."""

_STEP: Final = APART // WORD
_TAIL, _HEAD, _ASLEEP = 0, _STEP, 2 * _STEP


class MisconductError(TestbedError):
    """The other end of shared memory has done what no library of ours does."""


class Writer:
    """The end that puts numbers in. Only one process has it."""

    __slots__ = ("_entries", "_fence", "_head", "_mask", "_numbers", "_rung", "_tail", "_wake", "_words")

    def __init__(self, words: memoryview, numbers: memoryview, wake: Callable[[], object]) -> None:
        """words, numbers: of 64 bits; as many numbers as a power of two. wake: called when the reader sleeps, once for each
        sleep."""
        self._words = words
        self._numbers = numbers
        self._entries = len(numbers)
        self._mask = len(numbers) - 1
        self._wake = wake
        self._tail = 0
        self._head = 0  # of the reader, when it was looked at last
        self._rung = 0  # the sleep that was ended last
        self._fence = threading.Lock()

    def put(self, number: int) -> bool:
        """Put a number of 64 bits; False, and nothing is done, when the ring is full. Raises MisconductError."""
        words, tail = self._words, self._tail
        if tail - self._head >= self._entries:
            head = words[_HEAD]
            if not self._head <= head <= tail:
                raise MisconductError(f"of {tail} numbers {head} are said to be taken, and {self._head} were before")
            if head == self._head:
                return False
            self._head = head
        self._numbers[tail & self._mask] = number
        self._tail = tail = tail + 1
        words[_TAIL] = tail
        with self._fence:
            pass
        asleep = words[_ASLEEP]
        if asleep != self._rung:
            self._rung = asleep
            if asleep:
                self._wake()
        return True


class Reader:
    """The end that takes numbers out. Only one process has it."""

    __slots__ = ("_entries", "_fence", "_head", "_mask", "_numbers", "_sleeps", "_words")

    def __init__(self, words: memoryview, numbers: memoryview) -> None:
        """As for `Writer`."""
        self._words = words
        self._numbers = numbers
        self._entries = len(numbers)
        self._mask = len(numbers) - 1
        self._head = 0
        self._sleeps = 0
        self._fence = threading.Lock()

    def take(self, most: int) -> list[int]:
        """The oldest numbers, at most so many. Raises MisconductError."""
        words, head = self._words, self._head
        tail = words[_TAIL]
        if tail == head:
            return []
        if tail == head + 1:  # most often; without a list to be built by a loop
            found = [self._numbers[head & self._mask]]
            self._head = words[_HEAD] = tail
            return found
        if not head < tail <= head + self._entries:
            raise MisconductError(f"a ring of {self._entries} numbers says {tail} were put, of which {head} are taken")
        numbers, mask = self._numbers, self._mask
        if tail > head + most:
            tail = head + most
        found = [numbers[place & mask] for place in range(head, tail)]
        self._head = words[_HEAD] = tail
        return found

    def doze(self) -> bool:
        """Say that we sleep; whether we may: there is nothing, and whoever puts something will wake us. `rise` ends it."""
        self._sleeps += 1
        self._words[_ASLEEP] = self._sleeps  # another one each time: so the writer rings once for each
        with self._fence:
            pass
        if self._words[_TAIL] == self._head:
            return True
        self._words[_ASLEEP] = 0
        return False

    def rise(self) -> None:
        """We look by ourselves again. First, what has woken us is taken back, or the next sleep is short; then we look."""
        self._words[_ASLEEP] = 0
