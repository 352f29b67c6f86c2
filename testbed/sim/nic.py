"""A NIC in the simulation whose actions cost nothing: each is done at once, without an event. `priced` has the others.

The firmware is never entered from within itself: the host sees what it is shown, and a program does whatever it does about
it, when the firmware has returned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from protocols.core.firmware import Agent, Buffer, Firmware
from protocols.core.profile import Profile
from testbed.engine.loop import Loop
from testbed.engine.server import Server
from testbed.sim.standstill import Standstill
from testbed.sim.way import NEVER, Outlet

_HEADER = 14  # of Ethernet, in front of what the MTU counts


class SimNic:
    """One NIC. Implements `protocols.core.firmware.Nic`; has an effect once it has its agent (`begin`)."""

    __slots__ = (
        "_agent", "_clock", "_firmware", "_is_seeing", "_longest", "_loop", "_now", "_shown", "_wake", "_way", "dropped",
        "oversized", "received", "sent",
    )  # fmt: skip

    def __init__(self, loop: Loop, way: Outlet, mtu: int) -> None:
        """way: where its frames go. mtu: bytes behind the Ethernet header; ValueError meets a frame that it is to send and
        that is longer."""
        self._loop = loop
        self._clock = loop.now
        self._way = way
        self._longest = mtu + _HEADER
        self.received = 0
        """Frames that its firmware was given."""
        self.sent = 0
        """Frames that went on the wire."""
        self.dropped = 0
        """Frames for which there was no room in the receive ring."""
        self.oversized = 0
        """Frames that were longer than it takes."""
        self._now = 0  # of the event that the firmware is looking at
        self._wake = NEVER  # when the firmware's deadline is looked at
        self._shown: deque[int] = deque()  # descriptors on their way to the host
        self._is_seeing = False  # and it is being shown them at once

    @property
    def servers(self) -> Sequence[Server]:
        """What of it can be busy."""
        return ()

    @property
    def posted(self) -> int:
        """When the host has done all that its program asked the NIC for."""
        return 0

    @property
    def processed(self) -> int:
        """Nanoseconds for which its processors have been busy, and will be with what is reserved."""
        return 0

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
        """From now on what it does costs this; nothing, where nothing has cost anything before."""

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
            if self._shown:
                self._let_see(now)
        self._look_ahead()

    # From the wire, and by the clock.

    def receive(self, now: int, frame: bytes) -> None:
        """A frame has come."""
        self.received += 1
        self._now = now
        firmware = self._firmware
        firmware.receive(now, frame)
        if self._shown:
            self._let_see(now)
        deadline = firmware.deadline
        if deadline is not None and deadline < self._wake:
            self._look_ahead()

    def receive_what_fits(self, now: int, frame: bytes) -> None:
        """The same, where others may send frames that are longer than it takes."""
        if len(frame) > self._longest:
            self.oversized += 1
        else:
            self.receive(now, frame)

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
            firmware.tick(now)
            if self._shown:
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
        return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

    def send(self, frame: Buffer) -> None:
        """Put a frame on the wire."""
        if type(frame) is not bytes:
            frame = bytes(frame)
        if len(frame) > self._longest:
            raise ValueError(f"a frame of {len(frame)} bytes: the NIC takes at most {self._longest}")
        self.sent += 1
        self._way.enter(self._now, frame)

    def send_later(self, make: Callable[[], bytes]) -> None:
        self.send(make())  # what the host does about what it is shown comes later, here

    def store(self, piece: memoryview, data: Buffer) -> None:
        """Put bytes into host memory."""
        piece[:] = data

    def show(self, index: int) -> None:
        """Let the host see that it has a descriptor back, when the firmware has returned."""
        self._shown.append(index)

    def interrupt(self, index: int) -> None:
        """The same for the host's kernel."""
        self._shown.append(index)

    # By the host.

    def doorbell(self, index: int, written: int, translated: int) -> None:  # noqa: ARG002
        """The host has written a descriptor."""
        self._ring(self._clock(), index)

    # What comes of it.

    def _ring(self, now: int, index: int) -> None:
        if self._agent is None:
            return
        self._now = now
        firmware = self._firmware
        firmware.ring(now, index)
        if self._shown:
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

    def _complete(self, now: int) -> None:  # noqa: ARG002
        index = self._shown.popleft()
        if self._agent is not None:
            self._agent.host.completed(index)
