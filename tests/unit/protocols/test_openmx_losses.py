"""Open-MX's reliability: lost, repeated, late and early frames; acknowledgements; pulls; sequence numbers that wrap."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from protocols.openmx import codec
from protocols.openmx.endpoint_memory import ALARM, PULL_DONE
from protocols.openmx.mx_names import PULL_MAGIC, SEQNUM_MASK, Status
from protocols.openmx.mx_requests import Request, Result
from protocols.openmx.settings import Settings
from tests.unit.protocols.openmx_mutants import USED
from tests.unit.protocols.openmx_pair import RESEND, EveryNth, Two, kind_of, pattern

KINDS = ["CONNECT", "TINY", "SMALL", "MEDIUM", "RNDV", "PULL", "PULL_REPLY", "NOTIFY", "TRUC"]
TICK = Settings().tick


def exchanged(two: Two, sizes: list[int], *, posted: bool = True) -> None:
    """Send messages of these sizes one after the other, and check them."""
    received = [two.receive(size) for size in sizes] if posted else []
    sent = [two.send(pattern(size)) for size in sizes]
    if not posted:
        two.carry()
        received = [two.receive(size) for size in sizes]
    results = two.finish(*sent, *[request for _, request in received])
    assert {result.status for result in results} == {Status.SUCCESS}
    for size, (buffer, _) in zip(sizes, received, strict=True):
        assert bytes(buffer) == pattern(size)


@pytest.mark.parametrize("every", [1, 3, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_every_nth_frame_of_a_kind_is_lost_and_all_arrives(kind: str, every: int) -> None:
    """Open-MX's built-in fault injection. With 1, the first ten of the kind are lost. (With 2 it
    would be the same one of two that are sent again together, for ever.)"""
    two = Two(Settings(pull_timeout=TICK), connects=False)
    loses = EveryNth(kind, every)
    two.lose = (lambda frame: loses(frame) if loses.lost < 10 else False) if every == 1 else loses
    sizes = [1, 100, 20_000, 40_000, 0, 129, 150_000, 32, 33, 32_768, 50_000, 7] * 2
    exchanged(two, sizes)
    exchanged(two, sizes, posted=False)
    two.elapse(20 * RESEND)
    assert loses.lost or kind == "CONNECT"
    assert two.wires.waiting() == []


@pytest.mark.parametrize("every", [1, 3, 7])
def test_every_nth_refusal_of_a_message_is_lost_and_each_sender_learns_it(every: int) -> None:
    """With 1, the first ten are lost."""
    two = Two()
    loses = EveryNth("NACK_LIB", every)
    two.lose = lambda frame: loses.lost < 10 and loses(frame)
    for _ in range(8):
        two.restart(1)
        told: list[Status] = []
        two.send(b"late").on_arrival = told.append
        two.elapse(11 * RESEND)
        assert told == [Status.BAD_SESSION]
        _, request = two.receive(4)
        two.finish(two.send(b"data"), request)
    assert loses.lost >= 1


@pytest.mark.parametrize("every", [1, 3, 7])
def test_every_nth_refusal_of_a_pull_is_lost_and_each_receive_ends(every: int) -> None:
    """With 1, the first ten are lost."""
    two = Two(Settings(pull_timeout=TICK))
    loses = EveryNth("NACK_MCP", every)
    for _ in range(8):
        two.run(two.ends[0].connect(1))
        two.lose = lambda frame: kind_of(frame) == "PULL"
        _, request = two.receive(40_000)
        two.send(pattern(40_000))
        two.carry()
        two.ends[0].disconnect(two.to[0])
        two.lose = lambda frame: loses.lost < 10 and loses(frame)
        assert [result.status for result in two.finish(request)] == [Status.BAD_RDMAWIN]
    assert loses.lost >= 1


def test_lost_connection_requests_and_answers_are_sent_again() -> None:
    two = Two(connects=False)
    lost = iter([True, False, True, False, False])
    two.lose = lambda frame: kind_of(frame) == "CONNECT" and next(lost)
    two.run(two.ends[0].connect(1))
    assert two.sent[:5] == ["CONNECT"] * 5
    assert two.counted(0, "connect_requests_resent") == 2
    assert [two.counted(number, "connections") for number in (0, 1)] == [1, 1]


# Acknowledgements.


def test_an_acknowledgement_is_delayed_by_a_tick_and_sent_alone() -> None:
    two = Two()
    two.sent.clear()
    two.receive(1)
    two.send(b"x")
    two.carry()
    assert two.sent == ["TINY"]
    two.elapse(TICK)
    assert two.sent == ["TINY", "TRUC"]
    assert two.counted(0, "acknowledged") == 1


def test_four_messages_are_acknowledged_at_once() -> None:
    two = Two()
    two.sent.clear()
    for _ in range(9):
        two.send(b"x")
        two.carry()
    assert two.sent == (["TINY"] * 4 + ["TRUC"]) * 2 + ["TINY"]
    assert two.counted(0, "acknowledged") == 8


def test_a_message_of_the_other_direction_carries_the_acknowledgement() -> None:
    two = Two()
    two.sent.clear()
    two.send(b"x")
    two.carry()
    two.ends[1].isend([b"y"], two.to[1], 1)
    two.carry()
    assert two.counted(0, "acknowledged") == 1
    two.elapse(TICK)
    assert two.sent == ["TINY", "TINY", "TRUC"]
    assert two.counted(1, "acknowledged") == 1


def test_a_lost_acknowledgement_is_repeated_for_the_message_that_comes_again() -> None:
    two = Two()
    loses = EveryNth("TRUC", 1)
    two.lose = lambda frame: loses(frame) if loses.lost < 1 else False
    buffer, request = two.receive(1)
    two.send(b"x")
    two.finish(request)
    two.elapse(2 * RESEND)
    assert buffer == b"x"
    assert (two.counted(0, "resent"), two.counted(1, "duplicates")) == (1, 1)
    assert two.counted(0, "acknowledged") == 1


def test_a_late_acknowledgement_changes_nothing() -> None:
    two = Two()
    kept: list[bytes] = []

    def keeps(frame: bytes) -> bool:
        if kind_of(frame) == "TRUC":
            kept.append(frame)
        return False

    two.lose = keeps
    for _ in range(8):
        two.send(b"x")
        two.carry()
    two.wires.give(kept[0])
    assert two.counted(0, "old_session") == 1
    assert two.counted(0, "acknowledged") == 8


def test_sends_beyond_the_unacknowledged_limit_are_held_back() -> None:
    two = Two(Settings(unacked=5, acknowledge=128))
    two.lose = lambda frame: kind_of(frame) == "TRUC"
    two.sent.clear()
    for _ in range(8):
        two.send(b"x")
    two.carry()
    assert two.sent == ["TINY"] * 5
    assert two.counted(0, "throttled") == 3
    two.lose = lambda _: False
    two.elapse(TICK)
    assert two.sent == ["TINY"] * 5 + ["TRUC"] + ["TINY"] * 3


def test_a_message_without_an_acknowledgement_is_sent_twice_a_second_up_to_the_resends() -> None:
    two = Two(Settings(resends=6))
    ended: list[tuple[int, Status]] = []
    two.lose = lambda _: True
    two.sent.clear()
    two.send(b"x").on_arrival = lambda status: ended.append((two.wires.now, status))
    two.elapse(10_000_000_000)
    assert two.sent == ["TINY"] * 7
    [(when, status)] = ended
    assert status is Status.ENDPOINT_UNREACHABLE
    assert 3_500_000_000 <= when <= 3_500_000_000 + 20 * TICK
    assert two.wires.waiting() == []


def test_progress_resets_the_count_of_resends() -> None:
    two = Two(Settings(resends=3))
    loses = [True, True, True, False] * 5
    told: list[Status] = []
    two.lose = lambda frame: kind_of(frame) == "TINY" and loses.pop()
    loses.reverse()
    for _ in range(5):
        _, request = two.receive(1)
        two.send(b"x").on_arrival = told.append
        two.finish(request)
        two.elapse(2 * TICK)
    assert told == [Status.SUCCESS] * 5


# Zombies.


def test_a_send_is_done_before_its_acknowledgement_as_long_as_there_are_few() -> None:
    two = Two(Settings(zombies=3))
    two.lose = lambda _: True
    sent = [two.send(b"x") for _ in range(5)]
    assert [request.done for request in sent] == [True, True, True, False, False]
    two.lose = lambda _: False
    two.elapse(2 * RESEND)
    assert all(request.is_settled for request in sent)
    two.lose = lambda _: True
    assert [two.send(b"x").done for _ in range(4)] == [True, True, True, False]


def test_a_zombie_is_sent_again_with_the_bytes_that_it_had() -> None:
    two = Two()
    two.lose = lambda frame: kind_of(frame) in ("TINY", "MEDIUM")
    small, large = bytearray(b"small"), bytearray(pattern(5000))
    for data in (small, large):
        assert two.ends[0].isend([data], two.to[0], 5).done
        two.carry()
        data[:] = bytes(len(data))
    two.lose = lambda _: False
    (first, one), (second, other) = two.receive(5), two.receive(5000)
    two.finish(one, other)
    assert (first, second) == (b"small", pattern(5000))


# Order.


def shuffled(two: Two, seed: int, keep: Callable[[bytes], bool]) -> None:
    """Deliver all frames that are on the way in any order, those of `keep` twice."""
    chance = random.Random(seed)
    while any(nic.sent for nic in two.wires.nics):
        frames = [*two.wires.take(0), *two.wires.take(1)]
        frames += [frame for frame in frames if keep(frame)]
        chance.shuffle(frames)
        for frame in frames:
            two.wires.give(frame)


@pytest.mark.parametrize("seed", range(10))
def test_messages_that_overtake_each_other_or_come_twice_are_matched_in_order(seed: int) -> None:
    two = Two()
    sizes = [1, 100, 5000, 40_000, 0, 33, 20_000, 2, 3000] * 3
    sent = [two.send(pattern(size)) for size in sizes]
    received = [two.receive(size) for size in sizes]
    for _ in range(50):
        shuffled(two, seed, lambda _: seed % 2 == 1)
        two.wires.tick()
    assert [request.result().length for _, request in received] == sizes
    assert [bytes(buffer) for buffer, _ in received] == [pattern(size) for size in sizes]
    assert all(request.done for request in sent)
    assert two.counted(1, "early") > 0


def test_messages_too_far_ahead_are_dropped_and_come_again() -> None:
    two = Two()
    lost = iter([True])
    two.lose = lambda frame: kind_of(frame) == "TINY" and next(lost, False)
    received = [two.receive(2) for _ in range(400)]
    sent = [two.send(index.to_bytes(2, "big")) for index in range(400)]
    two.carry()
    assert two.counted(1, "too_early") == 399 - 255
    two.finish(*sent, *[request for _, request in received])
    assert [int.from_bytes(buffer, "big") for buffer, _ in received] == list(range(400))


@pytest.mark.parametrize("every", [0, 97])
def test_sequence_numbers_wrap(every: int) -> None:
    """More than 2^14 messages, in bursts, with frames lost before, at and behind the wrap."""
    two, count, at = Two(), SEQNUM_MASK + 500, 0
    seen = [0]

    def loses(_frame: bytes) -> bool:
        seen[0] += 1
        return bool(every) and abs(at - SEQNUM_MASK) < 300 and seen[0] % every == 0

    two.lose = loses
    while at < count:
        burst = range(at, min(count, at + (120 if abs(at - SEQNUM_MASK) < 400 else 2000)))
        received = [two.receive(4) for _ in burst]
        sent = [two.send(index.to_bytes(4, "big")) for index in burst]
        two.finish(*sent, *[request for _, request in received])
        assert [int.from_bytes(buffer, "big") for buffer, _ in received] == list(burst)
        at = burst.stop
    two.elapse(4 * RESEND)
    assert two.counted(0, "acknowledged") == count
    assert (two.counted(0, "resent") > 0) == bool(every)


# Pulls.


def test_a_pull_asks_for_four_blocks_of_32_replies_at_once_and_for_the_next_when_the_first_is_complete() -> None:
    two, room = Two(), 1500 - 38
    size = 6 * 32 * room + 5
    asked: list[tuple[int, int]] = []

    def notes(frame: bytes) -> bool:
        if kind_of(frame) == "PULL":
            *_, length, first, _ = codec.unpack_pull(frame)
            asked.append((first, length))
        return kind_of(frame) == "PULL_REPLY" and holds

    two.lose = notes
    holds = True
    buffer, request = two.receive(size)
    two.send(pattern(size))
    two.carry()
    assert asked == [(32 * block, 32 * room) for block in range(4)]
    holds = False
    two.finish(request)
    assert sorted(set(asked)) == [*((32 * block, 32 * room) for block in range(6)), (192, 5)]
    assert bytes(buffer) == pattern(size)


def test_a_later_block_that_is_complete_first_asks_for_the_rest_of_the_first_one_once() -> None:
    two, room = Two(), 1500 - 38
    size, lost, asked = 128 * room, [3, 5], []

    def loses(frame: bytes) -> bool:
        if kind_of(frame) == "PULL":
            *_, length, first, _ = codec.unpack_pull(frame)
            asked.append((first, length))
        if kind_of(frame) != "PULL_REPLY":
            return False
        index = codec.unpack_pull_reply(frame)[4] // room
        return index in lost and not (lost.remove(index) if index in lost else None)

    two.lose = loses
    buffer, request = two.receive(size)
    two.send(pattern(size))
    two.carry()
    assert request.done
    assert bytes(buffer) == pattern(size)
    assert asked[4:] == [(3, 3 * room)]
    assert two.counted(1, "pull_nonfirst_block_done_early") >= 1
    assert two.counted(1, "drop_pull_reply_duplicate") == 1
    assert two.counted(1, "pull_timeout_handler_first_block") == 0


def test_a_pull_without_progress_asks_again_after_a_second_and_gives_up_after_the_resends() -> None:
    two = Two(Settings(resends=3, resend=1 << 20))
    _, request = two.receive(40_000)
    two.lose = lambda frame: kind_of(frame) == "PULL_REPLY"
    two.send(pattern(40_000))
    two.carry()
    begun = two.wires.now
    [result] = two.finish(request)
    assert result.status is Status.ENDPOINT_UNREACHABLE
    assert two.wires.now - begun == 4_000_000_000
    assert two.counted(1, "pull_timeout_handler_first_block") == 3
    assert two.counted(1, "pull_timeout_abort") == 1


def test_a_pull_that_gives_up_ends_the_connection_and_its_sender_learns_it_once_frames_pass_again() -> None:
    two = Two(Settings(resends=3, pull_timeout=TICK))
    _, request = two.receive(40_000)
    two.lose = lambda frame: kind_of(frame) == "PULL_REPLY"
    sent = two.send(pattern(40_000))
    two.elapse(3 * TICK)
    two.lose = lambda _: True
    two.finish(request)
    assert not two.to[1].is_connected
    two.elapse(RESEND)
    assert not sent.done
    two.lose = lambda _: False
    two.elapse(RESEND)
    assert sent.result().status is Status.BAD_SESSION
    _, request = two.receive(4)
    assert [result.status for result in two.finish(two.send(b"data"), request)] == [Status.SUCCESS] * 2


def test_a_connection_that_is_asked_for_again_is_given_up_like_the_first() -> None:
    two = Two(Settings(resends=3, pull_timeout=TICK))
    _, request = two.receive(40_000)
    two.lose = lambda frame: kind_of(frame) in ("PULL_REPLY", "CONNECT")
    two.send(pattern(40_000))
    two.finish(request)
    assert two.to[1].waiting() == ["a connection to endpoint 0 of node 0"]
    two.elapse(5 * RESEND)
    assert two.to[1].waiting() == []


def test_late_replies_of_a_former_pull_of_the_same_number_are_dropped() -> None:
    two = Two()
    kept: list[bytes] = []

    def keeps(frame: bytes) -> bool:
        if kind_of(frame) == "PULL_REPLY":
            kept.append(frame)
        return False

    two.lose = keeps
    numbers = two.ends[1]._large._free_numbers  # all the same number, as if 64 pulls were under way
    del numbers[1:]
    buffer, request = two.receive(40_000)
    two.send(b"\xaa" * 40_000)
    two.finish(request)
    two.lose = lambda frame: kind_of(frame) == "PULL_REPLY"
    buffer, request = two.receive(40_000)
    sent = two.send(b"\xbb" * 40_000)
    two.carry()
    for frame in kept:
        two.wires.give(frame)
    assert not request.done
    assert two.counted(1, "drop_pull_reply_bad_wire_handle") == len(kept)
    two.lose = lambda _: False
    two.finish(sent, request)
    assert buffer == b"\xbb" * 40_000


def test_the_end_of_a_former_pull_of_the_same_number_ends_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection ends while the completion waits for the program to look."""
    two, held = Two(), list[int]()
    nic = two.wires.nics[1]
    post = nic.post_completion
    monkeypatch.setattr(
        nic, "post_completion", lambda index: (held.append if PULL_DONE <= index & ALARM < ALARM else post)(index)
    )
    _, first = two.receive(40_000)
    two.send(pattern(40_000))
    two.carry()
    [index] = held
    two.ends[1].disconnect(two.to[1])
    assert first.result().status is Status.ENDPOINT_CLOSED
    two.run(two.ends[1].connect(0))
    two.lose = lambda frame: kind_of(frame) == "PULL_REPLY"
    buffer, second = two.receive(40_000)
    sent = two.send(pattern(40_000))
    two.carry()
    post(index)
    assert not second.done
    monkeypatch.undo()
    two.lose = lambda _: False
    two.finish(sent, second)
    assert bytes(buffer) == pattern(40_000)


def test_a_pull_of_a_region_that_is_gone_is_refused() -> None:
    two = Two()
    two.lose = lambda frame: kind_of(frame) == "PULL"
    _, request = two.receive(40_000)
    two.send(pattern(40_000))
    two.carry()
    two.ends[0].disconnect(two.to[0])
    two.lose = lambda _: False
    [result] = two.finish(request)
    assert result.status is Status.BAD_RDMAWIN
    assert two.counted(0, "send_nack_mcp") == 1


def test_a_pull_from_a_closed_endpoint_is_refused() -> None:
    two = Two()
    two.lose = lambda frame: kind_of(frame) == "PULL"
    _, request = two.receive(40_000)
    two.send(pattern(40_000))
    two.carry()
    two.ends[0].close()
    two.lose = lambda _: False
    [result] = two.finish(request)
    assert result.status in (Status.BAD_ENDPOINT, Status.ENDPOINT_CLOSED)


def test_pull_replies_may_be_copied_by_the_copy_engine() -> None:
    two = Two(Settings(offload=1000))
    exchanged(two, [400_000, 40_000])


# Sessions.


def test_a_late_duplicate_of_an_old_session_is_dropped() -> None:
    two = Two()
    kept: list[bytes] = []
    two.lose = lambda frame: bool(kept.append(frame))  # type: ignore[func-returns-value]  # all arrive
    first, request = two.receive(3)
    two.send(b"old")
    two.finish(request)
    two.ends[0].disconnect(two.to[0])
    two.run(two.ends[0].connect(1))
    two.lose = lambda _: False
    second, request = two.receive(3)
    for frame in kept:
        two.wires.give(frame)
        two.carry()
    assert not request.done
    assert two.counted(1, "old_session") >= 1
    two.finish(two.send(b"new"), request)
    assert (first, second) == (b"old", b"new")


def test_a_late_request_of_an_old_connection_does_not_end_the_present_one() -> None:
    two = Two()
    requests: list[bytes] = []
    two.lose = lambda frame: kind_of(frame) == "CONNECT" and bool(requests.append(frame))  # type: ignore[func-returns-value]
    for _ in range(2):
        two.ends[0].disconnect(two.to[0])
        two.run(two.ends[0].connect(1))
    lost = two.counted(1, "connections_lost")
    for frame in requests:
        two.wires.give(frame)
        two.carry()
    assert two.counted(1, "connections_lost") == lost
    buffer, request = two.receive(4)
    two.finish(two.send(b"data"), request)
    assert buffer == b"data"


def test_four_connections_that_the_peer_never_heard_of_are_not_mistaken_for_the_first() -> None:
    two = Two(Settings(resends=1))
    buffer, request = two.receive(1)
    two.finish(two.ends[1].isend([b"y"], two.to[1], 1), two.ends[0].irecv(bytearray(1), 1))
    two.elapse(RESEND)
    two.lose = lambda frame: kind_of(frame) == "CONNECT"
    for _ in range(3):
        two.ends[0].disconnect(two.to[0])
        two.ends[0].iconnect(two.to[0])
        two.carry()
    two.ends[0].disconnect(two.to[0])
    two.lose = lambda _: False
    two.run(two.ends[0].connect(1))
    two.finish(two.send(b"x"), request)
    back = two.ends[0].irecv(bytearray(1), 2)
    [result] = two.finish(back) if two.ends[1].isend([b"z"], two.to[1], 2) else []
    assert result.status is Status.SUCCESS
    assert buffer == b"x"


def a_session_whose_messages_may_still_come() -> tuple[bytes, bytes]:
    """Connect while the first answer is lost; return what comes first after an older message has come late, and the next."""
    two = Two(connects=False)
    late: list[bytes] = []

    def holds(frame: bytes) -> bool:
        if kind_of(frame) == "TINY":
            late.append(frame)
        return kind_of(frame) == "TINY" or (kind_of(frame) == "CONNECT" and frame[:6] == two.wires.addresses[0])

    two.lose = holds
    two.ends[0].iconnect(two.to[0])
    two.carry()
    two.ends[1].isend([b"old"], two.to[1], 5)
    two.carry()
    two.ends[1].disconnect(two.to[1])
    two.lose = lambda _: False
    two.run(two.ends[1].connect(0))
    buffers = [bytearray(3), bytearray(3)]
    received = [two.ends[0].irecv(buffer, 5) for buffer in buffers]
    for frame in late:
        two.wires.give(frame)
    sent = [two.ends[1].isend([data], two.to[1], 5) for data in (b"new", b"end")]
    two.finish(*sent, *received)
    return bytes(buffers[0]), bytes(buffers[1])


@pytest.mark.requires("interpreted")
def test_a_session_whose_messages_may_still_come_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert a_session_whose_messages_may_still_come() == (b"new", b"end")
    USED.put_in(monkeypatch)
    with pytest.raises(AssertionError):
        assert a_session_whose_messages_may_still_come() == (b"new", b"end")


# Receive ring.


def test_a_full_receive_ring_drops_and_the_frames_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library handles no completion for a while, as a program that computes."""
    two = Two(Settings(entries=32))
    received = [two.receive(2) for _ in range(100)]
    nic, held = two.wires.nics[1], list[int]()
    monkeypatch.setattr(nic, "post_completion", held.append)
    sent = [two.send(index.to_bytes(2, "big")) for index in range(100)]
    two.carry()
    assert (len(held), two.counted(1, "unexp_eventq_full")) == (32, 68)
    monkeypatch.undo()
    for index in held:
        nic.post_completion(index)
    results = two.finish(*sent, *[request for _, request in received])
    assert {result.status for result in results} == {Status.SUCCESS}
    assert [int.from_bytes(buffer, "big") for buffer, _ in received] == list(range(100))


def test_replies_carry_the_magic_that_the_hash_needs() -> None:
    two = Two(connects=False)
    there = two.library(1).open_endpoint(5)
    magics: set[int] = set()

    def notes(frame: bytes) -> bool:
        if kind_of(frame) == "PULL_REPLY":
            magics.add(codec.unpack_pull_reply(frame)[6])
        return False

    two.lose = notes
    request: Request = there.irecv(bytearray(40_000))
    results: list[Result] = two.finish(two.ends[0].isend([bytes(40_000)], two.ends[0].partner(1, 5), 0), request)
    assert results[1].status is Status.SUCCESS
    assert magics == {5 ^ PULL_MAGIC}
