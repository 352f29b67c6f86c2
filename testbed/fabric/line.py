"""A line: a bounded queue, a rate, a delay, and the order of departing frames.

A frame leaves the queue when its first bit is sent. Its schedule is computed when it is put on the line, so that no event is
needed until its delivery. Frames in flight keep their schedule when the line changes. The fates of frames are decided before
the line (`fates.stage`).
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from testbed.fabric.delivery_trace import DeliveryTrace, Opportunities, parse_delivery_trace
from testbed.fabric.event_queue import NEVER
from testbed.fabric.wire_time import NS_PER_SECOND, default_queue, wire_size
from testbed.fates.text_files import text_of
from testbed.spec.layout import Impairment

BITS: Final = 8 * NS_PER_SECOND
"""A byte at a rate in bit/s takes BITS / rate nanoseconds."""

_ALWAYS_CHECK: Final = -1


class FrameInFlight:
    """A frame on its way: one object for all lines that it passes, one after the other.

    destination: destination MAC. due: arrival at the end of the present line. following: the next frame in order on that
    line.
    """

    __slots__ = ("data", "destination", "due", "following")

    def __init__(self, data: bytes) -> None:
        self.data: Final = data
        self.destination: Final = data[:6]
        self.due = NEVER
        self.following: FrameInFlight | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """The part of an impairment that a line implements: rate, queue, delay, frame sizes. trace: used instead of the rate."""

    impairment: Impairment
    trace: DeliveryTrace | None = None

    @classmethod
    def of(cls, impairment: Impairment, files: Mapping[str, str]) -> Shape:
        """Make the shape of an impairment. files: path -> text of the files that the impairment names. Raises
        BrokenFileError."""
        if not impairment.rate_trace:
            return cls(impairment)
        return cls(impairment, parse_delivery_trace(text_of(files, impairment.rate_trace), impairment.rate_trace))


class Line:
    """A line: put frames on it, take them when they are due, change its shape at any time.

    Times are nanoseconds and never go backwards. due: arrival of the next frame, or NEVER. delay: delay of the shape. busy:
    time until which the line is sending. is_plain: whether the line has at most a rate and a delay.
    """

    __slots__ = (
        "_busy_fraction", "_byte_denominator", "_byte_numerator", "_first", "_impairment", "_last", "_limit",
        "_limit_frames", "_newest", "_opportunities", "_out_of_order", "_rate", "_seq", "_short_backlog", "_waiting",
        "_waiting_bytes", "busy", "delay", "due", "is_plain",
    )  # fmt: skip

    def __init__(self, now: int) -> None:
        self.due = NEVER
        self._first: FrameInFlight | None = None  # first of the frames in order
        self._newest: FrameInFlight | None = None  # last of the frames in order
        self._out_of_order: list[tuple[int, int, FrameInFlight]] = []  # heap of frames out of order: due, number, frame
        self._seq = 0
        self._last = now  # arrival of the last frame in order
        self.busy = now
        self._busy_fraction = 0  # fraction of a nanosecond of `busy`, in units of 1 / _byte_denominator
        # Start of sending and size of each queued frame; includes sent frames until the next clean-up.
        self._waiting: deque[tuple[int, int]] = deque()
        self._waiting_bytes = 0
        self._impairment = Impairment()
        self._rate = 0
        self._byte_numerator, self._byte_denominator = 0, 1  # nanoseconds per byte, as a reduced fraction
        # A frame whose sending ends within this time from now, ns, certainly fits into the queue.
        self._short_backlog = _ALWAYS_CHECK
        self.delay = 0
        self._limit = 0
        self._limit_frames = 0
        self.is_plain = True
        self._opportunities: Opportunities | None = None

    @property
    def in_flight(self) -> int:
        """Number of frames in the queue and in flight."""
        count, frame = len(self._out_of_order), self._first
        while frame is not None:
            count, frame = count + 1, frame.following
        return count

    @property
    def queue(self) -> tuple[int, int]:
        """Limits of the queue: bytes, frames; 0 for the limit that does not apply."""
        return self._limit, self._limit_frames

    @property
    def is_instant(self) -> bool:
        """Whether every frame arrives after just the delay, without waiting."""
        return self.is_plain and not self._rate

    def queued(self, now: int) -> tuple[int, int]:
        """Return the bytes and frames that wait to be sent."""
        self._remove_sent(now)
        return self._waiting_bytes, len(self._waiting)

    def change(self, now: int, shape: Shape, spread: int) -> None:
        """Set another shape for frames from now on. spread: maximum nanoseconds of jitter, for the size of the default
        queue."""
        impairment, trace = shape.impairment, shape.trace
        if trace is None:
            self._opportunities = None
        elif self._opportunities is None or self._opportunities.trace is not trace:
            self._opportunities = Opportunities(trace, now, self.busy)
        is_plain = not (impairment.minimum_frame or impairment.overhead or impairment.cell_size or trace is not None)
        rate = impairment.rate
        is_changed = rate != self._rate or not is_plain or not self.is_plain
        if rate != self._rate or trace is not None:
            self._busy_fraction = 0
        self._impairment = impairment
        self._rate = rate
        if rate:
            common = math.gcd(BITS, rate)
            self._byte_numerator, self._byte_denominator = BITS // common, rate // common
        self.delay = impairment.delay
        self.is_plain = is_plain
        self._limit_frames = impairment.queue_frames
        mean_rate = trace.rate if trace is not None else rate
        self._limit = impairment.queue or default_queue(mean_rate, impairment.delay + spread)
        if impairment.queue_frames:
            self._limit = 0
        # Queued frames keep their times at the old rate: until they are sent, the queue must be checked for every frame.
        is_mixed = self.busy > now and (is_changed or self._short_backlog == _ALWAYS_CHECK)
        can_skip_check = rate and self._limit and not is_mixed
        self._short_backlog = (
            self._limit * self._byte_numerator // self._byte_denominator - 1 if can_skip_check else _ALWAYS_CHECK
        )

    def put(self, now: int, frame: FrameInFlight, spread: int = 0) -> bool:
        """Put a frame on the line, so that it does not arrive before the frames in order. Return False if it does not fit
        into the queue. spread: nanoseconds added to the delay; the sum is at least 0."""
        end = now
        if not self.is_plain:
            end = self._send(now, len(frame.data))
            if end < 0:
                return False
        elif self._rate:
            size, start = len(frame.data), self.busy
            units = size * self._byte_numerator
            if start > now:
                units += self._busy_fraction
                end = start + units // self._byte_denominator
                if end - now > self._short_backlog and not self._has_room(now, size):
                    return False
                self._waiting.append((start, size))
                self._waiting_bytes += size
            else:
                end += units // self._byte_denominator
                if self._waiting_bytes:
                    self._waiting.clear()
                    self._waiting_bytes = 0
            self.busy = end
            self._busy_fraction = units % self._byte_denominator
        due = end + self.delay + spread
        if due < self._last:
            due = self._last
        frame.due = self._last = due
        if self._first is None or self._newest is None:
            self._first = frame
            if due < self.due:
                self.due = due
        else:
            self._newest.following = frame
        self._newest = frame
        return True

    def put_out_of_order(self, now: int, frame: FrameInFlight, spread: int, extra_delay: int, *, skip: bool) -> bool:
        """Put a frame on the line that may overtake others, or be overtaken; otherwise as `put`. extra_delay: nanoseconds.
        skip: whether it skips the line's delay and spread."""
        end = self._send(now, len(frame.data))
        if end < 0:
            return False
        frame.due = due = end + extra_delay if skip else end + self.delay + spread + extra_delay
        self._seq += 1
        heapq.heappush(self._out_of_order, (due, self._seq, frame))
        if due < self.due:
            self.due = due
        return True

    def _send(self, now: int, size: int) -> int:
        """Send a frame on a line of any shape; return the time at which its last bit is sent, or -1 if the queue has no room
        for it."""
        if self._is_busy(now) and not self._has_room(now, size):
            return -1
        end = now
        if self._rate:
            start = self.busy
            if start > now:
                self._waiting.append((start, size))
                self._waiting_bytes += size
            else:
                start, self._busy_fraction = now, 0
            wire_bytes = wire_size(self._impairment, size)
            nanoseconds, self._busy_fraction = divmod(
                wire_bytes * self._byte_numerator + self._busy_fraction, self._byte_denominator
            )
            self.busy = end = start + nanoseconds
        elif self._opportunities is not None:
            start, end = self._opportunities.take(now, wire_size(self._impairment, size))
            self.busy = end
            self._waiting.append((start, size))
            self._waiting_bytes += size
        return end

    def take(self) -> FrameInFlight:
        """Remove and return the frame that arrives next; at equal times, frames in order come first. There must be a
        frame."""
        first, out_of_order = self._first, self._out_of_order
        if first is None or (out_of_order and out_of_order[0][0] < first.due):
            frame = heapq.heappop(out_of_order)[2]
        else:
            frame = first
            self._first = first = first.following
            frame.following = None
        due = NEVER if first is None else first.due
        self.due = out_of_order[0][0] if out_of_order and out_of_order[0][0] < due else due
        return frame

    def take_due(self, now: int) -> list[tuple[int, bytes]]:
        """Remove and return the frames that are due by now, each with its due time, in the order of `take`."""
        due: list[tuple[int, bytes]] = []
        if self._out_of_order:
            while self.due <= now:
                arrived = self.take()
                due.append((arrived.due, arrived.data))
            return due
        frame = self._first
        while frame is not None and frame.due <= now:
            due.append((frame.due, frame.data))
            frame = frame.following
        self._first = frame
        self.due = NEVER if frame is None else frame.due
        return due

    def _is_busy(self, now: int) -> bool:
        """Whether a frame that is put on the line now must wait."""
        if self._rate:
            return self.busy > now
        if self._opportunities is None:
            return False
        self._remove_sent(now)
        return bool(self._waiting)

    def _has_room(self, now: int, size: int) -> bool:
        """Whether a frame of this size fits into the queue."""
        self._remove_sent(now)
        if self._limit_frames:
            return len(self._waiting) < self._limit_frames
        return self._waiting_bytes + size <= self._limit

    def _remove_sent(self, now: int) -> None:
        """Remove the frames that have been sent from the queue."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= now:
            self._waiting_bytes -= waiting.popleft()[1]
