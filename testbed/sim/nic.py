"""A NIC in the simulation: what its firmware and its host ask for takes the time that a profile says.

What is decided is decided when the event comes, at once; what follows from it shows when the resources that it takes are
through with it. So a frame that comes while the NIC's processor is busy is looked at in its turn, and all that it causes
comes later by as much as the processor was behind.

The firmware is never entered from within itself: the host sees what it is shown, and a program does whatever it does about
it, when the firmware has returned. Where that takes time it is an event of its own; where nothing costs anything it needs
none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from protocols.core.firmware import Agent, Buffer, Firmware
from protocols.core.profile import Profile, transfer_time
from testbed.engine.loop import Loop
from testbed.engine.server import Server
from testbed.sim.standstill import Standstill
from testbed.sim.way import NEVER, Way

_HEADER = 14  # of Ethernet, in front of what the MTU counts


class SimNic:
    """One NIC. Implements `protocols.core.firmware.Nic`; has an effect once it has its agent (`begin`).

    processor, reading, writing: the NIC's processor, and the DMA engines that read and write host memory. core: the host's.
    """

    __slots__ = (
        "_agent", "_clock", "_core", "_fetched", "_firmware", "_is_free", "_is_seeing", "_leaving", "_left", "_longest",
        "_loop", "_now", "_profile", "_rings", "_shown", "_stored", "_taken", "_wake", "_way", "dropped", "processor",
        "reading", "received", "sent", "writing",
    )  # fmt: skip

    def __init__(self, loop: Loop, name: str, way: Way, core: Server, profile: Profile, mtu: int) -> None:
        """way: where its frames go. mtu: bytes behind the Ethernet header; ValueError meets a frame that is longer."""
        self._loop = loop
        self._clock = loop.now
        self._way = way
        self._core = core
        self._profile = profile
        self._is_free = profile.is_free
        self._longest = mtu + _HEADER
        self.processor = Server(f"processor of {name}", loop)
        self.reading = Server(f"reading DMA engine of {name}", loop)
        self.writing = Server(f"writing DMA engine of {name}", loop)
        self.received = 0
        """Frames that its firmware was given."""
        self.sent = 0
        """Frames that went on the wire."""
        self.dropped = 0
        """Frames for which there was no room in the receive ring."""
        self._now = 0  # of the event that the firmware is looking at
        self._wake = NEVER  # when the firmware's deadline is looked at
        self._fetched = 0  # when all that has been fetched is there
        self._stored = 0
        self._left = 0  # when all that has been sent so far has left
        self._leaving: deque[bytes] = deque()  # in the order in which they will leave
        self._shown: deque[int] = deque()  # descriptors on their way to the host
        self._is_seeing = False  # and it is being shown them at once
        self._rings: deque[int] = deque()  # and to the firmware
        self._taken: deque[int] = deque()  # when the processor takes each frame that waits for it

    def begin(self, now: int, agent: Agent) -> None:
        """Run this firmware."""
        self._now = now
        self._agent: Agent | None = agent
        self._firmware: Firmware = agent.firmware
        self._look_ahead()

    def end(self, now: int) -> None:  # noqa: ARG002
        """The NIC is off: nothing comes of what is under way in it."""
        self._agent = None

    def cost(self, profile: Profile) -> None:
        """From now on what it does costs this; one that prices nothing, or has priced nothing, changes nothing."""
        if not self._is_free and not profile.is_free:
            self._profile = profile

    def pause(self) -> None:
        """Nothing is looked at until `resume`: what comes waits, for as long as it takes."""
        if not isinstance(self._firmware, Standstill):
            self._firmware = Standstill(self._firmware)

    @property
    def held(self) -> int:
        """How many frames and descriptors wait for `resume`."""
        return len(self._firmware.came) if isinstance(self._firmware, Standstill) else 0

    def resume(self, now: int) -> None:
        """Look at what has come meanwhile, in its order, and at the clock."""
        standstill = self._firmware
        if not isinstance(standstill, Standstill):
            return
        self._firmware = firmware = standstill.firmware
        if self._agent is None:
            return
        self._now = now
        for what in standstill.came:
            if isinstance(what, int):
                firmware.ring(now, what)
            else:
                firmware.receive(now, what)
            if self._shown and self._is_free:
                self._let_see(now)
        self._look_ahead()

    # From the wire, and by the clock.

    def receive(self, now: int, frame: bytes) -> None:
        """A frame has come."""
        if not self._is_free and not self._admit(now):
            self.dropped += 1
            return
        self.received += 1
        self._now = now
        firmware = self._firmware
        firmware.receive(now, frame)
        if self._shown and self._is_free:
            self._let_see(now)
        deadline = firmware.deadline
        if deadline is not None and deadline < self._wake:
            self._look_ahead()

    def _admit(self, now: int) -> bool:
        """Whether there is room for a frame; then the processor will take it."""
        profile, taken = self._profile, self._taken
        while taken and taken[0] <= now:
            taken.popleft()
        if profile.receive_ring and len(taken) >= profile.receive_ring:
            return False
        taken.append(self.processor.reserve(now, profile.receive) - profile.receive)
        return True

    def _tick(self, now: int) -> None:
        if now != self._wake:
            return  # an earlier deadline came in between, and this one has been looked at since
        self._wake = NEVER
        if self._agent is None:
            return
        self._now = now
        firmware = self._firmware
        deadline = firmware.deadline
        if deadline is not None and deadline <= now:
            self.processor.reserve(now, self._profile.tick)
            firmware.tick(now)
            if self._shown and self._is_free:
                self._let_see(now)
        self._look_ahead()

    def _look_ahead(self) -> None:
        """Wake up for the firmware's deadline. One that is put off leaves the earlier time to look again, so that timers
        which are set anew with every frame cost no event."""
        deadline = self._firmware.deadline
        if deadline is not None and deadline < self._wake:
            self._wake = when = max(deadline, self._now)
            self._loop.at(when, self._tick)

    # By the firmware.

    def fetch(self, pieces: Sequence[memoryview]) -> bytes:
        """Get bytes from host memory."""
        if not self._is_free:
            profile = self._profile
            for piece in pieces:
                begin = self._spend(profile.transfer)
                cost = profile.fetch + transfer_time(len(piece), profile.fetch_rate)
                self._fetched = self.reading.reserve(begin, cost)
        return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

    def send(self, frame: Buffer) -> None:
        """Put a frame on the wire, after what was fetched and sent before."""
        if type(frame) is not bytes:
            frame = bytes(frame)
        if len(frame) > self._longest:
            raise ValueError(f"a frame of {len(frame)} bytes: the NIC takes at most {self._longest}")
        if self._is_free:
            self.sent += 1
            self._way.enter(self._now, frame)
            return
        ready = self._spend(self._profile.send)
        self._left = when = max(ready, self._fetched, self._left)
        if when <= self._now and not self._leaving:
            self.sent += 1
            self._way.enter(when, frame)
        else:
            self._leaving.append(frame)
            self._loop.at(when, self._leave)

    send_later = send  # what the host does about what it is shown takes time, here

    def store(self, piece: memoryview, data: Buffer) -> None:
        """Put bytes into host memory."""
        piece[:] = data
        if not self._is_free:
            profile = self._profile
            begin = self._spend(profile.transfer)
            cost = profile.store + transfer_time(len(piece), profile.store_rate)
            self._stored = self.writing.reserve(begin, cost)

    def show(self, index: int) -> None:
        """Let the host see that it has a descriptor back, after what was stored before."""
        self._shown.append(index)
        if not self._is_free:
            # What was shown before cannot come after it: the processor's times grow, and so does _stored.
            self._loop.at(max(self._spend(self._profile.show), self._stored), self._notice)

    def _spend(self, cost: int) -> int:
        """The processor goes on with what it does for so long; when that is."""
        processor = self.processor
        return processor.reserve(processor.free, cost)

    # By the host.

    def doorbell(self, index: int, written: int, translated: int) -> None:
        """The host has written a descriptor."""
        now = self._clock()
        if not self._is_free:
            profile = self._profile
            cost = profile.post + translated * profile.translate + transfer_time(written, profile.write_rate)
            when = self._core.reserve(now, cost) + profile.doorbell
            if when > now or self._rings:
                self._rings.append(index)
                self._loop.at(when, self._ring_next)
                return
        self._ring(now, index)

    # What comes of it, when it is time.

    def _leave(self, now: int) -> None:
        frame = self._leaving.popleft()
        if self._agent is not None:
            self.sent += 1
            self._way.enter(now, frame)

    def _ring_next(self, now: int) -> None:
        self._ring(now, self._rings.popleft())

    def _ring(self, now: int, index: int) -> None:
        if self._agent is None:
            return
        self._now = now
        if not self._is_free:
            self.processor.reserve(now, self._profile.ring)
        firmware = self._firmware
        firmware.ring(now, index)
        if self._shown and self._is_free:
            self._let_see(now)
        deadline = firmware.deadline
        if deadline is not None and deadline < self._wake:
            self._look_ahead()

    def _let_see(self, now: int) -> None:
        """The host finds what it has been shown, and what it is shown upon its answers."""
        if self._is_seeing:
            return
        self._is_seeing = True
        try:
            while self._shown:
                self._complete(now)
        finally:
            self._is_seeing = False

    def _notice(self, now: int) -> None:
        """The host's core finds a descriptor."""
        if self._profile.notice:
            when = self._core.reserve(now, self._profile.notice)
            if when > now:
                self._loop.at(when, self._complete)
                return
        self._complete(now)

    def _complete(self, now: int) -> None:  # noqa: ARG002
        index = self._shown.popleft()
        if self._agent is not None:
            self._agent.host.completed(index)
