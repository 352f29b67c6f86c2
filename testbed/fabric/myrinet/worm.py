"""Worms: the schedule of a frame's bytes on all the channels over which it stretches at once.

Bytes pass a channel at its rate, pass a switch some time after their arrival, and are never more than a window ahead of the
next switch: its input's slack, and the bytes on the cable and in the switch meanwhile. A real input tells its sender STOP
above one fill level and GO below another; with a buffer for the bytes that come in between, the number of bytes held and
their times are those of one window that opens byte by byte.

So for a byte with q bytes behind it, T(i, q) being when it has passed the beginning of channel i,

    T(i, q) >= start(i) + the time of all bytes up to it      the channel's rate
    T(i, q) >= T(i - 1, q) + delay(i - 1) + hop               it comes from there
    T(i, q) >= T(i + 1, q + window(i)) + delay(i)             and finds room there

and the smallest T that fulfil this are sums along the path from the one start that decides. Only those of the last byte,
which frees a channel, are needed; they are known as soon as the bytes that have not passed by then fit into the windows
ahead.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final

from testbed.fabric.wire_time import SECOND

if TYPE_CHECKING:
    from testbed.fabric.myrinet.channel import Channel

UNKNOWN: Final = -1
"""In place of a time: it depends on later events."""

_BITS: Final = 8 * SECOND


def lasts(size: int, rate: int) -> int:
    """Return the nanoseconds that `size` bytes take at a rate in bit/s."""
    return -(-size * _BITS // rate)


def pass_in(nanoseconds: int, rate: int) -> int:
    """Return how many bytes pass in a time at a rate in bit/s, including one that has begun."""
    return -(-nanoseconds * rate // _BITS)


class Hop:
    """The passage of a frame over one channel, with the channel's parameters at its start.

    channel: None where the frame is swallowed. size: bytes on the wire. lasts: nanoseconds that they take. start: when the
    first byte passes. delay: of the cable. window: see the module; 0 for a receiver that takes everything, such as a NIC.
    freed: when the last byte has passed, so that the channel is free. leaves: when it has passed the next channel, so that
    the input there is free.
    """

    __slots__ = ("channel", "delay", "frame", "freed", "lasts", "leaves", "rate", "size", "start", "window", "worm")

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
        self.lasts = lasts(size, rate)
        self.start = start
        self.rate = rate
        self.delay = delay
        self.window = window
        self.freed = UNKNOWN
        self.leaves = UNKNOWN

    def shorten(self, frame: bytes, size: int) -> None:
        """Replace the frame by its truncated beginning."""
        self.frame = frame
        self.size = size
        self.lasts = lasts(size, self.rate)


class Worm:
    """A frame in the network.

    hops: those that it has begun, from its NIC on, until all their ends are known. settled: number of known ends. room:
    bytes in the windows of the other hops. rate: of all channels so far, or UNKNOWN if they differ. asks: the output that
    its head waits for. since: when it has begun to wait, for that output or behind a blocked frame; UNKNOWN while it does
    not wait.
    """

    __slots__ = ("asks", "hops", "rate", "room", "settled", "since")

    def __init__(self) -> None:
        self.hops: Final[list[Hop]] = []
        self.settled = 0
        self.room = 0
        self.rate = 0
        self.asks: Channel | None = None
        self.since = UNKNOWN

    def add(self, hop: Hop) -> None:
        """Append a hop, whose channel its head has entered."""
        self.hops.append(hop)
        self.room += hop.window
        if self.rate != hop.rate:
            self.rate = UNKNOWN if self.rate else hop.rate


def ends_of(worm: Worm, fall_through: int) -> list[int] | None:
    """Compute at once when the last byte passes each of the unsettled hops; None where `end_of` must do it one by one.
    fall_through: nanoseconds that a switch takes.

    For a frame that has reached its end, on channels of one rate, and that is longer than all the windows together, each hop
    depends on all that follow, and so on the next one's result alone.
    """
    hops, first = worm.hops, worm.settled
    last = hops[-1]
    if last.window or worm.rate == UNKNOWN or last.size <= worm.room:
        return None
    rate = worm.rate
    ends: list[int] = []
    latest = last.start + last.lasts - last.delay
    for hop in reversed(hops[first:]):
        latest = max(hop.start + hop.lasts, latest + hop.delay - hop.window * _BITS // rate)
        ends.append(latest)
    ends.reverse()
    before = hops[first - 1].freed + hops[first - 1].delay + fall_through if first else 0
    for number, hop in enumerate(hops[first:]):
        end = ends[number]
        if end < before:
            ends[number] = end = before
        before = end + hop.delay + fall_through
    return ends


def end_of(worm: Worm, fall_through: int) -> int:
    """Compute when the last byte passes the first unsettled hop, or UNKNOWN. fall_through: nanoseconds that a switch
    takes."""
    hops, first = worm.hops, worm.settled
    here = hops[first]
    end = here.start + here.lasts
    if first:
        before = hops[first - 1]
        end = max(end, before.freed + before.delay + fall_through)
    room = back = 0
    rate = here.rate
    for place in range(first, len(hops) - 1):
        hop, following = hops[place], hops[place + 1]
        room += hop.window
        back += hop.delay
        rest = following.size - room
        if rest <= 0:
            return end
        rate = min(rate, following.rate)
        end = max(end, following.start + back + lasts(rest, rate))
    last = hops[-1]
    if last.channel is None or not last.window:
        return end
    entered = _entry(last, last.size - room, last.channel.inside)
    return entered if entered == UNKNOWN else max(end, entered + back)


def _entry(hop: Hop, size: int, inside: deque[Hop]) -> int:
    """Return from when on there is room for `size` bytes of the last hop inside, beside the frames before it, or UNKNOWN.
    Once its end is known, a frame in front is taken to leave without a stop: a little late, never early."""
    over = size - hop.window
    if over > 0:
        return UNKNOWN
    for before in islice(reversed(inside), 1, None):
        over += before.size
        if over > 0:
            if before.leaves == UNKNOWN:
                return UNKNOWN
            return before.leaves + hop.delay - lasts(before.size - over, hop.rate)
    return 0
