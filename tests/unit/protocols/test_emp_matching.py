"""EMP's matching of messages with receives, in any order of the receives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.emp.host import ANY_SOURCE, ANY_TAG, any_tag
from protocols.emp.settings import Settings
from tests.unit.protocols.emp_dialogue import TIMEOUT, content, counter_of, dialogue, joined_nics


def test_a_message_matches_the_receive_with_its_tag_and_source() -> None:
    wires, hosts = joined_nics(3)
    other_tag = hosts[2].post_receive(0, 1, bytearray(10))
    other_source = hosts[2].post_receive(1, 2, bytearray(10))
    tag_receive = hosts[2].post_receive(0, 2, bytearray(10))
    hosts[0].post_send(2, 2, b"hello")
    wires.exchange()
    assert tag_receive.result() == (0, 2, 5)
    assert not other_tag.done
    assert not other_source.done


def test_a_receive_for_any_source_takes_the_oldest_of_all_nodes() -> None:
    wires, hosts = joined_nics(4)
    for source in (2, 1, 3):
        hosts[source].post_send(0, 5, bytes([source]))
        wires.exchange()
    receives = [hosts[0].post_receive(ANY_SOURCE, 5, bytearray(1)) for _ in range(3)]
    wires.elapse(TIMEOUT)
    assert [receive.result().source for receive in receives] == [2, 1, 3]


def test_a_receive_for_any_tag_stays_in_its_context() -> None:
    wires, (sender, receiver) = joined_nics()
    any_tag_receive = receiver.post_receive(0, any_tag(9), bytearray(1))
    sender.post_send(1, 8 << 24 | 1, b"x")
    sender.post_send(1, 9 << 24 | 1, b"y")
    wires.exchange()
    assert any_tag_receive.result().tag == 9 << 24 | 1
    context_0_receive = receiver.post_receive(0, ANY_TAG, bytearray(1))
    wires.elapse(TIMEOUT)
    assert not context_0_receive.done


def test_messages_of_one_tag_never_overtake_one_another() -> None:
    """The first message's data is lost, the second one's is not: the first receive still gets the first message."""
    wires, (sender, receiver) = joined_nics()
    other_tag = receiver.post_receive(0, 1, bytearray(1))
    buffers = [bytearray(3000), bytearray(1)]
    receives = [receiver.post_receive(0, 2, buffer) for buffer in buffers]
    sender.post_send(1, 2, content(3000))
    sender.post_send(1, 2, b"2")
    header, _, _, second = wires.take(0)
    wires.deliver(header)
    wires.deliver(second)
    assert receives[1].done
    assert not receives[0].done
    wires.elapse(TIMEOUT)
    assert bytes(buffers[0]) == content(3000)
    assert not other_tag.done


def test_a_header_that_arrives_before_an_older_one_waits_for_it() -> None:
    wires, (sender, receiver) = joined_nics()
    buffers = [bytearray(1), bytearray(1)]
    receives = [receiver.post_receive(0, 2, buffer) for buffer in buffers]
    sender.post_send(1, 2, b"1")
    sender.post_send(1, 2, b"2")
    for frame in reversed(wires.take(0)):
        wires.deliver(frame)
    assert [receive.done for receive in receives] == [True, False]
    wires.elapse(TIMEOUT)
    assert buffers == [b"1", b"2"]


def test_data_without_a_receive_is_dropped_and_resent_after_the_timeout() -> None:
    """Section 3.1.1. A receive that is posted a moment too late waits for the sender's timer."""
    wires, (sender, receiver) = joined_nics()
    send = sender.post_send(1, 0, b"early")
    wires.exchange()
    assert counter_of(wires, 1, "unmatched") == 1
    assert counter_of(wires, 1, "headers_admitted") == 1
    buffer = bytearray(5)
    receive = receiver.post_receive(0, 0, buffer)
    assert wires.exchange() == 0
    wires.elapse(TIMEOUT - 1)
    assert not receive.done
    wires.elapse(1)
    assert receive.done
    assert send.done
    assert buffer == b"early"


def test_a_receive_matches_the_oldest_unmatched_message() -> None:
    wires, (sender, receiver) = joined_nics()
    for text in (b"a", b"b", b"c"):
        sender.post_send(1, 3, text)
    wires.exchange()
    buffers = [bytearray(1) for _ in range(3)]
    for buffer in buffers:
        receiver.post_receive(0, 3, buffer)
    wires.elapse(TIMEOUT)
    assert buffers == [b"a", b"b", b"c"]


@pytest.mark.parametrize("window", [1, 3, 16])
@pytest.mark.parametrize("size", [0, 10_000])
def test_receives_in_reverse_order_one_at_a_time_get_every_message(window: int, size: int) -> None:
    """All send descriptors are in use, each with its own tag; the receiver takes the last one first."""
    longest = 20_000_000
    wires, (sender, receiver) = joined_nics(settings=Settings(window=window, descriptors=64, longest_timeout=longest))
    sends = []
    while sender.free_descriptors >= (1 if size <= 4096 else 2):
        sends.append(sender.post_send(1, len(sends), content(size, len(sends))))
    assert len(sends) == (64 if size == 0 else 32)
    for tag in reversed(range(len(sends))):
        buffer = bytearray(size)
        receive = receiver.post_receive(0, tag, buffer)
        # Each window of unmatched messages takes a timeout, followed by that of the requested message.
        wires.elapse((len(sends) // window + 3) * longest)
        assert receive.done, (tag, wires.pending_work())
        assert bytes(buffer) == content(size, tag)
    assert all(send.done for send in sends)
    assert sender.free_descriptors == receiver.free_descriptors == 64


def test_the_640th_message_can_be_received_first_with_the_default_settings() -> None:
    wires, (sender, receiver) = joined_nics()
    for tag in range(640):
        sender.post_send(1, tag, b"")
    last = receiver.post_receive(0, 639, bytearray(1))
    wires.elapse((640 // 16 + 1) * TIMEOUT)
    assert last.done
    assert counter_of(wires, 1, "held_full") == 0


def test_only_the_first_collection_of_a_message_without_a_receive_is_resent() -> None:
    wires, (sender, receiver) = joined_nics()
    sender.post_send(1, 1, bytes(200_000))
    assert len(wires.take(0)) == 48  # the window
    for _ in range(5):
        wires.tick()
        frames = wires.take(0)
        assert dialogue(frames) == ["header 0", "data 0.1", "data 0.2"]
        for frame in frames:
            wires.deliver(frame)
    receive = receiver.post_receive(0, 1, bytearray(200_000))
    wires.elapse(10 * Settings().longest_timeout)
    assert receive.done
    assert wires.pending_work() == []


def test_a_message_without_a_receive_does_not_block_later_messages() -> None:
    """The long one fills the window; after one timeout the short one after it is sent."""
    wires, (sender, receiver) = joined_nics()
    short_receive = receiver.post_receive(0, 2, bytearray(1))
    long_send = sender.post_send(1, 1, bytes(200_000))
    sender.post_send(1, 2, b"!")
    wires.exchange()
    assert not short_receive.done
    wires.elapse(TIMEOUT)
    assert short_receive.done
    assert not long_send.done
    receiver.post_receive(0, 1, bytearray(200_000))
    wires.elapse(Settings().longest_timeout)
    assert long_send.done


def test_a_receive_that_waits_because_too_few_headers_are_kept_is_reported() -> None:
    wires, (sender, receiver) = joined_nics(settings=Settings(held=2))
    for tag in range(3):
        sender.post_send(1, tag, b"")
    receiver.post_receive(0, 2, bytearray(1))
    wires.elapse(100 * TIMEOUT)
    assert counter_of(wires, 1, "held_full") > 0
    assert "1: node 0: 2 of its messages wait for a receive, and no more headers are kept" in wires.pending_work()
    receiver.post_receive(0, 0, bytearray(1))
    wires.elapse(100 * TIMEOUT)
    assert "tag 2" not in " ".join(wires.pending_work())


def test_a_message_to_its_own_node_needs_no_frame() -> None:
    wires, (node, _) = joined_nics()
    buffer = bytearray(10_000)
    receive = node.post_receive(0, 1, buffer)
    send = node.post_send(0, 1, content(10_000))
    assert receive.done
    assert send.done
    assert bytes(buffer) == content(10_000)
    assert wires.take(0) == []


def test_a_message_to_its_own_node_waits_for_its_receive() -> None:
    wires, (node, _) = joined_nics()
    send = node.post_send(0, 1, b"me")
    assert not send.done
    buffer = bytearray(2)
    node.post_receive(0, 1, buffer)
    wires.elapse(TIMEOUT)
    assert send.done
    assert buffer == b"me"


def test_posting_in_completion_callbacks_does_not_nest() -> None:
    """Each message to its own node is posted in the callback of the previous one."""
    wires, (node, _) = joined_nics()
    remaining = 5000

    def post_again(_: object = None) -> None:
        nonlocal remaining
        if remaining:
            remaining -= 1
            node.post_receive(0, 1, bytearray(1)).add_callback(post_again)
            node.post_send(0, 1, b"!")

    post_again()
    assert remaining == 0
    assert node.free_descriptors == 640
    assert wires.pending_work() == []


def test_empty_messages_are_received() -> None:
    wires, (sender, receiver) = joined_nics()
    empty_receive = receiver.post_receive(0, 1, bytearray(0))
    larger = receiver.post_receive(0, 1, bytearray(9000))
    sender.post_send(1, 1, b"")
    sender.post_send(1, 1, b"")
    wires.exchange()
    assert empty_receive.result().length == larger.result().length == 0


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=30),
    st.randoms(use_true_random=False),
    st.integers(1, 4),
)
def test_any_order_of_receives_finds_every_message(sends: list[tuple[int, int]], rng: object, window: int) -> None:
    """Each receive is posted only when the previous one has its message."""
    wires, hosts = joined_nics(4, settings=Settings(window=window, longest_timeout=20_000_000))
    for number, (source, tag) in enumerate(sends):
        hosts[source].post_send(3, tag, bytes([number]))
    expected = list(sends)
    rng.shuffle(expected)  # type: ignore[attr-defined]
    for source, tag in expected:
        buffer = bytearray(1)
        receive = hosts[3].post_receive(source, tag, buffer)
        wires.elapse(40 * 20_000_000)
        assert receive.done, wires.pending_work()
        first = sends.index((source, tag))
        assert buffer[0] == next(n for n, key in enumerate(sends) if key == (source, tag) and n >= first)
        sends[buffer[0]] = (-1, -1)
