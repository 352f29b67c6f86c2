"""STOP and GO: the frames of a NIC's outlet and their times; a lost word does not stop it forever."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from testbed.fabric.myrinet.route import append_crc
from testbed.fabric.stop_go import ASK, GO, STOP, ControlFrame, Frame, Outlet, decode, encode

HEAD = bytes.fromhex("020000000001 88b6")


class Line:
    """Record of the frames and control words that an outlet sends.

    is_out: the cable is out and the kernel knows it. leaks: the cable is out and the kernel does not know it yet.
    """

    def __init__(self) -> None:
        self.sent: deque[Frame | ControlFrame] = deque()
        self.is_out = False
        self.leaks = False
        self.holds = 0
        self.outlet = Outlet(self._put, self._say, HEAD, self._hold)

    def _put(self, frame: Frame) -> bool:
        if not (self.is_out or self.leaks):
            self.sent.append(frame)
        return not self.is_out

    def _say(self, frame: bytes) -> None:
        word = decode(frame)
        assert word is not None
        if not (self.is_out or self.leaks):
            self.sent.append(word)

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


def send(line: Line, *numbers: int) -> None:
    for frame in numbered(*numbers):
        line.outlet.send(frame)


def test_no_frame_leaves_before_the_network_has_answered() -> None:
    line = Line()
    send(line, 1, 2)
    assert list(line.sent) == [ControlFrame(ASK, 0)]
    assert (line.holds, len(line.outlet.waiting_frames)) == (1, 2)
    line.on_control_frame(GO, 0, 8)
    assert line.frames() == numbered(1, 2)


def test_the_departure_of_waiting_frames_is_reported_when_they_have_left() -> None:
    line, log = Line(), []
    assert line.outlet.send(b"1")
    line.outlet.when_sent(lambda: log.append(1))
    assert line.outlet.send(b"2")
    line.outlet.when_sent(lambda: log.append(2))
    line.on_control_frame(GO, 0, 1)
    assert log == [1]
    line.on_control_frame(GO, 1, 8)
    assert log == [1, 2]
    assert not line.outlet.send(b"3")


def test_a_count_is_requested_after_half_a_window_and_awaited_after_a_full_one() -> None:
    line = Line()
    line.on_control_frame(GO, 0, 4)
    line.frames()
    send(line, *range(1, 7))
    assert list(line.sent) == [*numbered(1, 2), ControlFrame(ASK, 2), *numbered(3, 4)]
    line.sent.clear()
    line.on_control_frame(GO, 2, 4)
    assert list(line.sent) == [ControlFrame(ASK, 4), *numbered(5, 6)]


def test_stop_holds_frames_back_and_go_releases_them_in_order() -> None:
    line = Line()
    line.on_control_frame(GO, 0, 100)
    send(line, 1, 2)
    line.on_control_frame(STOP, 0, 100)
    send(line, 3, 4)
    assert line.frames() == numbered(1, 2)
    assert len(line.outlet.waiting_frames) == 2
    line.on_control_frame(GO, 0, 100)
    send(line, 5)
    assert line.frames() == numbered(3, 4, 5)


def test_frames_refused_by_an_unplugged_cable_use_no_window() -> None:
    line = Line()
    line.on_control_frame(GO, 0, 4)
    line.is_out = True
    send(line, *range(20))
    line.is_out = False
    send(line, 21)
    assert line.frames() == numbered(21)


def test_the_next_count_makes_up_for_a_lost_one() -> None:
    line = Line()
    line.on_control_frame(GO, 0, 4)
    line.leaks = True
    send(line, 1, 2, 3, 4, 5)
    line.leaks = False
    line.sent.clear()
    assert line.outlet.repeat_ask()
    assert list(line.sent) == [ControlFrame(ASK, 4)]
    line.on_control_frame(GO, 4, 4)
    assert line.frames() == numbered(5)
    assert not line.outlet.repeat_ask()


def test_a_restarted_network_that_names_an_older_count_stops_until_asked() -> None:
    line = Line()
    line.on_control_frame(GO, 0, 2)
    send(line, 1, 2, 3)
    line.frames()
    line.on_control_frame(GO, 2**32 - 5, 2)  # of another NIC, long ago
    assert line.frames() == []
    line.on_control_frame(GO, 2, 2)
    assert line.frames() == numbered(3)


def test_incomplete_and_foreign_control_frames_are_ignored() -> None:
    word = encode(ControlFrame(STOP, 7, 9), HEAD)
    assert decode(word) == ControlFrame(STOP, 7, 9)
    assert decode(bytes(6) + word[6:]) is None
    assert decode(word[:-1] + bytes([word[-1] ^ 1])) is None
    assert decode(word[:-1]) is None
    assert decode(append_crc(word[:14], b"\0\4" + word[16:-1])) is None
    assert not Line().outlet.on_control_frame(bytes(26))


@given(st.lists(st.sampled_from(["send", "network", "stop", "leak"]), max_size=300), st.integers(1, 9))
def test_at_most_one_window_is_in_flight_and_everything_arrives_in_order(steps: list[str], window: int) -> None:
    """The network answers in order, stops and resumes at random, and a cable leaks at times."""
    line = Line()
    sent, stopped, answered = 0, False, 0
    arrived: list[Frame] = []

    def take_one() -> None:
        nonlocal answered
        item = line.sent.popleft()
        if isinstance(item, ControlFrame):
            answered = item.count
            line.on_control_frame(STOP if stopped else GO, answered, window)
        else:
            arrived.append(item)

    for step in steps:
        if step == "send":
            sent += 1
            line.outlet.send(sent.to_bytes(2, "big"))
        elif step == "network" and line.sent:
            take_one()
        elif step == "stop":
            stopped = not stopped
            line.on_control_frame(STOP if stopped else GO, answered, window)
        elif step == "leak" and line.sent:
            line.sent.popleft()
        assert sum(not isinstance(item, ControlFrame) for item in line.sent) <= window
    stopped = False
    for _ in range(2 * len(steps) + 2):
        while line.sent:
            take_one()
        line.outlet.repeat_ask()
    assert arrived == sorted(arrived, key=bytes)
    assert not line.outlet.waiting_frames
