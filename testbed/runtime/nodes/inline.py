"""NIC whose firmware runs in its host's own process: every action is performed at once, in place.

`testbed.nic.completions` says when its host sees completions. The host library then completes what a program awaits;
nothing of the program runs. The driver only marks its task as ready (see `inline_driver`). A doorbell is answered at once,
and the frames have left when the call returns. An exception of the firmware is raised by the call; later doorbells are still
answered.

Frames that may be sent later (`Firmware`'s acknowledgements) are sent behind the program's answer, as long as programs
answer quickly: the message that a peer waits for goes first. After a long step of a program they are sent at once, until the
steps are short again: no more than one frame of a peer waits for a program that computes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from protocols.core.firmware import Agent, Buffer, Firmware
from testbed.engine.failures import failure
from testbed.errors import FirmwareError
from testbed.nic.completions import CompletingNic
from testbed.runtime.nodes.veth_port import HoldingPort, VethPort


class InlineNic(CompletingNic):
    """The NIC of one firmware. port: sends its frames. send: the port's. busy: the firmware is at work, or the
    host library upon what it is shown; whoever calls them says so."""

    __slots__ = (
        "_agent",
        "_ring",
        "busy",
        "fail",
        "later",
        "port",
        "prompt",
        "send",
    )

    def __init__(self, port: VethPort) -> None:
        super().__init__(_too_early)
        self.port: Final = port
        self.send: Final[Callable[[Buffer], bool | None]] = port.send
        self.busy = False
        self.later: list[Callable[[], bytes]] = []
        """Makers of frames that may leave after those of the program's next step."""
        self.prompt = False
        """Whether programs answer quickly, so that frames may be kept in `later`."""
        self.fail: Callable[[FirmwareError], object] = _ignore
        """Called with the error of a doorbell, which a program may catch."""
        self._ring: Callable[[int, int], None]

    def attach(self, agent: Agent) -> None:
        """Set the agent that the NIC serves, before its first action."""
        self._agent = agent
        self.deliver_completion = agent.host.completed
        self._ring = agent.firmware.on_doorbell

    def dma_read(self, segments: Sequence[memoryview]) -> bytes:
        """Read bytes from host memory."""
        return bytes(segments[0]) if len(segments) == 1 else b"".join(segments)

    def frame_handler(self, firmware: Firmware) -> Callable[[int, bytes], None]:
        """Return the function that takes received frames: the firmware's, behind flow control if the port has it."""
        receive, port = firmware.receive, self.port
        if not isinstance(port, HoldingPort):
            return receive

        def take(now: int, frame: bytes) -> None:
            if not port.on_control_frame(frame):
                receive(now, frame)

        return take

    def send_later(self, make: Callable[[], bytes]) -> None:
        if self.prompt:
            self.later.append(make)
        else:
            self.send(make())

    def when_sent(self, then: Callable[[int], object]) -> None:
        self.port.when_sent(lambda: then(time.monotonic_ns()))

    def flush(self) -> None:
        """Send the frames that have waited."""
        try:
            for make in self.later:
                self.send(make())
        except Exception as error:
            raise self.failed(error) from error
        self.later.clear()

    def dma_write(self, target: memoryview, data: Buffer) -> None:
        target[:] = data

    def ring_doorbell(self, index: int, written: int, translated: int) -> None:  # noqa: ARG002  here they cost what they cost
        before = self.busy  # the host may ring while it is shown a completion
        self.busy = True
        try:
            self._ring(time.monotonic_ns(), index)
            if self.completions:
                self.deliver_completions()
        except Exception as error:
            raise self.failed(error) from error
        finally:
            self.busy = before

    def failed(self, error: Exception) -> FirmwareError:
        """Make the error that ends the run from one that the firmware has just raised."""
        if isinstance(error, FirmwareError):
            return error
        failed = failure(error, self._agent.firmware, self._agent.host, time.monotonic_ns())
        self.fail(failed)
        return failed


def _too_early(_: int) -> None:
    raise RuntimeError("the NIC has no agent yet")


def _ignore(_: FirmwareError) -> None:
    """Do nothing: the default of `InlineNic.fail`."""
