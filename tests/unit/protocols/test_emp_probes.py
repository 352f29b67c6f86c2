"""EMP's host requests other than transfers: probe, matched probe, cancel."""

from __future__ import annotations

import pytest

from protocols.core.completion import Completion
from protocols.emp.host import ANY_SOURCE, ANY_TAG, EmpError, ProbeResult, ReceiveCancelledError, ReceiveResult, any_tag
from protocols.emp.settings import Settings
from tests.unit.protocols.emp_dialogue import TIMEOUT, content, hosts, joined_nics


def probe_fields(probe: Completion[ProbeResult | None]) -> tuple[int, int, int] | None:
    """Return a probe's result without the message's id."""
    result = probe.result()
    return None if result is None else result[:3]


def test_a_probe_without_waiting_completes_at_once() -> None:
    wires, (sender, receiver) = joined_nics()
    assert receiver.post_probe(0, 2, wait=False).result() is None
    sender.post_send(1, 2, b"hello")
    wires.exchange()
    assert receiver.post_probe(0, 3, wait=False).result() is None
    assert receiver.post_probe(ANY_SOURCE, any_tag(1), wait=False).result() is None
    assert probe_fields(receiver.post_probe(0, 2, wait=False)) == (0, 2, 5)
    assert receiver.free_descriptors == 640


def test_a_waiting_probe_completes_with_a_message_that_can_then_be_received() -> None:
    wires, (sender, receiver) = joined_nics()
    probe = receiver.post_probe(ANY_SOURCE, ANY_TAG)
    assert receiver.pending_work() == ["a message from any node, any tag"]
    assert any("a probe for a message from any node, any tag" in line for line in wires.pending_work())
    send = sender.post_send(1, 2, content(5000))
    wires.exchange()
    assert probe_fields(probe) == (0, 2, 5000)
    assert probe_fields(receiver.post_probe(0, 2, wait=False)) == (0, 2, 5000), "it has not been received yet"
    buffer = bytearray(5000)
    receive = receiver.post_receive(0, 2, buffer)
    wires.elapse(TIMEOUT)
    assert receive.result() == (0, 2, 5000)
    assert buffer == content(5000)
    assert send.done
    assert receiver.post_probe(0, 2, wait=False).result() is None
    assert wires.pending_work() == []


def test_a_message_that_matches_a_receive_is_not_reported_to_a_probe() -> None:
    wires, (sender, receiver) = joined_nics()
    receive = receiver.post_receive(0, 2, bytearray(1))
    probe = receiver.post_probe(0, 2)
    for data, is_reported in ((b"a", False), (b"bbb", True)):
        sender.post_send(1, 2, data)
        wires.exchange()
        assert receive.done
        assert probe.done is is_reported
    assert probe_fields(probe) == (0, 2, 3)


def test_a_message_is_reported_to_waiting_probes_until_one_claims_it() -> None:
    wires, (sender, receiver) = joined_nics()
    probes = [receiver.post_probe(0, 2), receiver.post_probe(0, 2, claim=True), receiver.post_probe(0, 2)]
    sender.post_send(1, 2, b"x")
    wires.exchange()
    assert [probe.done for probe in probes] == [True, True, False]


def test_a_claimed_message_is_received_only_by_its_receive() -> None:
    wires, (sender, receiver) = joined_nics()
    for data in (b"a", b"b"):
        sender.post_send(1, 2, data)
    wires.exchange()
    probe = receiver.post_probe(ANY_SOURCE, ANY_TAG, wait=False, claim=True).result()
    assert probe is not None
    buffers = [bytearray(1), bytearray(1)]
    other_receive = receiver.post_receive(0, 2, buffers[0])
    wires.elapse(TIMEOUT)
    assert (other_receive.result(), buffers[0]) == (ReceiveResult(0, 2, 1), b"b")
    receive = receiver.post_claimed(probe, buffers[1])
    wires.elapse(2 * TIMEOUT)
    assert (receive.result(), buffers[1]) == (ReceiveResult(0, 2, 1), b"a")
    with pytest.raises(EmpError):
        receiver.post_claimed(probe, buffers[1]).result()
    assert wires.pending_work() == []


def test_the_receive_of_a_claimed_message_fails_if_its_sender_restarts() -> None:
    wires, (sender, receiver) = joined_nics(settings=Settings(held=1))
    sender.post_send(1, 2, b"old")
    wires.exchange()
    probe = receiver.post_probe(0, 2, wait=False, claim=True).result()
    assert probe is not None
    wires.restart(0)
    hosts(wires)[0].post_send(1, 2, b"new")
    wires.elapse(TIMEOUT)
    with pytest.raises(EmpError, match="given the message up"):
        receiver.post_claimed(probe, bytearray(3)).result()
    assert probe_fields(receiver.post_probe(0, 2, wait=False)) == (0, 2, 3), "the room for a header is free again"


def test_a_cancelled_receive_frees_its_descriptor() -> None:
    wires, (sender, receiver) = joined_nics(settings=Settings(descriptors=1))
    receive = receiver.post_receive(0, 2, bytearray(1))
    assert receiver.free_descriptors == 0
    receiver.cancel(receive)
    with pytest.raises(ReceiveCancelledError, match="a receive from node 0, tag 2, 1 bytes, was cancelled"):
        receive.result()
    assert (receiver.free_descriptors, receiver.pinned) == (1, 0)
    next_receive = receiver.post_receive(0, 2, bytearray(1))
    sender.post_send(1, 2, b"x")
    wires.exchange()
    assert next_receive.result().length == 1


def test_a_receive_that_has_matched_is_not_cancelled() -> None:
    wires, (sender, receiver) = joined_nics()
    buffer = bytearray(3000)
    receive = receiver.post_receive(0, 2, buffer)
    sender.post_send(1, 2, content(3000))
    frames = wires.take(0)
    wires.deliver(frames[0])
    receiver.cancel(receive)
    assert not receive.done
    for frame in frames[1:]:
        wires.deliver(frame)
    wires.exchange()
    assert receive.result() == (0, 2, 3000)
    receiver.cancel(receive)
    assert buffer == content(3000)


def test_the_receive_after_a_cancelled_one_gets_the_message() -> None:
    wires, (sender, receiver) = joined_nics()
    receives = [receiver.post_receive(0, 2, bytearray(1)) for _ in range(3)]
    receiver.cancel(receives[0])
    sender.post_send(1, 2, b"x")
    wires.exchange()
    assert [receive.done for receive in receives] == [True, True, False]
    assert receives[1].result() == (0, 2, 1)
