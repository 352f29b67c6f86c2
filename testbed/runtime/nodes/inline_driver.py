"""Driver of an inline NIC: the waiter of the engine's loop in a node process.

While tasks wait, it receives frames and keeps the firmware's deadlines in a small loop, without an entry in a heap or a
callback per frame. A woken task runs at once, so that its answer leaves before anything else is received. When there is
nothing to do, it spins for its budget, or polls for as long as is cheaper than to sleep (`patience`), and then sleeps in
the kernel. While tasks poll, each poll receives the frames that have come, keeps the deadlines and returns.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import Final

from protocols.core.firmware import Firmware
from testbed.engine.failures import TickCount
from testbed.engine.loop import Loop
from testbed.kernel.frame_socket import FrameSocket
from testbed.kernel.waiter import Waiter
from testbed.runtime.nodes.inline import InlineNic
from testbed.runtime.nodes.patience import Patience, PollPause

_LOOK: Final = 64  # frames in a row after which deadlines and other descriptors are checked
_POLLED: Final = 256  # maximum of frames in a poll: more than come while a program sleeps for 1 ms
_PROMPT: Final = 100_000
"""Nanoseconds from a frame to the end of the program's step that it causes, below which programs answer quickly."""


class Driver:
    """Driver of one inline NIC and of the loop of its host's program, on the machine's monotonic clock.

    spin: nanoseconds to poll for a frame before sleeping; 0: as patience says.
    """

    def __init__(self, wire: FrameSocket, nic: InlineNic, firmware: Firmware, spin: int, patience: Patience) -> None:
        self.loop = Loop(self)
        self.spin = spin
        self._wire = wire
        self._nic = nic
        nic.fail = self.loop.fail
        self._ticks = TickCount()
        self._firmware = firmware
        self._frames_in_a_row = 0
        self.patience: Final = patience
        self._pause = PollPause(patience)
        self._deadline: int | None = None  # the one set in the kernel
        self._others = select.poll()
        self._has_others = False  # True once another descriptor was watched
        self._waiter = Waiter(0)
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
        """Run the NIC, and the tasks that it wakes, until a watched descriptor is ready or the deadline has come."""
        nic, firmware, loop = self._nic, self._firmware, self.loop
        polling = loop.polling
        if polling:
            return self._poll()
        next_frame, take, now = self._wire.next_frame, nic.frame_handler(firmware), time.monotonic_ns
        woken, heap, later = loop.woken, loop.heap, nic.later
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
                take(moment, frame)
                if nic.completions:
                    nic.deliver_completions()
            except Exception as error:
                raise nic.failed(error) from error
            nic.busy = False
            if woken:
                woken.popleft().call(moment)  # as `Loop.go_on`, which mostly has one task to run
                if woken:
                    loop.run_woken()
                if later:
                    nic.flush()
                nic.prompt = now() - moment < _PROMPT
                # Else only a frame or a watched descriptor can wake a task.
                if woken or heap or polling or not loop.running:
                    return ()
            elif later:
                nic.flush()
            self._frames_in_a_row += 1
            if self._frames_in_a_row >= _LOOK:
                self._frames_in_a_row = 0
                self._tick(moment)
                if ready := [descriptor for descriptor, _ in self._others.poll(0)]:
                    return ready
            if deadline is not None and deadline <= moment:
                return ()

    def _poll(self) -> Sequence[int]:
        """Process the frames that have come and the deadlines that are due, before a program that polls runs again. If there
        was nothing, sleep until something comes or is due, so that other processes run."""
        taken = self._receive_frames()
        moment = time.monotonic_ns()
        ticked = self._tick(moment)
        ready: Sequence[int] = [descriptor for descriptor, _ in self._others.poll(0)] if self._has_others else ()
        if taken or ticked or ready or self.loop.woken:
            self._pause.found()
        elif (end := self._pause.until(moment)) is not None:
            ends = (end, self._firmware.deadline, self.loop.next_time())
            ready = self._sleep(min(when for when in ends if when is not None))
            if self._receive_frames() or ready:
                self._pause.found()
            self._tick(time.monotonic_ns())
            self._pause.slept()
        return ready

    def _receive_frames(self) -> int:
        """Give the firmware the frames that have come; return how many. No frame that it sends waits for the program."""
        nic, next_frame = self._nic, self._wire.next_frame
        take, now = nic.frame_handler(self._firmware), time.monotonic_ns
        if nic.later:
            nic.flush()
        for taken in range(_POLLED):
            frame = next_frame()
            if frame is None:
                return taken
            nic.busy = True
            try:
                take(now(), frame)
                if nic.completions:
                    nic.deliver_completions()
            except Exception as error:
                raise nic.failed(error) from error
            nic.busy = False
            if nic.later:
                nic.flush()
        return _POLLED

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
            raise nic.failed(error) from error
        nic.busy = False
        if nic.later:
            nic.flush()
        return True

    def _sleep(self, deadline: int | None) -> Sequence[int]:
        """Sleep until there is a frame, the deadline has come, or another descriptor is ready; return these.

        A deadline that every message puts off or cancels is not set in the kernel each time: it may wake us at the earlier
        one, when there is nothing to do.
        """
        wire, known = self._wire.fileno(), self._deadline
        if known is None or known <= time.monotonic_ns() or (deadline is not None and deadline < known):
            self._deadline = known = deadline
        return [descriptor for descriptor in self._waiter.wait(known) if descriptor != wire]
