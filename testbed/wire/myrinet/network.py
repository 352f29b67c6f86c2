"""Worms in a network of Myrinet switches: who has which channel, until when, and what becomes of those who wait.

A frame's head asks for an output when it has come to the front of its input. While it waits, its frame holds the channels
over which it stretches, but for what fits into the inputs ahead; those who want these channels wait in turn. Nothing is
ever dropped for want of room.

A circle of frames that wait for each other would wait for ever. A frame whose head has waited for too long, for an output
or behind another that does not go on, is given up. If it holds a channel, its beginning is made a frame with a wrong CRC-8,
the rest is thrown away, and all channels behind it are free. If it holds none, it is swallowed. Such a beginning takes half
of an input, so that two find room in one: filling the inputs of a circle, they would wait for each other as their frames
did.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Final

from testbed.wire.myrinet.channel import ASIDE, NIC, Channel
from testbed.wire.myrinet.route import onward, truncated
from testbed.wire.myrinet.settings import USUAL, Settings
from testbed.wire.myrinet.switch import SWALLOWED, TRUNCATED, Switch, next_of
from testbed.wire.myrinet.worm import UNKNOWN, Hop, Worm, end_of, ends_of, pass_in

OnDrop = Callable[[int, Switch, int, str, bytes], object]
"""A frame does not go on, or not whole: when, where, by which port it came, why, the frame."""

_SMALLEST: Final = 3
"""Bytes of what is left of a frame that is truncated: one of the route, one more, a CRC."""

_Event = tuple[int, int, Callable[[int, Channel, Hop | None], None], Channel, Hop | None]


class Network:
    """Offer frames of NICs; poll when `deadline` says so. Times in nanoseconds, which never go backwards. The channels know
    to which switches they lead (`Channel.end_at`). on_drop: is told of what a switch does not send on, or not whole."""

    def __init__(self, settings: Settings = USUAL, on_drop: OnDrop | None = None) -> None:
        self._fall_through = settings.hop
        self._timeout = settings.timeout
        self._on_drop = on_drop
        self._heap: list[_Event] = []
        self._sequence = 0
        self._waiting: deque[tuple[int, Worm]] = deque()  # since when a head waits; it may have ceased to

    @property
    def deadline(self) -> int | None:
        """When there is something to do next, if ever."""
        heap, overdue = self._heap, self._overdue()
        if heap and (overdue is None or heap[0][0] <= overdue):
            return heap[0][0]
        return overdue

    def offer(self, now: int, channel: Channel, frame: bytes) -> bool:
        """A NIC wants a frame to enter its channel. False: not now; its channel's `on_space` says when."""
        if not channel.is_granted and (channel.asking or channel.free == UNKNOWN or channel.free > now):
            channel.counters.blocked += 1
            self._ask(now, channel, NIC, None)
            return False
        channel.chosen = NIC
        self._enter(now, channel, Worm(), frame)
        return True

    def poll(self, now: int) -> None:
        """Do what is due."""
        heap = self._heap
        while True:
            overdue = self._overdue() if self._waiting else None
            if heap and heap[0][0] <= now and (overdue is None or heap[0][0] <= overdue):
                when, _, act, channel, hop = heappop(heap)
                act(when, channel, hop)
            elif overdue is not None and overdue <= now:
                self._give_up(overdue, self._waiting.popleft()[1])
            else:
                return

    def _at(
        self, when: int, act: Callable[[int, Channel, Hop | None], None], channel: Channel, hop: Hop | None
    ) -> None:
        self._sequence += 1
        heappush(self._heap, (when, self._sequence, act, channel, hop))

    def _overdue(self) -> int | None:
        """When the head that has waited longest will be given up."""
        waiting = self._waiting
        while waiting:
            since, worm = waiting[0]
            if worm.since == since:
                return since + self._timeout
            waiting.popleft()
        return None

    # Who has a channel.

    def _ask(self, now: int, channel: Channel, who: int, worm: Worm | None) -> None:
        """For a channel that is not free, or which others have asked for."""
        if not channel.asking and channel.free != UNKNOWN:
            self._at(max(now, channel.free), self._grant, channel, None)
        channel.asking[who] = worm

    def _grant(self, now: int, channel: Channel, _: Hop | None) -> None:
        """A channel may be free: whose turn it is has it, and if that comes to nothing, the next one."""
        asking = channel.asking
        while asking and UNKNOWN != channel.free <= now:
            channel.chosen = chosen = next_of(asking, channel.chosen)
            worm = asking.pop(chosen)
            if worm is not None:
                self._enter(now, channel, worm, onward(worm.hops[-1].frame))
            elif chosen == ASIDE:
                frame = heappop(channel.aside)[2]
                if channel.aside and channel.aside[0][0] <= now:
                    asking[ASIDE] = None
                self._begin(now, channel, Worm(), frame)
            elif channel.on_space is not None:
                channel.is_granted = True
                channel.on_space(now)
                channel.is_granted = False

    def _enter(self, now: int, channel: Channel, worm: Worm, frame: bytes) -> None:
        """A frame's head enters a channel that is free, unless something happens to it there."""
        worm.asks, worm.since = None, UNKNOWN
        accepted = channel.take(now, frame)
        for until, one in channel.put_aside:
            self._at(until, self._come_back, channel, None)
            heappush(channel.aside, (until, self._sequence, one))
        channel.put_aside.clear()
        if accepted is None:
            self._swallow(now, worm)
        else:
            self._begin(now, channel, worm, accepted)

    def _begin(self, now: int, channel: Channel, worm: Worm, frame: bytes) -> None:
        hop = channel.hop(worm, frame, now)
        worm.add(hop)
        channel.is_granted = False
        channel.free = UNKNOWN
        channel.under_way += 1
        inside = channel.inside
        if channel.switch is None:
            self._settle(now, worm)
            self._at(hop.freed + hop.delay, self._deliver, channel, hop)
            return
        while inside and UNKNOWN != inside[0].leaves <= now:
            inside.popleft()
        before = inside[-1].leaves if inside else now
        inside.append(hop)
        if before == UNKNOWN:
            self._wait(now, worm)
        else:
            self._at(max(now + hop.delay + self._fall_through, before), self._come, channel, hop)
        self._settle(now, worm)

    # Until when.

    def _settle(self, now: int, worm: Worm) -> None:
        """Say of as many of its hops as is known when they end; and so of those of others that wait for that."""
        open_ = [worm]
        while open_:
            worm = open_.pop()
            hops = worm.hops
            if worm.settled >= len(hops):
                continue
            last = hops[-1]
            if last.window and last.size > worm.room:
                continue  # it fits nowhere
            ends = ends_of(worm, self._fall_through)
            for end in self._one_by_one(worm) if ends is None else ends:
                follower = self._end(worm, max(end, now))
                if follower is not None:
                    open_.append(follower)
            if not last.window:
                hops.clear()  # nothing of it is open any more

    def _one_by_one(self, worm: Worm) -> Iterator[int]:
        """The ends of its hops, as long as they are known; each must be said before the next is asked for."""
        while worm.settled < len(worm.hops) and (end := end_of(worm, self._fall_through)) != UNKNOWN:
            yield end

    def _end(self, worm: Worm, end: int) -> Worm | None:
        """The next of its hops ends then. Gives a frame behind it that may now know more of its own."""
        hops, place = worm.hops, worm.settled
        hop = hops[place]
        worm.settled = place + 1
        worm.room -= hop.window
        hop.freed = end
        channel = hop.channel
        if channel is not None:
            channel.free = end
            if channel.asking:
                self._at(end, self._grant, channel, None)
        if not place:
            return None
        before = hops[place - 1]
        before.leaves = end
        assert before.channel is not None
        inside = before.channel.inside
        for number, one in enumerate(inside, 1):
            if one is before:
                if number == len(inside):
                    return None
                following = inside[number]
                following.worm.since = UNKNOWN
                ready = following.start + following.delay + self._fall_through
                self._at(max(ready, end), self._come, before.channel, following)
                break
        return inside[-1].worm

    def _swallow(self, now: int, worm: Worm) -> None:
        """The rest of a frame goes nowhere, as fast as it comes."""
        if worm.hops:
            last = worm.hops[-1]
            worm.add(Hop(worm, None, b"", last.size, now, last.rate))
            self._settle(now, worm)

    # What is due.

    def _come(self, now: int, channel: Channel, hop: Hop | None) -> None:
        """A frame's head is at the front of a switch's input, and its route has been read."""
        assert hop is not None
        assert channel.switch is not None
        channel.came(hop)
        worm = hop.worm
        out = channel.switch.output(channel.port, hop.frame)
        if isinstance(out, str):
            self._complain(now, hop, out)
            self._swallow(now, worm)
        elif out.asking or out.free == UNKNOWN or out.free > now:
            self._ask(now, out, channel.port, worm)
            worm.asks = out
            self._wait(now, worm)
        else:
            out.chosen = channel.port
            self._enter(now, out, worm, onward(hop.frame))

    def _deliver(self, now: int, channel: Channel, hop: Hop | None) -> None:
        """A frame has come to a NIC."""
        assert hop is not None
        channel.came(hop)
        channel.receive(now, hop.frame)

    def _come_back(self, now: int, channel: Channel, _: Hop | None) -> None:
        """A frame that was put aside wants to enter its channel."""
        if ASIDE not in channel.asking:
            self._ask(now, channel, ASIDE, None)

    def _wait(self, now: int, worm: Worm) -> None:
        worm.since = now
        self._waiting.append((now, worm))

    def _give_up(self, now: int, worm: Worm) -> None:
        """A frame has waited for too long."""
        worm.since = UNKNOWN
        if worm.settled < len(worm.hops):
            self._truncate(now, worm)
        elif worm.asks is not None:
            self._withdraw(worm)
            self._complain(now, worm.hops[-1], SWALLOWED)
            self._swallow(now, worm)

    def _truncate(self, now: int, worm: Worm) -> None:
        """Nothing is left of a frame that holds channels but its beginning, if there is enough of it at the switch to which
        its head has come."""
        last = worm.hops[-1]
        channel = last.channel
        assert channel is not None
        ahead = sum([hop.size for hop in channel.inside if hop is not last and not UNKNOWN != hop.leaves <= now])
        size = min(last.window // 2, last.window - ahead, last.size - 1, pass_in(now - last.start, last.rate))
        is_left = size >= _SMALLEST
        self._complain(now, last, TRUNCATED if is_left else SWALLOWED)
        followers = [self._end(worm, now) for _ in worm.hops[worm.settled :]]
        if is_left:
            last.shorten(truncated(last.frame, size), size)
            self._wait(now, worm)
        elif worm.asks is not None:
            self._withdraw(worm)
            self._swallow(now, worm)
        else:
            channel.came(last)
            channel.inside.remove(last)
        for follower in followers:
            if follower is not None:
                self._settle(now, follower)

    def _withdraw(self, worm: Worm) -> None:
        """Its head waits no more."""
        assert worm.asks is not None
        channel = worm.hops[-1].channel
        assert channel is not None
        del worm.asks.asking[channel.port]
        worm.asks = None

    def _complain(self, now: int, hop: Hop, cause: str) -> None:
        channel = hop.channel
        assert channel is not None
        assert channel.switch is not None
        channel.switch.counters[cause] += 1
        if self._on_drop is not None:
            self._on_drop(now, channel.switch, channel.port, cause, hop.frame)
