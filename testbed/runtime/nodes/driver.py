"""What the engine's loop waits with in a node process: the NIC itself.

While tasks wait, frames are received and the firmware's deadlines kept, in one small loop without an entry in a heap or a
callback per frame. A task that has been woken goes on at once, so that what a program answers leaves before anything else
is received. When there is nothing, it spins for its budget, or looks for as long as is cheaper than to sleep (`patience`),
and then sleeps in the kernel.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence
from typing import Final

from protocols.core.firmware import Firmware
from testbed.engine.loop import Loop
from testbed.kernel.frame_socket import DOWN, FrameSocket
from testbed.kernel.waiting import Waiter
from testbed.runtime.nodes.inline import InlineNic
from testbed.runtime.nodes.patience import Patience

_DONTWAIT: Final = socket.MSG_DONTWAIT
_LOOK: Final = 64  # frames in a row after which deadlines and other descriptors are looked at
_PROMPT: Final = 100_000
"""Nanoseconds from a frame to the end of the step of a program that it causes, below which programs answer quickly."""


class Driver:
    """Drives one inline NIC and the loop of its host's program, on the machine's monotonic clock.

    spin: nanoseconds to look for a frame again and again before sleeping; 0: as patience says.
    """

    def __init__(self, wire: FrameSocket, nic: InlineNic, firmware: Firmware, spin: int, patience: Patience) -> None:
        self.loop = Loop(self)
        self.spin = spin
        self._wire = wire
        self._nic = nic
        self._firmware = firmware
        self._frames_in_a_row = 0
        self.patience: Final = patience
        self._deadline: int | None = None  # the one that the kernel knows
        self._others = select.poll()
        self._has_others = False  # or had
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
        """Let the NIC work, and tasks that it wakes go on, until a watched descriptor is ready or the deadline has come."""
        nic, firmware, loop = self._nic, self._firmware, self.loop
        receive, longest, take, now = (
            self._wire.socket.recv,
            self._wire.longest,
            nic.taking(firmware),
            time.monotonic_ns,
        )
        woken, heap, later = loop.woken, loop.heap, nic.later
        due: int | None = 0  # what the firmware's deadline was; 0: it is looked at again
        until, spin, patience = 0, self.spin, self.patience
        while True:
            try:
                frame = receive(longest, _DONTWAIT)
            except BlockingIOError:
                self._frames_in_a_row = 0
                moment = now()
                if due == 0:
                    due = firmware.deadline
                    until = moment + (spin or patience.budget())
                if due is not None and due <= moment:
                    self._tick(moment)
                    due = 0
                if woken or (deadline is not None and deadline <= moment):
                    # A program that polls is never waited for: what it polls for may come by another descriptor.
                    return [descriptor for descriptor, _ in self._others.poll(0)] if self._has_others else ()
                if due == 0 or moment < until:
                    continue
                patience.in_vain()
                if ready := self._sleep(due if deadline is None or (due is not None and due < deadline) else deadline):
                    return ready
                until = now() + spin
                continue
            except OSError as error:  # told once to a socket whose interface was set down
                if error.errno not in DOWN:
                    raise
                continue
            moment = now()
            due = 0
            nic.busy = True
            take(moment, frame)
            nic.busy = False
            if nic.rung:
                nic.answer()
            if woken:
                woken.popleft().call(moment)  # as `Loop.go_on`, which most often has no more to do
                if woken:
                    loop.go_on()
                if later:
                    nic.flush()
                nic.prompt = now() - moment < _PROMPT
                if woken or heap or not loop.running:  # else nothing but a frame, or what is watched, can make it go on
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

    def _tick(self, moment: int) -> None:
        """The firmware's deadline may have come."""
        nic, firmware = self._nic, self._firmware
        deadline = firmware.deadline
        if deadline is not None and deadline <= moment:
            nic.busy = True
            firmware.tick(moment)
            nic.busy = False
            if nic.rung:
                nic.answer()
            if nic.later:
                nic.flush()

    def _sleep(self, deadline: int | None) -> Sequence[int]:
        """Until there is a frame, or the deadline has come, or something else is ready, which is returned.

        A deadline that is put off, or called off, with every message is not told to the kernel each time: it may wake us at
        the earlier one, at which there is nothing to do.
        """
        wire, known = self._wire.fileno(), self._deadline
        if known is None or known <= time.monotonic_ns() or (deadline is not None and deadline < known):
            self._deadline = known = deadline
        return [descriptor for descriptor in self._waiter.wait(known) if descriptor != wire]
