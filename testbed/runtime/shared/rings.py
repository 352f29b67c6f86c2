"""Single-producer single-consumer ring of numbers between processes in shared memory, with sleep and wake-up of its reader.

A ring has three control words, on cache lines of their own, each with one writer: `tail`, how many numbers were ever put;
`head`, how many were ever taken; `asleep`, 0 while the reader polls. All are native and aligned, so that a store is atomic.
An x86 processor keeps the order of stores, and of loads: a number is visible before the tail that counts it.

It does not keep the order of a store and a later load of another word, by which a wake-up could be lost:

- the writer stores the tail, and then reads whether the reader sleeps;
- the reader stores that it sleeps, and then reads the tail once more.

If both loads could go first, each would miss the other's store, and the reader would sleep for ever. So both have a full
fence in between. Python has none; taking an uncontended lock is one, as it is an atomic exchange. Other processors may
reorder stores as well: see `ORDERED`.

The other end is not trusted. A reader or writer uses its own count, and of the other's only a plausible distance; any other
value is a `MisconductError`.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable
from typing import Final

from testbed.errors import TestbedError

ORDERED: Final = platform.machine() in ("x86_64", "i686")
"""Whether this machine's processors order stores and loads as these rings need it."""

WORD: Final = 8  # bytes
APART: Final = 128
"""Bytes between two words with different writers: processors fetch cache lines of 64 bytes by pairs."""
WORDS: Final = 3
"""Number of control words of a ring."""
SIZE: Final = WORDS * APART
"""Bytes of a ring's control words."""

_STEP: Final = APART // WORD
_TAIL, _HEAD, _ASLEEP = 0, _STEP, 2 * _STEP


class ProtocolViolationError(TestbedError):
    """The other end of shared memory has written what no library of ours writes."""


class Writer:
    """The producer's end of a ring. Only one process has it."""

    __slots__ = ("_entries", "_fence", "_head", "_mask", "_numbers", "_rung", "_tail", "_wake", "_words")

    def __init__(self, words: memoryview, numbers: memoryview, wake: Callable[[], object]) -> None:
        """words, numbers: of 64 bits; the number of numbers is a power of two. wake: called when the reader sleeps, once for
        each sleep."""
        self._words = words
        self._numbers = numbers
        self._entries = len(numbers)
        self._mask = len(numbers) - 1
        self._wake = wake
        self._tail = 0
        self._head = 0  # the reader's head when it was read last
        self._rung = 0  # the sleep that was ended last
        self._fence = threading.Lock()

    def put(self, number: int) -> bool:
        """Put a number of 64 bits; False, and nothing has changed, when the ring is full. Raises MisconductError."""
        words, tail = self._words, self._tail
        if tail - self._head >= self._entries:
            head = words[_HEAD]
            if not self._head <= head <= tail:
                raise ProtocolViolationError(f"{head} of {tail} numbers are marked as read, {self._head} were before")
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
    """The consumer's end of a ring. Only one process has it."""

    __slots__ = ("_entries", "_fence", "_head", "_mask", "_numbers", "_sleeps", "_words")

    def __init__(self, words: memoryview, numbers: memoryview) -> None:
        """words, numbers: as for `Writer`."""
        self._words = words
        self._numbers = numbers
        self._entries = len(numbers)
        self._mask = len(numbers) - 1
        self._head = 0
        self._sleeps = 0
        self._fence = threading.Lock()

    def take(self, most: int) -> list[int]:
        """Take the oldest numbers, at most `most`. Raises MisconductError."""
        words, head = self._words, self._head
        tail = words[_TAIL]
        if tail == head:
            return []
        if tail == head + 1:  # the most frequent case, without a loop
            taken = [self._numbers[head & self._mask]]
            self._head = words[_HEAD] = tail
            return taken
        if not head < tail <= head + self._entries:
            raise ProtocolViolationError(
                f"a ring of {self._entries} numbers says {tail} were put, of which {head} are taken"
            )
        numbers, mask = self._numbers, self._mask
        if tail > head + most:
            tail = head + most
        taken = [numbers[position & mask] for position in range(head, tail)]
        self._head = words[_HEAD] = tail
        return taken

    def doze(self) -> bool:
        """Announce a sleep; return whether we may sleep: the ring is empty, and the writer will wake us. `rise` ends it."""
        self._sleeps += 1
        self._words[_ASLEEP] = self._sleeps  # another value each time, so that the writer wakes once for each
        with self._fence:
            pass
        if self._words[_TAIL] == self._head:
            return True
        self._words[_ASLEEP] = 0
        return False

    def rise(self) -> None:
        """End the sleep, before the ring is polled again."""
        self._words[_ASLEEP] = 0
