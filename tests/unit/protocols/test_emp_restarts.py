"""EMP's NICs that restart, and message numbers that wrap around: outcomes of the messages in flight."""

from __future__ import annotations

import pytest

from protocols.core.firmware import FIRST
from protocols.emp.firmware import Firmware
from protocols.emp.host import EmpError
from protocols.emp.settings import Settings
from tests.unit.protocols.emp_dialogue import (
    TIME_AS_INCARNATION,
    TIMEOUT,
    acknowledgement,
    content,
    counter_of,
    dialogue,
    header,
    hosts,
    joined_nics,
)
from tests.unit.protocols.list_wires import Wires


def test_a_restart_of_the_receiver_fails_the_send_in_progress_and_not_the_next() -> None:
    wires, (sender, receiver) = joined_nics()
    receiver.post_receive(0, 1, bytearray(10_000))
    pending_send = sender.post_send(1, 1, bytes(10_000))
    for frame in wires.take(0)[:4]:
        wires.deliver(frame)
    wires.deliver_from(1)
    wires.restart(1)
    wires.elapse(TIMEOUT)
    with pytest.raises(EmpError, match="node 1 has restarted"):
        pending_send.result()
    assert counter_of(wires, 0, "restarts") == 1
    buffer = bytearray(5)
    receive = hosts(wires)[1].post_receive(0, 1, buffer)
    sender.post_send(1, 1, b"after")
    wires.exchange()
    assert receive.done
    assert buffer == b"after"
    assert sender.free_descriptors == 640
    assert wires.pending_work() == []


def test_messages_not_yet_sent_go_to_the_receivers_new_incarnation() -> None:
    wires, (sender, _) = joined_nics(settings=Settings(window=1))
    wires.agents[1].host.post_receive(0, 0, bytearray(1))  # type: ignore[attr-defined]
    sender.post_send(1, 0, b"")
    wires.exchange()
    pending_send = sender.post_send(1, 1, b"lost")
    later_send = sender.post_send(1, 1, b"kept")
    wires.restart(1)
    buffer = bytearray(4)
    hosts(wires)[1].post_receive(0, 1, buffer)
    wires.elapse(TIMEOUT)
    with pytest.raises(EmpError):
        pending_send.result()
    assert later_send.done
    assert buffer == b"kept"


def test_a_restart_of_the_sender_fails_the_receive_in_progress() -> None:
    wires, (sender, receiver) = joined_nics()
    half_received = receiver.post_receive(0, 1, bytearray(10_000))
    buffer = bytearray(5)
    other_receive = receiver.post_receive(0, 1, buffer)
    sender.post_send(1, 1, bytes(10_000))
    for frame in wires.take(0)[:4]:
        wires.deliver(frame)
    wires.restart(0)
    hosts(wires)[0].post_send(1, 1, b"after")
    wires.exchange()
    with pytest.raises(EmpError, match="node 0 has restarted"):
        half_received.result()
    assert other_receive.done
    assert buffer == b"after"
    assert receiver.free_descriptors == 640
    assert receiver.pinned == 0


def test_a_restarted_sender_may_reuse_message_ids() -> None:
    wires, (sender, receiver) = joined_nics()
    for generation in range(3):
        for number in range(5):
            buffer = bytearray(2)
            receive = receiver.post_receive(0, number, buffer)
            hosts(wires)[0].post_send(1, number, bytes([generation, number]))
            assert dialogue(wires.nics[0].sent) == [f"header {number}"]
            wires.exchange()
            assert receive.done
            assert list(buffer) == [generation, number]
        wires.restart(0)
    assert counter_of(wires, 1, "restarts") == 2
    assert sender.free_descriptors == 640


def test_unmatched_messages_of_a_restarted_sender_are_dropped() -> None:
    wires, (sender, receiver) = joined_nics()
    for _ in range(3):
        sender.post_send(1, 1, b"old")
    wires.exchange()
    wires.restart(0)
    hosts(wires)[0].post_send(1, 1, b"new")
    wires.exchange()
    buffer = bytearray(3)
    receiver.post_receive(0, 1, buffer)
    wires.elapse(2 * TIMEOUT)  # sent twice: before its sender knew the receiver's incarnation, and after
    assert buffer == b"new"
    assert wires.pending_work() == []


def test_late_frames_of_a_former_incarnation_are_dropped() -> None:
    wires, (sender, receiver) = joined_nics()
    for _ in range(2):
        sender.post_send(1, 1, b"old")
    late_frames = wires.take(0)
    wires.restart(0)
    hosts(wires)[0].post_send(1, 1, b"new")
    wires.exchange()
    buffer = bytearray(3)
    receiver.post_receive(0, 1, buffer)
    stale_before = counter_of(wires, 1, "stale")
    for frame in late_frames:
        wires.deliver(frame)
    assert counter_of(wires, 1, "stale") == stale_before + 2
    wires.elapse(2 * TIMEOUT)
    assert buffer == b"new"


def test_acknowledgements_for_a_former_incarnation_complete_nothing_of_the_new_one() -> None:
    wires, (sender, receiver) = joined_nics()
    receiver.post_receive(0, 1, bytearray(3))
    sender.post_send(1, 1, b"old")
    wires.deliver_from(0)
    [late_ack] = wires.take(1)
    wires.restart(0)
    send = hosts(wires)[0].post_send(1, 1, b"new")
    wires.deliver(late_ack)
    assert not send.done
    assert counter_of(wires, 0, "stale") == 1


def test_acknowledgements_from_a_former_incarnation_complete_nothing() -> None:
    wires, (sender, receiver) = joined_nics()
    receiver.post_receive(0, 1, bytearray(3))
    sender.post_send(1, 1, b"one")
    wires.deliver_from(0)
    [late_ack] = wires.take(1)
    wires.restart(1)
    hosts(wires)[1].post_send(0, 9, b"restarted")
    wires.deliver_from(1)
    send = sender.post_send(1, 1, b"two")
    stale_before = counter_of(wires, 0, "stale")
    wires.deliver(late_ack)
    assert not send.done
    assert counter_of(wires, 0, "stale") == stale_before + 1


@pytest.mark.parametrize("is_known", [False, True], ids=["unknown receiver", "known receiver"])
def test_a_message_that_was_received_is_not_received_again_by_the_next_incarnation(is_known: bool) -> None:
    """A late copy of it arrives after its receiver has restarted."""
    wires, (sender, receiver) = joined_nics()
    if is_known:
        receiver.post_send(0, 5, b"")
        wires.exchange()
    receiver.post_receive(0, 1, bytearray(3))
    send = sender.post_send(1, 1, b"one")
    [frame] = wires.take(0)
    wires.deliver(frame)
    wires.deliver_from(1)
    assert send.done
    wires.restart(1)
    second_receive = hosts(wires)[1].post_receive(0, 1, bytearray(3))
    wires.deliver(frame)
    assert not second_receive.done
    wires.exchange()
    assert counter_of(wires, 0, "restarts") == 1, "the sender has been notified"


@pytest.mark.parametrize("event", ["a resent frame is refused", "the receiver sends", "no answer arrives"])
def test_a_message_received_by_a_former_incarnation_is_not_received_by_the_next(event: str) -> None:
    """The sender has no acknowledgement: all answers of the former incarnation are lost."""
    wires, (sender, receiver) = joined_nics()
    former_receive = receiver.post_receive(0, 1, bytearray(3))
    send = sender.post_send(1, 1, b"one")
    [frame] = wires.take(0)
    wires.deliver(frame)
    assert former_receive.done
    wires.restart(1)
    later_receive = hosts(wires)[1].post_receive(0, 1, bytearray(3))
    if event == "no answer arrives":  # and the new incarnation does not accept the message either
        for _ in range(9):
            wires.tick()
            wires.deliver_from(0)
            wires.take(1)
        assert not send.done
    elif event == "the receiver sends":
        hosts(wires)[1].post_send(0, 9, b"restarted")
    wires.elapse(Settings().longest_timeout)
    assert not later_receive.done
    with pytest.raises(EmpError, match="node 1 has restarted: whether the message had arrived is not known"):
        send.result()
    assert counter_of(wires, 0, "restarts") == 1
    sender.post_send(1, 1, b"two")
    wires.exchange()
    assert later_receive.done


def test_sends_of_a_restarted_nic_to_a_silent_peer_do_not_fail() -> None:
    """No incarnation of the peer accepts a frame for another one, so none can have received the message."""
    wires, _ = joined_nics()
    wires.restart(0)
    sender, receiver = hosts(wires)
    former_receive = receiver.post_receive(0, 1, bytearray(3))
    send = sender.post_send(1, 1, b"one")
    wires.deliver_from(0)
    assert not former_receive.done
    wires.restart(1)
    later_receive = hosts(wires)[1].post_receive(0, 1, bytearray(3))
    wires.elapse(TIMEOUT)
    assert later_receive.done
    assert send.result().length == 3
    assert counter_of(wires, 0, "restarts") == 0


@pytest.mark.parametrize("receiver_restarts", [False, True], ids=["receiver runs", "receiver restarts"])
def test_with_times_as_incarnations_the_first_message_arrives_and_no_send_fails(receiver_restarts: bool) -> None:
    wires, (sender, _) = joined_nics(incarnation=TIME_AS_INCARNATION)
    buffers = [bytearray(10_000), bytearray(3)]
    sends = [sender.post_send(1, 1, content(10_000)), sender.post_send(1, 1, b"one")]
    if receiver_restarts:
        wires.deliver_from(0)
        wires.restart(1)
        assert wires.tick()
    receives = [hosts(wires)[1].post_receive(0, 1, buffer) for buffer in buffers]
    wires.exchange()
    assert all(receive.done for receive in receives)
    assert [send.result().length for send in sends] == [10_000, 3]
    assert buffers == [content(10_000), b"one"]
    assert counter_of(wires, 0, "restarts") == counter_of(wires, 1, "restarts") == 0


def test_nics_in_their_first_incarnation_need_no_introduction() -> None:
    wires, (sender, receiver) = joined_nics()
    receiver.post_receive(0, 1, bytearray(3))
    sender.post_send(1, 1, b"one")
    assert dialogue(wires.nics[0].sent) == ["header 0"]
    assert wires.exchange() == 2


def test_two_restarted_nics_communicate_at_once() -> None:
    """The later incarnation announces itself, and the refused message is resent without a timeout."""
    wires, (sender, receiver) = joined_nics()
    sender.post_send(1, 1, b"x")
    receiver.post_send(0, 1, b"x")
    wires.exchange()
    wires.restart(0)
    wires.restart(1)
    sender, receiver = hosts(wires)
    receive = receiver.post_receive(0, 1, bytearray(10_000))
    send = sender.post_send(1, 1, bytes(10_000))
    wires.exchange()
    assert wires.now == 0
    assert send.done
    assert receive.done


def test_a_send_posted_in_the_callback_of_a_restart_needs_no_timeout() -> None:
    wires, (sender, receiver) = joined_nics()
    receiver.post_receive(0, 0, bytearray(1))
    sender.post_send(1, 0, b"")
    wires.exchange()
    wires.restart(1)
    receives = [hosts(wires)[1].post_receive(0, 1, bytearray(3)) for _ in range(3)]
    for _ in range(3):
        sender.post_send(1, 1, b"old").add_callback(lambda _: sender.post_send(1, 1, b"new"))
    wires.exchange()
    assert all(receive.done for receive in receives)
    assert wires.now == 0
    assert wires.pending_work() == []


@pytest.mark.parametrize("has_loss", [False, True], ids=["no loss", "loss"])
def test_message_ids_wrap_around(has_loss: bool) -> None:
    wires, (sender, receiver) = joined_nics()
    set_next_message_id(wires, 0, 1, 2**32 - 3)
    for number in range(6):
        buffers = [bytearray(5000), bytearray(1)]
        for buffer in buffers:
            receiver.post_receive(0, number, buffer)
        sender.post_send(1, number, content(5000))
        sender.post_send(1, number, bytes([number]))
        frames = wires.take(0)
        for frame in frames[1:] if has_loss else frames:
            wires.deliver(frame)
        wires.elapse(TIMEOUT)
        assert bytes(buffers[0]) == content(5000)
        assert buffers[1] == bytes([number])
    assert wires.pending_work() == []
    assert counter_of(wires, 1, "headers_admitted") == 12


def test_a_message_from_before_the_wrap_of_ids_is_acknowledged_again() -> None:
    wires, (sender, receiver) = joined_nics()
    set_next_message_id(wires, 0, 1, 2**32 - 1)
    for _ in range(2):
        receiver.post_receive(0, 0, bytearray(1))
    sender.post_send(1, 0, b"a")
    sender.post_send(1, 0, b"b")
    first, second = wires.take(0)
    wires.deliver(first)
    wires.deliver(second)
    wires.take(1)
    wires.deliver(first)
    assert dialogue(wires.take(1)) == [f"ack {2**32 - 1}.0"]


def test_incarnations_wrap_around() -> None:
    wires, _ = joined_nics(incarnation=2**32 - 2)
    wires.restart(0)
    for incarnation in (2**32 - 1, 2, 3):
        assert wires.incarnations[0] == incarnation
        receive = hosts(wires)[1].post_receive(0, 0, bytearray(1))
        hosts(wires)[0].post_send(1, 0, b"x")
        wires.exchange()
        assert receive.done
        wires.incarnations[0] = wires.incarnations[0] % (2**32 - 1) or FIRST
        wires.restart(0)


@pytest.mark.parametrize(("incarnation", "known_incarnation"), [(0, FIRST), (2**31 + 1, FIRST), (0, 2**31 + 5)])
def test_a_frame_of_an_invalid_incarnation_is_dropped(incarnation: int, known_incarnation: int) -> None:
    wires, (sender, receiver) = joined_nics(incarnation=known_incarnation)
    receiver.post_receive(0, 0, bytearray(1))
    sender.post_send(1, 0, b"")
    wires.exchange()
    before = [counter_of(wires, number, "stale") for number in (0, 1)]
    wires.deliver(header(wires, 1, 0, 1, b"", sender=incarnation))
    wires.deliver(acknowledgement(wires, 0, 1, 1, 0, sender=incarnation))
    assert [counter_of(wires, number, "stale") for number in (0, 1)] == [count + 1 for count in before]
    assert counter_of(wires, 1, "restarts") == 0


def set_next_message_id(wires: Wires, sender: int, receiver: int, message: int) -> None:
    """Advance a sender's next message number."""
    firmware = wires.agents[sender].firmware
    assert isinstance(firmware, Firmware)
    firmware._card.peers.peer(receiver).next_id = message
