"""What a Myrinet network's hardware is like."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

LINK_RATE: Final = 1_280_000_000
"""bit/s of a link of which nothing is said: Myrinet's second generation, as in the Berkeley NOW."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Times in nanoseconds. All but the rate is our choice; no public source that we could read confirms it.

    ports: of a switch. hop: from a frame's first byte at a switch's input to the same at its output, when nothing is in the
    way. slack: bytes that a switch's input takes of a frame that cannot go on, beside what is on the cable when the sender
    is told to stop. timeout: how long a frame's head waits for an output before the switch gives it up.
    """

    rate: int = LINK_RATE
    hop: int = 300
    slack: int = 80
    timeout: int = 50_000_000
    ports: int = 8

    def slowed(self, factor: int) -> Settings:
        """The same, so many times slower."""
        return replace(self, rate=self.rate // factor, hop=self.hop * factor, timeout=self.timeout * factor)


USUAL: Final = Settings()
