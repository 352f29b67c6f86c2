"""EMP drops and counts malformed frames, and its other transfers continue."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.emp import codec
from protocols.emp.settings import Settings
from tests.unit.protocols.emp_dialogue import (
    TIMEOUT,
    accounted_frames,
    acknowledgement,
    content,
    counter_of,
    data,
    header,
    joined_nics,
)


def valid_frames() -> list[bytes]:
    """Return frames of every kind, from node 0 to node 1 and back."""
    wires, (sender, receiver) = joined_nics()
    receiver.post_receive(0, 1, bytearray(7000))
    sender.post_send(1, 1, content(7000))
    frames = wires.take(0)
    for frame in frames:
        wires.deliver(frame)
    return frames + wires.take(1)


VALID_FRAMES = valid_frames()


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_garbage_is_dropped_and_counted(garbage: list[bytes]) -> None:
    wires, _ = joined_nics()
    for frame in garbage:
        wires.agents[1].firmware.receive(0, frame)
    assert counter_of(wires, 1, "frames_received") == len(garbage) == accounted_frames(wires, 1)
    assert wires.take(1) == []


@given(
    st.lists(st.tuples(st.sampled_from(VALID_FRAMES), st.integers(0, 8 * 60), st.booleans()), min_size=1, max_size=40)
)
def test_a_message_arrives_intact_despite_truncated_and_corrupted_frames(bad: list[tuple[bytes, int, bool]]) -> None:
    wires, (sender, receiver) = joined_nics()
    buffer = bytearray(7000)
    receive = receiver.post_receive(0, 1, buffer)
    send = sender.post_send(1, 1, content(7000))
    for frame, position, is_truncated in bad:
        if is_truncated:
            bad_frame = frame[: position % len(frame)]
        else:
            corrupted = bytearray(frame)
            corrupted[position // 8 % len(frame)] ^= 1 << position % 8
            bad_frame = bytes(corrupted)
        for agent in wires.agents:
            agent.firmware.receive(wires.now, bad_frame)
        wires.exchange()
    wires.elapse(TIMEOUT)
    assert send.done
    assert receive.done
    assert bytes(buffer) == content(7000)
    for number in (0, 1):
        assert counter_of(wires, number, "frames_received") == accounted_frames(wires, number)


FIELD_VALUES = {
    "message": st.integers(0, 3) | st.integers(0, 2**32 - 1),
    "frame": st.integers(0, 9) | st.integers(0, 2**32 - 1),
    "incarnation": st.integers(0, 2) | st.integers(0, 2**32 - 1),
    "flags": st.integers(0, 255),
    "unit": st.integers(0, 4) | st.integers(0, 255),
    "status": st.integers(0, 2),
    "number": st.integers(0, 3),
    "size": st.integers(0, 20_000) | st.integers(0, 2**32 - 1),
    "payload": st.binary(max_size=80) | st.integers(0, 9100).map(bytes),
}


@st.composite
def frames_with_valid_checksums(draw: st.DrawFn) -> bytes:
    """Draw a frame with a valid checksum and arbitrary fields."""
    wires, _ = joined_nics()
    payload = draw(FIELD_VALUES["payload"])
    names = ("flags", "unit", "incarnation", "incarnation", "message", "frame", "status")
    flags, unit, sender, receiver, message, frame, status = [draw(FIELD_VALUES[name]) for name in names]
    addresses = (wires.addresses[1], wires.addresses[0])
    kind = draw(st.integers(0, 4))
    if kind == codec.TYPE_MESSAGE:
        values = [draw(FIELD_VALUES[name]) for name in ("number", "number", "size", "size", "message")]
        return codec.pack_message(*addresses, flags, unit, sender, receiver, message, frame, status, *values, payload)
    return codec.pack_frame(*addresses, kind, flags, unit, sender, receiver, message, frame, status, payload)


@given(st.lists(frames_with_valid_checksums(), max_size=30))
def test_no_frame_with_a_valid_checksum_breaks_a_nic_or_writes_beyond_a_buffer(frames: list[bytes]) -> None:
    wires, (sender, receiver) = joined_nics()
    guarded = bytearray(b"\xee" * 12_000)
    receiver.post_receive(0, 1, memoryview(guarded)[4000:8000])
    receiver.post_send(0, 1, bytes(8000))
    for frame in frames:
        wires.agents[1].firmware.receive(wires.now, frame)
        wires.take(1)
        wires.tick()
    assert counter_of(wires, 1, "frames_received") == len(frames) == accounted_frames(wires, 1)
    assert guarded[:4000] == guarded[8000:] == b"\xee" * 4000
    assert isinstance(wires.pending_work(), list)
    assert sender.free_descriptors == 640


@pytest.mark.parametrize("version", [0, 2, 255])
def test_frames_of_another_version_are_dropped(version: int) -> None:
    wires, (_, receiver) = joined_nics()
    receiver.post_receive(0, 1, bytearray(7000))
    for frame in VALID_FRAMES:
        wires.deliver(frame[:14] + bytes([version]) + frame[15:])
    assert counter_of(wires, 1, "malformed") == len(VALID_FRAMES) - 2
    assert counter_of(wires, 0, "malformed") == 2


def test_padding_after_a_frame_is_ignored() -> None:
    wires, (sender, receiver) = joined_nics()
    receive = receiver.post_receive(0, 1, bytearray(2))
    sender.post_send(1, 1, b"hi")
    [frame] = wires.take(0)
    wires.deliver(frame + bytes(2000))
    assert receive.result().length == 2


def test_frames_from_unknown_and_for_other_nics_are_dropped() -> None:
    wires, _ = joined_nics(3)
    unknown_source = codec.pack_frame(wires.addresses[1], bytes(6), codec.TYPE_DATA, 0, 3, 1, 1, 0, 0, 0, b"x")
    wires.agents[1].firmware.receive(0, unknown_source)
    wires.agents[1].firmware.receive(0, header(wires, 2, 0, 0, b"x"))
    assert counter_of(wires, 1, "strangers") == 2


@pytest.mark.parametrize(
    ("message", "frame", "counter"),
    [
        (0, 0, "late_acknowledgements"),
        (0, 2**32 - 1, "late_acknowledgements"),  # the length of a completed message is unknown
        (2**32 - 1, 0, "late_acknowledgements"),
        (1, 6, "wrong_acknowledgements"),
        (1, 3, "wrong_acknowledgements"),
        (2, 0, "wrong_acknowledgements"),
        (2**31, 0, "wrong_acknowledgements"),
    ],
)
def test_acknowledgements_of_frames_that_were_not_sent_are_only_counted(message: int, frame: int, counter: str) -> None:
    """Message 0 is complete; message 1 has two collections, one of them in flight."""
    wires, (sender, receiver) = joined_nics(settings=Settings(window=1))
    receiver.post_receive(0, 1, bytearray(0))
    sender.post_send(1, 1, b"")
    wires.exchange()
    send = sender.post_send(1, 2, bytes(1456 + 3 * 1472))
    wires.take(0)
    before = counter_of(wires, 0, counter)
    wires.deliver(acknowledgement(wires, 0, 1, message, frame))
    assert counter_of(wires, 0, counter) == before + 1
    assert not send.done
    assert wires.take(0) == []
    receiver.post_receive(0, 2, bytearray(10_000))
    wires.elapse(2 * TIMEOUT)
    assert send.done


def test_an_acknowledgement_of_a_frame_beyond_the_last_one_is_ignored() -> None:
    wires, (sender, _) = joined_nics()
    send = sender.post_send(1, 2, b"one frame")
    for frame in (1, 2, 3):
        wires.deliver(acknowledgement(wires, 0, 1, 0, frame))
    assert counter_of(wires, 0, "wrong_acknowledgements") == 3
    assert not send.done
    wires.deliver(acknowledgement(wires, 0, 1, 0, 0))
    assert send.done


@pytest.mark.parametrize(
    "fields",
    [{"source": 0, "destination": 0}, {"source": 1, "destination": 1}, {"frame": 1}, {"total": 5}, {"last": False},
     {"oldest": 1}, {"total": 0}, {"unit": 0}],
    ids=str,
)  # fmt: skip
def test_a_header_that_contradicts_itself_is_dropped(fields: dict[str, int]) -> None:
    wires, (_, receiver) = joined_nics()
    receiver.post_receive(0, 0, bytearray(10))
    wires.deliver(header(wires, 1, 0, 0, b"four", **fields))  # type: ignore[arg-type]
    assert counter_of(wires, 1, "malformed") == 1
    assert counter_of(wires, 1, "data_stored") == 0
    wires.deliver(header(wires, 1, 0, 0, b"four"))
    assert counter_of(wires, 1, "messages_received") == 1


def test_frames_that_contradict_their_message_are_dropped() -> None:
    wires, (_, receiver) = joined_nics()
    buffer = bytearray(30)
    receive = receiver.post_receive(0, 0, buffer)
    wires.deliver(header(wires, 1, 0, 0, b"a" * 10, total=30, last=False))
    bad_frames = [
        data(wires, 1, 0, 0, 1, b"b" * 19, last=True),  # too short
        data(wires, 1, 0, 0, 1, b"b" * 20),  # the last one, without the flag LAST
        data(wires, 1, 0, 0, 2, b"b" * 20, last=True),  # beyond the last one
        data(wires, 1, 0, 0, 0, b"b" * 20),  # a first frame without the message's header
        data(wires, 1, 0, 0, 1, b"b" * 20, last=True, unit=4),
    ]
    for frame in bad_frames:
        wires.deliver(frame)
    assert counter_of(wires, 1, "malformed") == len(bad_frames)
    assert not receive.done
    wires.deliver(data(wires, 1, 0, 0, 1, b"b" * 20, last=True))
    assert receive.done
    assert buffer == b"a" * 10 + b"b" * 20


def test_headers_of_huge_messages_allocate_no_memory() -> None:
    """The headers announce as many messages as a NIC keeps, of 4 GiB each in frames of one byte."""
    wires, (_, receiver) = joined_nics()
    receives = [receiver.post_receive(0, 1, bytearray(1)) for _ in range(100)]
    tracemalloc.start()
    try:
        for message in range(1000):
            tag = 1 if message < 100 else 2
            wires.deliver(header(wires, 1, 0, message, b"x", tag=tag, total=2**32 - 1, last=False, unit=1))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert counter_of(wires, 1, "headers_admitted") == 740
    assert counter_of(wires, 1, "held_full") == 1
    assert counter_of(wires, 1, "early") == 259
    assert peak < 2_000_000
    assert not any(receive.done for receive in receives)
