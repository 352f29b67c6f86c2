"""Delivery trace of a recorded link in place of a rate: the times at which it could deliver a packet (mahimahi's format).

Every line is a time in whole milliseconds since the trace's beginning, not before the line above it: an opportunity to
deliver 1504 bytes. A line may be repeated for several opportunities. After its last line the trace starts again. The
semantics are those of mahimahi's link (Netravali et al., "Mahimahi: Accurate Record-and-Replay for HTTP", USENIX ATC
2015): an opportunity delivers frames that came before it, as many as fit; a larger frame takes several; unused bytes are
lost.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from typing import Final

from testbed.fates.text_files import MAX_LINES, BrokenFileError, lines, number

OPPORTUNITY: Final = 1504
"""Bytes: mahimahi's PACKET_SIZE, an MTU and its tunnel's header."""

_MILLISECOND: Final = 10**6
_EXPECTED: Final = "a time in whole milliseconds"


class DeliveryTrace:
    """A trace. times: of the opportunities in nanoseconds, in order. period: the last one."""

    __slots__ = ("period", "times")

    def __init__(self, times: tuple[int, ...]) -> None:
        self.times = times
        self.period = times[-1]

    @property
    def rate(self) -> int:
        """The mean rate, in bit/s."""
        return len(self.times) * OPPORTUNITY * 8 * 10**9 // self.period


@functools.lru_cache(maxsize=64)
def parse_delivery_trace(text: str, source: str) -> DeliveryTrace:
    """Parse a trace. source: the file's name in errors. Raises BrokenFileError."""
    times: list[int] = []
    for place, line in lines(text):
        time = number(source, place, line.strip(), _EXPECTED) * _MILLISECOND
        if times and time < times[-1]:
            found = f"{line.strip()} after {times[-1] // _MILLISECOND}"
            raise BrokenFileError(source, place, found, f"{_EXPECTED} that is not before the line above it")
        if place > MAX_LINES:
            raise BrokenFileError(source, place, "one line more", f"at most {MAX_LINES:,} lines")
        times.append(time)
    if not times:
        raise BrokenFileError(source, 0, "no line", f"{_EXPECTED} in every line")
    if not times[-1]:
        raise BrokenFileError(source, len(times), "a trace that ends at 0", "one that lasts some time")
    return DeliveryTrace(tuple(times))


class Opportunities:
    """The unused opportunities of a trace from a given time on."""

    __slots__ = ("_at", "_base", "_floor", "_left", "_next", "trace")

    def __init__(self, trace: DeliveryTrace, base: int, floor: int = 0) -> None:
        """base: the time at which the trace begins. floor: the time until which the wire is busy otherwise."""
        self.trace = trace
        self._floor = floor
        self._base = base
        self._next = 0  # number of the first untouched opportunity, over all rounds of the trace
        self._at = base  # time of the one before it
        self._left = 0  # unused bytes of that one

    def take(self, now: int, size: int) -> tuple[int, int]:
        """Use opportunities for a frame that is offered now; return when its delivery begins and ends. size: bytes on the
        wire."""
        size, now = max(size, 1), max(now, self._floor)
        times, period = self.trace.times, self.trace.period
        count = len(times)
        begin = self._at
        if self._left <= 0 or self._at <= now:
            if self._at <= now:
                rounds, rest = divmod(now - self._base, period)
                self._next = max(self._next, rounds * count + bisect_right(times, rest))
            begin = -1
            self._left = 0
        while size > self._left:
            size -= self._left
            rounds, place = divmod(self._next, count)
            self._next += 1
            self._at = self._base + rounds * period + times[place]
            self._left = OPPORTUNITY
            if begin < 0:
                begin = self._at
        self._left -= size
        return max(begin, now), self._at
