"""What can be set of a mapper. The papers name none of these figures: all are ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MICROSECOND: Final = 1_000
MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000_000_000

MOST_PORTS: Final = 32
"""A route byte has six bits for a delta, with its sign."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Times are nanoseconds.

    ports: a switch has at most so many, so that deltas are from 1 - ports to ports - 1 (8: the 8-port crossbars of the
    Berkeley NOW). timeout: without its answer, a probe is lost; later where answers take longer, up to longest_timeout.
    least and most: how often one is sent before its silence is believed; between them it is as often as the losses seen so
    far ask for. interval: between two frames, on average, so that probes load the network only so much; burst: frames that
    may follow each other at once. window: probes without an answer at the same time. watch: between two looks at what is
    known. slices: looks in which every silent port is tried once. refresh: between explorations though nothing seems to
    have changed; 0: never. patience: without a word from the leader, it is gone. stagger: between mappers that would all
    lead, by number or by rank. rumour: how long a leader is waited for that is only heard of. leads: this mapper leads if
    it must; otherwise it only answers. chunk: bytes of a part of a table, at most. parts: of tables under way at the same
    time.
    """

    ports: int = 8
    timeout: int = 5 * MILLISECOND
    longest_timeout: int = 250 * MILLISECOND
    least: int = 3
    most: int = 32
    interval: int = 20 * MICROSECOND
    burst: int = 32
    window: int = 256
    watch: int = 100 * MILLISECOND
    slices: int = 4
    refresh: int = 30 * SECOND
    patience: int = 1 * SECOND
    stagger: int = 10 * MILLISECOND
    rumour: int = 250 * MILLISECOND
    leads: bool = True
    chunk: int = 1024
    parts: int = 16

    def __post_init__(self) -> None:
        if not 2 <= self.ports <= MOST_PORTS:
            raise ValueError(f"switches of {self.ports} ports: 2 to {MOST_PORTS}")
        if self.longest_timeout < self.timeout:
            raise ValueError(
                f"time-outs of {self.timeout} to {self.longest_timeout} ns: the first not above the second"
            )
        if not 1 <= self.least <= self.most:
            raise ValueError(f"{self.least} to {self.most} times: 1 or more, the first not above the second")
        for name in ("timeout", "interval", "burst", "window", "watch", "slices", "patience", "stagger", "parts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of {getattr(self, name)}: 1 or more")
        if self.chunk < 2 * _LONGEST_ENTRY:
            raise ValueError(f"parts of {self.chunk} bytes: {2 * _LONGEST_ENTRY} or more")


_LONGEST_ENTRY: Final = 264  # bytes: a number, an address, a route of at most 255 bytes and its length
