"""EMP's collections: acknowledgements, retransmissions, and frames in any order."""

from __future__ import annotations

from itertools import permutations

import pytest

from protocols.emp.card import EMPTY_QUEUE, NO_INCOMING_MESSAGES
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

PAGE = 4096


@pytest.mark.parametrize("mtu", [100, 1500, 9000])
@pytest.mark.parametrize("unit", [1, 2, 3, 5, 255])
@pytest.mark.parametrize(
    "boundary",
    ["empty", "first frame", "second frame", "collection", "page", "chain of seven", "page list"],
)
@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_messages_of_sizes_at_every_boundary_arrive(mtu: int, unit: int, boundary: str, offset: int) -> None:
    first, full_payload = mtu - 44, mtu - 28
    boundary_size = {
        "empty": 0,
        "first frame": first,
        "second frame": first + full_payload,
        "collection": first + (unit - 1) * full_payload,
        "page": PAGE,
        "chain of seven": 7 * PAGE,
        "page list": 20 * PAGE,
    }[boundary]
    size = max(0, boundary_size + offset)
    wires, (sender, receiver) = joined_nics(mtu=mtu, settings=Settings(unit=unit, window=1000))
    message, buffer = content(size), bytearray(size)
    receive = receiver.post_receive(0, 7, buffer)
    send = sender.post_send(1, 7, message)
    frames = wires.exchange()
    assert bytes(buffer) == message
    assert receive.result() == (0, 7, size)
    assert send.result() == (1, 7, size)
    data = 1 if size <= first else 2 + (size - first - 1) // full_payload
    assert frames == data + -(-data // unit)
    assert sender.free_descriptors == receiver.free_descriptors == 640
    assert sender.pinned == receiver.pinned == 0
    assert wires.deadline is None
    assert wires.pending_work() == []


def test_a_collection_of_three_frames_and_a_short_last_one_are_each_acknowledged_once() -> None:
    wires, (sender, receiver) = joined_nics()
    receiver.post_receive(0, 0, bytearray(4 * FULL_PAYLOAD))
    sender.post_send(1, 0, bytes(FIRST_PAYLOAD + 3 * FULL_PAYLOAD))
    frames = wires.take(0)
    assert dialogue(frames) == ["header 0", "data 0.1", "data 0.2", "data 0.3"]
    for frame in frames[:2]:
        wires.deliver(frame)
    assert wires.take(1) == []
    wires.deliver(frames[2])
    assert dialogue(wires.take(1)) == ["ack 0.2"]
    wires.deliver(frames[3])
    assert dialogue(wires.take(1)) == ["ack 0.3"]


def test_an_acknowledgement_is_the_header_of_the_last_frame_that_arrived() -> None:
    """Section 4.1; the frame's number does not matter."""
    wires, (sender, receiver) = joined_nics()
    buffer = bytearray(FIRST_PAYLOAD + 2 * FULL_PAYLOAD)
    receive = receiver.post_receive(0, 0, buffer)
    send = sender.post_send(1, 0, content(len(buffer)))
    header, first_frame, second_frame = wires.take(0)
    for frame in (header, second_frame, first_frame):
        wires.deliver(frame)
    [acknowledgement] = wires.take(1)
    assert dialogue([acknowledgement]) == ["ack 0.1"]
    assert bytes(buffer) == content(len(buffer))
    wires.deliver(acknowledgement)
    assert send.done
    assert receive.done


def test_a_collection_is_resent_completely_after_its_timeout() -> None:
    wires, (sender, receiver) = joined_nics()
    receive = receiver.post_receive(0, 0, bytearray(6 * FULL_PAYLOAD))
    sender.post_send(1, 0, bytes(FIRST_PAYLOAD + 5 * FULL_PAYLOAD))
    frames = wires.take(0)
    for frame in frames[:4] + frames[5:]:
        wires.deliver(frame)  # frame 4 is lost
    wires.deliver_from(1)
    assert wires.deadline == TIMEOUT
    wires.tick()
    resent = wires.take(0)
    assert dialogue(resent) == ["data 0.3", "data 0.4", "data 0.5"]
    wires.deliver(resent[1])
    assert receive.done
    assert dialogue(wires.take(1)) == ["ack 0.4"]
    assert counter_of(wires, 0, "collections_resent") == 1
    assert counter_of(wires, 0, "frames_resent") == 3


def test_a_timer_starts_when_its_collection_has_been_sent_also_for_a_short_last_one() -> None:
    settings = Settings(window=1)
    wires, (sender, receiver) = joined_nics(settings=settings)
    receiver.post_receive(0, 0, bytearray(4 * FULL_PAYLOAD))
    sender.post_send(1, 0, bytes(FIRST_PAYLOAD + 3 * FULL_PAYLOAD))
    wires.deliver_from(0)
    wires.now = 2_000_000
    wires.deliver_from(1)
    assert dialogue(wires.take(0)) == ["data 0.3"]  # lost
    assert wires.deadline == 2_000_000 + TIMEOUT
    wires.tick()
    assert dialogue(wires.take(0)) == ["data 0.3"]


def test_no_timer_runs_while_frames_wait_in_their_nic() -> None:
    """Section 4.1: "once 3 consecutive frames have been sent the timer for that collection starts"."""
    wires, (sender, receiver) = joined_nics()
    nic = wires.nics[0]
    nic.holds_frames = True
    receive = receiver.post_receive(0, 0, bytearray(4 * FULL_PAYLOAD))
    sender.post_send(1, 0, bytes(FIRST_PAYLOAD + 3 * FULL_PAYLOAD))
    assert wires.deadline is None
    wires.now = 10 * TIMEOUT
    lost_frames = wires.take(0)
    nic.transmit_held_frames()
    assert len(lost_frames) == 4
    assert wires.deadline == 11 * TIMEOUT
    wires.tick()
    assert dialogue(wires.take(0)) == ["header 0", "data 0.1", "data 0.2"]  # the others are parked
    assert wires.deadline is None, "the resent frames wait in the NIC as well"
    nic.holds_frames = False
    nic.transmit_held_frames()
    wires.elapse(10 * TIMEOUT)
    assert receive.done


def test_a_frame_that_leaves_after_its_message_has_ended_starts_no_timer() -> None:
    wires, (sender, receiver) = joined_nics()
    nic = wires.nics[0]
    receiver.post_receive(0, 0, bytearray(8))
    send = sender.post_send(1, 0, bytes(8))
    first = wires.take(0)
    nic.holds_frames = True
    wires.tick()
    wires.take(0)
    wires.deliver(first[0])
    wires.deliver(*wires.take(1))
    assert send.done
    nic.transmit_held_frames()
    assert wires.deadline is None


def test_the_timeout_doubles_with_each_resend_up_to_the_longest() -> None:
    settings = Settings(timeout=5, longest_timeout=30)
    wires, (sender, _) = joined_nics(settings=settings)
    sender.post_send(1, 0, b"")
    resend_times = []
    for _ in range(5):
        wires.tick()
        resend_times.append(wires.now)
    assert resend_times == [5, 15, 35, 65, 95]


def test_a_lost_acknowledgement_is_not_covered_by_the_next_one() -> None:
    """An acknowledgement names one frame only: a later collection's does not cover an earlier one."""
    wires, (sender, receiver) = joined_nics()
    receiver.post_receive(0, 0, bytearray(6 * FULL_PAYLOAD))
    send = sender.post_send(1, 0, bytes(FIRST_PAYLOAD + 5 * FULL_PAYLOAD))
    wires.deliver_from(0)
    first, second = wires.take(1)
    wires.deliver(second)
    assert not send.done
    wires.tick()
    resent = wires.take(0)
    assert dialogue(resent) == ["header 0", "data 0.1", "data 0.2"]
    for frame in resent:
        wires.deliver(frame)
    assert wires.take(1) == [first]
    wires.deliver(first)
    assert send.done


@pytest.mark.parametrize("frames", [1, 2, 3, 4])
def test_a_completed_message_is_acknowledged_again(frames: int) -> None:
    """Otherwise the send could not complete: all acknowledgements of the first round are lost."""
    wires, (sender, receiver) = joined_nics()
    buffer = bytearray(4 * FULL_PAYLOAD)
    receive = receiver.post_receive(0, 0, buffer)
    send = sender.post_send(1, 0, content(FIRST_PAYLOAD + (frames - 1) * FULL_PAYLOAD))
    wires.deliver_from(0)
    assert receive.done
    lost_acks = wires.take(1)
    buffer[:] = bytes(len(buffer))
    wires.elapse(TIMEOUT)
    assert send.done
    assert counter_of(wires, 1, "reacknowledgements_sent") == len(lost_acks)
    assert not any(buffer), "the buffer is the host's again: nothing is written to it"


def test_a_complete_collection_of_an_incomplete_message_is_acknowledged_again() -> None:
    wires, (sender, receiver) = joined_nics()
    receiver.post_receive(0, 0, bytearray(6 * FULL_PAYLOAD))
    sender.post_send(1, 0, bytes(FIRST_PAYLOAD + 5 * FULL_PAYLOAD))
    frames = wires.take(0)
    for frame in frames[:3]:
        wires.deliver(frame)
    assert dialogue(wires.take(1)) == ["ack 0.2"]
    for frame in frames[:3]:
        wires.deliver(frame)
    assert dialogue(wires.take(1)) == ["ack 0.2"]


def test_every_duplicated_frame_is_stored_once() -> None:
    wires, (sender, receiver) = joined_nics()
    receive = receiver.post_receive(0, 0, bytearray(6 * FULL_PAYLOAD))
    sender.post_send(1, 0, bytes(FIRST_PAYLOAD + 5 * FULL_PAYLOAD))
    for frame in wires.take(0):
        wires.deliver(frame)
        wires.deliver(frame)
    assert receive.done
    assert counter_of(wires, 1, "data_stored") == 6
    assert counter_of(wires, 1, "duplicates") == 6


def test_the_last_collection_may_arrive_before_all_others() -> None:
    wires, (sender, receiver) = joined_nics()
    buffer = bytearray(10 * FULL_PAYLOAD)
    receive = receiver.post_receive(0, 0, buffer)
    sender.post_send(1, 0, content(len(buffer)))
    header, *data_frames = wires.take(0)
    wires.deliver(header)
    for frame in reversed(data_frames):
        wires.deliver(frame)
    assert receive.done
    assert bytes(buffer) == content(len(buffer))


@pytest.mark.parametrize("unit", [1, 2, 3, 4])
@pytest.mark.parametrize("capacity", [0, 100, -100])
def test_frames_may_be_reordered_from_any_frame_on(unit: int, capacity: int) -> None:
    """The first one to five of five frames arrive in order, the others in every order; each is stored once.

    The receive is as long as the message, longer or shorter.
    """
    size = FIRST_PAYLOAD + 3 * FULL_PAYLOAD + 11
    for in_order_count in range(1, 6):
        for order in permutations(range(in_order_count, 5)):
            wires, (sender, receiver) = joined_nics(settings=Settings(unit=unit, window=5))
            buffer = bytearray(size + capacity)
            receive = receiver.post_receive(0, 0, buffer)
            send = sender.post_send(1, 0, content(size))
            frames = wires.take(0)
            for number in (*range(in_order_count), *order):
                assert not receive.done
                wires.deliver(frames[number])
            assert receive.done
            assert buffer[:size] == content(size)[: size + capacity]
            assert not any(buffer[size:])
            assert counter_of(wires, 1, "data_stored") == 5
            assert counter_of(wires, 1, "acknowledgements_sent") == -(-5 // unit)
            assert counter_of(wires, 1, "duplicates") == 0
            wires.exchange()
            assert send.done


@pytest.mark.parametrize("number", range(1, 5))
def test_a_frame_that_arrived_in_order_is_not_stored_again(number: int) -> None:
    wires, (sender, receiver) = joined_nics(settings=Settings(window=5))
    buffer = bytearray(FIRST_PAYLOAD + 4 * FULL_PAYLOAD)
    receive = receiver.post_receive(0, 0, buffer)
    sender.post_send(1, 0, content(len(buffer)))
    frames = wires.take(0)
    for frame_index, frame in enumerate(frames):
        wires.deliver(frame)
        if frame_index == number and not receive.done:
            buffer[:] = bytes(len(buffer))
            for repeated in frames[: number + 1]:
                wires.deliver(repeated)
            assert not any(buffer), "nothing is stored again"
            assert counter_of(wires, 1, "duplicates") == number + 1
    assert receive.done
    assert counter_of(wires, 1, "data_stored") == 5


def test_frames_before_their_header_are_dropped_and_resent() -> None:
    wires, (sender, receiver) = joined_nics()
    receive = receiver.post_receive(0, 0, bytearray(3 * FULL_PAYLOAD))
    sender.post_send(1, 0, bytes(3 * FULL_PAYLOAD - 16))
    header, first_frame, second_frame = wires.take(0)
    for frame in (first_frame, second_frame, header):
        wires.deliver(frame)
    assert counter_of(wires, 1, "unknown") == 2
    assert not receive.done
    wires.elapse(TIMEOUT)
    assert receive.done


@pytest.mark.parametrize("window", [1, 2, 16])
def test_the_window_limits_unacknowledged_collections(window: int) -> None:
    wires, (sender, receiver) = joined_nics(settings=Settings(window=window))
    receiver.post_receive(0, 0, bytearray(300_000))
    send = sender.post_send(1, 0, bytes(300_000))
    while not send.done:
        frames = wires.take(0)
        for frame in frames:
            wires.deliver(frame)
        acknowledged = len(wires.nics[1].sent)
        assert acknowledged <= window
        wires.deliver_from(1)
    assert counter_of(wires, 0, "frames_resent") == 0


def test_a_send_to_a_peer_that_never_acknowledges_is_reported_as_pending() -> None:
    """Retransmission has no end unless one is set, as in the paper; the wait is reported with its reason."""
    wires, (sender, _) = joined_nics()
    send = sender.post_send(1, 5, bytes(10_000))
    for _ in range(100):
        wires.tick()
        wires.take(0)
    assert not send.done
    [sender_work, firmware] = [sentence for sentence in wires.pending_work() if sentence.startswith("0")]
    assert sender_work == "0: the send to node 1, tag 5, 10000 bytes"
    assert "no acknowledgement of collections 0, 1, 2" in firmware


def test_queues_and_incoming_messages_of_peers_are_separate() -> None:
    """New peers share one empty queue and one empty set of incoming messages."""
    wires, (first, second, third) = joined_nics(3, settings=Settings(unit=1, window=1))
    for tag in range(3):
        first.post_send(1, tag, content(2 * FULL_PAYLOAD))  # fills its window, without a receive
    wires.exchange()
    message, buffer = content(3 * FULL_PAYLOAD), bytearray(3 * FULL_PAYLOAD)
    receive = third.post_receive(0, 9, buffer)
    first.post_send(2, 9, message)
    wires.exchange()
    assert receive.done
    assert bytes(buffer) == message
    assert any("not begun" in sentence for sentence in wires.pending_work())
    assert [EMPTY_QUEUE, NO_INCOMING_MESSAGES] == [[], {}]
    assert second.free_descriptors == 640


def test_a_message_whose_sent_collections_are_all_acknowledged_is_reported_so() -> None:
    """A message that returns to the window is sent before a later one."""
    wires, (sender, receiver) = joined_nics(settings=Settings(unit=1, window=2))
    sender.post_send(1, 1, content(4 * FULL_PAYLOAD))
    wires.exchange()
    wires.tick()  # the message without a receive is parked
    wires.take(0)
    wires.elapse(TIMEOUT * 3 // 2)
    receiver.post_receive(0, 2, bytearray(4 * FULL_PAYLOAD))
    sender.post_send(1, 2, content(4 * FULL_PAYLOAD))
    wires.deliver_from(0)
    acknowledgements_of_later = wires.take(1)
    receiver.post_receive(0, 1, bytearray(4 * FULL_PAYLOAD))
    wires.tick()
    wires.deliver_from(0)
    wires.deliver_from(1)  # the parked message returns to the window
    for frame in acknowledgements_of_later:
        wires.deliver(frame)
    assert any("2 of 5 collections sent, all of them acknowledged" in work for work in wires.pending_work())
