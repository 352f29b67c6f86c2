"""When a frame's bytes pass, on all the channels over which it stretches at once.

Bytes pass a channel at its rate, a switch some time after they have come there, and never more than a window's worth of
them beyond the next switch: its input's slack, and what is on the cable and in the switch meanwhile. A real input tells its
sender STOP above one filling and GO below another; with a buffer that holds what comes in between, the bytes that are held,
and when they go on, are the same as with one window that opens byte by byte.

So for a byte with q bytes behind it, T(i, q) being when it has passed the beginning of channel i,

    T(i, q) >= start(i) + the time of all bytes up to it      the channel's rate
    T(i, q) >= T(i - 1, q) + delay(i - 1) + hop               it comes from there
    T(i, q) >= T(i + 1, q + window(i)) + delay(i)             and finds room there

and the smallest T that fulfil this are sums along the way from the one start that decides. Only the last byte's, which
frees a channel, are asked for; they are known as soon as what has not passed by then fits into the windows ahead.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final

from testbed.wire.serialising import SECOND

if TYPE_CHECKING:
    from testbed.wire.myrinet.channel import Channel

UNKNOWN: Final = -1
"""Of a time: it hangs on what has not happened yet."""

_BITS: Final = 8 * SECOND


def lasts(size: int, rate: int) -> int:
    """Nanoseconds that so many bytes take at a rate in bit/s."""
    return -(-size * _BITS // rate)


def pass_in(nanoseconds: int, rate: int) -> int:
    """How many bytes do, begun ones among them."""
    return -(-nanoseconds * rate // _BITS)


class Hop:
    """A frame's way over one channel, as the channel was when it began.

    channel: None where the frame is swallowed. size: bytes on the wire. lasts: nanoseconds that they take. start: when the
    first byte passes. delay: of the cable. window: see above; 0 where whatever comes is taken, as a NIC does. freed: when
    the last byte has passed, so that the channel is free. leaves: when it has passed the next channel, so that the input
    there is free.
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
        """Only that is left of the frame."""
        self.frame = frame
        self.size = size
        self.lasts = lasts(size, self.rate)


class Worm:
    """A frame on its way. hops: those that it has begun, from its NIC on, until the ends of all are known. settled: of how
    many they are. room: bytes in the windows of the others. rate: of all channels so far, or UNKNOWN if they differ. asks:
    the output that its head waits for. since: when it has begun to wait, for that or behind another frame of which nobody
    knows when it goes on; UNKNOWN while it does not wait."""

    __slots__ = ("asks", "hops", "rate", "room", "settled", "since")

    def __init__(self) -> None:
        self.hops: Final[list[Hop]] = []
        self.settled = 0
        self.room = 0
        self.rate = 0
        self.asks: Channel | None = None
        self.since = UNKNOWN

    def add(self, hop: Hop) -> None:
        """Its head has entered a channel."""
        self.hops.append(hop)
        self.room += hop.window
        if self.rate != hop.rate:
            self.rate = UNKNOWN if self.rate else hop.rate


def ends_of(worm: Worm, fall_through: int) -> list[int] | None:
    """When the last byte passes on each of the hops of which that is not said yet, in one go; None where it cannot be, and
    `end_of` must be asked for one after the other. fall_through: nanoseconds that a switch takes.

    Of a frame that has come to its end, on channels of one rate, and that is longer than all the windows together, each hop
    hangs on all that follow: so what the next one hangs on says it all."""
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
    """When the last byte passes on the first hop of which that is not said yet, or UNKNOWN. fall_through: nanoseconds that a
    switch takes."""
    hops, first = worm.hops, worm.settled
    here = hops[first]
    end = here.start + here.lasts
    if first:
        before = hops[first - 1]
        end = max(end, before.freed + before.delay + fall_through)
    room = back = 0
    rate = here.rate
    for place in range(first, len(hops) - 1):
        one, following = hops[place], hops[place + 1]
        room += one.window
        back += one.delay
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
    """From when on there is room for so many bytes of the last hop inside, beside what came before it. What stands in front
    leaves without a stop, once its end is known: that is a little late, never early."""
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
