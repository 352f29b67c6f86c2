"""A NIC whose actions take no time and cause no events, and the port to which it sends. `priced` has the NIC with costs.

The host gets completions as `completions` defines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from protocols.core.firmware import Agent, Buffer, Firmware, Nic
from protocols.core.host_work import NodeActions
from protocols.core.profile import Profile
from testbed.engine.failures import ETHERNET_HEADER, TimerCallCounter, failure, frame_too_long
from testbed.engine.loop import Loop, VirtualClock
from testbed.engine.server import Server
from testbed.errors import FirmwareError
from testbed.fabric.event_queue import NEVER
from testbed.nic.completions import CompletingNic


class Port(Protocol):
    """The port to which a NIC sends: a direction of a link in the simulation, a packet socket elsewhere."""

    __slots__ = ()

    def enter(self, now: int, frame: bytes) -> bool | None:
        """Send a frame that leaves the NIC at time `now`. Returns True if the frame waits in the port."""
        ...

    def when_sent(self, now: int, callback: Callable[[int], object]) -> None:
        """Call `callback` with the time at which all frames sent before have left."""
        ...


class ImmediateNic(CompletingNic, Nic, NodeActions):
    """A NIC without costs. It works from `begin` on, which sets its agent, until `end`."""

    __slots__ = (
        "_agent", "_clock", "_firmware", "_loop", "_max_frame", "_port", "_timer_calls", "_wake_time", "dropped",
        "handled_at", "last_transfer_time", "max_oversized", "node_name", "on_doorbell", "oversized", "received", "sent",
    )  # fmt: skip

    def __init__(self, clock: VirtualClock, loop: Loop, port: Port, mtu: int) -> None:
        """clock: clock of the loop. port: the port to which it sends. mtu: bytes after the Ethernet header; sending a longer
        frame raises ValueError."""
        super().__init__(self._complete)
        self.on_doorbell: Callable[[int, int], None] = self._handle_doorbell
        """Passes a time and a descriptor to the firmware; observers wrap it."""
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
        self.max_oversized = 0
        """Bytes of the longest oversized frame."""
        self.last_transfer_time: int | None = None
        """When the host's last transfer ended, ns; None before the first transfer."""
        self.node_name = ""
        """The node's name, for error messages."""
        self._timer_calls = TimerCallCounter()
        self.handled_at = 0
        """Time of the event that the firmware is handling or last handled, ns."""
        self._wake_time = NEVER  # when the firmware's deadline is checked next

    def now(self) -> int:
        """Return the clock's time, ns."""
        return self._clock.time

    @property
    def servers(self) -> Sequence[Server]:
        """The resources of the NIC that can be busy."""
        return ()

    @property
    def posting_end(self) -> int:
        """Time at which the host will have posted all requests made so far, ns."""
        return 0

    @property
    def processor_time(self) -> int:
        """Busy time of the NIC's processors, including reserved time, ns."""
        return 0

    def begin(self, now: int, agent: Agent) -> None:
        """Start the agent's firmware."""
        self.handled_at = now
        self._agent: Agent | None = agent
        self._firmware: Firmware = agent.firmware
        self._schedule_deadline()

    def end(self, now: int) -> None:  # noqa: ARG002
        """Switch the NIC off: its pending actions have no effect."""
        self._agent = None

    def set_costs(self, profile: Profile) -> None:
        """Use the costs of this profile from now on; no effect on a NIC without costs."""

    def pause(self) -> None:
        """Queue all events, without limit, until `resume`."""
        if not isinstance(self._firmware, PausedFirmware):
            self._firmware = PausedFirmware(self._firmware)

    @property
    def queued_count(self) -> int:
        """Number of frames and descriptors queued for `resume`."""
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
        for event in paused.queued:
            try:
                if isinstance(event, int):
                    firmware.on_doorbell(now, event)
                else:
                    firmware.receive(now, event)
            except Exception as error:
                raise self._fail(error) from error
            if self.completions:
                self.deliver_completions()
        self._schedule_deadline()

    # Called by the wire and the clock.

    def receive(self, now: int, frame: bytes) -> None:
        """Receive a frame."""
        self.received += 1
        self.handled_at = now
        firmware = self._firmware
        try:
            firmware.receive(now, frame)
        except Exception as error:
            raise self._fail(error) from error
        if self.completions:
            self.deliver_completions()
        deadline = firmware.deadline
        if deadline is not None and deadline < self._wake_time:
            self._schedule_deadline()

    def receive_within_mtu(self, now: int, frame: bytes) -> None:
        """Receive a frame unless it exceeds the MTU: a sender may have a larger MTU."""
        if len(frame) > self._max_frame:
            self.oversized += 1
            self.max_oversized = max(self.max_oversized, len(frame))
        else:
            self.receive(now, frame)

    def _on_wake_up(self, now: int) -> None:
        if now != self._wake_time:
            return  # a wake-up for an earlier deadline has replaced this one
        self._wake_time = NEVER
        if self._agent is None:
            return
        self.handled_at = now
        firmware = self._firmware
        deadline = firmware.deadline
        if deadline is not None and deadline <= now:
            try:
                firmware.on_timer(now)
                self._timer_calls.check(firmware, now)
            except Exception as error:
                raise self._fail(error) from error
            if self.completions:
                self.deliver_completions()
        self._schedule_deadline()

    def _schedule_deadline(self) -> None:
        """Schedule a wake-up for the firmware's deadline, unless one is scheduled for that time or earlier.

        The wake-up of a postponed deadline stays where it is, so that a timer that every frame restarts causes no events.
        """
        deadline = self._firmware.deadline
        if deadline is not None and deadline < self._wake_time:
            self._wake_time = when = max(deadline, self.handled_at)
            self._loop.at(when, self._on_wake_up)

    # Called by the firmware.

    def dma_read(self, segments: Sequence[memoryview]) -> bytes:
        """Read bytes from host memory."""
        return bytes(segments[0]) if len(segments) == 1 else b"".join(segments)

    def send(self, frame: Buffer) -> bool | None:
        """Put a frame on the wire. Returns True if the frame waits in the port."""
        if type(frame) is not bytes:
            frame = bytes(frame)
        if len(frame) > self._max_frame:
            raise frame_too_long(len(frame), self._max_frame - ETHERNET_HEADER)
        self.sent += 1
        return self._port.enter(self.handled_at, frame)

    def when_sent(self, callback: Callable[[int], object]) -> None:
        """Call `callback` with the time at which the last frame has left."""
        self._port.when_sent(self._clock.time, partial(self._on_sent, callback))

    def _on_sent(self, callback: Callable[[int], object], now: int) -> None:
        """Notify the firmware that its last frame has left, unless the NIC is off."""
        if self._agent is None:
            return
        self.handled_at = now
        try:
            callback(now)
        except Exception as error:
            raise self._fail(error) from error
        self._schedule_deadline()

    def send_later(self, make: Callable[[], bytes]) -> None:
        self.send(make())  # not too early: the host gets completions only when the firmware has returned

    def dma_write(self, target: memoryview, data: Buffer) -> None:
        """Write bytes to host memory."""
        target[:] = data

    def post_to(self, function: object, target: memoryview, data: Buffer, index: int) -> None:
        """Write bytes to the memory of another function's host, and return a descriptor to it; see `NodeActions`."""
        assert isinstance(function, ImmediateNic)
        target[:] = data
        function.completions.append(index)
        self._loop.at(self._clock.time, function.deliver_posted)

    def deliver_posted(self, _now: int) -> None:
        """Deliver the descriptors that another function has returned to this function's host."""
        self.deliver_completions()

    # Called by the host.

    def ring_doorbell(self, index: int, written: int, translated: int) -> None:  # noqa: ARG002
        """Handle a descriptor written by the host."""
        self.on_doorbell(self._clock.time, index)

    # Delivery to the firmware and to the host, and their errors.

    def _handle_doorbell(self, now: int, index: int) -> None:
        if self._agent is None:
            return
        self.handled_at = now
        firmware = self._firmware
        try:
            firmware.on_doorbell(now, index)
        except Exception as error:
            raise self._fail(error) from error
        if self.completions:
            self.deliver_completions()
        deadline = firmware.deadline
        if deadline is not None and deadline < self._wake_time:
            self._schedule_deadline()

    def _complete(self, index: int) -> None:
        """Deliver a returned descriptor to the host."""
        if self._agent is None:
            return
        try:
            if self._agent.host.on_completion(index) is not False:
                self.last_transfer_time = self._clock.time
        except Exception as error:
            raise self._fail(error) from error

    def _fail(self, error: Exception) -> FirmwareError:
        """Stop the run with this error, even if a caller catches it: the NIC's state is no longer valid."""
        if isinstance(error, FirmwareError):
            return error
        agent = self._agent
        assert agent is not None
        firmware_failure = failure(error, agent.firmware, agent.host, self._clock.time, self.node_name)
        self._loop.fail(firmware_failure)
        return firmware_failure


class PausedFirmware(Firmware):
    """Replacement of the firmware while its node is paused. firmware: the replaced firmware. queued: received frames and
    posted descriptors, in order."""

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

    def counter_values(self) -> Mapping[str, int]:
        return self.firmware.counter_values()

    def pending_work(self) -> list[str]:
        return [
            f"its node is paused, {len(self.queued)} frames and descriptors are queued",
            *self.firmware.pending_work(),
        ]
