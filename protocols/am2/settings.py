"""What can be set of AM-II. What the sources say is the default where they say something."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000 * MILLISECOND

MOST_CHANNELS: Final = 256
MOST_SEQUENCES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Settings:
    """channels: logical channels to each other NIC; "many" in the paper, 32 is ours. sequences: numbers that a channel's
    packets have in turn: 2 is the paper's alternating bit, enough where the network keeps frames in order; on links that
    reorder an old copy could be taken for a new packet, and 65536 is right. scan: nanoseconds between two looks at what has
    not been answered (ours). timeout: nanoseconds without an answer after which a packet is sent again (ours), doubled each
    time up to longest_timeout. retries: how often before the peer is unreachable (the digest has 255 from memory, "several
    seconds" from the paper: 40 of at most 160 ms are six). refused: nanoseconds before a packet that was refused for a
    reason that passes is sent again (ours).
    """

    channels: int = 32
    sequences: int = 2
    scan: int = 1 * MILLISECOND
    timeout: int = 5 * MILLISECOND
    longest_timeout: int = 160 * MILLISECOND
    retries: int = 40
    refused: int = 1 * MILLISECOND

    def __post_init__(self) -> None:
        if not 1 <= self.channels <= MOST_CHANNELS:
            raise ValueError(f"{self.channels} channels: 1 to {MOST_CHANNELS}")
        if not 2 <= self.sequences <= MOST_SEQUENCES or self.sequences & self.sequences - 1:
            raise ValueError(f"{self.sequences} sequence numbers: a power of two from 2 to {MOST_SEQUENCES}")
        if self.scan < 1 or self.refused < 1:
            raise ValueError(f"scans {self.scan} ns apart, {self.refused} ns after a refusal: 1 or more")
        if not 0 < self.timeout <= self.longest_timeout:
            raise ValueError(f"a time-out of {self.timeout} ns: above 0, and at most {self.longest_timeout} ns")
        if self.retries < 1:
            raise ValueError(f"{self.retries} retries: 1 or more")
