"""Delivery trace of a recorded link, used instead of a rate: the times at which it could deliver a packet (mahimahi's
format).

Every line is a time in whole milliseconds since the start of the trace, at which the link can deliver 1504 bytes: an
opportunity. Times never decrease; a repeated line is a further opportunity. After its last line the trace is repeated. The
semantics are those of mahimahi's link (Netravali et al., "Mahimahi: Accurate Record-and-Replay for HTTP", USENIX ATC
2015): an opportunity delivers as many of the frames that arrived before it as fit; a larger frame takes several
opportunities; unused bytes are lost.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from typing import Final

from testbed.fates.text_files import MAX_LINES, BrokenFileError, lines, parse_number

OPPORTUNITY_SIZE: Final = 1504
"""Bytes of an opportunity: mahimahi's PACKET_SIZE, an MTU and the header of its tunnel."""

_NS_PER_MS: Final = 10**6
_EXPECTED: Final = "a time in whole milliseconds"


class DeliveryTrace:
    """A parsed trace. times: times of the opportunities in nanoseconds, in order. period: the last of them."""

    __slots__ = ("period", "times")

    def __init__(self, times: tuple[int, ...]) -> None:
        self.times = times
        self.period = times[-1]

    @property
    def rate(self) -> int:
        """Mean rate of the trace, in bit/s."""
        return len(self.times) * OPPORTUNITY_SIZE * 8 * 10**9 // self.period


@functools.lru_cache(maxsize=64)
def parse_delivery_trace(text: str, source: str) -> DeliveryTrace:
    """Parse a trace. source: name of the file, for errors. Raises BrokenFileError."""
    times: list[int] = []
    for line_number, line in lines(text):
        time = parse_number(source, line_number, line.strip(), _EXPECTED) * _NS_PER_MS
        if times and time < times[-1]:
            actual = f"{line.strip()} after {times[-1] // _NS_PER_MS}"
            raise BrokenFileError(source, line_number, actual, f"{_EXPECTED} that is not before the line above it")
        if line_number > MAX_LINES:
            raise BrokenFileError(source, line_number, f"line {MAX_LINES + 1:,}", f"at most {MAX_LINES:,} lines")
        times.append(time)
    if not times:
        raise BrokenFileError(source, 0, "no line", f"{_EXPECTED} in every line")
    if not times[-1]:
        raise BrokenFileError(source, len(times), "a last time of 0 ms", "a last time of at least 1 ms")
    return DeliveryTrace(tuple(times))


class Opportunities:
    """The unused opportunities of a trace from a given time on."""

    __slots__ = ("_base", "_current", "_min_start", "_next", "_unused_bytes", "trace")

    def __init__(self, trace: DeliveryTrace, base: int, min_start: int = 0) -> None:
        """base: start time of the trace. min_start: time until which the wire is busy with earlier frames."""
        self.trace = trace
        self._min_start = min_start
        self._base = base
        self._next = 0  # index of the first unused opportunity, counted over all repetitions of the trace
        self._current = base  # time of the opportunity used last
        self._unused_bytes = 0  # unused bytes of the opportunity at `_current`

    def take(self, now: int, size: int) -> tuple[int, int]:
        """Use opportunities for a frame that is offered now; return the start and end of its delivery, ns. size: bytes
        on the wire."""
        size, now = max(size, 1), max(now, self._min_start)
        times, period = self.trace.times, self.trace.period
        count = len(times)
        start = self._current
        if self._unused_bytes <= 0 or self._current <= now:
            if self._current <= now:
                rounds, offset = divmod(now - self._base, period)
                self._next = max(self._next, rounds * count + bisect_right(times, offset))
            start = -1
            self._unused_bytes = 0
        while size > self._unused_bytes:
            size -= self._unused_bytes
            rounds, index = divmod(self._next, count)
            self._next += 1
            self._current = self._base + rounds * period + times[index]
            self._unused_bytes = OPPORTUNITY_SIZE
            if start < 0:
                start = self._current
        self._unused_bytes -= size
        return max(start, now), self._current
