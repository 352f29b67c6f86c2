"""A NIC in the simulation whose actions take the time that a profile says.

What is decided is decided when the event comes, at once; what follows from it shows when the resources that it takes are
through with it. The processor takes events in the order in which they come: frames, descriptors, deadlines, and the ends of
the DMA transfers that it has started and of the frames that it has sent. So what a frame causes comes later by as much as
the processor was behind. Latency, gap and overhead are nobody's input: they come of this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from protocols.core.firmware import Buffer
from protocols.core.profile import Profile, transfer_time
from testbed.engine.loop import Loop
from testbed.engine.server import Server
from testbed.sim.booked import Booked
from testbed.sim.nic import SimNic
from testbed.sim.way import Outlet


class _Outgoing:
    """A frame to be sent, or what has been fetched for it so far. missing: transfers that are not over. ready: when the
    processor has done its part. is_inside: it takes one of the places of frames that are fetched."""

    __slots__ = ("frame", "is_inside", "missing", "ready")

    def __init__(self) -> None:
        self.frame = b""
        self.is_inside = False
        self.missing = 0
        self.ready = 0


class PricedNic(SimNic):
    """processor: what takes the firmware's events; receiver: what takes those of frames that come, mostly the same one.
    reading, writing: the DMA engines that read and write host memory. bus: between host and NIC. core: the host's."""

    __slots__ = (
        "_at", "_core", "_fetches", "_following", "_inside", "_later", "_next", "_next_fetch", "_next_following",
        "_next_send", "_next_store", "_outgoing", "_posted", "_profile", "_rings", "_serving", "_stored", "_stores",
        "_storing", "_taken", "bus", "processor", "reading", "receiver", "writing",
    )  # fmt: skip

    def __init__(self, loop: Loop, name: str, way: Outlet, core: Server, profile: Profile, mtu: int) -> None:
        """As for `SimNic`."""
        super().__init__(loop, way, mtu)
        self._core = core
        self._profile = profile
        self.processor = Server(f"processor of {name}")
        self.receiver = self.processor if profile.processors == 1 else Server(f"receiving processor of {name}")
        self.reading = Server(f"reading DMA engine of {name}")
        self.writing = Server(f"writing DMA engine of {name}")
        self.bus = Booked(f"bus of {name}", loop.now)
        self._serving = self.processor  # what takes the event that the firmware is looking at
        self._at = 0  # and how far it will have come with it
        self._taken: deque[int] = deque()  # when the processor takes each frame that waits for it
        self._rings: deque[int] = deque()  # descriptors on their way to the firmware
        self._posted = 0
        self._next: _Outgoing | None = None  # the frame for which the firmware fetches
        self._outgoing: deque[_Outgoing] = deque()  # frames in the order in which they leave
        self._inside = 0  # of them, how many take a place
        self._fetches: deque[tuple[int, _Outgoing, int]] = deque()  # transfers to come: not before, for what, bytes
        self._stores: deque[tuple[int, int]] = deque()  # not before, bytes
        self._storing = 0  # transfers into host memory so far
        self._stored = 0  # of them, how many the firmware has noticed
        # What comes after how many of them, and not before when: a descriptor to be shown, or a frame.
        self._following: deque[tuple[int, int, int | bytes]] = deque()
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
        self._serve(self.processor, now, 0)
        super().resume(now)
        self._send_rest(now)

    # From the wire, and by the clock.

    def receive(self, now: int, frame: bytes) -> None:
        profile, taken = self._profile, self._taken
        while taken and taken[0] <= now:
            taken.popleft()
        if profile.receive_ring and len(taken) >= profile.receive_ring:
            self.dropped += 1
            return
        self._serve(self.receiver, now, profile.receive)
        taken.append(self._at - profile.receive)
        super().receive(now, frame)
        self._send_rest(now)

    def _tick(self, now: int) -> None:
        if now == self._wake and self._agent is not None:
            deadline = self._firmware.deadline
            if deadline is not None and deadline <= now:
                self._serve(self.processor, now, self._profile.tick)
        super()._tick(now)
        self._send_rest(now)

    def _serve(self, processor: Server, now: int, cost: int) -> None:
        """A processor takes an event."""
        self._serving = processor
        self._at = processor.reserve(now, cost)

    def _spend(self, cost: int) -> int:
        """It goes on with what it does for so long; when that is."""
        if cost:
            self._at = self._serving.reserve(self._now, cost)
        return self._at

    # By the firmware: sending.

    def fetch(self, pieces: Sequence[memoryview]) -> bytes:
        if self._next is None:
            self._next = _Outgoing()
        self._next.missing += len(pieces)
        for piece in pieces:
            ready = self._spend(self._profile.transfer)
            self._fetches.append((ready, self._next, len(piece)))
            if len(self._fetches) == 1:
                self._next_fetch.set(ready)
        return super().fetch(pieces)

    def send(self, frame: Buffer) -> None:
        """Put a frame on the wire, after what was fetched and sent before."""
        going = self._next or _Outgoing()
        self._next = None
        going.frame = bytes(frame)
        going.ready = self._spend(self._profile.send)
        self._outgoing.append(going)
        if len(self._outgoing) == 1:
            self._next_send.set(going.ready)

    def _fetch_next(self, now: int) -> None:
        """The engine begins a transfer, if it has nothing to do, and there is one, and room for it."""
        profile, fetches = self._profile, self._fetches
        if not fetches or self.reading.free > now:
            return
        ready, going, size = fetches[0]
        if ready > now:
            self._next_fetch.set(ready)
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
        now = self._clock()
        self._loop.at(self.processor.reserve(now, self._profile.fetched), self._has, going)
        self._fetch_next(now)

    def _has(self, going: _Outgoing) -> None:
        """The firmware knows of it."""
        going.missing -= 1
        if not going.missing:
            self._send_ready(self._clock())

    def _send_ready(self, now: int) -> None:
        """Frames leave that can."""
        outgoing = self._outgoing
        while outgoing and not outgoing[0].missing:
            if outgoing[0].ready > now:
                self._next_send.set(outgoing[0].ready)
                return
            going = outgoing.popleft()
            self._leave(now, going.frame)
            if going.is_inside:
                self._inside -= 1
                self._fetch_next(now)

    def _leave(self, now: int, frame: bytes) -> None:
        if self._agent is not None:
            if self._profile.sent:
                self.processor.reserve(now, self._profile.sent)
            self._now = now
            super().send(frame)

    def _transfer(self, engine: Server, now: int, setup: int, rate: int, size: int) -> int:
        """When an engine is through with a transfer that it begins: of that time it needs the bus for the bytes."""
        over = self.bus.reserve(now + setup, self._profile.bus_time(size))
        return engine.reserve(now, max(setup + transfer_time(size, rate), over - now))

    # By the firmware: receiving.

    def store(self, piece: memoryview, data: Buffer) -> None:
        super().store(piece, data)
        ready = self._spend(self._profile.transfer)
        self._storing += 1
        self._stores.append((ready, len(piece)))
        if len(self._stores) == 1:
            self._next_store.set(ready)

    def show(self, index: int) -> None:
        """Let the host see that it has a descriptor back, after what was stored and shown before."""
        super().show(index)
        self._follow(self._spend(self._profile.show), index)

    def send_later(self, frame: Buffer) -> None:
        """Put a frame on the wire, after all else that the firmware does now. It waits for no frame of `send`."""
        self._later.append(frame)

    def _send_rest(self, now: int) -> None:  # noqa: ARG002
        """The firmware has returned."""
        for frame in self._later:
            self._follow(self._spend(self._profile.send), bytes(frame))
        self._later.clear()

    def _follow(self, ready: int, what: int | bytes) -> None:
        self._following.append((self._storing, ready, what))
        if len(self._following) == 1:
            self._next_following.set(ready)

    def _store_next(self, now: int) -> None:
        """The engine begins a transfer, if it has nothing to do, and there is one."""
        stores, profile = self._stores, self._profile
        if not stores or self.writing.free > now:
            return
        ready, size = stores[0]
        if ready > now:
            self._next_store.set(ready)
            return
        stores.popleft()
        self._loop.at(self._transfer(self.writing, now, profile.store, profile.store_rate, size), self._written)

    def _written(self, now: int) -> None:
        """A transfer is over."""
        self._loop.at(self.receiver.reserve(now, self._profile.stored), self._knows)
        self._store_next(now)

    def _knows(self, now: int) -> None:
        """The firmware knows of it."""
        self._stored += 1
        self._go_on(now)

    def _go_on(self, now: int) -> None:
        """What follows from what is stored."""
        following = self._following
        while following and following[0][0] <= self._stored:
            if following[0][1] > now:
                self._next_following.set(following[0][1])
                return
            what = following.popleft()[2]
            if isinstance(what, int):
                self._notice(now)
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
        self._serve(self.processor, now, self._profile.ring)
        super()._ring(now, index)
        self._send_rest(now)

    def _let_see(self, now: int) -> None:
        """Not yet."""

    def _notice(self, now: int) -> None:
        """The host's core finds a descriptor."""
        self._loop.at(self._use_core(now, 0, self._profile.notice), self._complete)

    def _use_core(self, now: int, cost: int, on_bus: int) -> int:
        """When the host's core is through with something, at the end of which it has the bus for so long."""
        core, profile = self._core, self._profile
        if on_bus and (profile.bus_rate or profile.bus_transaction):
            begin = max(now, core.free)
            return core.reserve(now, self.bus.reserve(begin + cost, on_bus) - begin)
        return core.reserve(now, cost + on_bus)
