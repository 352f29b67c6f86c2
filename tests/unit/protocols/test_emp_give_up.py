"""EMP gives up messages after a time without an acknowledgement, and not earlier."""

from __future__ import annotations

import pytest

from protocols.emp.host import EmpError
from protocols.emp.settings import Settings
from tests.unit.protocols.emp_dialogue import FULL_PAYLOAD, TIMEOUT, acknowledgement, counter_of, dialogue, joined_nics


def test_a_message_is_given_up_after_the_configured_time() -> None:
    wires, (sender, _) = joined_nics(settings=Settings(give_up=100 * TIMEOUT))
    send = sender.post_send(1, 0, bytes(100_000))
    while not send.done:
        assert wires.tick()
        wires.take(0)
    assert 100 * TIMEOUT <= wires.now <= 200 * TIMEOUT
    with pytest.raises(EmpError, match="acknowledged nothing"):
        send.result()
    assert wires.deadline is None
    assert sender.free_descriptors == 640
    assert sender.pinned == 0


def test_a_receiver_continues_after_messages_that_were_given_up() -> None:
    """The receiver missed the first message, keeps the second and has half of the third: the next header names the
    oldest that is not over."""
    wires, (sender, receiver) = joined_nics(settings=Settings(give_up=3 * TIMEOUT))
    receiver.post_receive(0, 9, bytearray(1))
    sender.post_send(1, 9, b"")
    wires.exchange()
    sends = [sender.post_send(1, 1, b"kept")]
    wires.exchange()
    half_received = receiver.post_receive(0, 2, bytearray(5000))
    sends.append(sender.post_send(1, 2, bytes(5000)))
    wires.deliver(wires.take(0)[0])
    sends.append(sender.post_send(1, 3, b"missed"))
    while not all(send.done for send in sends):
        wires.tick()
        wires.take(0)
    buffer = bytearray(1)
    receiver.post_receive(0, 4, buffer)
    sender.post_send(1, 4, b"!")
    wires.exchange()
    assert buffer == b"!"
    with pytest.raises(EmpError, match="given the message up"):
        half_received.result()
    assert counter_of(wires, 1, "abandoned") == 2
    assert wires.pending_work() == []


def test_an_acknowledgement_postpones_giving_up() -> None:
    wires, (sender, receiver) = joined_nics(settings=Settings(give_up=3 * TIMEOUT, window=1))
    receiver.post_receive(0, 0, bytearray(100_000))
    send = sender.post_send(1, 0, bytes(100_000))
    while not send.done:
        wires.now += 2 * TIMEOUT
        for number in (0, 1):
            wires.deliver_from(number)
        wires.agents[0].firmware.on_timer(wires.now)
    assert send.result().length == 100_000


def test_a_late_acknowledgement_postpones_giving_up_after_everything_was_sent() -> None:
    """The last collection was sent, so only an acknowledgement can show progress."""
    wires, (sender, _) = joined_nics(settings=Settings(give_up=3 * TIMEOUT))
    send = sender.post_send(1, 0, bytes(5 * FULL_PAYLOAD))
    assert dialogue(wires.take(0))[-1] == "data 0.5"
    wires.tick()
    assert wires.now == TIMEOUT
    late = wires.now = 3 * TIMEOUT - 1
    wires.deliver(acknowledgement(wires, 0, 1, 0, 2))
    wires.take(0)
    wires.tick()
    assert 3 * TIMEOUT < wires.now < late + 3 * TIMEOUT
    assert not send.done
    assert dialogue(wires.take(0)) == ["data 0.3", "data 0.4", "data 0.5"]
    wires.tick()
    assert wires.now >= late + 3 * TIMEOUT
    with pytest.raises(EmpError, match="acknowledged nothing"):
        send.result()


def test_a_message_that_waited_long_for_its_turn_is_not_given_up_at_its_first_timeout() -> None:
    """The timeout counts neither from the NIC's start nor from the posting."""
    wires, (sender, _) = joined_nics(settings=Settings(give_up=2 * TIMEOUT, window=1))
    wires.now = 100 * TIMEOUT
    long_send = sender.post_send(1, 0, bytes(6 * 3 * FULL_PAYLOAD - 16))
    send = sender.post_send(1, 1, b"")
    for collection in range(6):
        wires.take(0)
        wires.now += TIMEOUT - 1
        wires.deliver(acknowledgement(wires, 0, 1, 0, 3 * collection + 2))
    assert long_send.done
    assert dialogue(wires.take(0)) == ["header 1"]
    wires.tick()
    assert wires.now > 105 * TIMEOUT
    assert not send.done
    assert dialogue(wires.take(0)) == ["header 1"]
    wires.deliver(acknowledgement(wires, 0, 1, 1, 0))
    assert send.result() == (1, 1, 0)
    assert counter_of(wires, 0, "given_up") == 0
