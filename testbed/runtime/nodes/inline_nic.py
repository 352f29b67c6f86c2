"""NIC whose firmware runs in its host's own process: every action is performed at once.

`testbed.nic.completions` defines when the host library gets completions. The library then completes the operations that a
program awaits, and the program's task becomes ready; the program itself runs later (see `inline_driver`). A doorbell is
handled at once: the frames have left when the call returns. The call raises the firmware's exceptions; later doorbells are
still handled.

Frames that may be sent later (the firmware's acknowledgements) are deferred until the program has replied, as long as
programs reply quickly: the message that a peer waits for goes first. After a long step of a program they are sent at once,
until the steps are short again. So at most one acknowledgement waits for a program that computes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from protocols.core.firmware import Agent, Buffer, Firmware, Nic
from testbed.engine.failures import failure
from testbed.errors import FirmwareError
from testbed.nic.completions import CompletingNic
from testbed.runtime.nodes.veth_port import VethPort


class InlineNic(CompletingNic, Nic):
    """A NIC with one firmware. port: sends its frames. busy: whether the firmware runs, or the host library handles a
    completion; set by their callers."""

    __slots__ = (
        "_agent",
        "_firmware",
        "_transmit",
        "busy",
        "deferred",
        "fail",
        "is_prompt",
        "port",
    )

    def __init__(self, port: VethPort) -> None:
        super().__init__(_not_attached)
        self.port: Final = port
        self._transmit = port.transmit
        self.busy = False
        self.deferred: list[Callable[[], bytes]] = []
        """Functions that make the deferred frames, to be sent after those of the program's next step."""
        self.is_prompt = False
        """Whether programs reply quickly, so that frames may be deferred."""
        self.fail: Callable[[FirmwareError], object] = _ignore
        """Called with the error of a doorbell, which a program may catch."""
        self._firmware: Firmware

    def attach(self, agent: Agent) -> None:
        """Set the agent that the NIC serves, before its first action."""
        self._agent = agent
        self.deliver_completion = agent.host.on_completion
        self._firmware = agent.firmware

    def dma_read(self, segments: Sequence[memoryview]) -> bytes:
        """Read bytes from host memory."""
        return bytes(segments[0]) if len(segments) == 1 else b"".join(segments)

    def send(self, frame: Buffer) -> bool | None:
        try:
            return self._transmit(frame) is True
        except OSError as error:
            self.port.count_lost(error, frame)
            return None

    def send_later(self, make: Callable[[], bytes]) -> None:
        if self.is_prompt:
            self.deferred.append(make)
        else:
            self.send(make())

    def when_sent(self, then: Callable[[int], object]) -> None:
        self.port.when_sent(lambda: then(time.monotonic_ns()))

    def flush(self) -> None:
        """Send the deferred frames."""
        try:
            for make in self.deferred:
                self.send(make())
        except Exception as error:
            raise self.firmware_error(error) from error
        self.deferred.clear()

    def dma_write(self, target: memoryview, data: Buffer) -> None:
        target[:] = data

    def ring_doorbell(self, index: int, written: int, translated: int) -> None:  # noqa: ARG002  costs are not modelled here
        was_busy = self.busy  # the host library may ring a doorbell while it handles a completion
        self.busy = True
        try:
            self._firmware.on_doorbell(time.monotonic_ns(), index)
            if self.completions:
                self.deliver_completions()
        except Exception as error:
            raise self.firmware_error(error) from error
        finally:
            self.busy = was_busy

    def firmware_error(self, error: Exception) -> FirmwareError:
        """Make the error that ends the run from an error that the firmware has just raised, and pass it to `fail`."""
        if isinstance(error, FirmwareError):
            return error
        firmware_error = failure(error, self._agent.firmware, self._agent.host, time.monotonic_ns())
        self.fail(firmware_error)
        return firmware_error


def _not_attached(_: int) -> None:
    raise RuntimeError("the NIC has no agent yet")


def _ignore(_: FirmwareError) -> None:
    """Do nothing: the default of `InlineNic.fail`."""
