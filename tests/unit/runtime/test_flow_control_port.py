"""Port of a shared NIC on a network with STOP/GO flow control: waiting frames, and repeated ASKs."""

from __future__ import annotations

import errno
import time
from typing import cast

import pytest

from testbed.fabric.stop_go import ASK, ASK_INTERVAL, GO, STOP, ControlFrame, decode, encode
from testbed.kernel.frame_socket import FrameSocket
from testbed.runtime.nodes.veth_port import FlowControlPort
from testbed.runtime.shared.functions import Wire

HEADER = bytes.fromhex("020000000001 88b6")
FRAMES = [bytes([number]) * 60 for number in range(4)]


class Interface:
    """Interface that records the sent frames. is_unplugged: its cable is unplugged."""

    def __init__(self) -> None:
        self.socket = self
        self.sent: list[bytes] = []
        self.is_unplugged = False

    def send(self, frame: bytes) -> int:
        if self.is_unplugged:
            raise OSError(errno.ENOBUFS, "no buffers")
        self.sent.append(frame)
        return len(frame)

    def is_down(self, error: OSError, size: int) -> bool:  # noqa: ARG002
        return not self.has_carrier()

    def has_carrier(self) -> bool:
        return not self.is_unplugged


def interface_with_wire() -> tuple[Interface, Wire]:
    interface = Interface()
    return interface, Wire(FlowControlPort(cast("FrameSocket", interface), HEADER), frozenset())


def feed_control_frame(wire: Wire, kind: int, count: int = 0, window: int = 10) -> None:
    assert wire.port.on_control_frame(encode(ControlFrame(kind, count, window), HEADER))


def test_frames_wait_until_the_network_accepts_them() -> None:
    interface, wire = interface_with_wire()
    feed_control_frame(wire, GO)
    wire.send(FRAMES[0])
    feed_control_frame(wire, STOP)
    wire.send(FRAMES[1])
    assert wire.port.frames_waiting == 1
    assert interface.sent[1:] == FRAMES[:1], "after the first ASK"
    feed_control_frame(wire, GO)
    assert interface.sent[1:] == FRAMES[:2]
    assert not wire.port.on_control_frame(FRAMES[0])


def test_ask_is_repeated_while_frames_wait() -> None:
    interface, wire = interface_with_wire()
    assert wire.deadline is None
    wire.send(FRAMES[0])
    repeat_time = wire.deadline
    assert repeat_time is not None
    assert repeat_time <= time.monotonic_ns() + ASK_INTERVAL
    wire.on_timer(repeat_time - 1)
    assert len(interface.sent) == 1
    wire.on_timer(repeat_time)
    assert [decode(frame) for frame in interface.sent] == [ControlFrame(ASK, 0)] * 2
    assert wire.deadline == repeat_time + ASK_INTERVAL
    feed_control_frame(wire, GO)
    wire.on_timer(repeat_time + ASK_INTERVAL)
    assert wire.deadline is None
    assert interface.sent[2:] == FRAMES[:1]


@pytest.mark.parametrize("is_unplugged", [True, False])
def test_frames_lost_without_carrier_and_by_a_full_queue_are_counted_separately(is_unplugged: bool) -> None:
    interface, wire = interface_with_wire()
    feed_control_frame(wire, GO)
    interface.is_unplugged = True
    interface.has_carrier = lambda: not is_unplugged  # type: ignore[method-assign]
    wire.send(FRAMES[0])
    assert (wire.port.down, wire.port.unsent, wire.port.frames_waiting) == (int(is_unplugged), int(not is_unplugged), 0)
