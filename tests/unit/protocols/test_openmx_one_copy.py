"""Long messages between two ranks of one node: one copy, and no frame."""

from __future__ import annotations

import pytest

from protocols.openmx.endpoint_memory import Command, Op
from protocols.openmx.host import plug
from protocols.openmx.mx_names import Status
from tests.unit.protocols.openmx_pair import ONE_NODE, RESEND, EndpointPair, pattern


@pytest.mark.parametrize("size", [4_097, 32_768, 1_000_000])
def test_a_message_above_the_threshold_is_copied_once(size: int) -> None:
    pair = EndpointPair(hosts=ONE_NODE)
    buffer, request = pair.receive(size)
    sent, received = pair.finish(pair.send(pattern(size)), request)
    assert (sent.status, received.status, received.length) == (Status.SUCCESS, Status.SUCCESS, size)
    assert bytes(buffer) == pattern(size)
    assert pair.sent == []
    assert pair.counter(1, "shared_pull") == 1
    assert pair.counter(1, "send_pull_req") == pair.counter(0, "send_pull_reply") == 0


def test_a_rank_of_another_node_is_pulled_by_frames() -> None:
    pair = EndpointPair(hosts=(0, 1))
    buffer, request = pair.receive(50_000)
    pair.finish(pair.send(pattern(50_000)), request)
    assert bytes(buffer) == pattern(50_000)
    assert pair.counter(1, "shared_pull") == 0
    assert pair.sent.count("PULL_REPLY") > 30


def test_a_message_longer_than_its_receive_is_truncated() -> None:
    pair = EndpointPair(hosts=ONE_NODE)
    buffer, request = pair.receive(10_000)
    pair.send(pattern(50_000))
    (received,) = pair.finish(request)
    assert received.status is Status.TRUNCATED
    assert bytes(buffer) == pattern(50_000)[:10_000]


def test_an_endpoint_sends_to_another_endpoint_of_its_rank() -> None:
    pair = EndpointPair()
    end, second, buffer = pair.ends[0], pair.library(0).open_endpoint(3), bytearray(70_000)
    pair.run(end.connect(0, 3))
    pair.finish(second.irecv(buffer, 9), end.isend([pattern(70_000)], end.partner(0, 3), 9))
    assert bytes(buffer) == pattern(70_000)
    assert pair.counter(0, "shared_pull") == 1


@pytest.mark.parametrize(
    ("changes", "is_copied"),
    [
        ({}, True),
        ({"dst_endpoint": 7}, False),
        ({"session": 0xBAD}, False),
        ({"match": 200}, False),
        ({"turn": 99}, False),
        ({"length": 6_001}, False),
    ],
)
def test_a_pull_copies_only_memory_that_the_sender_has_registered(changes: dict[str, int], is_copied: bool) -> None:
    """The sender's region 0 has 6,000 bytes. A command of the receiver's host, which is not trusted, names another one."""
    pair = EndpointPair(hosts=ONE_NODE)
    pair.send(pattern(6_000))
    pair.deliver_frames()
    library, buffer = pair.library(1), bytearray(6_001)
    command = Command(Op.PULL, 0, 0, 0)
    command.session, command.turn, command.length = pair.partners[1].session, 1, 6_000
    command.address, command.number = library.memory.pin_page(memoryview(buffer), 1), 5
    for name, value in changes.items():
        setattr(command, name, value)
    library.ring_doorbell(library.commands.write(command), 0, 0)
    assert buffer == (pattern(6_000) + b"\0" if is_copied else bytes(6_001))
    assert pair.counter(1, "shared_pull") == is_copied
    assert pair.counter(1, "invalid") == 0


def test_the_memory_of_a_restarted_rank_is_not_copied() -> None:
    pair = EndpointPair(hosts=ONE_NODE)
    pair.send(pattern(6_000))
    pair.deliver_frames()
    pair.restart(0)
    buffer, request = pair.receive(6_000)
    pair.elapse(RESEND)
    assert buffer == bytes(6_000)
    assert not request.is_settled or request.result().status is not Status.SUCCESS


def test_clusters_of_one_plug_share_no_memory() -> None:
    """The second cluster's ranks have the numbers of the first one's."""
    build = plug()
    pair, _ = (EndpointPair(hosts=list(ONE_NODE), build=build) for _ in range(2))
    buffer, request = pair.receive(50_000)
    pair.finish(pair.send(pattern(50_000)), request)
    assert bytes(buffer) == pattern(50_000)
    assert pair.counter(1, "shared_pull") == 0
