"""Open-MX's reliability: lost, duplicated, late and early frames; acknowledgements; pulls; sequence numbers that wrap."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product

import pytest

from protocols.openmx import codec
from protocols.openmx.endpoint_memory import ALARM, PULL_DONE
from protocols.openmx.mx_names import PULL_MAGIC, SEQNUM_MASK, Status
from protocols.openmx.mx_requests import Request, Result
from protocols.openmx.settings import Settings
from tests.unit.protocols.openmx_mutants import USED
from tests.unit.protocols.openmx_pair import RESEND, EndpointPair, EveryNth, kind_of, pattern, recorder

KINDS = ["CONNECT", "TINY", "SMALL", "MEDIUM", "RNDV", "PULL", "PULL_REPLY", "NOTIFY", "TRUC"]
TICK = Settings().tick


def exchange_messages(pair: EndpointPair, sizes: list[int], *, is_posted: bool = True) -> None:
    """Send messages of these sizes one after the other, and check their contents."""
    receives = [pair.receive(size) for size in sizes] if is_posted else []
    sends = [pair.send(pattern(size)) for size in sizes]
    if not is_posted:
        pair.deliver_frames()
        receives = [pair.receive(size) for size in sizes]
    results = pair.finish(*sends, *[request for _, request in receives])
    assert {result.status for result in results} == {Status.SUCCESS}
    for size, (buffer, _) in zip(sizes, receives, strict=True):
        assert bytes(buffer) == pattern(size)


@pytest.mark.parametrize(
    ("kind", "period"), [case for case in product(KINDS, [1, 2, 3, 7]) if case != ("CONNECT", 2)], ids=str
)
def test_every_nth_frame_of_a_kind_is_lost_and_all_messages_arrive(kind: str, period: int) -> None:
    """Open-MX's built-in fault injection. With a period of 1, only the first ten of the kind are lost. (Every second
    CONNECT of a connection is an answer.)"""
    pair = EndpointPair(Settings(pull_timeout=TICK), connected=False)
    loss = EveryNth(kind, period)
    pair.is_lost = (lambda frame: loss(frame) if loss.lost < 10 else False) if period == 1 else loss
    sizes = [1, 100, 20_000, 40_000, 0, 129, 150_000, 32, 33, 32_768, 50_000, 7] * 2
    exchange_messages(pair, sizes)
    exchange_messages(pair, sizes, is_posted=False)
    pair.elapse(20 * RESEND)
    assert loss.lost or kind == "CONNECT"
    assert pair.wires.pending_work() == []


@pytest.mark.parametrize("period", [1, 3, 7])
def test_every_nth_nack_of_a_message_is_lost_and_each_send_fails(period: int) -> None:
    """With a period of 1, only the first ten are lost."""
    pair = EndpointPair()
    loss = EveryNth("NACK_LIB", period)
    pair.is_lost = lambda frame: loss.lost < 10 and loss(frame)
    for _ in range(8):
        pair.restart(1)
        statuses: list[Status] = []
        pair.send(b"late").on_arrival = statuses.append
        pair.elapse(11 * RESEND)
        assert statuses == [Status.BAD_SESSION]
        _, request = pair.receive(4)
        pair.finish(pair.send(b"data"), request)
    assert loss.lost >= 1


@pytest.mark.parametrize("period", [1, 3, 7])
def test_every_nth_nack_of_a_pull_is_lost_and_each_receive_ends(period: int) -> None:
    """With a period of 1, only the first ten are lost."""
    pair = EndpointPair(Settings(pull_timeout=TICK))
    loss = EveryNth("NACK_MCP", period)
    for _ in range(8):
        pair.run(pair.ends[0].connect(1))
        pair.is_lost = lambda frame: kind_of(frame) == "PULL"
        _, request = pair.receive(40_000)
        pair.send(pattern(40_000))
        pair.deliver_frames()
        pair.ends[0].disconnect(pair.partners[0])
        pair.is_lost = lambda frame: loss.lost < 10 and loss(frame)
        assert [result.status for result in pair.finish(request)] == [Status.BAD_RDMAWIN]
    assert loss.lost >= 1


def test_lost_connection_requests_and_answers_are_resent() -> None:
    pair = EndpointPair(connected=False)
    lost = iter([True, False, True, False, False])
    pair.is_lost = lambda frame: kind_of(frame) == "CONNECT" and next(lost)
    pair.run(pair.ends[0].connect(1))
    assert pair.sent[:5] == ["CONNECT"] * 5
    assert pair.counter(0, "connect_requests_resent") == 2
    assert [pair.counter(number, "connections") for number in (0, 1)] == [1, 1]


# Acknowledgements.


def test_an_acknowledgement_is_delayed_by_a_tick_and_sent_alone() -> None:
    pair = EndpointPair()
    pair.sent.clear()
    pair.receive(1)
    pair.send(b"x")
    pair.deliver_frames()
    assert pair.sent == ["TINY"]
    pair.elapse(TICK)
    assert pair.sent == ["TINY", "TRUC"]
    assert pair.counter(0, "acknowledged") == 1


def test_four_messages_are_acknowledged_at_once() -> None:
    pair = EndpointPair()
    pair.sent.clear()
    for _ in range(9):
        pair.send(b"x")
        pair.deliver_frames()
    assert pair.sent == (["TINY"] * 4 + ["TRUC"]) * 2 + ["TINY"]
    assert pair.counter(0, "acknowledged") == 8


def test_a_message_in_the_other_direction_carries_the_acknowledgement() -> None:
    pair = EndpointPair()
    pair.sent.clear()
    pair.send(b"x")
    pair.deliver_frames()
    pair.ends[1].isend([b"y"], pair.partners[1], 1)
    pair.deliver_frames()
    assert pair.counter(0, "acknowledged") == 1
    pair.elapse(TICK)
    assert pair.sent == ["TINY", "TINY", "TRUC"]
    assert pair.counter(1, "acknowledged") == 1


def test_a_lost_acknowledgement_is_resent_for_the_resent_message() -> None:
    pair = EndpointPair()
    loss = EveryNth("TRUC", 1)
    pair.is_lost = lambda frame: loss(frame) if loss.lost < 1 else False
    buffer, request = pair.receive(1)
    pair.send(b"x")
    pair.finish(request)
    pair.elapse(2 * RESEND)
    assert buffer == b"x"
    assert (pair.counter(0, "resent"), pair.counter(1, "duplicates")) == (1, 1)
    assert pair.counter(0, "acknowledged") == 1


def test_a_late_acknowledgement_changes_nothing() -> None:
    pair = EndpointPair()
    late_frames: list[bytes] = []
    pair.is_lost = recorder(late_frames, "TRUC")
    for _ in range(8):
        pair.send(b"x")
        pair.deliver_frames()
    pair.wires.deliver(late_frames[0])
    assert pair.counter(0, "old_session") == 1
    assert pair.counter(0, "acknowledged") == 8


def test_sends_beyond_the_unacknowledged_limit_are_held_back() -> None:
    pair = EndpointPair(Settings(unacked=5, acknowledge=128))
    pair.is_lost = lambda frame: kind_of(frame) == "TRUC"
    pair.sent.clear()
    for _ in range(8):
        pair.send(b"x")
    pair.deliver_frames()
    assert pair.sent == ["TINY"] * 5
    assert pair.counter(0, "throttled") == 3
    pair.is_lost = lambda _: False
    pair.elapse(TICK)
    assert pair.sent == ["TINY"] * 5 + ["TRUC"] + ["TINY"] * 3


def test_a_message_without_an_acknowledgement_is_sent_twice_a_second_up_to_the_resends() -> None:
    pair = EndpointPair(Settings(resends=6))
    arrivals: list[tuple[int, Status]] = []
    pair.is_lost = lambda _: True
    pair.sent.clear()
    pair.send(b"x").on_arrival = lambda status: arrivals.append((pair.wires.now, status))
    pair.elapse(10_000_000_000)
    assert pair.sent == ["TINY"] * 7
    [(time, status)] = arrivals
    assert status is Status.ENDPOINT_UNREACHABLE
    assert 3_500_000_000 <= time <= 3_500_000_000 + 20 * TICK
    assert pair.wires.pending_work() == []


def test_progress_resets_the_count_of_resends() -> None:
    pair = EndpointPair(Settings(resends=3))
    losses = [True, True, True, False] * 5
    statuses: list[Status] = []
    pair.is_lost = lambda frame: kind_of(frame) == "TINY" and losses.pop()
    losses.reverse()
    for _ in range(5):
        _, request = pair.receive(1)
        pair.send(b"x").on_arrival = statuses.append
        pair.finish(request)
        pair.elapse(2 * TICK)
    assert statuses == [Status.SUCCESS] * 5


# Zombies.


def test_a_send_completes_before_its_acknowledgement_up_to_the_limit_of_zombies() -> None:
    pair = EndpointPair(Settings(zombies=3))
    pair.is_lost = lambda _: True
    sends = [pair.send(b"x") for _ in range(5)]
    assert [request.done for request in sends] == [True, True, True, False, False]
    pair.is_lost = lambda _: False
    pair.elapse(2 * RESEND)
    assert all(request.is_settled for request in sends)
    pair.is_lost = lambda _: True
    assert [pair.send(b"x").done for _ in range(4)] == [True, True, True, False]


def test_a_zombie_is_resent_with_its_original_bytes() -> None:
    pair = EndpointPair()
    pair.is_lost = lambda frame: kind_of(frame) in ("TINY", "MEDIUM")
    small_data, large_data = bytearray(b"small"), bytearray(pattern(5000))
    for data in (small_data, large_data):
        assert pair.ends[0].isend([data], pair.partners[0], 5).done
        pair.deliver_frames()
        data[:] = bytes(len(data))
    pair.is_lost = lambda _: False
    (small_buffer, small_receive), (large_buffer, large_receive) = pair.receive(5), pair.receive(5000)
    pair.finish(small_receive, large_receive)
    assert (small_buffer, large_buffer) == (b"small", pattern(5000))


# Order.


def deliver_shuffled(pair: EndpointPair, seed: int, is_duplicated: Callable[[bytes], bool]) -> None:
    """Deliver all frames in flight in random order; those for which `is_duplicated` is true, twice."""
    rng = random.Random(seed)
    while any(nic.sent for nic in pair.wires.nics):
        frames = [*pair.wires.take(0), *pair.wires.take(1)]
        frames += [frame for frame in frames if is_duplicated(frame)]
        rng.shuffle(frames)
        for frame in frames:
            pair.wires.deliver(frame)


@pytest.mark.parametrize("seed", range(10))
def test_reordered_or_duplicated_messages_are_matched_in_order(seed: int) -> None:
    pair = EndpointPair()
    sizes = [1, 100, 5000, 40_000, 0, 33, 20_000, 2, 3000] * 3
    sends = [pair.send(pattern(size)) for size in sizes]
    receives = [pair.receive(size) for size in sizes]
    for _ in range(50):
        deliver_shuffled(pair, seed, lambda _: seed % 2 == 1)
        pair.wires.tick()
    assert [request.result().length for _, request in receives] == sizes
    assert [bytes(buffer) for buffer, _ in receives] == [pattern(size) for size in sizes]
    assert all(request.done for request in sends)
    assert pair.counter(1, "early") > 0


def test_messages_too_far_ahead_are_dropped_and_resent() -> None:
    pair = EndpointPair()
    lost = iter([True])
    pair.is_lost = lambda frame: kind_of(frame) == "TINY" and next(lost, False)
    receives = [pair.receive(2) for _ in range(400)]
    sends = [pair.send(index.to_bytes(2, "big")) for index in range(400)]
    pair.deliver_frames()
    assert pair.counter(1, "too_early") == 399 - 255
    pair.finish(*sends, *[request for _, request in receives])
    assert [int.from_bytes(buffer, "big") for buffer, _ in receives] == list(range(400))


@pytest.mark.parametrize("period", [0, 97])
def test_sequence_numbers_wrap(period: int) -> None:
    """More than 2^14 messages, in bursts, with frames lost before, at and after the wrap."""
    pair, count, position = EndpointPair(), SEQNUM_MASK + 500, 0
    frame_count = 0

    def lose_frame(_frame: bytes) -> bool:
        nonlocal frame_count
        frame_count += 1
        return bool(period) and abs(position - SEQNUM_MASK) < 300 and frame_count % period == 0

    pair.is_lost = lose_frame
    while position < count:
        burst = range(position, min(count, position + (120 if abs(position - SEQNUM_MASK) < 400 else 2000)))
        receives = [pair.receive(4) for _ in burst]
        sends = [pair.send(index.to_bytes(4, "big")) for index in burst]
        pair.finish(*sends, *[request for _, request in receives])
        assert [int.from_bytes(buffer, "big") for buffer, _ in receives] == list(burst)
        position = burst.stop
    pair.elapse(4 * RESEND)
    assert pair.counter(0, "acknowledged") == count
    assert (pair.counter(0, "resent") > 0) == bool(period)


# Pulls.


def test_a_pull_requests_four_blocks_of_32_replies_and_the_next_when_the_first_is_complete() -> None:
    pair, payload_size = EndpointPair(), 1500 - 38
    size = 6 * 32 * payload_size + 5
    requests: list[tuple[int, int]] = []

    def record_frame(frame: bytes) -> bool:
        if kind_of(frame) == "PULL":
            *_, length, first, _ = codec.unpack_pull(frame)
            requests.append((first, length))
        return kind_of(frame) == "PULL_REPLY" and holds_back

    pair.is_lost = record_frame
    holds_back = True
    buffer, request = pair.receive(size)
    pair.send(pattern(size))
    pair.deliver_frames()
    assert requests == [(32 * block, 32 * payload_size) for block in range(4)]
    holds_back = False
    pair.finish(request)
    assert sorted(set(requests)) == [*((32 * block, 32 * payload_size) for block in range(6)), (192, 5)]
    assert bytes(buffer) == pattern(size)


def test_a_later_block_that_completes_first_requests_the_rest_of_the_first_block_once() -> None:
    pair, payload_size = EndpointPair(), 1500 - 38
    size, lost, requests = 128 * payload_size, [3, 5], []

    def lose_frame(frame: bytes) -> bool:
        if kind_of(frame) == "PULL":
            *_, length, first, _ = codec.unpack_pull(frame)
            requests.append((first, length))
        if kind_of(frame) != "PULL_REPLY":
            return False
        _, _, _, _, offset, *_ = codec.unpack_pull_reply(frame)
        index = offset // payload_size
        if index not in lost:
            return False
        lost.remove(index)
        return True

    pair.is_lost = lose_frame
    buffer, request = pair.receive(size)
    pair.send(pattern(size))
    pair.deliver_frames()
    assert request.done
    assert bytes(buffer) == pattern(size)
    assert requests[4:] == [(3, 3 * payload_size)]
    assert pair.counter(1, "pull_nonfirst_block_done_early") >= 1
    assert pair.counter(1, "drop_pull_reply_duplicate") == 1
    assert pair.counter(1, "pull_timeout_handler_first_block") == 0


def test_a_pull_without_progress_repeats_its_request_after_a_second_and_gives_up_after_the_resends() -> None:
    pair = EndpointPair(Settings(resends=3, resend=1 << 20))
    _, request = pair.receive(40_000)
    pair.is_lost = lambda frame: kind_of(frame) == "PULL_REPLY"
    pair.send(pattern(40_000))
    pair.deliver_frames()
    start_time = pair.wires.now
    [result] = pair.finish(request)
    assert result.status is Status.ENDPOINT_UNREACHABLE
    assert pair.wires.now - start_time == 4_000_000_000
    assert pair.counter(1, "pull_timeout_handler_first_block") == 3
    assert pair.counter(1, "pull_timeout_abort") == 1


def test_a_pull_that_gives_up_ends_the_connection_and_its_sender_learns_it_once_frames_pass_again() -> None:
    pair = EndpointPair(Settings(resends=3, pull_timeout=TICK))
    _, request = pair.receive(40_000)
    pair.is_lost = lambda frame: kind_of(frame) == "PULL_REPLY"
    send_request = pair.send(pattern(40_000))
    pair.elapse(3 * TICK)
    pair.is_lost = lambda _: True
    pair.finish(request)
    assert not pair.partners[1].is_connected
    pair.elapse(RESEND)
    assert not send_request.done
    pair.is_lost = lambda _: False
    pair.elapse(RESEND)
    assert send_request.result().status is Status.BAD_SESSION
    _, request = pair.receive(4)
    assert [result.status for result in pair.finish(pair.send(b"data"), request)] == [Status.SUCCESS] * 2


def test_a_repeated_connection_request_is_given_up_like_the_first() -> None:
    pair = EndpointPair(Settings(resends=3, pull_timeout=TICK))
    _, request = pair.receive(40_000)
    pair.is_lost = lambda frame: kind_of(frame) in ("PULL_REPLY", "CONNECT")
    pair.send(pattern(40_000))
    pair.finish(request)
    assert pair.partners[1].pending_work() == ["a connection to endpoint 0 of node 0"]
    pair.elapse(5 * RESEND)
    assert pair.partners[1].pending_work() == []


def test_late_replies_of_an_earlier_pull_with_the_same_number_are_dropped() -> None:
    pair = EndpointPair()
    late_frames: list[bytes] = []
    pair.is_lost = recorder(late_frames, "PULL_REPLY")
    numbers = pair.ends[1]._large._free_numbers  # the next pull has the same number, as if 64 were in progress
    del numbers[1:]
    buffer, request = pair.receive(40_000)
    pair.send(b"\xaa" * 40_000)
    pair.finish(request)
    pair.is_lost = lambda frame: kind_of(frame) == "PULL_REPLY"
    buffer, request = pair.receive(40_000)
    send_request = pair.send(b"\xbb" * 40_000)
    pair.deliver_frames()
    for frame in late_frames:
        pair.wires.deliver(frame)
    assert not request.done
    assert pair.counter(1, "drop_pull_reply_bad_wire_handle") == len(late_frames)
    pair.is_lost = lambda _: False
    pair.finish(send_request, request)
    assert buffer == b"\xbb" * 40_000


def test_the_completion_of_an_earlier_pull_with_the_same_number_does_not_end_a_later_pull(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection ends before the program handles the completion."""
    pair, held_completions = EndpointPair(), list[int]()
    nic = pair.wires.nics[1]
    post = nic.post_completion
    monkeypatch.setattr(
        nic,
        "post_completion",
        lambda index: (held_completions.append if PULL_DONE <= index & ALARM < ALARM else post)(index),
    )
    _, first = pair.receive(40_000)
    pair.send(pattern(40_000))
    pair.deliver_frames()
    [index] = held_completions
    pair.ends[1].disconnect(pair.partners[1])
    assert first.result().status is Status.ENDPOINT_CLOSED
    pair.run(pair.ends[1].connect(0))
    pair.is_lost = lambda frame: kind_of(frame) == "PULL_REPLY"
    buffer, second = pair.receive(40_000)
    send_request = pair.send(pattern(40_000))
    pair.deliver_frames()
    post(index)
    assert not second.done
    monkeypatch.undo()
    pair.is_lost = lambda _: False
    pair.finish(send_request, second)
    assert bytes(buffer) == pattern(40_000)


def test_a_pull_of_a_removed_region_is_refused() -> None:
    pair = EndpointPair()
    pair.is_lost = lambda frame: kind_of(frame) == "PULL"
    _, request = pair.receive(40_000)
    pair.send(pattern(40_000))
    pair.deliver_frames()
    pair.ends[0].disconnect(pair.partners[0])
    pair.is_lost = lambda _: False
    [result] = pair.finish(request)
    assert result.status is Status.BAD_RDMAWIN
    assert pair.counter(0, "send_nack_mcp") == 1


def test_a_pull_from_a_closed_endpoint_is_refused() -> None:
    pair = EndpointPair()
    pair.is_lost = lambda frame: kind_of(frame) == "PULL"
    _, request = pair.receive(40_000)
    pair.send(pattern(40_000))
    pair.deliver_frames()
    pair.ends[0].close()
    pair.is_lost = lambda _: False
    [result] = pair.finish(request)
    assert result.status in (Status.BAD_ENDPOINT, Status.ENDPOINT_CLOSED)


def test_pull_replies_may_be_copied_by_the_copy_engine() -> None:
    pair = EndpointPair(Settings(offload=1000))
    exchange_messages(pair, [400_000, 40_000])


# Sessions.


def test_a_late_duplicate_of_an_old_session_is_dropped() -> None:
    pair = EndpointPair()
    late_frames: list[bytes] = []
    pair.is_lost = recorder(late_frames)
    first, request = pair.receive(3)
    pair.send(b"old")
    pair.finish(request)
    pair.ends[0].disconnect(pair.partners[0])
    pair.run(pair.ends[0].connect(1))
    pair.is_lost = lambda _: False
    second, request = pair.receive(3)
    for frame in late_frames:
        pair.wires.deliver(frame)
        pair.deliver_frames()
    assert not request.done
    assert pair.counter(1, "old_session") >= 1
    pair.finish(pair.send(b"new"), request)
    assert (first, second) == (b"old", b"new")


def test_a_late_request_of_an_old_connection_does_not_end_the_present_one() -> None:
    pair = EndpointPair()
    requests: list[bytes] = []
    pair.is_lost = recorder(requests, "CONNECT")
    for _ in range(2):
        pair.ends[0].disconnect(pair.partners[0])
        pair.run(pair.ends[0].connect(1))
    lost_before = pair.counter(1, "connections_lost")
    for frame in requests:
        pair.wires.deliver(frame)
        pair.deliver_frames()
    assert pair.counter(1, "connections_lost") == lost_before
    buffer, request = pair.receive(4)
    pair.finish(pair.send(b"data"), request)
    assert buffer == b"data"


def test_a_connection_after_four_that_the_peer_missed_is_not_mistaken_for_the_first() -> None:
    pair = EndpointPair(Settings(resends=1))
    buffer, request = pair.receive(1)
    pair.finish(pair.ends[1].isend([b"y"], pair.partners[1], 1), pair.ends[0].irecv(bytearray(1), 1))
    pair.elapse(RESEND)
    pair.is_lost = lambda frame: kind_of(frame) == "CONNECT"
    for _ in range(3):
        pair.ends[0].disconnect(pair.partners[0])
        pair.ends[0].iconnect(pair.partners[0])
        pair.deliver_frames()
    pair.ends[0].disconnect(pair.partners[0])
    pair.is_lost = lambda _: False
    pair.run(pair.ends[0].connect(1))
    pair.finish(pair.send(b"x"), request)
    pair.ends[1].isend([b"z"], pair.partners[1], 2)
    [result] = pair.finish(pair.ends[0].irecv(bytearray(1), 2))
    assert result.status is Status.SUCCESS
    assert buffer == b"x"


def reconnect_with_a_late_message() -> tuple[bytes, bytes]:
    """Connect while the first answer is lost, and deliver an older message late; return the first two received messages."""
    pair = EndpointPair(connected=False)
    late_frames: list[bytes] = []

    def hold_frame(frame: bytes) -> bool:
        if kind_of(frame) == "TINY":
            late_frames.append(frame)
        return kind_of(frame) == "TINY" or (kind_of(frame) == "CONNECT" and frame[:6] == pair.wires.addresses[0])

    pair.is_lost = hold_frame
    pair.ends[0].iconnect(pair.partners[0])
    pair.deliver_frames()
    pair.ends[1].isend([b"old"], pair.partners[1], 5)
    pair.deliver_frames()
    pair.ends[1].disconnect(pair.partners[1])
    pair.is_lost = lambda _: False
    pair.run(pair.ends[1].connect(0))
    buffers = [bytearray(3), bytearray(3)]
    receives = [pair.ends[0].irecv(buffer, 5) for buffer in buffers]
    for frame in late_frames:
        pair.wires.deliver(frame)
    sends = [pair.ends[1].isend([data], pair.partners[1], 5) for data in (b"new", b"end")]
    pair.finish(*sends, *receives)
    return bytes(buffers[0]), bytes(buffers[1])


@pytest.mark.requires("interpreted")
def test_a_session_number_with_messages_in_flight_is_not_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reconnect_with_a_late_message() == (b"new", b"end")
    USED.apply(monkeypatch)
    with pytest.raises(AssertionError):
        assert reconnect_with_a_late_message() == (b"new", b"end")


# Receive ring.


def test_frames_dropped_by_a_full_receive_ring_are_resent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library handles no completions for a while, as if its program computed."""
    pair = EndpointPair(Settings(entries=32))
    receives = [pair.receive(2) for _ in range(100)]
    nic, held_completions = pair.wires.nics[1], list[int]()
    monkeypatch.setattr(nic, "post_completion", held_completions.append)
    sends = [pair.send(index.to_bytes(2, "big")) for index in range(100)]
    pair.deliver_frames()
    assert (len(held_completions), pair.counter(1, "unexp_eventq_full")) == (32, 68)
    monkeypatch.undo()
    for index in held_completions:
        nic.post_completion(index)
    results = pair.finish(*sends, *[request for _, request in receives])
    assert {result.status for result in results} == {Status.SUCCESS}
    assert [int.from_bytes(buffer, "big") for buffer, _ in receives] == list(range(100))


def test_pull_replies_carry_the_magic_number_for_the_hash() -> None:
    pair = EndpointPair(connected=False)
    remote = pair.library(1).open_endpoint(5)
    magics: set[int] = set()

    def record_frame(frame: bytes) -> bool:
        if kind_of(frame) == "PULL_REPLY":
            *_, magic, _ = codec.unpack_pull_reply(frame)
            magics.add(magic)
        return False

    pair.is_lost = record_frame
    request: Request = remote.irecv(bytearray(40_000))
    results: list[Result] = pair.finish(pair.ends[0].isend([bytes(40_000)], pair.ends[0].partner(1, 5), 0), request)
    assert results[1].status is Status.SUCCESS
    assert magics == {5 ^ PULL_MAGIC}


def test_late_copies_of_an_earlier_incarnations_requests_cause_no_duplicate_message() -> None:
    """Sequence numbers name four sessions: after four connections a late copy could be taken for a new message."""
    pair = EndpointPair(connected=False)
    requests: list[bytes] = []
    messages: list[bytes] = []

    def record_frame(frame: bytes) -> bool:
        if kind_of(frame) == "CONNECT" and frame[:6] == pair.wires.addresses[1]:
            requests.append(frame)
        elif kind_of(frame) == "TINY":
            messages.append(frame)
        return False

    pair.is_lost = record_frame
    pair.run(pair.ends[0].connect(1))
    pair.ends[0].close()
    pair.ends[0] = pair.library(0).open_endpoint()
    pair.partners[0] = pair.ends[0].partner(1)
    pair.run(pair.ends[0].connect(1))
    _, first = pair.receive(4)
    _, second = pair.receive(4)
    pair.finish(pair.send(b"once"), first)
    pair.is_lost = lambda _: True
    assert len(requests) == 2
    for frame in [*requests * 2, *messages]:
        pair.wires.deliver(frame)
    assert not second.done
