"""Worms: the schedule of a frame's bytes on all the channels that it occupies at once.

Bytes pass a channel at its rate, and a switch some time after their arrival. They are never more than a window ahead of the
next switch: the slack of its input, and the bytes on the cable and in the switch. A real input sends STOP above one fill
level and GO below another. If its buffer has room for the bytes that arrive in between, the number of buffered bytes and
their times are those of a window that opens byte by byte.

Let T(i, q) be the time at which the byte that has q bytes after it has passed the start of channel i. Then

    T(i, q) >= start(i) + the time of all bytes up to it      the channel's rate
    T(i, q) >= T(i - 1, q) + delay(i - 1) + hop               arrival from the previous channel
    T(i, q) >= T(i + 1, q + window(i)) + delay(i)             space in the next input

The smallest T that satisfy these are sums along the path from one decisive start. Only those of the last byte, which frees a
channel, are needed. They are determined as soon as the bytes that have not passed by then fit into the windows ahead.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final

from testbed.fabric.wire_time import NS_PER_SECOND

if TYPE_CHECKING:
    from testbed.fabric.myrinet.channel import Channel

UNKNOWN: Final = -1
"""Used instead of a time that depends on later events."""

_BITS: Final = 8 * NS_PER_SECOND


def duration(size: int, rate: int) -> int:
    """Return the nanoseconds that `size` bytes take at a rate in bit/s."""
    return -(-size * _BITS // rate)


def bytes_in(nanoseconds: int, rate: int) -> int:
    """Return the number of bytes that pass in a time at a rate in bit/s, including an incomplete last byte."""
    return -(-nanoseconds * rate // _BITS)


class Hop:
    """The passage of a frame over one channel, with the channel's parameters at its start.

    channel: None if the frame is discarded. size: bytes on the wire. duration: nanoseconds that they take. start: time at
    which the first byte passes. rate: bit/s. delay: delay of the cable. window: see the module's docstring; 0 for a receiver
    that accepts everything, such as a NIC. freed: time at which the last byte has passed, so that the channel is free.
    left_at: time at which the last byte has passed the start of the next channel, so that the input before that is free.
    """

    __slots__ = ("channel", "delay", "duration", "frame", "freed", "left_at", "rate", "size", "start", "window", "worm")

    def __init__(
        self,
        worm: Worm,
        channel: Channel | None,
        frame: bytes,
        size: int,
        start: int,
        rate: int,
        delay: int = 0,
        window: int = 0,
    ) -> None:
        self.worm = worm
        self.channel = channel
        self.frame = frame
        self.size = size
        self.duration = duration(size, rate)
        self.start = start
        self.rate = rate
        self.delay = delay
        self.window = window
        self.freed = UNKNOWN
        self.left_at = UNKNOWN

    def shorten(self, frame: bytes, size: int) -> None:
        """Replace the frame by a truncated frame."""
        self.frame = frame
        self.size = size
        self.duration = duration(size, self.rate)


class Worm:
    """A frame in the network.

    hops: the started hops, from the NIC on, until all their ends are settled. settled: number of settled ends. room:
    bytes in the windows of the unsettled hops. rate: common rate of all channels so far, or UNKNOWN if their rates differ.
    requested_output: the output that the head waits for. waiting_since: start of waiting, for that output or behind a
    blocked frame; UNKNOWN: not waiting.
    """

    __slots__ = ("hops", "rate", "requested_output", "room", "settled", "waiting_since")

    def __init__(self) -> None:
        self.hops: Final[list[Hop]] = []
        self.settled = 0
        self.room = 0
        self.rate = 0
        self.requested_output: Channel | None = None
        self.waiting_since = UNKNOWN

    def add(self, hop: Hop) -> None:
        """Append a hop whose channel the head has entered."""
        self.hops.append(hop)
        self.room += hop.window
        if self.rate != hop.rate:
            self.rate = UNKNOWN if self.rate else hop.rate


def ends_of(worm: Worm, fall_through: int) -> list[int] | None:
    """Compute the times at which the last byte passes each of the unsettled hops, or return None if `end_of` must compute
    them one by one. fall_through: nanoseconds that a switch takes.

    This is possible for a frame that has reached its destination on channels of one rate, and is longer than all windows
    together: each hop's end then depends only on the next hop's end.
    """
    hops, first = worm.hops, worm.settled
    last = hops[-1]
    if last.window or worm.rate == UNKNOWN or last.size <= worm.room:
        return None
    rate = worm.rate
    ends: list[int] = []
    latest = last.start + last.duration - last.delay
    for hop in reversed(hops[first:]):
        latest = max(hop.start + hop.duration, latest + hop.delay - hop.window * _BITS // rate)
        ends.append(latest)
    ends.reverse()
    previous = hops[first - 1].freed + hops[first - 1].delay + fall_through if first else 0
    for number, hop in enumerate(hops[first:]):
        end = ends[number]
        if end < previous:
            ends[number] = end = previous
        previous = end + hop.delay + fall_through
    return ends


def end_of(worm: Worm, fall_through: int) -> int:
    """Compute the time at which the last byte passes the first unsettled hop, or UNKNOWN. fall_through: nanoseconds that a
    switch takes."""
    hops, first = worm.hops, worm.settled
    hop = hops[first]
    end = hop.start + hop.duration
    if first:
        previous = hops[first - 1]
        end = max(end, previous.freed + previous.delay + fall_through)
    room = total_delay = 0
    rate = hop.rate
    for index in range(first, len(hops) - 1):
        hop, next_hop = hops[index], hops[index + 1]
        room += hop.window
        total_delay += hop.delay
        remaining = next_hop.size - room
        if remaining <= 0:
            return end
        rate = min(rate, next_hop.rate)
        end = max(end, next_hop.start + total_delay + duration(remaining, rate))
    last = hops[-1]
    if last.channel is None or not last.window:
        return end
    space_time = _space_time(last, last.size - room, last.channel.frames)
    return space_time if space_time == UNKNOWN else max(end, space_time + total_delay)


def _space_time(hop: Hop, size: int, frames: deque[Hop]) -> int:
    """Return the time at which the input at a hop's end has space for `size` bytes of the last of its frames, in
    addition to the earlier frames, or UNKNOWN. A frame whose end is settled is assumed to leave without a stop: its
    space may become free earlier, not later."""
    excess = size - hop.window
    if excess > 0:
        return UNKNOWN
    for previous in islice(reversed(frames), 1, None):
        excess += previous.size
        if excess > 0:
            if previous.left_at == UNKNOWN:
                return UNKNOWN
            return previous.left_at + hop.delay - duration(previous.size - excess, hop.rate)
    return 0
