"""Driver of an inline NIC: the waiter of the engine's loop in a node process.

While tasks wait, the driver receives frames and keeps the firmware's deadlines in a small loop, without a heap entry or a
callback per frame. A woken task runs at once, so that its reply leaves before another frame is received. If the NIC has an
input FIFO, all waiting frames are received first, as by an interface that needs no processor to receive. When there is
nothing to do, the driver spins for its budget, or for as long as spinning is cheaper than sleeping (`patience`), and then
sleeps in the kernel. While tasks poll, each poll receives the waiting frames, keeps the deadlines and returns.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import Final

from protocols.core.firmware import Firmware
from testbed.engine import loop as engine_loop
from testbed.engine.failures import TimerCallCounter
from testbed.engine.loop import Loop
from testbed.kernel.frame_socket import FrameSocket
from testbed.kernel.waiter import Waiter
from testbed.runtime.nodes.inline_nic import InlineNic
from testbed.runtime.nodes.patience import Patience, PollPause
from testbed.runtime.nodes.veth_port import FlowControlPort

_CHECK_INTERVAL: Final = 64  # frames in a row after which deadlines and other descriptors are checked
_MAX_POLLED: Final = 256  # frames received in a poll: more than arrive while a program sleeps for 1 ms
_MAX_DRAINED: Final = 8192
"""Maximum number of frames that a NIC with an input FIFO receives before the program continues: about as many small frames
as fit into the socket's buffer."""
_PROMPT_TIME: Final = 100_000
"""Nanoseconds from the receipt of a frame to the end of the program's step that it causes, below which the program counts as
prompt (see `InlineNic.is_prompt`)."""


class Driver(engine_loop.Waiter):
    """Driver of one inline NIC and of the loop of its host's program, on the machine's monotonic clock.

    spin: nanoseconds to spin before sleeping; 0: as many as `patience` allows. has_input_fifo: see `Agent`.
    """

    def __init__(
        self, wire: FrameSocket, nic: InlineNic, firmware: Firmware, spin: int, patience: Patience,
        *, has_input_fifo: bool = False,
    ) -> None:  # fmt: skip
        self.loop = Loop(self)
        self.spin = spin
        self._wire = wire
        self._nic = nic
        nic.fail = self.loop.fail
        self._ticks = TimerCallCounter()
        self._firmware = firmware
        self._control = nic.port if isinstance(nic.port, FlowControlPort) else None
        self._has_input_fifo = has_input_fifo
        self._frames_in_a_row = 0
        self.patience: Final = patience
        self._pause = PollPause(patience)
        self._deadline: int | None = None  # the deadline set in the kernel
        self._others = select.poll()
        self._has_others = False  # whether another descriptor has been watched
        self._waiter = Waiter(0, is_light=True)
        self._waiter.watch(wire.fileno())

    def close(self) -> None:
        self.loop.close()
        self._waiter.close()

    # The loop's waiter

    def now(self) -> int:
        return time.monotonic_ns()

    def watch(self, descriptor: int) -> None:
        self._others.register(descriptor, select.POLLIN)
        self._has_others = True
        self._waiter.watch(descriptor)

    def unwatch(self, descriptor: int) -> None:
        self._others.unregister(descriptor)
        self._waiter.unwatch(descriptor)

    def wait(self, deadline: int | None) -> Sequence[int]:
        """Run the NIC, and the tasks that it wakes, until a watched descriptor is ready or the deadline has come; return the
        ready descriptors."""
        nic, firmware, loop = self._nic, self._firmware, self.loop
        polling = loop.polling
        if polling:
            return self._poll()
        next_frame, control, now = self._wire.next_frame, self._control, time.monotonic_ns
        woken, events, deferred = loop.woken, loop.events.entries, nic.deferred
        due: int | None = 0  # the firmware's deadline when it was read last; 0: read it again
        until, spin, patience = 0, self.spin, self.patience
        while True:
            frame = next_frame()
            if frame is None:
                self._frames_in_a_row = 0
                moment = now()
                if due == 0:
                    due = firmware.deadline
                    until = moment + (spin or patience.budget())
                if due is not None and due <= moment:
                    self._tick(moment)
                    due = 0
                if woken or (deadline is not None and deadline <= moment):
                    return [descriptor for descriptor, _ in self._others.poll(0)] if self._has_others else ()
                if due == 0 or moment < until:
                    continue
                patience.spin_failed()
                if ready := self._sleep(due if deadline is None or (due is not None and due < deadline) else deadline):
                    return ready
                until = now() + spin
                continue
            moment = now()
            due = 0
            nic.busy = True
            try:
                if control is None or not control.on_control_frame(frame):
                    firmware.receive(moment, frame)
                if nic.completions:
                    nic.deliver_completions()
            except Exception as error:
                raise nic.firmware_error(error) from error
            nic.busy = False
            if woken:
                if self._has_input_fifo:
                    self._receive_frames()
                loop.run_woken(moment)
                if deferred:
                    nic.flush()
                nic.is_prompt = now() - moment < _PROMPT_TIME
                # Otherwise only a frame or a watched descriptor can wake a task.
                if woken or events or polling or not loop.running:
                    return ()
            elif deferred:
                nic.flush()
            self._frames_in_a_row += 1
            if self._frames_in_a_row >= _CHECK_INTERVAL:
                self._frames_in_a_row = 0
                self._tick(moment)
                if ready := [descriptor for descriptor, _ in self._others.poll(0)]:
                    return ready
            if deadline is not None and deadline <= moment:
                return ()

    def _poll(self) -> Sequence[int]:
        """Handle the waiting frames and due deadlines, before a program that polls runs again. If there are none, sleep
        until an event or a deadline, so that other processes run."""
        received = self._receive_frames()
        moment = time.monotonic_ns()
        ticked = self._tick(moment)
        ready: Sequence[int] = [descriptor for descriptor, _ in self._others.poll(0)] if self._has_others else ()
        if received or ticked or ready or self.loop.woken:
            self._pause.poll_succeeded()
        elif (end := self._pause.poll_failed(moment)) is not None:
            ends = (end, self._firmware.deadline, self.loop.events.next_time())
            ready = self._sleep(min(when for when in ends if when is not None))
            if self._receive_frames() or ready:
                self._pause.poll_succeeded()
            self._tick(time.monotonic_ns())
            self._pause.sleep_ended()
        return ready

    def _receive_frames(self) -> int:
        """Pass the waiting frames to the firmware, and send its deferred frames at once; return the number of frames
        received."""
        nic, firmware, control = self._nic, self._firmware, self._control
        next_frame, now = self._wire.next_frame, time.monotonic_ns
        if nic.deferred:
            nic.flush()
        limit = _MAX_DRAINED if self._has_input_fifo else _MAX_POLLED
        for received in range(limit):
            frame = next_frame()
            if frame is None:
                return received
            nic.busy = True
            try:
                moment = now()
                if control is None or not control.on_control_frame(frame):
                    firmware.receive(moment, frame)
                if nic.completions:
                    nic.deliver_completions()
            except Exception as error:
                raise nic.firmware_error(error) from error
            nic.busy = False
            if nic.deferred:
                nic.flush()
        return limit

    def _tick(self, moment: int) -> bool:
        """Call the firmware's `on_timer` if its deadline has come; return whether it has."""
        nic, firmware = self._nic, self._firmware
        deadline = firmware.deadline
        if deadline is None or deadline > moment:
            return False
        nic.busy = True
        try:
            firmware.on_timer(moment)
            self._ticks.check(firmware, moment)
            if nic.completions:
                nic.deliver_completions()
        except Exception as error:
            raise nic.firmware_error(error) from error
        nic.busy = False
        if nic.deferred:
            nic.flush()
        return True

    def _sleep(self, deadline: int | None) -> Sequence[int]:
        """Sleep until there is a frame, the deadline has come, or other descriptors are ready; return the latter.

        Most deadlines are postponed or cancelled before they come, so an earlier deadline that is already set in the kernel
        stays set: one unneeded wake-up costs less than setting each deadline.
        """
        wire, wakeup = self._wire.fileno(), self._deadline
        if wakeup is None or wakeup <= time.monotonic_ns() or (deadline is not None and deadline < wakeup):
            self._deadline = wakeup = deadline
        return [descriptor for descriptor in self._waiter.wait(wakeup) if descriptor != wire]
