"""MPI's matching in the library: the standard's rules, for any order of receives and messages."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.core.completion import Completion
from protocols.mpi.constants import ANY_SOURCE, ANY_TAG
from protocols.mpi.device import ProbeResult, ReceiveCompletion, SendCompletion
from protocols.mpi.matching import Arrival, MatchingQueues, Receive
from protocols.mpi.mpi_errors import ERR_PROC_FAILED, ERR_TRUNCATE, Envelope, MPIError


class Posted(NamedTuple):
    """Receive without a message."""

    source: int
    tag: int
    completion: Completion[Envelope]


class Waiting(NamedTuple):
    """Message without a receive."""

    source: int
    tag: int
    number: int


def receive(
    matching: MatchingQueues, source: int, tag: int, size: int = 8, context: int = 0
) -> tuple[Completion[Envelope], bytearray]:
    completion = ReceiveCompletion(source, tag, size)
    buffer = bytearray(size)
    matching.post(context, Receive(source, tag, memoryview(buffer), completion))
    return completion, buffer


def deliver(matching: MatchingQueues, source: int, tag: int, data: bytes, context: int = 0) -> None:
    matching.arrive_complete(source, context, tag, data)


def test_a_message_matches_the_oldest_matching_receive() -> None:
    matching = MatchingQueues()
    other_receive, _ = receive(matching, 2, ANY_TAG)
    first, buffer = receive(matching, ANY_SOURCE, 7)
    second, _ = receive(matching, 1, 7)
    deliver(matching, 1, 7, b"hello")
    assert first.result() == Envelope(1, 7, 5)
    assert bytes(buffer[:5]) == b"hello"
    assert not other_receive.done
    assert not second.done


def test_a_receive_matches_the_oldest_matching_message() -> None:
    matching = MatchingQueues()
    for number, tag in enumerate((5, 7, 7)):
        deliver(matching, 1, tag, bytes([number]))
    completion, buffer = receive(matching, 1, 7)
    assert (completion.result(), buffer[0]) == (Envelope(1, 7, 1), 1)
    completion, buffer = receive(matching, ANY_SOURCE, ANY_TAG)
    assert (completion.result(), buffer[0]) == (Envelope(1, 5, 1), 0)


def test_a_receive_may_match_an_incomplete_message() -> None:
    matching = MatchingQueues()
    arrival = matching.arrive(1, 0, 7, 5)
    completion, buffer = receive(matching, 1, 7)
    assert not completion.done
    arrival.buffer[:] = b"hello"
    assert matching.complete(arrival)
    assert bytes(buffer[:5]) == b"hello"


@pytest.mark.parametrize("first", ["receive", "message"])
def test_a_rendezvous_message_calls_back_when_it_is_matched(first: str) -> None:
    matching, rendezvous = MatchingQueues(), list[Arrival]()
    if first == "message":
        arrival = matching.arrive(1, 0, 7, 5, rendezvous.append)
        assert not rendezvous
    completion, buffer = receive(matching, 1, 7, size=3)
    if first == "receive":
        arrival = matching.arrive(1, 0, 7, 5, rendezvous.append)
    assert rendezvous == [arrival]
    assert not completion.done
    arrival.buffer[:] = b"hel"  # the receive has room for no more
    assert matching.complete(arrival)
    assert completion.done
    assert bytes(buffer) == b"hel"


def test_a_failed_arrival_fails_its_own_receive_only() -> None:
    matching, error = MatchingQueues(), MPIError(ERR_PROC_FAILED, "gone")
    completion, _ = receive(matching, 1, 7)
    matched, unexpected = matching.arrive(1, 0, 7, 5), matching.arrive(1, 0, 7, 5)
    other_receive, _ = receive(matching, 1, 8)
    matching.fail_arrival(matched, error)
    matching.fail_arrival(unexpected, error)
    with pytest.raises(MPIError, match="gone"):
        completion.result()
    later_receive, _ = receive(matching, 1, 7)
    assert not later_receive.done
    assert not other_receive.done


def test_a_failed_claimed_message_fails_its_receive() -> None:
    matching = MatchingQueues()
    arrival = matching.arrive(1, 0, 7, 5)
    probe: Completion[ProbeResult | None] = Completion()
    matching.probe(1, 0, 7, False, True, probe)
    matching.fail_arrival(arrival, MPIError(ERR_PROC_FAILED, "gone"))
    completion = ReceiveCompletion(1, 7, 5)
    matching.receive_claimed(arrival, Receive(1, 7, memoryview(bytearray(5)), completion))
    assert probe.done
    with pytest.raises(MPIError, match="gone"):
        completion.result()


def test_messages_match_receives_of_their_own_context_only() -> None:
    matching = MatchingQueues()
    completion, _ = receive(matching, ANY_SOURCE, ANY_TAG, context=1)
    deliver(matching, 1, 7, b"x", context=0)
    assert not completion.done
    assert matching.posted_count() == 1


@pytest.mark.parametrize("first", ["receive", "message"])
def test_a_message_that_is_too_long_fills_the_buffer_and_fails(first: str) -> None:
    matching = MatchingQueues()
    if first == "message":
        deliver(matching, 1, 7, b"hello")
    completion, buffer = receive(matching, 1, 7, size=3)
    if first == "receive":
        deliver(matching, 1, 7, b"hello")
    with pytest.raises(MPIError) as raised:
        completion.result()
    assert (raised.value.error_class, raised.value.envelope) == (ERR_TRUNCATE, Envelope(1, 7, 3))
    assert bytes(buffer) == b"hel"


def test_a_send_to_its_own_rank_completes_before_its_receive_is_posted_and_then_fills_it() -> None:
    matching = MatchingQueues()
    send = SendCompletion()
    data = bytearray(b"hello")
    matching.send_to_self(1, 0, 7, memoryview(data), send)
    assert send.result() == Envelope(1, 7, 5)
    data[:] = b"later"  # the program may reuse the buffer
    completion, buffer = receive(matching, 1, 7)
    assert completion.result() == Envelope(1, 7, 5)
    assert bytes(buffer[:5]) == b"hello"


def test_fail_transfers_fails_the_transfers_with_that_peer_only() -> None:
    matching = MatchingQueues()
    unreleased, released, arrived = SendCompletion(), SendCompletion(), SendCompletion()
    released.release(Envelope(1, 7, 5))
    arrived.release(Envelope(1, 7, 5))
    arrived.deliver()
    matched_receives: list[Completion[Envelope]] = [Completion(), Completion()]
    for peer, completion in zip((1, 2), matched_receives, strict=True):
        assert matching.track_synchronous(peer, Envelope(peer, 7, 0), completion) is not None
    incomplete_receive, _ = receive(matching, 1, 7)
    arrivals = [matching.arrive(1, 0, tag, 5) for tag in (7, 8)]
    later_receive, _ = receive(matching, 1, 8 + 1)
    matching.fail_transfers(1, MPIError(ERR_PROC_FAILED, "gone"), [unreleased, released, arrived], arrivals)
    for failed in (unreleased, released, matched_receives[0], incomplete_receive):
        with pytest.raises(MPIError, match="gone"):
            failed.result()
    assert arrived.result() == Envelope(1, 7, 5)
    assert not matched_receives[1].done
    unexpected, _ = receive(matching, 1, 8)
    assert not unexpected.done, "the rest of that message never arrives"
    deliver(matching, 1, 9, b"")  # of the next session
    assert later_receive.result() == Envelope(1, 9, 0)


def test_fail_transfers_spares_a_synchronous_message_that_a_callback_begins() -> None:
    matching = MatchingQueues()
    failed, later = SendCompletion(), Completion[Envelope]()
    failed.add_callback(lambda _: matching.track_synchronous(1, Envelope(1, 7, 0), later))
    matching.fail_transfers(1, MPIError(ERR_PROC_FAILED, "gone"), [failed])
    assert not later.done


def test_a_callback_of_a_failed_receive_may_post_a_receive_in_another_context() -> None:
    matching = MatchingQueues()
    failed, _ = receive(matching, 1, ANY_TAG)
    later: list[Completion[Envelope]] = []
    failed.add_callback(lambda _: later.append(receive(matching, 1, ANY_TAG, context=2)[0]))
    matching.fail_receives(1, MPIError(ERR_PROC_FAILED, "gone"))
    assert [completion.done for completion in later] == [False]


def test_fail_receives_fails_the_receives_that_name_the_source() -> None:
    matching = MatchingQueues()
    from_peer, _ = receive(matching, 1, ANY_TAG)
    from_any, _ = receive(matching, ANY_SOURCE, ANY_TAG)
    matching.fail_receives(1, MPIError(ERR_PROC_FAILED, "gone"))
    with pytest.raises(MPIError, match="gone"):
        from_peer.result()
    deliver(matching, 2, 3, b"")
    assert from_any.result() == Envelope(2, 3, 0)


STEPS = st.lists(st.tuples(st.booleans(), st.integers(-1, 2), st.integers(-1, 2)), max_size=30)


@given(STEPS)
def test_the_queues_match_as_a_linear_search_does(steps: list[tuple[bool, int, int]]) -> None:
    """The reference is two lists, searched from the beginning."""
    matching = MatchingQueues()
    receives: list[Posted] = []
    messages: list[Waiting] = []
    expected: dict[int, int] = {}
    transfers: dict[int, tuple[Completion[Envelope], bytearray]] = {}
    for number, (is_receive, source, tag) in enumerate(steps):
        if is_receive:
            completion, buffer = receive(matching, source, tag)
            transfers[number] = completion, buffer
            matching_messages = [
                message
                for message in messages
                if source in (ANY_SOURCE, message.source) and tag in (ANY_TAG, message.tag)
            ]
            if matching_messages:
                messages.remove(matching_messages[0])
                expected[number] = matching_messages[0].number
            else:
                receives.append(Posted(source, tag, completion))
        else:
            source, tag = abs(source), abs(tag)
            deliver(matching, source, tag, bytes([number]))
            matching_receives = [
                candidate
                for candidate in receives
                if candidate.source in (ANY_SOURCE, source) and candidate.tag in (ANY_TAG, tag)
            ]
            if matching_receives:
                receives.remove(matching_receives[0])
                expected[
                    next(
                        key
                        for key, (completion, _) in transfers.items()
                        if completion is matching_receives[0].completion
                    )
                ] = number
            else:
                messages.append(Waiting(source, tag, number))
    assert {number: buffer[0] for number, (completion, buffer) in transfers.items() if completion.done} == expected
