"""Settings of a Myrinet network's hardware."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

LINK_RATE: Final = 1_280_000_000
"""Default rate of a link in bit/s: Myrinet's second generation, as in the Berkeley NOW."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Hardware parameters, times in nanoseconds. All but the rate are our choice, since there is no public source.

    rate: default of a link, in bit/s. hop: latency of a frame's first byte through a free switch. slack: bytes of a blocked
    frame that a switch's input buffers, without those that are on the cable when the input sends STOP. timeout: time for
    which a frame's head may wait at a switch; then the frame is truncated or discarded. ports: number of ports of a switch.
    """

    rate: int = LINK_RATE
    hop: int = 300
    slack: int = 80
    timeout: int = 50_000_000
    ports: int = 8

    def slowed(self, factor: int) -> Settings:
        """Return settings of hardware that is slower by a factor."""
        return replace(self, rate=self.rate // factor, hop=self.hop * factor, timeout=self.timeout * factor)


DEFAULT: Final = Settings()
