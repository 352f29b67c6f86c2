"""Network of Myrinet switches: allocation of channels to worms, blocking, and deadlock recovery.

A frame's head requests an output when it has reached the front of its input. While it waits, the frame occupies the channels
over which it extends, except for bytes that fit into the inputs ahead; frames that need these channels wait, too. No
frame is dropped for lack of buffer space.

Frames that wait for each other in a cycle are deadlocked. A frame whose head has waited too long, for an output or behind a
blocked frame, times out. If it occupies a channel, its start becomes a truncated frame with a wrong CRC-8, the rest is
discarded, and all channels behind it are freed. If it occupies none, it is discarded. A truncated frame takes at most half
of an input, so that two fit into one: otherwise truncated frames could deadlock again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Final

from testbed.fabric.interface import OnDrop, SwitchPort, Table, discard
from testbed.fabric.myrinet.channel import DEFERRED, NIC, Channel
from testbed.fabric.myrinet.route import strip_route_byte, truncate
from testbed.fabric.myrinet.settings import DEFAULT, Settings
from testbed.fabric.myrinet.switch import CAUSES, SWALLOWED, TRUNCATED, Switch, next_requester
from testbed.fabric.myrinet.worm import UNKNOWN, Hop, Worm, bytes_in, end_of, ends_of
from testbed.fates.stage import FateOptions
from testbed.spec.layout import DirectionName, Impairment

_MIN_TRUNCATED: Final = 3
"""Minimum bytes of a truncated frame: a route byte, another byte, and the CRC-8."""

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
        # Start of waiting, and worm; includes worms that no longer wait.
        self._waiting: deque[tuple[int, Worm]] = deque()

    @property
    def switch_counters(self) -> Mapping[str, Mapping[str, int]]:
        """Counters of each switch: dropped or truncated frames, by cause."""
        return {name: switch.counters for name, switch in self._switches.items()}

    def set_switches(self, tables: Mapping[str, Table]) -> None:
        """Add missing switches and remove all others. tables: by switch, not used."""
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
        start: SwitchPort | None = None,
        end: SwitchPort | None = None,
    ) -> Channel:
        """Add a direction of a link from one port to another; None: a NIC. Raises the errors of `Entrance`."""
        channel = Channel(link, direction, impairment, options, self)
        if end is not None:
            channel.connect_end(self._switch(end.switch, end.port), end.port)
        if start is not None:
            self._switch(start.switch, start.port).outputs[start.port] = channel
        return channel

    def leave(self, channel: Channel) -> None:
        """Remove a channel, see `Channel.leave`."""
        channel.receive = discard
        for switch in self._switches.values():
            for port, output in list(switch.outputs.items()):
                if output is channel:
                    del switch.outputs[port]

    def _switch(self, name: str, port: int = 0) -> Switch:
        """Return a switch, created if necessary, with at least `port` ports."""
        switch = self._switches.get(name)
        if switch is None:
            switch = self._switches[name] = Switch(name, self.settings.ports, {})
        switch.ports = max(switch.ports, port)
        return switch

    @property
    def deadline(self) -> int | None:
        """Time of the next poll, or None if none is needed."""
        heap, next_timeout = self._heap, self._next_timeout()
        if heap and (next_timeout is None or heap[0][0] <= next_timeout):
            return heap[0][0]
        return next_timeout

    def offer(self, now: int, channel: Channel, frame: bytes) -> bool:
        """Offer a NIC's frame to its channel. Return False if it is rejected; the channel's `on_space` is called when to
        repeat the offer."""
        if not channel.is_granted and (channel.requests or channel.free_at == UNKNOWN or channel.free_at > now):
            channel.entrance.counters.blocked += 1
            self._request(now, channel, NIC, None)
            return False
        channel.last_requester = NIC
        self._enter(now, channel, Worm(), frame)
        return True

    def poll(self, now: int) -> None:
        """Process all events that are due."""
        heap = self._heap
        while True:
            next_timeout = self._next_timeout() if self._waiting else None
            if heap and heap[0][0] <= now and (next_timeout is None or heap[0][0] <= next_timeout):
                when, _, callback, channel, hop = heappop(heap)
                callback(when, channel, hop)
            elif next_timeout is not None and next_timeout <= now:
                self._handle_timeout(next_timeout, self._waiting.popleft()[1])
            else:
                return

    def _at(
        self, when: int, callback: Callable[[int, Channel, Hop | None], None], channel: Channel, hop: Hop | None
    ) -> None:
        self._sequence += 1
        heappush(self._heap, (when, self._sequence, callback, channel, hop))

    def _next_timeout(self) -> int | None:
        """Return the time at which the head that has waited longest times out, or None if none waits."""
        waiting = self._waiting
        while waiting:
            waiting_since, worm = waiting[0]
            if worm.waiting_since == waiting_since:
                return waiting_since + self._timeout
            waiting.popleft()
        return None

    # Allocation of channels

    def _request(self, now: int, channel: Channel, requester: int, worm: Worm | None) -> None:
        """Request a channel that is not free, or has pending requests."""
        if not channel.requests and channel.free_at != UNKNOWN:
            self._at(max(now, channel.free_at), self._grant, channel, None)
        channel.requests[requester] = worm

    def _grant(self, now: int, channel: Channel, _: Hop | None) -> None:
        """Grant a channel, while it is free, to its requesters in turn, until one occupies it."""
        requests = channel.requests
        while requests and UNKNOWN != channel.free_at <= now:
            channel.last_requester = requester = next_requester(requests, channel.last_requester)
            worm = requests.pop(requester)
            if worm is not None:
                self._enter(now, channel, worm, strip_route_byte(worm.hops[-1].frame))
            elif requester == DEFERRED:
                frame = heappop(channel.deferred)[2]
                if channel.deferred and channel.deferred[0][0] <= now:
                    requests[DEFERRED] = None
                self._start_hop(now, channel, Worm(), frame)
            elif channel.on_space is not None:
                channel.is_granted = True
                channel.on_space(now)
                channel.is_granted = False

    def _enter(self, now: int, channel: Channel, worm: Worm, frame: bytes) -> None:
        """Decide the fate of a frame on a free channel, and let its head enter the channel."""
        worm.requested_output, worm.waiting_since = None, UNKNOWN
        entrance = channel.entrance
        accepted = entrance.take(now, frame)
        if entrance.deferred:
            for until, delayed in entrance.deferred:
                self._at(until, self._request_for_deferred, channel, None)
                heappush(channel.deferred, (until, self._sequence, delayed))
            entrance.deferred.clear()
        if accepted is None:
            self._discard_rest(now, worm)
        else:
            self._start_hop(now, channel, worm, accepted)

    def _start_hop(self, now: int, channel: Channel, worm: Worm, frame: bytes) -> None:
        hop = channel.make_hop(worm, frame, now)
        worm.add(hop)
        channel.is_granted = False
        channel.free_at = UNKNOWN
        channel.in_transit += 1
        frames = channel.frames
        if channel.switch is None:
            self._settle_ends(now, worm)
            self._at(hop.freed + hop.delay, self._deliver, channel, hop)
            return
        while frames and UNKNOWN != frames[0].left_at <= now:
            frames.popleft()
        previous = frames[-1].left_at if frames else now
        frames.append(hop)
        if previous == UNKNOWN:
            self._start_waiting(now, worm)
        else:
            self._at(max(now + hop.delay + self._fall_through, previous), self._route_frame, channel, hop)
        self._settle_ends(now, worm)

    # Ends of hops

    def _settle_ends(self, now: int, worm: Worm) -> None:
        """Settle the ends of a worm's hops as far as they are determined, and then those of worms that wait for them."""
        unsettled = [worm]
        while unsettled:
            worm = unsettled.pop()
            hops = worm.hops
            if worm.settled >= len(hops):
                continue
            last = hops[-1]
            if last.window and last.size > worm.room:
                continue  # the frame does not fit into the windows ahead
            ends = ends_of(worm, self._fall_through)
            for end in self._next_ends(worm) if ends is None else ends:
                follower = self._settle_end(worm, max(end, now))
                if follower is not None:
                    unsettled.append(follower)
            if not last.window:
                hops.clear()  # all of them are settled

    def _next_ends(self, worm: Worm) -> Iterator[int]:
        """Iterate over the ends of a worm's hops; each must be settled before the next is computed."""
        while worm.settled < len(worm.hops) and (end := end_of(worm, self._fall_through)) != UNKNOWN:
            yield end

    def _settle_end(self, worm: Worm, end: int) -> Worm | None:
        """Settle the end of a worm's next hop; return the worm behind it whose ends may now be determined, if any."""
        hops, index = worm.hops, worm.settled
        hop = hops[index]
        worm.settled = index + 1
        worm.room -= hop.window
        hop.freed = end
        channel = hop.channel
        if channel is not None:
            channel.free_at = end
            if channel.requests:
                self._at(end, self._grant, channel, None)
        if not index:
            return None
        previous = hops[index - 1]
        previous.left_at = end
        assert previous.channel is not None
        frames = previous.channel.frames
        for number, candidate in enumerate(frames, 1):
            if candidate is previous:
                if number == len(frames):
                    return None
                next_hop = frames[number]
                next_hop.worm.waiting_since = UNKNOWN
                ready = next_hop.start + next_hop.delay + self._fall_through
                self._at(max(ready, end), self._route_frame, previous.channel, next_hop)
                break
        return frames[-1].worm

    def _discard_rest(self, now: int, worm: Worm) -> None:
        """Discard the rest of a frame at the rate at which it arrives."""
        if worm.hops:
            last = worm.hops[-1]
            worm.add(Hop(worm, None, b"", last.size, now, last.rate))
            self._settle_ends(now, worm)

    # Events

    def _route_frame(self, now: int, channel: Channel, hop: Hop | None) -> None:
        """Forward a frame whose head is at the front of a switch's input."""
        assert hop is not None
        assert channel.switch is not None
        channel.count_delivered(hop)
        worm = hop.worm
        output = channel.switch.output(channel.port, hop.frame)
        if isinstance(output, str):
            self._count_drop(now, hop, output)
            self._discard_rest(now, worm)
        elif output.requests or output.free_at == UNKNOWN or output.free_at > now:
            self._request(now, output, channel.port, worm)
            worm.requested_output = output
            self._start_waiting(now, worm)
        else:
            output.last_requester = channel.port
            self._enter(now, output, worm, strip_route_byte(hop.frame))

    def _deliver(self, now: int, channel: Channel, hop: Hop | None) -> None:
        """Deliver a frame to a NIC."""
        assert hop is not None
        channel.count_delivered(hop)
        channel.receive(now, hop.frame)

    def _request_for_deferred(self, now: int, channel: Channel, _: Hop | None) -> None:
        """Request the channel for a deferred frame."""
        if DEFERRED not in channel.requests:
            self._request(now, channel, DEFERRED, None)

    def _start_waiting(self, now: int, worm: Worm) -> None:
        worm.waiting_since = now
        self._waiting.append((now, worm))

    def _handle_timeout(self, now: int, worm: Worm) -> None:
        """Truncate or discard a frame that has waited too long."""
        worm.waiting_since = UNKNOWN
        if worm.settled < len(worm.hops):
            self._truncate(now, worm)
        elif worm.requested_output is not None:
            self._cancel_request(worm)
            self._count_drop(now, worm.hops[-1], SWALLOWED)
            self._discard_rest(now, worm)

    def _truncate(self, now: int, worm: Worm) -> None:
        """Truncate a frame that occupies channels, if enough of it is at the switch that its head has reached; otherwise
        discard it."""
        last = worm.hops[-1]
        channel = last.channel
        assert channel is not None
        bytes_ahead = sum([hop.size for hop in channel.frames if hop is not last and not UNKNOWN != hop.left_at <= now])
        size = min(last.window // 2, last.window - bytes_ahead, last.size - 1, bytes_in(now - last.start, last.rate))
        can_truncate = size >= _MIN_TRUNCATED
        self._count_drop(now, last, TRUNCATED if can_truncate else SWALLOWED)
        followers = [self._settle_end(worm, now) for _ in worm.hops[worm.settled :]]
        if can_truncate:
            last.shorten(truncate(last.frame, size), size)
            self._start_waiting(now, worm)
        elif worm.requested_output is not None:
            self._cancel_request(worm)
            self._discard_rest(now, worm)
        else:
            channel.count_delivered(last)
            channel.frames.remove(last)
        for follower in followers:
            if follower is not None:
                self._settle_ends(now, follower)

    def _cancel_request(self, worm: Worm) -> None:
        """Cancel a worm's request for an output."""
        assert worm.requested_output is not None
        channel = worm.hops[-1].channel
        assert channel is not None
        del worm.requested_output.requests[channel.port]
        worm.requested_output = None

    def _count_drop(self, now: int, hop: Hop, cause: str) -> None:
        channel = hop.channel
        assert channel is not None
        assert channel.switch is not None
        channel.switch.counters[cause] += 1
        if self._on_drop is not None:
            action = "truncates a frame" if cause == TRUNCATED else "loses a frame"
            self._on_drop(now, channel.switch.name, channel.port, action, CAUSES[cause], hop.frame)
