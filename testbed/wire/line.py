"""The wire itself: a bounded queue, a rate, a delay, and the order in which frames come out.

A frame leaves the queue when its first bit is sent. Everything is decided when a frame is put on the wire; no event is
needed between that and its delivery. Which frames come here, and what is done to them before, is `direction`'s.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from testbed.errors import NotFoundError
from testbed.spec.layout import Impairment
from testbed.wire.counters import Counters, Outcome
from testbed.wire.delivery_trace import DeliveryTrace, Opportunities, parse_delivery_trace
from testbed.wire.serialising import SECOND, default_queue, wire_size

Delivery = tuple[int, bytes]
"""When the frame was due, and the frame."""

BITS: Final = 8 * SECOND
"""A byte at a rate in bit/s takes BITS / rate nanoseconds."""

_NEVER_AMPLE: Final = -1

NOTHING: Final = Impairment()


class Line:
    """The queue, the wire and the way of one direction.

    deadline: when `poll` has something to do, or None. on_space: called with the time once there is room again for a
    frame that was blocked.
    """

    __slots__ = (
        "_ample", "_backpressure", "_busy", "_carry", "_counters", "_delay", "_early", "_fifo", "_impairment", "_last",
        "_limit", "_limit_frames", "_opportunities", "_per_byte", "_per_ns", "_rate", "_seq", "_shaped", "_space",
        "_waiting", "_waiting_bytes", "deadline", "on_space",
    )  # fmt: skip

    def __init__(self, now: int, backpressure: bool, on_space: Callable[[int], object] | None) -> None:
        self._backpressure = backpressure
        self.on_space = on_space
        self._counters = Counters()
        self.deadline: int | None = None
        self._fifo: deque[Delivery] = deque()
        self._early: list[tuple[int, int, bytes]] = []  # heap of what is out of order: due, number, frame
        self._seq = 0
        self._last = now  # when the last frame in order is due
        self._busy = now  # until when the wire is
        self._carry = 0  # of that, the part below a nanosecond, in units of 1 / _per_ns
        # When each queued frame's first bit is sent, its size; also some that have left the queue since.
        self._waiting: deque[tuple[int, int]] = deque()
        self._waiting_bytes = 0
        self._space: int | None = None  # when there is room for a frame that was blocked
        self._impairment = NOTHING
        self._rate = 0
        self._per_byte, self._per_ns = 0, 1  # the nanoseconds that a byte takes, as a fraction in lowest terms
        self._ample = _NEVER_AMPLE  # a frame that will have been sent in so many nanoseconds finds room, whatever waits
        self._delay = 0
        self._limit = 0
        self._limit_frames = 0
        self._shaped = False
        self._opportunities: Opportunities | None = None

    @property
    def counters(self) -> Counters:
        """What it has done until now."""
        return self._counters

    @property
    def held(self) -> int:
        """Frames in the queue, on the wire and under way."""
        return len(self._fifo) + len(self._early)

    @property
    def queue(self) -> tuple[int, int]:
        """How much may wait: bytes, frames; 0 where that is not what limits it."""
        return self._limit, self._limit_frames

    def queued(self, now: int) -> tuple[int, int]:
        """What waits for the wire: bytes, frames."""
        self._leave(now)
        return self._waiting_bytes, len(self._waiting)

    def poll(self, now: int) -> list[Delivery]:
        """The frames that are due by now, in the order in which they arrive."""
        fifo = self._fifo
        out: list[Delivery] = []
        if not self._early:
            while fifo and fifo[0][0] <= now:
                out.append(fifo.popleft())
        else:
            self._merge(now, out)
        if out:
            size = 0
            for delivery in out:
                size += len(delivery[1])
            counters = self._counters
            counters.delivered += len(out)
            counters.delivered_bytes += size
        if self._space is None and not self._early:
            self.deadline = fifo[0][0] if fifo else None
        else:
            self._look_ahead()
            self._tell_of_space(now)
        return out

    def _merge(self, now: int, out: list[Delivery]) -> None:
        """What is in order and what is not, by time; at the same time, what is in order first."""
        fifo, early = self._fifo, self._early
        while True:
            if fifo and fifo[0][0] <= now and not (early and early[0][0] < fifo[0][0]):
                out.append(fifo.popleft())
            elif early and early[0][0] <= now:
                due, _, frame = heapq.heappop(early)
                out.append((due, frame))
            else:
                return

    def _look_ahead(self) -> None:
        """The deadline, from everything that has one."""
        deadline = self._fifo[0][0] if self._fifo else None
        if self._early and (deadline is None or self._early[0][0] < deadline):
            deadline = self._early[0][0]
        if self._space is not None and (deadline is None or self._space < deadline):
            deadline = self._space
        self.deadline = deadline

    def _tell_of_space(self, now: int) -> None:
        if self._space is not None and self._space <= now:
            self._space = None
            self._look_ahead()
            if self.on_space is not None:
                self.on_space(now)

    def _full(self, now: int, size: int) -> Outcome:
        """There is no room for the frame."""
        if self._backpressure:
            self._block_until_space(now, size)
            return Outcome.BLOCKED
        self._counters.offered += 1
        self._counters.queue += 1
        return Outcome.QUEUE

    def _is_busy(self, now: int) -> bool:
        """A frame offered now would have to wait."""
        if self._rate:
            return self._busy > now
        if self._opportunities is None:
            return False
        self._leave(now)
        return bool(self._waiting)

    def _room(self, now: int, size: int) -> bool:
        """A frame of this size fits into the queue."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= now:
            self._waiting_bytes -= waiting.popleft()[1]
        if self._limit_frames:
            return len(waiting) < self._limit_frames
        return self._waiting_bytes + size <= self._limit

    def _leave(self, now: int) -> None:
        """Takes out of the queue what has gone on the wire."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= now:
            self._waiting_bytes -= waiting.popleft()[1]

    def _block_until_space(self, now: int, size: int) -> None:
        """Remembers when there is room: when enough of what waits has gone on the wire."""
        self._counters.blocked += 1
        frames, left, free = len(self._waiting), self._waiting_bytes, self._busy
        for start, waiting in self._waiting:
            frames, left = frames - 1, left - waiting
            if frames < self._limit_frames if self._limit_frames else left + size <= self._limit:
                free = start
                break
        free = max(free, now + 1)
        if self._space is None or free < self._space:
            self._space = free
            if self.deadline is None or free < self.deadline:
                self.deadline = free

    def _put(self, now: int, frame: bytes, delay: int) -> bool:
        """`_room` and `_send` in one, and quick, for the usual wire: a plain rate or none, and order is kept. False: the
        frame does not fit into the queue."""
        if self._rate:
            size = len(frame)
            start = self._busy
            if start > now:
                nanoseconds, carry = divmod(size * self._per_byte + self._carry, self._per_ns)
                due = start + nanoseconds
                if due - now > self._ample and not self._room(now, size):
                    return False
                self._waiting.append((start, size))
                self._waiting_bytes += size
            else:
                nanoseconds, carry = divmod(size * self._per_byte, self._per_ns)
                due = now + nanoseconds
                if self._waiting_bytes:
                    self._waiting.clear()
                    self._waiting_bytes = 0
            self._busy = due
            self._carry = carry
            due += delay
        else:
            due = now + delay
        if due < self._last:
            due = self._last
        self._last = due
        self._fifo.append((due, frame))
        if self.deadline is None or due < self.deadline:
            self.deadline = due
        return True

    def _send(self, now: int, frame: bytes, delay: int, skip: bool, late: int) -> None:
        """Puts a frame for which there is room on the wire, and under way."""
        size = len(frame)
        end = now
        if self._rate:
            occupied = wire_size(self._impairment, size) if self._shaped else size
            start = self._busy
            if start > now:
                self._waiting.append((start, size))
                self._waiting_bytes += size
            else:
                start, self._carry = now, 0
            nanoseconds, self._carry = divmod(occupied * self._per_byte + self._carry, self._per_ns)
            self._busy = end = start + nanoseconds
        elif self._opportunities is not None:
            start, end = self._opportunities.take(now, wire_size(self._impairment, size))
            self._busy = end
            self._waiting.append((start, size))
            self._waiting_bytes += size
        if skip or late:
            due = end + late if skip else end + delay + late
            self._seq += 1
            heapq.heappush(self._early, (due, self._seq, frame))
        else:
            due = end + delay
            if due < self._last:
                due = self._last
            self._last = due
            self._fifo.append((due, frame))
        if self.deadline is None or due < self.deadline:
            self.deadline = due

    def _lay(self, now: int, impairment: Impairment, trace: DeliveryTrace | None, spread: int) -> None:
        """From now on frames find this wire. spread: what jitter can add to the delay."""
        if trace is None:
            self._opportunities = None
        elif self._opportunities is None or self._opportunities.trace is not trace:
            self._opportunities = Opportunities(trace, now, self._busy)
        shaped = bool(impairment.minimum_frame or impairment.overhead or impairment.cell_size)
        rate = impairment.rate
        another = rate != self._rate or shaped or self._shaped or trace is not None
        if rate != self._rate or trace is not None:
            self._carry = 0
        self._impairment = impairment
        self._rate = rate
        if rate:
            common = math.gcd(BITS, rate)
            self._per_byte, self._per_ns = BITS // common, rate // common
        self._delay = impairment.delay
        self._shaped = shaped
        self._limit_frames = impairment.queue_frames
        mean = trace.rate if trace is not None else rate
        self._limit = impairment.queue or default_queue(mean, impairment.delay + spread)
        if impairment.queue_frames:
            self._limit = 0
        # What waits since before would take another time now: then the queue is looked at, as it is where frames count.
        mixed = self._busy > now and (another or self._ample == _NEVER_AMPLE)
        usual = rate and self._limit and not mixed
        self._ample = self._limit * self._per_byte // self._per_ns - 1 if usual else _NEVER_AMPLE


def delivery_trace(impairment: Impairment, files: Mapping[str, str]) -> DeliveryTrace | None:
    """The trace that is an impairment's rate, if it is one. Raises BrokenFileError."""
    if not impairment.rate_trace:
        return None
    return parse_delivery_trace(text_of(files, impairment.rate_trace), impairment.rate_trace)


def text_of(files: Mapping[str, str], path: str) -> str:
    """A file's text, which the caller has loaded."""
    if path not in files:
        raise NotFoundError(f"the text of the file {path} was not given")
    return files[path]
