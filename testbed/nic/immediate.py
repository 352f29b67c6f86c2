"""A NIC whose actions take no time and cause no events, and its port. `priced` has the NIC with costs.

`completions` defines when its host sees completions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from protocols.core.firmware import Agent, Buffer, Firmware
from protocols.core.profile import Profile
from testbed.engine.failures import ETHERNET_HEADER, TickCount, failure, frame_too_long
from testbed.engine.loop import NEVER, Loop, VirtualClock
from testbed.engine.server import Server
from testbed.errors import FirmwareError
from testbed.nic.completions import CompletingNic


class ImmediateNic(CompletingNic):
    """A NIC without costs. Implements `protocols.core.firmware.Nic`; works once it has its agent (`begin`)."""

    __slots__ = (
        "_agent",
        "_clock",
        "_firmware",
        "_loop",
        "_max_frame",
        "_port",
        "_ticks",
        "_wake",
        "dropped",
        "handled_at",
        "longest_lost",
        "moved",
        "node",
        "on_doorbell",
        "oversized",
        "received",
        "sent",
    )  # fmt: skip

    def __init__(self, clock: VirtualClock, loop: Loop, port: Port, mtu: int) -> None:
        """clock: the loop's. port: where its frames go. mtu: bytes after the Ethernet header; sending a longer frame
        raises ValueError."""
        super().__init__(self._see)
        self.on_doorbell: Callable[[int, int], None] = self._ring
        """Passes a descriptor to the firmware at a time; observers wrap it."""
        self._loop = loop
        self._clock = clock
        self._port = port
        self._max_frame = mtu + ETHERNET_HEADER
        self.received = 0
        """Frames passed to the firmware."""
        self.sent = 0
        """Frames put on the wire."""
        self.dropped = 0
        """Frames dropped because the receive ring was full."""
        self.oversized = 0
        """Frames dropped because they exceeded the MTU."""
        self.longest_lost = 0
        """Bytes of the longest oversized frame."""
        self.moved: int | None = None
        """When the host's last transfer ended, ns; None before the first."""
        self.node = ""
        """The node's name, for error messages."""
        self._ticks = TickCount()
        self.handled_at = 0
        """Time of the event that the firmware handles, or handled last, ns."""
        self._wake = NEVER  # when the firmware's deadline is checked

    def now(self) -> int:
        """Return its clock's time, ns."""
        return self._clock.time

    @property
    def servers(self) -> Sequence[Server]:
        """The resources of the NIC that can be busy."""
        return ()

    @property
    def posted(self) -> int:
        """When the host finishes posting all requests made so far, ns."""
        return 0

    @property
    def processed(self) -> int:
        """Busy time of its processors, including reserved time, ns."""
        return 0

    def begin(self, now: int, agent: Agent) -> None:
        """Start this firmware."""
        self.handled_at = now
        self._agent: Agent | None = agent
        self._firmware: Firmware = agent.firmware
        self._schedule_deadline()

    def end(self, now: int) -> None:  # noqa: ARG002
        """Switch the NIC off: its pending actions have no effect."""
        self._agent = None

    def cost(self, profile: Profile) -> None:
        """Charge actions by this profile from now on; no effect on a NIC without costs."""

    def pause(self) -> None:
        """Queue all events, without limit, until `resume`."""
        if not isinstance(self._firmware, PausedFirmware):
            self._firmware = PausedFirmware(self._firmware)

    @property
    def held(self) -> int:
        """The number of frames and descriptors queued for `resume`."""
        return len(self._firmware.queued) if isinstance(self._firmware, PausedFirmware) else 0

    def resume(self, now: int) -> None:
        """Process the queued events in order, then the firmware's deadline."""
        paused = self._firmware
        if not isinstance(paused, PausedFirmware):
            return
        self._firmware = firmware = paused.firmware
        if self._agent is None:
            return
        self.handled_at = now
        for what in paused.queued:
            try:
                if isinstance(what, int):
                    firmware.on_doorbell(now, what)
                else:
                    firmware.receive(now, what)
            except Exception as error:
                raise self._failed(error) from error
            if self.shown:
                self.let_see()
        self._schedule_deadline()

    # From the wire, and by the clock.

    def receive(self, now: int, frame: bytes) -> None:
        """Receive a frame."""
        self.received += 1
        self.handled_at = now
        firmware = self._firmware
        try:
            firmware.receive(now, frame)
        except Exception as error:
            raise self._failed(error) from error
        if self.shown:
            self.let_see()
        deadline = firmware.deadline
        if deadline is not None and deadline < self._wake:
            self._schedule_deadline()

    def receive_what_fits(self, now: int, frame: bytes) -> None:
        """Receive a frame, or count it as oversized: a sender may have a larger MTU."""
        if len(frame) > self._max_frame:
            self.oversized += 1
            self.longest_lost = max(self.longest_lost, len(frame))
        else:
            self.receive(now, frame)

    def _tick(self, now: int) -> None:
        if now != self._wake:
            return  # superseded by an earlier deadline and checked since
        self._wake = NEVER
        if self._agent is None:
            return
        self.handled_at = now
        firmware = self._firmware
        deadline = firmware.deadline
        if deadline is not None and deadline <= now:
            try:
                firmware.on_timer(now)
                self._ticks.check(firmware, now)
            except Exception as error:
                raise self._failed(error) from error
            if self.shown:
                self.let_see()
        self._schedule_deadline()

    def _schedule_deadline(self) -> None:
        """Schedule a wake-up for the firmware's deadline.

        A deadline that is postponed keeps its earlier wake-up, so that a timer restarted by every frame costs no
        events.
        """
        deadline = self._firmware.deadline
        if deadline is not None and deadline < self._wake:
            self._wake = when = max(deadline, self.handled_at)
            self._loop.at(when, self._tick)

    # By the firmware.

    def dma_read(self, segments: Sequence[memoryview]) -> bytes:
        """Read bytes from host memory."""
        return bytes(segments[0]) if len(segments) == 1 else b"".join(segments)

    def send(self, frame: Buffer) -> bool | None:
        """Put a frame on the wire. Returns True if it waits in the port."""
        if type(frame) is not bytes:
            frame = bytes(frame)
        if len(frame) > self._max_frame:
            raise frame_too_long(len(frame), self._max_frame - ETHERNET_HEADER)
        self.sent += 1
        return self._port.enter(self.handled_at, frame)

    def when_sent(self, then: Callable[[int], object]) -> None:
        """Call `then` when the last frame has left."""
        self._port.when_sent(self._clock.time, partial(self._left, then))

    def _left(self, then: Callable[[int], object], now: int) -> None:
        """Notify the firmware that its last frame has left, unless the NIC is off."""
        if self._agent is None:
            return
        try:
            then(now)
        except Exception as error:
            raise self._failed(error) from error
        self._schedule_deadline()

    def send_later(self, make: Callable[[], bytes]) -> None:
        self.send(make())  # the host sees completions later anyway

    def dma_write(self, target: memoryview, data: Buffer) -> None:
        """Write bytes to host memory."""
        target[:] = data

    # By the host.

    def ring_doorbell(self, index: int, written: int, translated: int) -> None:  # noqa: ARG002
        """Handle a descriptor written by the host."""
        self.on_doorbell(self._clock.time, index)

    # Delivery to the firmware and to the host, and their errors.

    def _ring(self, now: int, index: int) -> None:
        if self._agent is None:
            return
        self.handled_at = now
        firmware = self._firmware
        try:
            firmware.on_doorbell(now, index)
        except Exception as error:
            raise self._failed(error) from error
        if self.shown:
            self.let_see()
        deadline = firmware.deadline
        if deadline is not None and deadline < self._wake:
            self._schedule_deadline()

    def _see(self, index: int) -> None:
        """Deliver a returned descriptor to the host."""
        if self._agent is None:
            return
        try:
            if self._agent.host.completed(index) is not False:
                self.moved = self._clock.time
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> FirmwareError:
        """Stop the run with this error, even if a caller catches it: the NIC's state is no longer valid."""
        if isinstance(error, FirmwareError):
            return error
        agent = self._agent
        assert agent is not None
        failed = failure(error, agent.firmware, agent.host, self._clock.time, self.node)
        self._loop.fail(failed)
        return failed


class PausedFirmware:
    """Replaces the firmware of a paused node. queued: received frames and rung descriptors, in order."""

    __slots__ = ("deadline", "firmware", "queued")

    def __init__(self, firmware: Firmware) -> None:
        self.firmware: Final = firmware
        self.queued: Final[list[bytes | int]] = []
        self.deadline: int | None = None

    def receive(self, now: int, frame: bytes) -> None:  # noqa: ARG002
        self.queued.append(frame)

    def on_doorbell(self, now: int, index: int) -> None:  # noqa: ARG002
        self.queued.append(index)

    def on_timer(self, now: int) -> None:
        """Ignore a deadline that passed before the pause took effect."""

    def counted(self) -> Mapping[str, int]:
        return self.firmware.counted()

    def waiting(self) -> list[str]:
        return [f"its node is paused, {len(self.queued)} frames and descriptors wait", *self.firmware.waiting()]


class Port(Protocol):
    """Where a NIC's frames go: a direction of a link in the simulation, a packet socket elsewhere."""

    def enter(self, now: int, frame: bytes) -> bool | None:
        """Send a frame that leaves the NIC at that time. Returns True if it waits in the port."""
        ...

    def when_sent(self, now: int, then: Callable[[int], object]) -> None:
        """Call `then` with the time at which all frames sent before have left."""
        ...
