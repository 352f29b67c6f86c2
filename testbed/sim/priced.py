"""A NIC in the simulation whose actions take the time that a profile says.

What is decided is decided when the event comes, at once; what follows from it shows when the resources that it takes are
through with it. The processor takes one event after the other (`handlers`): frames, descriptors, deadlines, and the ends of
the DMA transfers that it has started and of the frames that it has sent. So what a frame causes comes later by as much as
the processor was behind. Latency, gap and overhead are nobody's input: they come of this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from protocols.core.firmware import Buffer
from protocols.core.profile import Profile, transfer_time
from testbed.engine.loop import Loop
from testbed.engine.server import Server
from testbed.sim.booked import Booked
from testbed.sim.handlers import FETCHED, RECEIVED, RING, SENT, STORED, TICK, Handlers, Handling
from testbed.sim.nic import SimNic
from testbed.sim.way import Outlet


class _Outgoing:
    """A frame to be sent, or what has been fetched for it so far. missing: transfers that are not over. by, within: the
    event upon which it is sent, and how far into it. is_inside: it takes one of the places of frames that are fetched."""

    __slots__ = ("by", "frame", "is_inside", "missing", "within")

    def __init__(self, by: Handling) -> None:
        self.by = by
        self.frame = b""
        self.is_inside = False
        self.missing = 0
        self.within = 0


class PricedNic(SimNic):
    """processor: what takes the firmware's events; receiver: what takes those of frames that come, mostly the same one.
    reading, writing: the DMA engines that read and write host memory. bus: between host and NIC. core: the host's."""

    __slots__ = (
        "_core", "_event", "_fetches", "_following", "_handlers", "_inside", "_later", "_next", "_next_fetch",
        "_next_following", "_next_send", "_next_store", "_outgoing", "_posted", "_profile", "_receiving", "_rings",
        "_stored", "_stores", "_storing", "bus", "processor", "reading", "receiver", "writing",
    )  # fmt: skip

    def __init__(self, loop: Loop, name: str, way: Outlet, core: Server, profile: Profile, mtu: int) -> None:
        """As for `SimNic`."""
        super().__init__(loop, way, mtu)
        self._core = core
        self._profile = profile
        self._handlers = self._receiving = Handlers(f"processor of {name}", loop, self._look)
        if profile.processors > 1:
            self._receiving = Handlers(f"receiving processor of {name}", loop, self._look)
        self.processor = self._handlers.server
        self.receiver = self._receiving.server
        self.reading = Server(f"reading DMA engine of {name}")
        self.writing = Server(f"writing DMA engine of {name}")
        self.bus = Booked(f"bus of {name}", loop.now)
        self._event = Handling(0)  # that the firmware is looking at
        self._rings: deque[int] = deque()  # descriptors on their way to the firmware
        self._posted = 0
        self._next: _Outgoing | None = None  # the frame for which the firmware fetches
        self._outgoing: deque[_Outgoing] = deque()  # frames in the order in which they leave
        self._inside = 0  # of them, how many take a place
        # Transfers to come: how far into which event, for what, bytes.
        self._fetches: deque[tuple[Handling, int, _Outgoing, int]] = deque()
        self._stores: deque[tuple[Handling, int, int]] = deque()
        self._storing = 0  # transfers into host memory so far
        self._stored = 0  # of them, how many the firmware has noticed
        # What comes after how many of them, and how far into which event: a descriptor to be shown, or a frame.
        self._following: deque[tuple[int, Handling, int, int | bytes]] = deque()
        self._later: list[Buffer] = []  # frames that leave when all else has been done about the event
        # When the first of those that wait is looked at; what else it waits for looks at it, too.
        self._next_fetch = loop.timer(self._fetch_next)
        self._next_send = loop.timer(self._send_ready)
        self._next_store = loop.timer(self._store_next)
        self._next_following = loop.timer(self._go_on)

    @property
    def servers(self) -> Sequence[Server]:
        two = () if self.receiver is self.processor else (self.receiver,)
        return (self.processor, *two, self.reading, self.writing, self.bus)

    @property
    def posted(self) -> int:
        return self._posted

    @property
    def processed(self) -> int:
        return self.processor.busy + (self.receiver.busy if self.receiver is not self.processor else 0)

    def cost(self, profile: Profile) -> None:
        self._profile = profile

    def resume(self, now: int) -> None:
        self._event = event = Handling(0)
        super().resume(now)
        self._send_rest()
        self._handlers.add(now, TICK, event)

    # From the wire, and by the clock.

    def receive(self, now: int, frame: bytes) -> None:
        profile = self._profile
        if profile.receive_ring and len(self._receiving.pending[RECEIVED]) >= profile.receive_ring:
            self.dropped += 1
            return
        self._event = event = Handling(profile.receive)
        super().receive(now, frame)
        self._send_rest()
        self._receiving.add(now, RECEIVED, event)

    def _tick(self, now: int) -> None:
        deadline = self._firmware.deadline if now == self._wake and self._agent is not None else None
        if deadline is None or deadline > now:
            super()._tick(now)
            return
        self._event = event = Handling(self._profile.tick)
        super()._tick(now)
        self._send_rest()
        self._handlers.add(now, TICK, event)

    def _spend(self, cost: int) -> int:
        """The processor will go on with the event for so long; how far into it that is."""
        self._event.cost += cost
        return self._event.cost

    def _look(self, now: int) -> None:
        """A processor has taken an event: what comes of it can begin."""
        self._fetch_next(now)
        self._send_ready(now)
        self._store_next(now)
        self._go_on(now)

    # By the firmware: sending.

    def fetch(self, pieces: Sequence[memoryview]) -> bytes:
        if self._next is None:
            self._next = _Outgoing(self._event)
        self._next.missing += len(pieces)
        for piece in pieces:
            self._fetches.append((self._event, self._spend(self._profile.transfer), self._next, len(piece)))
        return super().fetch(pieces)

    def send(self, frame: Buffer) -> None:
        """Put a frame on the wire, after what was fetched and sent before."""
        going = self._next or _Outgoing(self._event)
        self._next = None
        going.frame = bytes(frame)
        going.within = self._spend(self._profile.send)
        self._outgoing.append(going)

    def _fetch_next(self, now: int) -> None:
        """The engine begins a transfer, if it has nothing to do, and there is one, and room for it."""
        profile, fetches = self._profile, self._fetches
        if not fetches or self.reading.free > now:
            return
        event, within, going, size = fetches[0]
        if event.begun < 0:
            return
        if event.begun + within > now:
            self._next_fetch.set(event.begun + within)
            return
        if not going.is_inside:
            if profile.ahead and self._inside >= profile.ahead:
                return
            going.is_inside = True
            self._inside += 1
        fetches.popleft()
        over = self._transfer(self.reading, now, profile.fetch, profile.fetch_rate, size)
        self._loop.at(over, self._fetched, going)

    def _fetched(self, going: _Outgoing) -> None:
        """A transfer is over."""
        now, cost = self._clock(), self._profile.fetched

        def know(now: int) -> None:
            going.missing -= 1
            if not going.missing:
                self._send_ready(now)

        if cost:
            self._handlers.add(now, FETCHED, Handling(cost, know))
        else:
            know(now)
        self._fetch_next(now)

    def _send_ready(self, now: int) -> None:
        """Frames leave that can."""
        outgoing = self._outgoing
        while outgoing and not outgoing[0].missing and outgoing[0].by.begun >= 0:
            going = outgoing[0]
            if going.by.begun + going.within > now:
                self._next_send.set(going.by.begun + going.within)
                return
            outgoing.popleft()
            self._leave(now, going.frame)
            if going.is_inside:
                self._inside -= 1
                self._fetch_next(now)

    def _leave(self, now: int, frame: bytes) -> None:
        if self._agent is not None:
            if self._profile.sent:
                self._handlers.add(now, SENT, Handling(self._profile.sent))
            self._now = now
            super().send(frame)

    def _transfer(self, engine: Server, now: int, setup: int, rate: int, size: int) -> int:
        """When an engine is through with a transfer that it begins: of that time it needs the bus for the bytes."""
        over = self.bus.reserve(now + setup, self._profile.bus_time(size))
        return engine.reserve(now, max(setup + transfer_time(size, rate), over - now))

    # By the firmware: receiving.

    def store(self, piece: memoryview, data: Buffer) -> None:
        super().store(piece, data)
        self._storing += 1
        self._stores.append((self._event, self._spend(self._profile.transfer), len(piece)))

    def show(self, index: int) -> None:
        """Let the host see that it has a descriptor back, after what was stored and shown before."""
        super().show(index)
        self._follow(self._spend(self._profile.show), index)

    def interrupt(self, index: int) -> None:
        """Let the host's kernel see it, which takes longer."""
        super().interrupt(index)
        self._follow(self._spend(self._profile.show), ~index)

    def send_later(self, make: Callable[[], bytes]) -> None:
        """Put a frame on the wire, after all else that the firmware does now. It waits for no frame of `send`."""
        self._later.append(make())

    def _send_rest(self) -> None:
        """The firmware has returned."""
        for frame in self._later:
            self._follow(self._spend(self._profile.send), bytes(frame))
        self._later.clear()

    def _follow(self, within: int, what: int | bytes) -> None:
        self._following.append((self._storing, self._event, within, what))

    def _store_next(self, now: int) -> None:
        """The engine begins a transfer, if it has nothing to do, and there is one."""
        stores, profile = self._stores, self._profile
        if not stores or self.writing.free > now:
            return
        event, within, size = stores[0]
        if event.begun < 0:
            return
        if event.begun + within > now:
            self._next_store.set(event.begun + within)
            return
        stores.popleft()
        self._loop.at(self._transfer(self.writing, now, profile.store, profile.store_rate, size), self._written)

    def _written(self, now: int) -> None:
        """A transfer is over."""
        cost = self._profile.stored
        if cost:
            self._receiving.add(now, STORED, Handling(cost, self._knows))
        else:
            self._knows(now)
        self._store_next(now)

    def _knows(self, now: int) -> None:
        """The firmware knows of it."""
        self._stored += 1
        self._go_on(now)

    def _go_on(self, now: int) -> None:
        """What follows from what is stored."""
        following = self._following
        while following and following[0][0] <= self._stored and following[0][1].begun >= 0:
            _, event, within, what = following[0]
            if event.begun + within > now:
                self._next_following.set(event.begun + within)
                return
            following.popleft()
            if isinstance(what, int):
                self._notice(now, what >= 0)
            else:
                self._leave(now, what)

    # By the host.

    def doorbell(self, index: int, written: int, translated: int) -> None:
        now, profile = self._clock(), self._profile
        writing = transfer_time(written, profile.write_rate)
        self._posted = over = self._use_core(now, profile.post + translated * profile.translate, writing)
        self._rings.append(index)
        self._loop.at(over + profile.doorbell, self._ring_next)

    def _ring_next(self, now: int) -> None:
        self._ring(now, self._rings.popleft())

    def _ring(self, now: int, index: int) -> None:
        self._event = event = Handling(self._profile.ring)
        super()._ring(now, index)
        self._send_rest()
        self._handlers.add(now, RING, event)

    def _let_see(self, now: int) -> None:
        """Not yet."""

    def _notice(self, now: int, is_read: bool) -> None:
        """The host's core finds a descriptor, which it reads over the bus, or its kernel is interrupted."""
        profile = self._profile
        over = self._use_core(now, 0, profile.notice) if is_read else self._use_core(now, profile.interrupt, 0)
        self._loop.at(over, self._complete)

    def _use_core(self, now: int, cost: int, on_bus: int) -> int:
        """When the host's core is through with something, at the end of which it has the bus for so long."""
        core, profile = self._core, self._profile
        if on_bus and (profile.bus_rate or profile.bus_transaction):
            begin = max(now, core.free)
            return core.reserve(now, self.bus.reserve(begin + cost, on_bus) - begin)
        return core.reserve(now, cost + on_bus)
