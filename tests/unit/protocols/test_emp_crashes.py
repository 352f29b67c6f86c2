"""EMP's host reports that a peer's program has crashed: the messages that will not be completed."""

from __future__ import annotations

import pytest

from protocols.emp.host import ANY_SOURCE, ANY_TAG, EmpError, Endpoint, ReceiveResult
from protocols.emp.settings import Settings
from tests.unit.protocols.emp_dialogue import TIMEOUT, content, counter_of, header, hosts, joined_nics
from tests.unit.protocols.list_wires import Wires

CRASHED = "node 0 has crashed"


def half_sent_message(size: int = 10_000) -> tuple[Wires, list[Endpoint]]:
    """Return three NICs; node 0 has sent four frames of a message to node 1, and is silent from then on."""
    wires, nodes = joined_nics(3)
    nodes[0].post_send(1, 1, bytes(size))
    for frame in wires.take(0)[:4]:
        wires.deliver(frame)
    wires.deliver_from(1)
    wires.take(0)
    return wires, nodes


def test_a_receive_from_any_source_fails_and_the_next_gets_another_nodes_message() -> None:
    wires, (sender, receiver, other_sender) = joined_nics(3)
    buffer = bytearray(10_000)
    matched, next_receive = (receiver.post_receive(ANY_SOURCE, 1, view) for view in (bytearray(10_000), buffer))
    sender.post_send(1, 1, bytes(10_000))
    for frame in wires.take(0)[:4]:
        wires.deliver(frame)
    receiver.report_crash(0)
    with pytest.raises(EmpError, match=CRASHED):
        matched.result()
    assert not next_receive.done
    wires.take(0)
    other_sender.post_send(1, 1, content(10_000))
    wires.exchange()
    assert next_receive.result() == ReceiveResult(2, 1, 10_000)
    assert buffer == content(10_000)
    assert receiver.free_descriptors == 640
    assert receiver.pinned == 0


def test_a_receive_from_the_crashed_node_fails_if_it_has_matched_and_else_waits() -> None:
    wires, (sender, receiver, _) = joined_nics(3)
    matched, waiting = (receiver.post_receive(0, 1, bytearray(10_000)) for _ in range(2))
    sender.post_send(1, 1, bytes(10_000))
    wires.deliver(wires.take(0)[0])
    receiver.report_crash(0)
    with pytest.raises(EmpError, match=CRASHED):
        matched.result()
    assert not waiting.done


def test_a_message_without_a_receive_is_forgotten() -> None:
    wires, (_, receiver, other_sender) = half_sent_message()
    assert receiver.post_probe(ANY_SOURCE, ANY_TAG, wait=False).result() is not None
    receiver.report_crash(0)
    assert receiver.post_probe(ANY_SOURCE, ANY_TAG, wait=False).result() is None
    receive = receiver.post_receive(ANY_SOURCE, ANY_TAG, bytearray(4))
    other_sender.post_send(1, 2, b"next")
    wires.exchange()
    assert receive.result() == ReceiveResult(2, 2, 4)


def test_a_receive_of_a_claimed_message_fails() -> None:
    _, (_, receiver, _) = half_sent_message()
    probed = receiver.post_probe(0, 1, wait=False, claim=True).result()
    assert probed is not None
    receiver.report_crash(0)
    with pytest.raises(EmpError):
        receiver.post_claimed(probed, bytearray(10_000)).result()


def test_data_that_still_arrives_matches_no_receive() -> None:
    """The crashed node's frames may be in flight: the next ones of the dropped message, and the header of another."""
    wires, (sender, receiver, _) = joined_nics(3)
    matched, waiting = (receiver.post_receive(ANY_SOURCE, 1, bytearray(10_000)) for _ in range(2))
    for _ in range(2):
        sender.post_send(1, 1, bytes(10_000))
    first, *in_flight = wires.take(0)
    wires.deliver(first)
    receiver.report_crash(0)
    for frame in in_flight:
        wires.deliver(frame)
    assert matched.done
    assert not waiting.done
    assert wires.take(1) == []
    assert counter_of(wires, 1, "stale") == len(in_flight)


def test_acknowledgements_that_still_arrive_complete_sends() -> None:
    wires, (sender, receiver, _) = joined_nics(3)
    sender.post_receive(1, 1, bytearray(1))
    send = receiver.post_send(0, 1, b"x")
    wires.deliver_from(1)
    (acknowledgement,) = wires.take(0)
    receiver.report_crash(0)
    wires.deliver(acknowledgement)
    assert send.done


def test_messages_of_a_later_incarnation_are_received() -> None:
    wires, (sender, receiver, _) = joined_nics(3)
    matched, waiting = (receiver.post_receive(ANY_SOURCE, 1, bytearray(10_000)) for _ in range(2))
    sender.post_send(1, 1, bytes(10_000))
    wires.deliver(wires.take(0)[0])
    receiver.report_crash(0)
    wires.restart(0)
    hosts(wires)[0].post_send(1, 1, b"anew")
    wires.elapse(2 * TIMEOUT)
    assert matched.done
    assert waiting.result() == ReceiveResult(0, 1, 4)


def test_a_report_about_no_other_node_is_ignored() -> None:
    wires, (_, receiver, _) = joined_nics(3)
    for number in (-1, 1, 3):
        receiver.report_crash(number)
    count = Settings().descriptors
    for index in (2 * count + 1, 2 * count + 3):  # by a host library that is not to be trusted
        wires.agents[1].firmware.on_doorbell(0, index)
    assert counter_of(wires, 1, "invalid") == 2
    receive = receiver.post_receive(0, 0, bytearray(1))
    wires.deliver(header(wires, 1, 0, 0, b"x"))
    assert receive.done
