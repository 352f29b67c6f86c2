"""What messages contain, so that one that was changed, or is another one, is seen."""

from __future__ import annotations

import random
from typing import Final

from testbed.workloads.form import VerificationError

_SHIFTS: Final = 251  # a prime: messages that are near each other differ in every byte's place


class Contents:
    """Messages of up to so many bytes. The same for the same seed and purpose on every node; nothing is made per message."""

    __slots__ = ("_block",)

    def __init__(self, seed: int, what: str, most: int) -> None:
        self._block = memoryview(random.Random(f"{seed}/{what}").randbytes(most + _SHIFTS))

    def of(self, number: int, size: int) -> memoryview:
        """The content of message number so and so."""
        begin = number % _SHIFTS
        return self._block[begin : begin + size]

    def check(self, number: int, received: memoryview | bytearray, who: str) -> None:
        """Raises VerificationError where a byte is another one."""
        if received != self.of(number, len(received)):
            expected = self.of(number, len(received))
            place = next(place for place, byte in enumerate(received) if byte != expected[place])
            raise VerificationError(f"{who}, message {number} of {len(received)} bytes: byte {place} is another one")
