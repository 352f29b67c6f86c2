"""EMP's settings: rejected values, and changes while messages are in flight."""

from __future__ import annotations

import pickle
from copy import copy
from dataclasses import asdict

import pytest

from protocols.core.completion import Completion
from protocols.emp import codec
from protocols.emp.host import EmpError
from protocols.emp.settings import Settings
from tests.unit.protocols.emp_dialogue import (
    FIRST_PAYLOAD,
    FULL_PAYLOAD,
    TIMEOUT,
    content,
    counter_of,
    dialogue,
    joined_nics,
)
from tests.unit.protocols.list_wires import Wires

INVALID_VALUES = [
    ("unit", 0, "0 frames: 1 to 255"),
    ("unit", 256, "256 frames: 1 to 255"),
    ("unit", 2.0, r"unit 2\.0: a whole number"),
    ("timeout", 0, "0 ns: above 0, and at most 160000000 ns"),
    ("timeout", 160_000_001, "160000001 ns: above 0, and at most 160000000 ns"),
    ("timeout", 5e6, "a whole number"),
    ("longest_timeout", 4_999_999, "5000000 ns: above 0, and at most 4999999 ns"),
    ("longest_timeout", 2**62 + 1, f"at most {2**62} ns"),
    ("give_up", -1, "-1 ns: 0"),
    ("window", 0, "0 collections: 1 or more"),
    ("held", 0, "0 held headers: 1 to 65536"),
    ("held", 65_537, "65537 held headers: 1 to 65536"),
    ("descriptors", 0, "0 descriptors"),
    ("descriptors", 65_537, "65537 descriptors"),
]


@pytest.mark.parametrize(("name", "value", "message"), INVALID_VALUES)
def test_invalid_values_are_rejected_by_the_constructor_and_by_assignment(name: str, value: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**{name: value})
    settings = Settings()
    with pytest.raises(ValueError, match=message):
        setattr(settings, name, value)
    assert settings == Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("unit", 1), ("unit", 255), ("timeout", 1), ("timeout", 160_000_000), ("longest_timeout", TIMEOUT),
        ("longest_timeout", 2**62), ("give_up", 0), ("give_up", 10**12), ("window", 1), ("held", 1), ("held", 65_536),
    ],
)  # fmt: skip
def test_valid_values_are_set(name: str, value: int) -> None:
    settings = Settings()
    setattr(settings, name, value)
    assert asdict(settings) == {**asdict(Settings()), name: value}
    assert settings == Settings(**{name: value})


def test_the_timeout_is_at_most_the_longest_timeout() -> None:
    settings = Settings()
    settings.longest_timeout = 300_000_000
    settings.timeout = 200_000_000
    with pytest.raises(ValueError, match="200000000 ns: above 0, and at most 160000000 ns"):
        settings.longest_timeout = 160_000_000
    assert (settings.timeout, settings.longest_timeout) == (200_000_000, 300_000_000)


def test_the_number_of_descriptors_cannot_change() -> None:
    """The descriptors' memory is allocated when a NIC starts."""
    settings = Settings(descriptors=8)
    settings.descriptors = 8
    with pytest.raises(ValueError, match="9 descriptors: the number cannot change, and is 8"):
        settings.descriptors = 9
    assert settings.descriptors == 8


def test_unknown_settings_are_rejected() -> None:
    with pytest.raises(AttributeError):
        Settings().units = 4  # type: ignore[attr-defined]


def test_settings_can_be_copied_and_pickled() -> None:
    settings = Settings(timeout=300_000_000, longest_timeout=400_000_000, unit=7)
    for copied in (copy(settings), pickle.loads(pickle.dumps(settings))):
        assert copied == settings
        with pytest.raises(ValueError, match="0 frames"):
            copied.unit = 0


def test_frames_per_collection_are_changed_while_the_nic_runs() -> None:
    """Section 3.1.2: "configuring the unit of acknowledgement on the fly"; a message keeps the one it began with."""
    settings = Settings(unit=2)
    wires, (sender, receiver) = joined_nics(settings=settings)
    size = FIRST_PAYLOAD + 3 * FULL_PAYLOAD
    receives = [receiver.post_receive(0, 0, bytearray(size)) for _ in range(2)]
    sender.post_send(1, 0, bytes(size))
    settings.unit = 4
    sender.post_send(1, 0, bytes(size))
    wires.deliver_from(0)
    assert dialogue(wires.take(1)) == ["ack 0.1", "ack 0.3", "ack 1.3"]
    assert all(receive.done for receive in receives)


def test_a_host_changes_the_frames_per_collection_of_its_nic_by_a_command() -> None:
    """Section 3.1.2. NICs may share their settings: the command changes its own NIC's alone."""
    settings = Settings(unit=2)
    wires, (sender, receiver) = joined_nics(settings=settings)
    size = FIRST_PAYLOAD + 3 * FULL_PAYLOAD
    receives = [receiver.post_receive(0, 0, bytearray(size)) for _ in range(2)]
    sender.post_send(1, 0, bytes(size))
    command = sender.post_unit(4)
    assert command.done
    sender.post_send(1, 0, bytes(size))
    wires.deliver_from(0)
    assert dialogue(wires.take(1)) == ["ack 0.1", "ack 0.3", "ack 1.3"]
    assert all(receive.done for receive in receives)
    assert settings.unit == 2
    sender.post_receive(1, 0, bytearray(size))
    receiver.post_send(0, 0, bytes(size))
    assert units(wires.take(1)) == {2}


@pytest.mark.requires("interpreted")
@pytest.mark.parametrize("unit", [0, 256, -1, 2.5, True, "3", None])
def test_a_command_for_an_invalid_number_of_frames_is_rejected_by_the_library(unit: object) -> None:
    _, (sender, _) = joined_nics()
    with pytest.raises(ValueError, match=f"^a collection of {unit!r} frames: 1 to 255, in whole numbers$"):
        sender.post_unit(unit)  # type: ignore[arg-type]  # what a program might pass
    assert sender.free_descriptors == 640


@pytest.mark.parametrize("new_unit", [1, 2, 5, 255])
def test_a_command_while_a_message_is_in_flight_changes_the_next_messages_acknowledgements(new_unit: int) -> None:
    """One collection of the first message has been acknowledged, one has been lost, and one is not sent yet."""
    wires, (sender, receiver) = joined_nics(settings=Settings(window=2))
    buffers = [bytearray(FIRST_PAYLOAD + 8 * FULL_PAYLOAD), bytearray(FIRST_PAYLOAD + 4 * FULL_PAYLOAD)]
    receives = [receiver.post_receive(0, tag, buffer) for tag, buffer in enumerate(buffers)]
    sends = [sender.post_send(1, 0, content(len(buffers[0])))]
    frames = wires.take(0)
    assert deliver_and_acknowledge(wires, frames[:3]) == ["ack 0.2"]
    assert sender.post_unit(new_unit).done
    sends.append(sender.post_send(1, 1, content(len(buffers[1]))))
    assert deliver_and_acknowledge(wires, wires.take(0)) == [
        "ack 0.8"
    ]  # the first message's last collection, of the former unit
    answers = []
    while not all(send.done for send in sends):
        if not (frames := wires.take(0)):
            wires.tick()  # the timeout of the lost collection
        answers += deliver_and_acknowledge(wires, frames)
    last_frames = [*range(new_unit - 1, 4, new_unit), 4]
    expected = ["ack 0.5", *(f"ack 1.{frame}" for frame in dict.fromkeys(last_frames))]
    assert sorted(answers) == sorted(expected)
    assert all(receive.done for receive in receives)
    assert [bytes(buffer) for buffer in buffers] == [content(len(buffer)) for buffer in buffers]


def test_each_end_has_its_own_frames_per_collection() -> None:
    """Each frame states its message's, by which the receiver acknowledges."""
    wires, ends = joined_nics()
    assert ends[0].post_unit(2).done
    assert ends[1].post_unit(5).done
    size = FIRST_PAYLOAD + 5 * FULL_PAYLOAD
    receives = [end.post_receive(1 - end.number, 0, bytearray(size)) for end in ends]
    for end in ends:
        end.post_send(1 - end.number, 0, bytes(size))
    announcements = [wires.take(number) for number in (0, 1)]
    assert [units(frames) for frames in announcements] == [{2}, {5}]
    for frame in (*announcements[0], *announcements[1]):
        wires.deliver(frame)
    assert dialogue(wires.take(1)) == ["ack 0.1", "ack 0.3", "ack 0.5"]
    assert dialogue(wires.take(0)) == ["ack 0.4", "ack 0.5"]
    assert all(receive.done for receive in receives)


@pytest.mark.parametrize("unit", [0, 256, 0xFFFF_FFFF])
def test_the_firmware_refuses_an_invalid_command_of_an_untrusted_host(unit: int) -> None:
    wires, (sender, receiver) = joined_nics()
    descriptors = sender._descriptors
    command = sender._commands[0] = Completion[None]("a command")
    sender._is_allocated[0] = 1
    descriptors.write_unit(0, unit)
    wires.agents[0].firmware.on_doorbell(0, 0)
    with pytest.raises(EmpError, match="the NIC refused the descriptor"):
        command.result()
    receiver.post_receive(0, 0, bytearray(4 * FULL_PAYLOAD))
    sender.post_send(1, 0, bytes(FIRST_PAYLOAD + 3 * FULL_PAYLOAD))
    assert units(wires.take(0)) == {3}
    assert counter_of(wires, 0, "invalid") == 1


def unit_of(frame: bytes) -> int:
    """Return the frames per collection in a frame's header."""
    if codec.type_of(frame) == codec.TYPE_MESSAGE:
        _, _, _, unit, *_ = codec.unpack_message(frame)
    else:
        _, _, _, _, unit, *_ = codec.unpack_frame(frame)
    return unit


def units(frames: list[bytes]) -> set[int]:
    return set(map(unit_of, frames))


def deliver_and_acknowledge(wires: Wires, frames: list[bytes]) -> list[str]:
    """Deliver frames to the second NIC and its answers to the first; return the answers."""
    for frame in frames:
        wires.deliver(frame)
    answers = wires.take(1)
    for ack in answers:
        wires.deliver(ack)
    return dialogue(answers)


@pytest.mark.parametrize("new_unit", [1, 2, 4, 255])
def test_a_message_in_progress_keeps_its_frames_per_collection(new_unit: int) -> None:
    """Retransmitted frames keep their boundaries, and so do frames that are first sent after the change."""
    settings = Settings(window=2)
    wires, (sender, receiver) = joined_nics(settings=settings)
    size = FIRST_PAYLOAD + 7 * FULL_PAYLOAD
    buffer = bytearray(size)
    receive = receiver.post_receive(0, 0, buffer)
    send = sender.post_send(1, 0, content(size))
    lost_frames = wires.take(0)
    assert dialogue(lost_frames) == ["header 0", *(f"data 0.{frame}" for frame in range(1, 6))]
    settings.unit = new_unit
    wires.tick()
    resent = wires.take(0)
    assert resent == lost_frames[:3]
    assert deliver_and_acknowledge(wires, resent) == ["ack 0.2"]
    resent, rest = (frames := wires.take(0))[:3], frames[3:]
    assert resent == lost_frames[3:]
    assert dialogue(rest) == ["data 0.6", "data 0.7"]
    assert units(rest) == {3}
    assert deliver_and_acknowledge(wires, rest) == ["ack 0.7"]
    assert deliver_and_acknowledge(wires, resent) == ["ack 0.5"]
    assert send.done
    assert receive.done
    assert bytes(buffer) == content(size)


@pytest.mark.parametrize("new_unit", [1, 2, 4, 255])
def test_messages_from_before_and_after_a_change_of_unit_are_resent_in_their_own_units(new_unit: int) -> None:
    settings = Settings()
    wires, (sender, receiver) = joined_nics(settings=settings)
    sizes = [FIRST_PAYLOAD + 3 * FULL_PAYLOAD, 1, FIRST_PAYLOAD + 3 * FULL_PAYLOAD, 1]
    sends, lost_frames = [], []
    for message, size in enumerate(sizes):
        if message == 2:
            settings.unit = new_unit
        sends.append(sender.post_send(1, message, content(size)))
        lost_frames.append(wires.take(0))
    assert [units(frames) for frames in lost_frames] == [{3}, {3}, {new_unit}, {new_unit}]
    wires.tick()
    assert wires.take(0) == [*lost_frames[0][:3], *lost_frames[1], *lost_frames[2][:new_unit], *lost_frames[3]]
    for message, size in enumerate(sizes):
        receiver.post_receive(0, message, bytearray(size))
    wires.elapse(10 * TIMEOUT)
    assert all(send.done for send in sends)


def test_queued_messages_keep_the_unit_with_which_they_were_posted() -> None:
    settings = Settings(window=1)
    wires, (sender, receiver) = joined_nics(settings=settings)
    sizes = [1, 1, FIRST_PAYLOAD + 3 * FULL_PAYLOAD]
    buffers = [bytearray(size) for size in sizes]
    for tag, buffer in enumerate(buffers):
        receiver.post_receive(0, tag, buffer)
        sender.post_send(1, tag, content(len(buffer)))
    assert dialogue(frames := wires.take(0)) == ["header 0"]
    settings.unit = 4
    assert deliver_and_acknowledge(wires, frames) == ["ack 0.0"]
    assert dialogue(frames := wires.take(0)) == ["header 1"]
    assert units(frames) == {3}
    assert deliver_and_acknowledge(wires, frames) == ["ack 1.0"]
    assert dialogue(frames := wires.take(0)) == ["header 2", "data 2.1", "data 2.2"]
    assert units(frames) == {3}
    assert deliver_and_acknowledge(wires, frames) == ["ack 2.2"]
    assert dialogue(frames := wires.take(0)) == ["data 2.3"]
    assert units(frames) == {3}
    assert deliver_and_acknowledge(wires, frames) == ["ack 2.3"]
    assert [bytes(buffer) for buffer in buffers] == [content(size) for size in sizes]
