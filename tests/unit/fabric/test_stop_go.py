"""STOP/GO flow control of a NIC's outlet; a lost control frame does not block it forever."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from testbed.fabric.myrinet.route import append_crc
from testbed.fabric.stop_go import ASK, GO, STOP, ControlFrame, Frame, Outlet, decode, encode

HEAD = bytes.fromhex("020000000001 88b6")


class FakeCable:
    """Cable that records what an outlet sends.

    is_unplugged: sends fail. loses_frames: unplugged, which the kernel has not noticed yet, so that sent frames are lost.
    """

    def __init__(self) -> None:
        self.sent: deque[Frame | ControlFrame] = deque()
        self.is_unplugged = False
        self.loses_frames = False
        self.holds = 0
        self.outlet = Outlet(self._send_frame, self._send_control_frame, HEAD, self._hold)

    def _send_frame(self, frame: Frame) -> bool:
        if not (self.is_unplugged or self.loses_frames):
            self.sent.append(frame)
        return not self.is_unplugged

    def _send_control_frame(self, frame: bytes) -> None:
        control_frame = decode(frame)
        assert control_frame is not None
        if not (self.is_unplugged or self.loses_frames):
            self.sent.append(control_frame)

    def _hold(self) -> None:
        self.holds += 1

    def on_control_frame(self, kind: int, count: int, window: int) -> None:
        assert self.outlet.on_control_frame(encode(ControlFrame(kind, count, window), HEAD))

    def frames(self) -> list[Frame]:
        """Return the frames sent since the last call."""
        events = [item for item in self.sent if not isinstance(item, ControlFrame)]
        self.sent.clear()
        return events


def numbered(*numbers: int) -> list[Frame]:
    return [bytes([number]) for number in numbers]


def send(cable: FakeCable, *numbers: int) -> None:
    for frame in numbered(*numbers):
        cable.outlet.send(frame)


def test_no_frame_leaves_before_the_network_has_answered() -> None:
    cable = FakeCable()
    send(cable, 1, 2)
    assert list(cable.sent) == [ControlFrame(ASK, 0)]
    assert (cable.holds, len(cable.outlet.waiting_frames)) == (1, 2)
    cable.on_control_frame(GO, 0, 8)
    assert cable.frames() == numbered(1, 2)


def test_the_callback_of_a_waiting_frame_follows_its_departure() -> None:
    cable, log = FakeCable(), []
    assert cable.outlet.send(b"1")
    cable.outlet.when_sent(lambda: log.append(1))
    assert cable.outlet.send(b"2")
    cable.outlet.when_sent(lambda: log.append(2))
    cable.on_control_frame(GO, 0, 1)
    assert log == [1]
    cable.on_control_frame(GO, 1, 8)
    assert log == [1, 2]
    assert not cable.outlet.send(b"3")


def test_a_count_is_requested_after_half_a_window_and_awaited_after_a_full_one() -> None:
    cable = FakeCable()
    cable.on_control_frame(GO, 0, 4)
    cable.frames()
    send(cable, *range(1, 7))
    assert list(cable.sent) == [*numbered(1, 2), ControlFrame(ASK, 2), *numbered(3, 4)]
    cable.sent.clear()
    cable.on_control_frame(GO, 2, 4)
    assert list(cable.sent) == [ControlFrame(ASK, 4), *numbered(5, 6)]


def test_stop_holds_frames_back_and_go_releases_them_in_order() -> None:
    cable = FakeCable()
    cable.on_control_frame(GO, 0, 100)
    send(cable, 1, 2)
    cable.on_control_frame(STOP, 0, 100)
    send(cable, 3, 4)
    assert cable.frames() == numbered(1, 2)
    assert len(cable.outlet.waiting_frames) == 2
    cable.on_control_frame(GO, 0, 100)
    send(cable, 5)
    assert cable.frames() == numbered(3, 4, 5)


def test_frames_rejected_without_carrier_use_no_window() -> None:
    cable = FakeCable()
    cable.on_control_frame(GO, 0, 4)
    cable.is_unplugged = True
    send(cable, *range(20))
    cable.is_unplugged = False
    send(cable, 21)
    assert cable.frames() == numbered(21)


def test_the_next_count_replaces_a_lost_one() -> None:
    cable = FakeCable()
    cable.on_control_frame(GO, 0, 4)
    cable.loses_frames = True
    send(cable, 1, 2, 3, 4, 5)
    cable.loses_frames = False
    cable.sent.clear()
    assert cable.outlet.repeat_ask()
    assert list(cable.sent) == [ControlFrame(ASK, 4)]
    cable.on_control_frame(GO, 4, 4)
    assert cable.frames() == numbered(5)
    assert not cable.outlet.repeat_ask()


def test_a_restarted_network_that_names_an_older_count_stops_until_asked() -> None:
    cable = FakeCable()
    cable.on_control_frame(GO, 0, 2)
    send(cable, 1, 2, 3)
    cable.frames()
    cable.on_control_frame(GO, 2**32 - 5, 2)  # count of an earlier NIC
    assert cable.frames() == []
    cable.on_control_frame(GO, 2, 2)
    assert cable.frames() == numbered(3)


def test_incomplete_and_foreign_control_frames_are_ignored() -> None:
    control_frame = encode(ControlFrame(STOP, 7, 9), HEAD)
    assert decode(control_frame) == ControlFrame(STOP, 7, 9)
    assert decode(bytes(6) + control_frame[6:]) is None
    assert decode(control_frame[:-1] + bytes([control_frame[-1] ^ 1])) is None
    assert decode(control_frame[:-1]) is None
    assert decode(append_crc(control_frame[:14], b"\0\4" + control_frame[16:-1])) is None
    assert not FakeCable().outlet.on_control_frame(bytes(26))


def test_a_frame_sent_by_a_callback_follows_those_that_wait() -> None:
    cable = FakeCable()
    send(cable, 1)
    cable.outlet.when_sent(lambda: send(cable, 9))
    send(cable, 2, 3)
    cable.on_control_frame(GO, 0, 100)
    assert cable.frames() == numbered(1, 2, 3, 9)


@given(st.lists(st.sampled_from(["send", "network", "stop", "leak"]), max_size=300), st.integers(1, 9))
def test_at_most_one_window_is_in_flight_and_everything_arrives_in_order(steps: list[str], window: int) -> None:
    """The network answers in order, stops and resumes at random, and the cable sometimes loses a frame."""
    cable = FakeCable()
    sent, stopped, answered = 0, False, 0
    arrived: list[Frame] = []

    def deliver_next() -> None:
        nonlocal answered
        item = cable.sent.popleft()
        if isinstance(item, ControlFrame):
            answered = item.count
            cable.on_control_frame(STOP if stopped else GO, answered, window)
        else:
            arrived.append(item)

    for step in steps:
        if step == "send":
            sent += 1
            cable.outlet.send(sent.to_bytes(2, "big"))
        elif step == "network" and cable.sent:
            deliver_next()
        elif step == "stop":
            stopped = not stopped
            cable.on_control_frame(STOP if stopped else GO, answered, window)
        elif step == "leak" and cable.sent:
            cable.sent.popleft()
        assert sum(not isinstance(item, ControlFrame) for item in cable.sent) <= window
    stopped = False
    for _ in range(2 * len(steps) + 2):
        while cable.sent:
            deliver_next()
        cable.outlet.repeat_ask()
    assert arrived == sorted(arrived, key=bytes)
    assert not cable.outlet.waiting_frames
