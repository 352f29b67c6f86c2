"""A NIC in the simulation whose actions take the time that a profile says.

What is decided is decided when the event comes, at once; what follows from it shows when the resources that it takes are
through with it. So a frame that comes while the NIC's processor is busy is looked at in its turn, and all that it causes
comes later by as much as the processor was behind. Latency, gap and overhead are nobody's input: they come of this.
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
from testbed.sim.way import Way


class PricedNic(SimNic):
    """processor: what takes the firmware's events; receiver: what takes those of frames that come, mostly the same one.
    reading, writing: the DMA engines that read and write host memory. bus: between host and NIC. core: the host's."""

    __slots__ = (
        "_at", "_core", "_fetched", "_later", "_left", "_left_later", "_places", "_profile", "_rings", "_serving",
        "_showing", "_stored", "_taken", "_takes_place", "bus", "processor", "reading", "receiver", "writing",
    )  # fmt: skip

    def __init__(self, loop: Loop, name: str, way: Way, core: Server, profile: Profile, mtu: int) -> None:
        """As for `SimNic`."""
        super().__init__(loop, way, mtu)
        self._core = core
        self._profile = profile
        self.processor: Booked = Booked(f"processor of {name}", loop.now)
        self.receiver = self.processor
        if profile.processors > 1:
            self.receiver = Booked(f"receiving processor of {name}", loop.now)
        self.reading = Server(f"reading DMA engine of {name}")
        self.writing = Server(f"writing DMA engine of {name}")
        self.bus = Booked(f"bus of {name}", loop.now)
        self._serving = self.processor  # what takes the event that the firmware is looking at
        self._at = 0  # and how far it has come with it
        self._fetched = 0  # when all that has been fetched is there
        self._stored = 0
        self._left = 0  # when all that has been sent so far has left
        self._left_later = 0
        self._showing = 0  # when the host can see all that it has been shown
        self._places: deque[int] = deque(maxlen=profile.ahead or 1)  # when the last frames that were fetched have left
        self._takes_place = False  # the next frame has been fetched
        self._rings: deque[int] = deque()  # descriptors on their way to the firmware
        self._taken: deque[int] = deque()  # when the processor takes each frame that waits for it
        self._later: list[Buffer] = []  # frames that leave when all else has been done about the event

    @property
    def servers(self) -> Sequence[Server]:
        two = () if self.receiver is self.processor else (self.receiver,)
        return (self.processor, *two, self.reading, self.writing, self.bus)

    @property
    def processed(self) -> int:
        return self.processor.busy + (self.receiver.busy if self.receiver is not self.processor else 0)

    def cost(self, profile: Profile) -> None:
        self._profile = profile

    def resume(self, now: int) -> None:
        self._serve(self.processor, now, 0)
        super().resume(now)
        self._send_rest()

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
        self._send_rest()

    def _tick(self, now: int) -> None:
        if now == self._wake and self._agent is not None:
            deadline = self._firmware.deadline
            if deadline is not None and deadline <= now:
                self._serve(self.processor, now, self._profile.tick)
        super()._tick(now)
        self._send_rest()

    # By the firmware.

    def fetch(self, pieces: Sequence[memoryview]) -> bytes:
        profile, places = self._profile, self._places
        for piece in pieces:
            begin = self._spend(profile.transfer)
            if profile.ahead and len(places) == profile.ahead:
                begin = max(begin, places[0])
            over = self._transfer(self.reading, begin, profile.fetch, profile.fetch_rate, len(piece))
            self._fetched = self._serving.reserve(over, profile.fetched) if profile.fetched else over
            self._takes_place = True
        return super().fetch(pieces)

    def send(self, frame: Buffer) -> None:
        """Put a frame on the wire, after what was fetched and sent before."""
        self._left = when = max(self._spend(self._profile.send), self._fetched, self._left)
        if self._takes_place:
            self._takes_place = False
            self._places.append(when)
        self._put(when, frame)

    def send_later(self, frame: Buffer) -> None:
        """The same, after all else that the firmware does now. It waits for no frame of `send`."""
        self._later.append(frame)

    def store(self, piece: memoryview, data: Buffer) -> None:
        super().store(piece, data)
        profile = self._profile
        over = self._transfer(
            self.writing, self._spend(profile.transfer), profile.store, profile.store_rate, len(piece)
        )
        if profile.stored:
            self._at = over = self._serving.reserve(over, profile.stored)
        self._stored = over

    def show(self, index: int) -> None:
        """Let the host see that it has a descriptor back, after what was stored and shown before."""
        super().show(index)
        self._showing = when = max(self._spend(self._profile.show), self._stored, self._showing)
        self._loop.at(when, self._notice)

    def _serve(self, processor: Booked, now: int, cost: int) -> None:
        """A processor takes an event."""
        self._serving = processor
        self._at = processor.reserve(now, cost)

    def _spend(self, cost: int) -> int:
        """It goes on with what it does for so long; when that is."""
        if cost:
            self._at = self._serving.reserve(self._at, cost)
        return self._at

    def _transfer(self, engine: Server, now: int, setup: int, rate: int, size: int) -> int:
        """When an engine is through with a DMA transfer: of the time that it takes it needs the bus for the bytes."""
        begin = max(now, engine.free)
        over = self.bus.reserve(begin + setup, self._profile.bus_time(size))
        return engine.reserve(now, max(setup + transfer_time(size, rate), over - begin))

    def _put(self, when: int, frame: Buffer) -> None:
        if type(frame) is not bytes:
            frame = bytes(frame)
        if self._profile.sent:
            self._serving.reserve(when, self._profile.sent)
        self._loop.at(when, self._leave, frame)

    def _send_rest(self) -> None:
        """The firmware has returned."""
        for frame in self._later:
            self._left_later = when = max(self._spend(self._profile.send), self._left_later)
            self._put(when, frame)
        self._later.clear()

    # By the host.

    def doorbell(self, index: int, written: int, translated: int) -> None:
        now, profile = self._clock(), self._profile
        writing = transfer_time(written, profile.write_rate)
        when = self._use_core(now, profile.post + translated * profile.translate, writing) + profile.doorbell
        if when > now or self._rings:
            self._rings.append(index)
            self._loop.at(when, self._ring_next)
        else:
            self._ring(now, index)

    def _use_core(self, now: int, cost: int, on_bus: int) -> int:
        """When the host's core is through with something, at the end of which it has the bus for so long."""
        core, profile = self._core, self._profile
        if on_bus and (profile.bus_rate or profile.bus_transaction):
            begin = max(now, core.free)
            return core.reserve(now, self.bus.reserve(begin + cost, on_bus) - begin)
        return core.reserve(now, cost + on_bus)

    # What comes of it, when it is time.

    def _leave(self, frame: bytes) -> None:
        if self._agent is not None:
            self._now = self._clock()
            super().send(frame)

    def _ring_next(self, now: int) -> None:
        self._ring(now, self._rings.popleft())

    def _ring(self, now: int, index: int) -> None:
        self._serve(self.processor, now, self._profile.ring)
        super()._ring(now, index)
        self._send_rest()

    def _let_see(self, now: int) -> None:
        """Not yet."""

    def _notice(self, now: int) -> None:
        """The host's core finds a descriptor."""
        when = self._use_core(now, 0, self._profile.notice)
        if when > now:
            self._loop.at(when, self._complete)
        else:
            self._complete(now)
