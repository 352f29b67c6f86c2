"""A line: a bounded queue, a rate, a delay, and the order of departing frames.

A frame leaves the queue when its first bit is sent. Its schedule is computed when it is put on the line, so that no event is
needed until its delivery. Frames in flight keep their schedule when the line changes. Fates were decided before
(`fates.stage`).
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from testbed.fabric.delivery_trace import DeliveryTrace, Opportunities, parse_delivery_trace
from testbed.fabric.wire_time import NS_PER_SECOND, default_queue, wire_size
from testbed.fates.text_files import text_of
from testbed.spec.layout import Impairment

Delivery = tuple[int, bytes]
"""Due time of a frame, and the frame."""

BITS: Final = 8 * NS_PER_SECOND
"""A byte at a rate in bit/s takes BITS / rate nanoseconds."""

FULL: Final = -1
"""Returned instead of a time if the frame does not fit into the queue."""

_ALWAYS_CHECK: Final = -1


@dataclass(frozen=True, slots=True)
class Shape:
    """The part of an impairment that a line implements: rate, queue, delay, frame sizes. trace: used instead of a rate."""

    impairment: Impairment
    trace: DeliveryTrace | None = None

    @classmethod
    def of(cls, impairment: Impairment, files: Mapping[str, str]) -> Shape:
        """files: path -> text of the files that the impairment names. Raises BrokenFileError."""
        if not impairment.rate_trace:
            return cls(impairment)
        return cls(impairment, parse_delivery_trace(text_of(files, impairment.rate_trace), impairment.rate_trace))


class Line:
    """A line: put frames on it, poll at `deadline`, change its shape at any time.

    Times in nanoseconds never go backwards. deadline: when to call `poll`, or None. is_plain: it has at most a rate and a
    delay, so that `arrival` can be used. delay: nanoseconds. busy: time until which the line is sending.
    """

    __slots__ = (
        "_busy_fraction", "_byte_denominator", "_byte_numerator", "_fifo", "_impairment", "_last", "_limit",
        "_limit_frames", "_opportunities", "_out_of_order", "_rate", "_seq", "_short_backlog", "_waiting",
        "_waiting_bytes", "busy", "deadline", "delay", "is_plain",
    )  # fmt: skip

    def __init__(self, now: int) -> None:
        self.deadline: int | None = None
        self._fifo: deque[Delivery] = deque()
        self._out_of_order: list[tuple[int, int, bytes]] = []  # heap of frames out of order: due, number, frame
        self._seq = 0
        self._last = now  # arrival of the last frame in order
        self.busy = now
        self._busy_fraction = 0  # fraction of a nanosecond of `busy`, in units of 1 / _per_ns
        # Start of sending and size of each queued frame; includes sent frames until the next clean-up.
        self._waiting: deque[tuple[int, int]] = deque()
        self._waiting_bytes = 0
        self._impairment = Impairment()
        self._rate = 0
        self._byte_numerator, self._byte_denominator = 0, 1  # nanoseconds per byte, as a reduced fraction
        self._short_backlog = _ALWAYS_CHECK  # a frame whose sending ends within this time, ns, fits into the queue
        self.delay = 0
        self._limit = 0
        self._limit_frames = 0
        self.is_plain = True
        self._opportunities: Opportunities | None = None

    @property
    def in_flight(self) -> int:
        """Number of frames in the queue and in flight."""
        return len(self._fifo) + len(self._out_of_order)

    @property
    def queue(self) -> tuple[int, int]:
        """The queue's limits: bytes, frames; 0 for the limit that does not apply."""
        return self._limit, self._limit_frames

    @property
    def is_instant(self) -> bool:
        """Whether frames only take the delay, and none wait."""
        return self.is_plain and not self._rate

    def queued(self, now: int) -> tuple[int, int]:
        """Return the bytes and frames that wait to be sent."""
        self._remove_sent(now)
        return self._waiting_bytes, len(self._waiting)

    def change(self, now: int, shape: Shape, spread: int) -> None:
        """Set another shape for frames from now on. spread: maximum nanoseconds of jitter, for the default queue."""
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

    def arrival(self, now: int, size: int) -> int:
        """Send a frame of `size` bytes on a plain line; return when it is sent, without the delay, or FULL."""
        if not self._rate:
            return now
        start = self.busy
        if start > now:
            nanoseconds, carry = divmod(size * self._byte_numerator + self._busy_fraction, self._byte_denominator)
            due = start + nanoseconds
            if due - now > self._short_backlog and not self._has_room(now, size):
                return FULL
            self._waiting.append((start, size))
            self._waiting_bytes += size
        else:
            nanoseconds, carry = divmod(size * self._byte_numerator, self._byte_denominator)
            due = now + nanoseconds
            if self._waiting_bytes:
                self._waiting.clear()
                self._waiting_bytes = 0
        self.busy = due
        self._busy_fraction = carry
        return due

    def put(self, now: int, frame: bytes, spread: int = 0) -> bool:
        """Put a frame on the line. spread: nanoseconds added to the delay; the sum is at least 0. False: it does not fit
        into the queue."""
        if not self.is_plain:
            return self.put_any(now, frame, spread)
        due = self.arrival(now, len(frame))
        if due == FULL:
            return False
        due += self.delay + spread
        if due < self._last:  # as in `schedule_arrival`
            due = self._last
        self._last = due
        self._fifo.append((due, frame))
        if self.deadline is None or due < self.deadline:
            self.deadline = due
        return True

    def put_any(self, now: int, frame: bytes, spread: int = 0, *, skip: bool = False, extra_delay: int = 0) -> bool:
        """Put a frame on a line of any shape, in or out of order; otherwise as `put`. skip: it skips the delay, and may
        overtake frames. extra_delay: nanoseconds; later frames may overtake it."""
        size = len(frame)
        if self._is_busy(now) and not self._has_room(now, size):
            return False
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
        delay = self.delay + spread
        if not (skip or extra_delay):
            self.schedule_arrival(end + delay, frame)
            return True
        due = end + extra_delay if skip else end + delay + extra_delay
        self._seq += 1
        heapq.heappush(self._out_of_order, (due, self._seq, frame))
        if self.deadline is None or due < self.deadline:
            self.deadline = due
        return True

    def schedule_arrival(self, due: int, frame: bytes) -> None:
        """Schedule the arrival of a frame that has been sent, not before the arrival of earlier frames."""
        if due < self._last:
            due = self._last
        self._last = due
        self._fifo.append((due, frame))
        if self.deadline is None or due < self.deadline:
            self.deadline = due

    def poll(self, now: int) -> list[Delivery]:
        """Return the frames that are due by now, in the order in which they arrive."""
        fifo = self._fifo
        deliveries: list[Delivery] = []
        if not self._out_of_order:
            while fifo and fifo[0][0] <= now:
                deliveries.append(fifo.popleft())
        else:
            self._merge(now, deliveries)
        self.deadline = fifo[0][0] if fifo else None
        if self._out_of_order and (self.deadline is None or self._out_of_order[0][0] < self.deadline):
            self.deadline = self._out_of_order[0][0]
        return deliveries

    def _merge(self, now: int, deliveries: list[Delivery]) -> None:
        """Merge frames in order and out of order by time; at equal times, frames in order come first."""
        fifo, out_of_order = self._fifo, self._out_of_order
        while True:
            if fifo and fifo[0][0] <= now and not (out_of_order and out_of_order[0][0] < fifo[0][0]):
                deliveries.append(fifo.popleft())
            elif out_of_order and out_of_order[0][0] <= now:
                due, _, frame = heapq.heappop(out_of_order)
                deliveries.append((due, frame))
            else:
                return

    def _is_busy(self, now: int) -> bool:
        """Whether a frame that is put now must wait."""
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
