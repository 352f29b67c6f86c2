"""Settings of a mapper. The papers state none of these values: all are ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MICROSECOND: Final = 1_000
MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000_000_000

MAX_PORTS: Final = 32
"""Maximum ports of a switch: a route byte has six bits for a delta, including its sign."""
_LONGEST_ENTRY: Final = 264  # bytes: a number, an address, a route of at most 255 bytes and its length


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a mapper. Times are nanoseconds.

    ports: maximum ports of a switch, so that deltas are from 1 - ports to ports - 1 (8: the 8-port crossbars of the
    Berkeley NOW). timeout: time after which an unanswered probe counts as lost; increased where answers take longer, up
    to longest_timeout. min_tries, max_tries: minimum and maximum number of tries; the number depends on the measured
    loss. interval: average time between two frames, which limits the load on the network. burst: maximum frames without
    an interval. window: maximum unanswered probes. watch: time between two checks of the map. slices: number of checks
    within which every silent port is probed once. refresh: time between explorations of an unchanged network; 0: never.
    patience: time without a frame from the leader after which it is considered down. stagger: delay between the starts
    of candidates for leadership, multiplied by their number or rank. rumour: time within which a reported leader must
    send a frame. leads: whether this mapper may lead; otherwise it only answers. chunk: maximum bytes of a part of a
    table. parts: maximum parts of tables in flight.
    """

    ports: int = 8
    timeout: int = 5 * MILLISECOND
    longest_timeout: int = 250 * MILLISECOND
    min_tries: int = 3
    max_tries: int = 32
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
        if not 2 <= self.ports <= MAX_PORTS:
            raise ValueError(f"ports = {self.ports}: 2 to {MAX_PORTS}")
        if self.longest_timeout < self.timeout:
            raise ValueError(f"longest_timeout = {self.longest_timeout}: {self.timeout} ns (timeout) or more")
        if not 1 <= self.min_tries <= self.max_tries:
            raise ValueError(
                f"min_tries = {self.min_tries}, max_tries = {self.max_tries}: 1 or more, and min_tries at most max_tries"
            )
        for name in ("timeout", "interval", "burst", "window", "watch", "slices", "patience", "stagger", "parts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: 1 or more")
        if self.chunk < 2 * _LONGEST_ENTRY:
            raise ValueError(f"chunk = {self.chunk}: {2 * _LONGEST_ENTRY} bytes or more")
