"""Single-producer single-consumer ring of numbers between processes in shared memory, with sleep and wake-up of its reader.

A ring has three control words, each on its own cache lines and with one writer: `tail`, how many numbers have ever been put;
`head`, how many have ever been taken; `asleep`, 0 while the reader polls. All are native and aligned, so that a store is
atomic. An x86 processor keeps the order of stores, and of loads: a number is visible before the tail that counts it.

An x86 processor does not keep the order of a store and a later load of another word, so a wake-up could be lost:

- the writer stores the tail, and then loads `asleep`;
- the reader stores `asleep`, and then loads the tail once more.

If both loads went first, each process would miss the other's store, and the reader would sleep forever. So both have a full
fence between store and load. Python has no fences, but taking an uncontended lock is an atomic exchange, which is one. Other
processors may reorder stores as well: see `HAS_ORDERED_STORES`.

The other end is not trusted. Reader and writer rely on their own count, and accept the other's count only within the ring's
capacity; any other value is a `ProtocolViolationError`.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable
from typing import Final

from testbed.errors import TestbedError

HAS_ORDERED_STORES: Final = platform.machine() in ("x86_64", "i686")
"""Whether this machine's processors keep the order of stores, and of loads, on which these rings rely."""

WORD: Final = 8
"""Bytes of a control word, and of a number."""
WORD_DISTANCE: Final = 128
"""Bytes between two control words: processors fetch cache lines of 64 bytes in pairs."""
CONTROL_WORDS: Final = 3
"""Number of control words of a ring."""
CONTROL_SIZE: Final = CONTROL_WORDS * WORD_DISTANCE
"""Bytes of a ring's control words."""

_STEP: Final = WORD_DISTANCE // WORD
_TAIL, _HEAD, _ASLEEP = 0, _STEP, 2 * _STEP  # indexes


class ProtocolViolationError(TestbedError):
    """The other process has written invalid values into the shared memory."""


class Writer:
    """The producer's end of a ring. A ring must have only one."""

    __slots__ = ("_entries", "_fence", "_head", "_last_woken", "_mask", "_numbers", "_tail", "_wake", "_words")

    def __init__(self, words: memoryview, numbers: memoryview, wake: Callable[[], object]) -> None:
        """words: the control words. numbers: the entries, whose count is a power of two. Both are views of 64-bit words.
        wake: called when a number is put while the reader sleeps, once for each sleep."""
        self._words = words
        self._numbers = numbers
        self._entries = len(numbers)
        self._mask = len(numbers) - 1
        self._wake = wake
        self._tail = 0
        self._head = 0  # the reader's head when it was read last
        self._last_woken = 0  # number of the reader's sleep that was ended last
        self._fence = threading.Lock()

    def put(self, number: int) -> bool:
        """Put a 64-bit number into the ring; return False if the ring is full. Raises ProtocolViolationError."""
        words, tail = self._words, self._tail
        if tail - self._head >= self._entries:
            head = words[_HEAD]
            if not self._head <= head <= tail:
                raise ProtocolViolationError(
                    f"head is {head}: it must be from {self._head}, its former value, to {tail}, the tail"
                )
            if head == self._head:
                return False
            self._head = head
        self._numbers[tail & self._mask] = number
        self._tail = tail = tail + 1
        words[_TAIL] = tail
        with self._fence:
            pass
        asleep = words[_ASLEEP]
        if asleep != self._last_woken:
            self._last_woken = asleep
            if asleep:
                self._wake()
        return True


class Reader:
    """The consumer's end of a ring. A ring must have only one."""

    __slots__ = ("_entries", "_fence", "_head", "_mask", "_numbers", "_sleeps", "_words")

    def __init__(self, words: memoryview, numbers: memoryview) -> None:
        """words, numbers: see `Writer`."""
        self._words = words
        self._numbers = numbers
        self._entries = len(numbers)
        self._mask = len(numbers) - 1
        self._head = 0
        self._sleeps = 0  # number of sleeps announced
        self._fence = threading.Lock()

    def take(self, limit: int) -> list[int]:
        """Take the oldest numbers from the ring, at most `limit`. Raises ProtocolViolationError."""
        words, head = self._words, self._head
        tail = words[_TAIL]
        if tail == head:
            return []
        if tail == head + 1:  # the most frequent case, without a loop
            values = [self._numbers[head & self._mask]]
            self._head = words[_HEAD] = tail
            return values
        if not head < tail <= head + self._entries:
            raise ProtocolViolationError(f"tail is {tail}: it must be from {head}, the head, to {head + self._entries}")
        numbers, mask = self._numbers, self._mask
        if tail > head + limit:
            tail = head + limit
        values = [numbers[position & mask] for position in range(head, tail)]
        self._head = words[_HEAD] = tail
        return values

    def announce_sleep(self) -> bool:
        """Announce a sleep; return whether the reader may sleep: the ring is empty, and the writer will wake the reader.
        Call `end_sleep` afterwards."""
        self._sleeps += 1
        self._words[_ASLEEP] = self._sleeps  # a new value for each sleep, so that the writer wakes the reader once
        with self._fence:
            pass
        if self._words[_TAIL] == self._head:
            return True
        self._words[_ASLEEP] = 0
        return False

    def end_sleep(self) -> None:
        """End the sleep. Call it before the ring is polled again."""
        self._words[_ASLEEP] = 0
