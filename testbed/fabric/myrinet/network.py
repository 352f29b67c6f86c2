"""Network of Myrinet switches: allocation of channels to worms, blocking, and deadlock recovery.

A frame's head requests an output when it has come to the front of its input. While it waits, its frame holds the channels
over which it stretches, but for the bytes that fit into the inputs ahead; frames that want these channels wait in turn. No
frame is dropped for lack of buffer space.

A cycle of frames that wait for each other would wait for ever. A frame whose head has waited for too long, for an output or
behind another that is blocked, is given up. If it holds a channel, its beginning becomes a frame with a wrong CRC-8, the
rest is discarded, and all channels behind it are freed. If it holds none, it is swallowed. Such a beginning takes half of
an input, so that two fit into one: if they filled the inputs of a cycle, they would wait for each other as their frames
did.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Final

from testbed.fabric.interface import OnDrop, Plug, Table, ignore
from testbed.fabric.myrinet.channel import ASIDE, NIC, Channel
from testbed.fabric.myrinet.route import onward, truncated
from testbed.fabric.myrinet.settings import DEFAULT, Settings
from testbed.fabric.myrinet.switch import SWALLOWED, TRUNCATED, WORDS, Switch, next_of
from testbed.fabric.myrinet.worm import UNKNOWN, Hop, Worm, end_of, ends_of, pass_in
from testbed.fates.stage import FateOptions
from testbed.spec.layout import DirectionName, Impairment

_SMALLEST: Final = 3
"""Minimum of bytes of a truncated frame: one of the route, one more, a CRC."""

_Event = tuple[int, int, Callable[[int, Channel, Hop | None], None], Channel, Hop | None]


class Network:
    """Myrinet switches, and the channels between them and to NICs. Implements `fabric.interface.Network`."""

    def __init__(self, settings: Settings = DEFAULT, on_drop: OnDrop | None = None) -> None:
        self.settings: Final = settings
        self._switches: dict[str, Switch] = {}
        self._fall_through = settings.hop
        self._timeout = settings.timeout
        self._on_drop = on_drop
        self._heap: list[_Event] = []
        self._sequence = 0
        self._waiting: deque[tuple[int, Worm]] = deque()  # heads and since when they wait; some wait no longer

    @property
    def switches(self) -> Mapping[str, Mapping[str, int]]:
        """Counters of each switch: frames that it did not forward, or truncated, by cause."""
        return {name: switch.counters for name, switch in self._switches.items()}

    def keep(self, tables: Mapping[str, Table]) -> None:
        """Add and remove switches, so that these exist and no others."""
        for name in self._switches.keys() - tables.keys():
            del self._switches[name]
        for name in tables:
            self._switch(name)

    def join(
        self,
        link: str,
        direction: DirectionName,
        impairment: Impairment,
        options: FateOptions,
        start: Plug | None = None,
        end: Plug | None = None,
    ) -> Channel:
        """Add a direction of a link from one port to another; None: a NIC. Raises what `Entrance` does."""
        channel = Channel(link, direction, impairment, options, self)
        if end is not None:
            channel.end_at(self._switch(end.switch, end.port), end.port)
        if start is not None:
            self._switch(start.switch, start.port).outputs[start.port] = channel
        return channel

    def leave(self, channel: Channel) -> None:
        """Remove a channel, see `Channel.leave`."""
        channel.receive = ignore
        for switch in self._switches.values():
            for port, output in list(switch.outputs.items()):
                if output is channel:
                    del switch.outputs[port]

    def _switch(self, name: str, port: int = 0) -> Switch:
        """Return a switch, made if necessary, with at least so many ports."""
        switch = self._switches.get(name)
        if switch is None:
            switch = self._switches[name] = Switch(name, self.settings.ports, {})
        switch.ports = max(switch.ports, port)
        return switch

    @property
    def deadline(self) -> int | None:
        """When to poll next; None: never."""
        heap, overdue = self._heap, self._overdue()
        if heap and (overdue is None or heap[0][0] <= overdue):
            return heap[0][0]
        return overdue

    def offer(self, now: int, channel: Channel, frame: bytes) -> bool:
        """Offer a NIC's frame to its channel. False: refused now; the channel's `on_space` says when to offer it again."""
        if not channel.is_granted and (channel.asking or channel.free == UNKNOWN or channel.free > now):
            channel.entrance.counters.blocked += 1
            self._ask(now, channel, NIC, None)
            return False
        channel.chosen = NIC
        self._enter(now, channel, Worm(), frame)
        return True

    def poll(self, now: int) -> None:
        """Process all events that are due."""
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
        """Return when the head that has waited longest will be given up; None: none waits."""
        waiting = self._waiting
        while waiting:
            since, worm = waiting[0]
            if worm.since == since:
                return since + self._timeout
            waiting.popleft()
        return None

    # Allocation of channels.

    def _ask(self, now: int, channel: Channel, who: int, worm: Worm | None) -> None:
        """Request a channel that is not free, or that others have requested."""
        if not channel.asking and channel.free != UNKNOWN:
            self._at(max(now, channel.free), self._grant, channel, None)
        channel.asking[who] = worm

    def _grant(self, now: int, channel: Channel, _: Hop | None) -> None:
        """Give a channel, if it is free, to the next requester, and if that does not occupy it, to the one after."""
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
        """Let a frame's head enter a free channel, after its fate there is decided."""
        worm.asks, worm.since = None, UNKNOWN
        entrance = channel.entrance
        accepted = entrance.take(now, frame)
        if entrance.put_aside:
            for until, delayed in entrance.put_aside:
                self._at(until, self._come_back, channel, None)
                heappush(channel.aside, (until, self._sequence, delayed))
            entrance.put_aside.clear()
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

    # Ends of hops.

    def _settle(self, now: int, worm: Worm) -> None:
        """Settle the ends of as many of its hops as are known, and so those of worms that wait for them."""
        open_ = [worm]
        while open_:
            worm = open_.pop()
            hops = worm.hops
            if worm.settled >= len(hops):
                continue
            last = hops[-1]
            if last.window and last.size > worm.room:
                continue  # it does not fit into the windows ahead
            ends = ends_of(worm, self._fall_through)
            for end in self._one_by_one(worm) if ends is None else ends:
                follower = self._end(worm, max(end, now))
                if follower is not None:
                    open_.append(follower)
            if not last.window:
                hops.clear()  # all of them are settled

    def _one_by_one(self, worm: Worm) -> Iterator[int]:
        """Iterate over the known ends of its hops; each must be settled before the next is computed."""
        while worm.settled < len(worm.hops) and (end := end_of(worm, self._fall_through)) != UNKNOWN:
            yield end

    def _end(self, worm: Worm, end: int) -> Worm | None:
        """Settle the end of its next hop; return the worm behind it whose ends may now be known, if any."""
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
        for number, hop_inside in enumerate(inside, 1):
            if hop_inside is before:
                if number == len(inside):
                    return None
                following = inside[number]
                following.worm.since = UNKNOWN
                ready = following.start + following.delay + self._fall_through
                self._at(max(ready, end), self._come, before.channel, following)
                break
        return inside[-1].worm

    def _swallow(self, now: int, worm: Worm) -> None:
        """Discard the rest of a frame as fast as it comes."""
        if worm.hops:
            last = worm.hops[-1]
            worm.add(Hop(worm, None, b"", last.size, now, last.rate))
            self._settle(now, worm)

    # Events.

    def _come(self, now: int, channel: Channel, hop: Hop | None) -> None:
        """Forward a frame whose head is at the front of a switch's input, after its route has been read."""
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
        """Deliver a frame to a NIC."""
        assert hop is not None
        channel.came(hop)
        channel.receive(now, hop.frame)

    def _come_back(self, now: int, channel: Channel, _: Hop | None) -> None:
        """Request the channel for a frame that was put aside."""
        if ASIDE not in channel.asking:
            self._ask(now, channel, ASIDE, None)

    def _wait(self, now: int, worm: Worm) -> None:
        worm.since = now
        self._waiting.append((now, worm))

    def _give_up(self, now: int, worm: Worm) -> None:
        """Give up a frame that has waited for too long."""
        worm.since = UNKNOWN
        if worm.settled < len(worm.hops):
            self._truncate(now, worm)
        elif worm.asks is not None:
            self._withdraw(worm)
            self._complain(now, worm.hops[-1], SWALLOWED)
            self._swallow(now, worm)

    def _truncate(self, now: int, worm: Worm) -> None:
        """Truncate a frame that holds channels to its beginning, if enough of it is at the switch that its head has
        reached; else swallow it."""
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
        """Withdraw its request for an output."""
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
            does = "truncates a frame" if cause == TRUNCATED else "loses a frame"
            self._on_drop(now, channel.switch.name, channel.port, does, WORDS[cause], hop.frame)
