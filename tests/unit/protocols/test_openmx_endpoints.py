"""MX's calls on two endpoints: connections, matching, messages of every size class, completion, closing."""

from __future__ import annotations

import inspect
import re
from typing import cast

import pytest

from protocols.core.memory import HostMemory
from protocols.openmx import endpoint, host, mx_requests, partners, receive_queues
from protocols.openmx.mx_names import MATCH_NONE, MAX_SEGMENTS, MxError, Status
from protocols.openmx.mx_requests import Result
from protocols.openmx.partners import Partner
from protocols.openmx.settings import Settings
from tests.unit.protocols.host_programs import Program
from tests.unit.protocols.openmx_pair import RESEND, EndpointPair, kind_of, partner_of, pattern

MILLISECOND = 1_000_000
SIZES = [0, 1, 32, 33, 128, 129, 1454, 1455, 4096, 32_768, 32_769, 1 << 20]
"""Bytes at the limits of tiny, small, medium (of one fragment and more) and pulled messages."""
CALLS = [
    "init", "open_endpoint", "close_endpoint", "connect", "iconnect", "disconnect", "isend", "issend", "irecv", "test",
    "wait", "test_any", "wait_any", "ipeek", "peek", "iprobe", "probe", "cancel", "ibuffered", "wakeup", "forget",
    "register_unexp_handler", "set_error_handler", "set_endpoint_addr_context",
]  # fmt: skip


def status_of(pair: EndpointPair, program: Program[object]) -> Status:
    """Run a call that fails; return its status."""
    with pytest.raises(MxError) as caught:
        pair.run(program)
    return caught.value.status


@pytest.mark.requires("interpreted")
@pytest.mark.parametrize("call", CALLS)
def test_every_call_of_mx_is_named_in_the_library(call: str) -> None:
    sources = "".join(map(inspect.getsource, (endpoint, host, partners, receive_queues, mx_requests)))
    assert re.search(rf"\bmx_{call}\b", sources)


def test_status_codes_have_mxs_numbers() -> None:
    names = (
        "SUCCESS PENDING BUFFERED REJECTED TIMEOUT TRUNCATED CANCELLED ENDPOINT_UNKNOWN ENDPOINT_CLOSED"
        " ENDPOINT_UNREACHABLE BAD_SESSION BAD_KEY BAD_ENDPOINT BAD_RDMAWIN ABORTED EVENTQ_FULL NO_RESOURCES"
    )
    assert [status.name for status in sorted(Status)] == names.split()
    assert sorted(Status) == list(range(17))


# Connections.


def test_a_connection_needs_the_endpoints_key() -> None:
    pair = EndpointPair(connected=False)
    endpoint = pair.library(1).open_endpoint(1, key=0xC0FFEE)
    assert status_of(pair, pair.ends[0].connect(1, 1, key=0xC0FFED)) is Status.BAD_KEY
    assert pair.counter(0, "connections_refused") == 1
    assert pair.run(pair.ends[0].connect(1, 1, key=0xC0FFEE)) == [pair.ends[0].partner(1, 1)]
    assert endpoint.partner(0, 0).session == pair.ends[0].session


def test_both_ends_may_connect_at_once() -> None:
    pair = EndpointPair(connected=False)
    pair.run(pair.ends[0].connect(1), pair.ends[1].connect(0))
    assert [pair.counter(number, "connections") for number in (0, 1)] == [1, 1]
    assert not pair.counter(0, "connections_lost") + pair.counter(1, "connections_lost")
    for source in (0, 1):
        buffer = bytearray(3)
        request = pair.ends[1 - source].irecv(buffer, 1)
        send = pair.ends[source].isend([b"abc"], pair.partners[source], 1)
        pair.finish(request, send)
        assert buffer == b"abc"


def test_the_first_message_connects() -> None:
    pair = EndpointPair(connected=False)
    buffer, request = pair.receive(2)
    pair.finish(pair.send(b"hi"), request)
    assert buffer == b"hi"
    assert pair.counter(0, "connections") == 1


def test_a_request_for_an_endpoint_that_is_not_open_yet_waits_for_it() -> None:
    pair = EndpointPair(connected=False)
    connecting = pair.ends[0].iconnect(pair.ends[0].partner(1, 3))
    pair.deliver_frames()
    assert not connecting.done
    assert pair.counter(1, "early_connects") == 1
    pair.library(1).open_endpoint(3)
    pair.deliver_frames()
    assert connecting.result() is Status.SUCCESS


def test_a_closed_endpoint_refuses_connections() -> None:
    pair = EndpointPair(connected=False)
    pair.ends[1].close()
    assert status_of(pair, pair.ends[0].connect(1)) is Status.ENDPOINT_CLOSED
    assert pair.counter(1, "drop_bad_endpoint") == 1


def test_a_node_that_never_answers_is_unreachable_after_the_resends() -> None:
    pair = EndpointPair(Settings(resends=3), connected=False)
    pair.is_lost = lambda _: True
    assert status_of(pair, pair.ends[0].connect(1)) is Status.ENDPOINT_UNREACHABLE
    assert pair.sent == ["CONNECT"] * 4


def test_addresses_and_endpoint_indexes_out_of_range_are_rejected() -> None:
    pair = EndpointPair(connected=False)
    for node, index in ((2, 0), (-1, 0), (1, 256), (1, -1)):
        with pytest.raises(MxError, match="no endpoint"):
            pair.ends[0].partner(node, index)
    for index in (0, 255):
        with pytest.raises(MxError) as caught:
            pair.library(0).open_endpoint(index)
        assert caught.value.status is Status.NO_RESOURCES


def test_a_disconnect_fails_transfers_in_progress_and_a_new_connection_starts_afresh() -> None:
    pair = EndpointPair(Settings(zombies=0))
    pair.is_lost = lambda _: True
    lost_send = pair.send(b"lost")
    pair.deliver_frames()
    pair.ends[0].disconnect(pair.partners[0])
    assert lost_send.result().status is Status.ENDPOINT_CLOSED
    pair.is_lost = lambda _: False
    pair.run(pair.ends[0].connect(1))
    buffer, request = pair.receive(5)
    pair.finish(pair.send(b"again"), request)
    assert buffer == b"again"
    assert pair.counter(1, "connections_lost") == 1


def test_every_new_connection_carries_messages_also_when_its_session_number_recurs() -> None:
    pair = EndpointPair()
    for count in range(9):
        buffer, request = pair.receive(1)
        pair.finish(pair.send(bytes([count])), request)
        assert buffer == bytes([count])
        pair.ends[0].disconnect(pair.partners[0])
        pair.run(pair.ends[0].connect(1))


def test_after_a_restart_messages_of_the_former_session_are_refused_and_the_next_connection_works() -> None:
    pair = EndpointPair()
    buffer, request = pair.receive(3)
    pair.finish(pair.send(b"one"), request)
    pair.restart(1)
    late_send = pair.send(b"two")
    statuses: list[Status] = []
    late_send.on_arrival = statuses.append
    pair.elapse(RESEND)
    assert statuses == [Status.BAD_SESSION]
    assert pair.counter(1, "drop_bad_session") >= 1
    pair.run(pair.ends[0].connect(1))
    buffer, request = pair.receive(5)
    pair.finish(pair.send(b"three"), request)
    assert buffer == b"three"


def test_the_restarted_node_may_connect_to_one_that_knows_its_former_session() -> None:
    pair = EndpointPair()
    pair.restart(0)
    pair.partners[0] = partner_of(pair, 0)
    pair.run(pair.ends[0].connect(1))
    buffer, request = pair.receive(4)
    pair.finish(pair.send(b"back"), request)
    assert buffer == b"back"
    assert pair.counter(1, "connections_lost") == 1


# Matching.


def test_a_receive_takes_the_oldest_message_that_its_mask_matches() -> None:
    pair = EndpointPair()
    for match in (0x10, 0x21, 0x11):
        pair.send(bytes([match]), match)
    pair.deliver_frames()
    buffer = bytearray(1)
    request = pair.ends[1].irecv(buffer, 0x01, 0x0F)
    result = pair.finish(request)[0]
    assert (buffer, result.match_info, result.source) == (b"\x21", 0x21, pair.partners[1])
    assert pair.finish(pair.ends[1].irecv(buffer, 0, 0))[0].match_info == 0x10
    assert pair.counter(1, "unexpected") == 3


def test_a_message_takes_the_oldest_receive_that_matches() -> None:
    pair = EndpointPair()
    narrow_buffer, wide_buffer = bytearray(1), bytearray(1)
    first = pair.ends[1].irecv(narrow_buffer, 7)
    second = pair.ends[1].irecv(wide_buffer, 0, 0)
    pair.send(b"a", 8)
    pair.send(b"b", 7)
    assert [result.match_info for result in pair.finish(first, second)] == [7, 8]
    assert (narrow_buffer, wide_buffer) == (b"b", b"a")


def test_match_bits_outside_of_the_mask_or_beyond_64_bits_are_rejected() -> None:
    pair = EndpointPair()
    for match, mask in ((2, 1), (1 << 64, (1 << 64) - 1), (0, 1 << 64), (-1, 0)):
        with pytest.raises(MxError):
            pair.ends[1].irecv(bytearray(1), match, mask)
    with pytest.raises(MxError, match="64 bits"):
        pair.send(b"", 1 << 64)
    with pytest.raises(MxError, match="read-only"):
        pair.ends[1].irecv(b"constant")


def test_contexts_have_their_own_queues_and_each_receive_names_one() -> None:
    pair = EndpointPair(context_bits=8, context_shift=56)
    for context in (1, 2):
        pair.send(bytes([context]), context << 56 | 9)
    pair.deliver_frames()
    buffer = bytearray(1)
    pair.finish(pair.ends[1].irecv(buffer, 2 << 56, 0xFF << 56))
    assert buffer == b"\x02"
    with pytest.raises(MxError, match="context"):
        pair.ends[1].irecv(buffer, 0, 0)
    for bits, shift in ((17, 0), (8, 57), (-1, 0)):
        with pytest.raises(MxError, match="context"):
            pair.library(0).open_endpoint(9, context_bits=bits, context_shift=shift)


# Messages.


@pytest.mark.parametrize("is_posted", [True, False], ids=["posted", "unexpected"])
@pytest.mark.parametrize("size", SIZES)
def test_messages_of_every_size_are_sent_from_two_segments_and_received_unchanged(size: int, is_posted: bool) -> None:
    pair, data = EndpointPair(), pattern(size)
    first_length = size // 3
    for synchronous in (False, True):
        end = pair.ends[0]
        send = end.issend if synchronous else end.isend
        if not is_posted:
            send_request = send([data[:first_length], memoryview(data)[first_length:]], pair.partners[0], 5)
            pair.deliver_frames()
            assert send_request.done == (not synchronous and size <= 32_768)
        buffer, request = pair.receive(size + 3)
        if is_posted:
            send_request = send([data[:first_length], memoryview(data)[first_length:]], pair.partners[0], 5)
        results = pair.finish(send_request, request)
        assert bytes(buffer) == data + bytes(3)
        assert fields_of(results[1]) == (Status.SUCCESS, pair.partners[1], 5, size, size)
        assert fields_of(results[0]) == (Status.SUCCESS, pair.partners[0], 5, size, size)
    pair.elapse(RESEND)
    assert pair.wires.pending_work() == []
    assert pinned_count(pair) == 2  # the receive rings


def fields_of(result: Result) -> tuple[Status, Partner | None, int, int, int]:
    """Return a result's status, source, match information, length and transferred bytes."""
    return result.status, result.source, result.match_info, result.length, result.transferred


def pinned_count(pair: EndpointPair) -> int:
    return sum(len(cast(HostMemory, pair.library(number).memory)) for number in (0, 1))


@pytest.mark.parametrize("capacity", [0, 1, 40])
@pytest.mark.parametrize("is_posted", [True, False], ids=["posted", "unexpected"])
@pytest.mark.parametrize("size", [32, 128, 4096, 32_768, 32_769, 100_000])
def test_a_message_beyond_its_buffer_is_truncated(size: int, is_posted: bool, capacity: int) -> None:
    pair, data = EndpointPair(), pattern(size)
    guarded_buffer = bytearray(b"\xee" * (min(capacity, size - 1) + 8))
    buffer = memoryview(guarded_buffer)[:-8]
    if not is_posted:
        pair.send(data)
        pair.deliver_frames()
    request = pair.ends[1].irecv(buffer, 5)
    if is_posted:
        pair.send(data)
    result = pair.finish(request)[0]
    assert fields_of(result) == (Status.TRUNCATED, pair.partners[1], 5, size, len(buffer))
    pair.elapse(RESEND)
    assert bytes(guarded_buffer) == data[: len(buffer)] + b"\xee" * 8
    assert pair.wires.pending_work() == []


@pytest.mark.parametrize("is_posted", [True, False], ids=["posted", "unexpected"])
@pytest.mark.parametrize("capacity", [5_000, 40_000])
@pytest.mark.parametrize("size", [0, 1, 32, 128, 4096, 32_768, 40_000])
def test_a_message_is_received_in_segments(size: int, capacity: int, is_posted: bool) -> None:
    pair, data = EndpointPair(), pattern(size)
    segments: list[bytes | bytearray | memoryview] = [
        bytearray(b"\xee" * length) for length in (7, 0, 1_000, capacity - 1_007)
    ]
    if not is_posted:
        pair.send(data)
        pair.deliver_frames()
    request = pair.ends[1].irecv(segments, 5)
    if is_posted:
        pair.send(data)
    transferred = min(size, capacity)
    status = Status.TRUNCATED if size > capacity else Status.SUCCESS
    (result,) = pair.finish(request)
    assert fields_of(result) == (status, pair.partners[1], 5, size, transferred)
    assert b"".join(segments) == data[:transferred] + b"\xee" * (capacity - transferred)
    pair.elapse(RESEND)
    assert pair.wires.pending_work() == []
    assert pinned_count(pair) == 2  # the receive rings


def test_a_cancelled_receive_of_segments_changes_none_of_them() -> None:
    pair, segments = EndpointPair(), [bytearray(b"kept"), bytearray(b"too")]
    request = pair.ends[1].irecv([*segments], 5)
    assert pair.ends[1].cancel(request)
    assert pair.finish(request)[0].status is Status.CANCELLED
    assert segments == [b"kept", b"too"]


def test_a_synchronous_send_is_done_only_when_its_message_has_been_received() -> None:
    pair = EndpointPair()
    send_request = pair.send(b"held", synchronous=True)
    pair.elapse(10 * RESEND)
    assert not send_request.done
    buffer, request = pair.receive(4)
    pair.finish(request, send_request)
    assert buffer == b"held"


def test_too_many_segments_are_rejected() -> None:
    pair = EndpointPair()
    buffer, request = pair.receive(MAX_SEGMENTS)
    pair.finish(pair.ends[0].isend([b"s"] * MAX_SEGMENTS, pair.partners[0], 5), request)
    assert buffer == b"s" * MAX_SEGMENTS
    with pytest.raises(MxError, match="256 segments, got 257"):
        pair.ends[0].isend([b"s"] * (MAX_SEGMENTS + 1), pair.partners[0], 5)
    with pytest.raises(MxError, match="256 segments, got 257"):
        pair.ends[1].irecv([bytearray(1)] * (MAX_SEGMENTS + 1))


@pytest.mark.parametrize("size", [4, 40_000])
@pytest.mark.parametrize("synchronous", [False, True])
def test_an_endpoint_sends_to_itself(size: int, synchronous: bool) -> None:
    pair, data = EndpointPair(connected=False), pattern(size)
    end = pair.ends[0]
    own_partner = end.partner(0)
    assert end.iconnect(own_partner).result() is Status.SUCCESS
    send_request = (end.issend if synchronous else end.isend)([data], own_partner, 1)
    assert send_request.done != synchronous
    buffer = bytearray(size)
    assert end.irecv(buffer, 1).result().status is Status.SUCCESS
    assert bytes(buffer) == data
    assert send_request.result().status is Status.SUCCESS
    assert pair.sent == []


def test_two_endpoints_of_a_node_communicate() -> None:
    pair, data = EndpointPair(connected=False), pattern(50_000)
    second = pair.library(0).open_endpoint(1)
    buffer = bytearray(50_000)
    request = second.irecv(buffer, 1)
    pair.finish(request, pair.ends[0].isend([data], pair.ends[0].partner(0, 1), 1))
    assert bytes(buffer) == data


def test_large_sends_beyond_the_number_of_regions_wait_for_one() -> None:
    pair, count, size = EndpointPair(), 300, 33_000
    sends = [pair.send(pattern(size), match) for match in range(count)]
    pair.deliver_frames()
    assert pair.counter(0, "send_rndv") == 256
    receives = [pair.receive(size, match) for match in reversed(range(count))]
    results = pair.finish(*sends, *[request for _, request in receives])
    assert {result.status for result in results} == {Status.SUCCESS}
    assert {bytes(buffer) for buffer, _ in receives} == {pattern(size)}


def test_pulls_beyond_the_limit_wait() -> None:
    pair, count, size = EndpointPair(), 70, 33_000
    pair.is_lost = lambda frame: kind_of(frame) == "PULL_REPLY"
    receives = [pair.receive(size, match) for match in range(count)]
    sends = [pair.send(pattern(size), match) for match in range(count)]
    pair.deliver_frames()
    assert pair.counter(1, "send_pull_req") == Settings().pulls
    pair.is_lost = lambda _: False
    results = pair.finish(*sends, *[request for _, request in receives])
    assert {result.status for result in results} == {Status.SUCCESS}
    assert {bytes(buffer) for buffer, _ in receives} == {pattern(size)}


def test_receives_that_wait_for_a_pull_fail_when_the_connection_ends() -> None:
    pair, count, size = EndpointPair(), 70, 33_000
    pair.is_lost = lambda frame: kind_of(frame) == "PULL_REPLY"
    receives = [pair.receive(size, match)[1] for match in range(count)]
    sends = [pair.send(pattern(size), match) for match in range(count)]
    pair.deliver_frames()
    pair.ends[1].disconnect(pair.partners[1])
    assert {request.result().status for request in receives} == {Status.ENDPOINT_CLOSED}
    pair.ends[0].disconnect(pair.partners[0])
    assert {request.result().status for request in sends} == {Status.ENDPOINT_CLOSED}
    assert pinned_count(pair) == 2


def test_a_rendezvous_of_a_lost_connection_matches_no_later_receive() -> None:
    pair = EndpointPair()
    pair.send(pattern(40_000))
    pair.deliver_frames()
    pair.ends[0].disconnect(pair.partners[0])
    pair.run(pair.ends[0].connect(1))
    buffer, request = pair.receive(40_000)
    pair.finish(pair.send(b"new"), request)
    assert bytes(buffer[:3]) == b"new"
    assert request.result().length == 3


@pytest.mark.parametrize("size", [20_000, 40_000])
def test_the_receive_of_a_claimed_message_fails_when_its_connection_has_ended(size: int) -> None:
    pair = EndpointPair()
    pair.is_lost = lambda frame: kind_of(frame) == "MEDIUM" and frame[42] == 1  # its second fragment
    pair.send(pattern(size))
    pair.deliver_frames()
    probe_result = pair.ends[1].iprobe()
    assert probe_result is not None
    pair.ends[1].claim(probe_result)
    assert pair.ends[1].iprobe() is None
    pair.ends[1].disconnect(pair.partners[1])
    request = pair.ends[1].receive_claimed(probe_result, bytearray(size))
    assert request.result().status is Status.ENDPOINT_CLOSED


# Completion.


def test_a_receive_may_be_cancelled_until_a_message_matches_it() -> None:
    pair = EndpointPair()
    _, request = pair.receive(4)
    assert pair.ends[1].cancel(request)
    assert request.result().status is Status.CANCELLED
    buffer, second = pair.receive(4)
    send_request = pair.send(b"data")
    pair.finish(second)
    assert buffer == b"data"
    assert not pair.ends[1].cancel(second)
    assert not pair.ends[0].cancel(send_request)


def test_a_pull_in_progress_cannot_be_cancelled() -> None:
    pair = EndpointPair()
    pair.is_lost = lambda frame: kind_of(frame) == "PULL_REPLY"
    _, request = pair.receive(40_000)
    pair.send(pattern(40_000))
    pair.deliver_frames()
    assert not pair.ends[1].cancel(request)


def test_test_returns_none_until_the_request_is_done() -> None:
    pair = EndpointPair()
    end, (_, request) = pair.ends[1], pair.receive(4)
    assert pair.run(end.test(request)) == [None]
    pair.send(b"data")
    pair.deliver_frames()
    [result] = pair.run(end.test(request))
    assert result is not None
    assert result.status is Status.SUCCESS
    assert end.ipeek() is None


def test_wait_with_a_time_out_returns_none_when_it_has_passed_and_not_before() -> None:
    pair = EndpointPair()
    _, request = pair.receive(4)
    assert pair.run(pair.ends[1].wait(request, 100 * MILLISECOND)) == [None]
    assert 100 * MILLISECOND <= pair.wires.now <= 100 * MILLISECOND + 3 * Settings().tick
    assert not request.done
    pair.send(b"data")
    [result] = pair.run(pair.ends[1].wait(request, 100 * MILLISECOND))
    assert result is not None


def test_the_completion_of_another_request_does_not_end_a_wait() -> None:
    pair = EndpointPair()
    (_, first), (_, second) = pair.receive(4, 1), pair.receive(4, 2)

    async def waits() -> tuple[Result | None, bool]:
        result = await pair.ends[1].wait(first, 1000 * MILLISECOND)
        return result, second.done

    async def sends() -> tuple[None, bool]:
        await pair.ends[0].wait(pair.send(b"2", 2))
        await pair.ends[0].wait(pair.ends[0].irecv(bytearray(1), 99), 200 * MILLISECOND)
        pair.send(b"1", 1)
        return None, second.done

    (result, was_done), _ = pair.run(waits(), sends())
    assert was_done
    assert result is not None
    assert result.match_info == 1


def test_wait_any_waits_for_a_matching_request_though_others_complete() -> None:
    pair = EndpointPair()
    pair.receive(4, 1)
    pair.receive(4, 2)

    async def sends() -> None:
        pair.send(b"1", 1)
        await pair.ends[0].wait(pair.ends[0].irecv(bytearray(1), 99), 200 * MILLISECOND)
        pair.send(b"2", 2)

    request, _ = pair.run(pair.ends[1].wait_any(2, 3, 1000 * MILLISECOND), sends())
    assert request is not None
    assert request.match_info == 2
    assert pair.run(pair.ends[1].test_any(2, 3)) == [None]
    [other_request] = pair.run(pair.ends[1].test_any(1, 3))
    assert other_request is not None
    assert pair.run(pair.ends[1].wait_any(0, 0, 50 * MILLISECOND)) == [None]


def test_peek_returns_requests_in_the_order_of_their_completion_without_forgotten_ones() -> None:
    pair = EndpointPair()
    forgotten = pair.ends[1].irecv(bytearray(1), 3, forget=True)
    (_, first), (_, second) = pair.receive(1, 1), pair.receive(1, 2)
    for match in (3, 2, 1):
        pair.send(b"x", match)
    pair.deliver_frames()
    assert forgotten.done
    assert pair.run(pair.ends[1].peek()) == [second]
    pair.run(pair.ends[1].wait(second))
    assert pair.ends[1].ipeek() is first
    pair.run(pair.ends[1].wait(first))
    assert pair.run(pair.ends[1].peek(50 * MILLISECOND)) == [None]


def test_wakeup_ends_present_waits_and_no_later_one() -> None:
    pair = EndpointPair()
    end = pair.ends[1]

    async def wakes() -> None:
        end.wakeup()

    async def probes() -> object:
        return await end.probe(1, 1)

    assert pair.run(end.peek(), end.wait_any(), probes(), wakes()) == [None] * 4
    _, request = pair.receive(1)
    pair.send(b"x")
    [result] = pair.run(end.wait_any())
    assert result is not None
    assert request.done


def test_probe_sees_a_message_and_leaves_it() -> None:
    pair = EndpointPair()
    end = pair.ends[1]
    assert end.iprobe() is None

    async def probes() -> int:
        probe_result = await end.probe(4, 6)
        assert probe_result is not None
        return probe_result.length

    async def sends() -> int:
        return len(pair.send(pattern(40_000)).buffer)

    assert pair.run(probes(), sends()) == [40_000] * 2
    probe_result = end.iprobe(5, MATCH_NONE)
    assert probe_result is not None
    assert end.iprobe(4, MATCH_NONE) is None
    assert (probe_result.match_info, probe_result.length, probe_result.source) == (5, 40_000, pair.partners[1])
    buffer, request = pair.receive(40_000)
    pair.finish(request)
    assert bytes(buffer) == pattern(40_000)
    assert end.iprobe() is None
    for program in (end.wait_any(5, 2), end.test_any(5, 2)):
        assert status_of(pair, program) is Status.NO_RESOURCES
    for call in (end.probe, end.iprobe):
        with pytest.raises(MxError, match="outside of its mask"):
            call(5, 2)


@pytest.mark.parametrize("size", [3, 100, 5000, 40_000])
def test_the_unexpected_handler_sees_messages_without_a_receive_and_may_take_them(size: int) -> None:
    pair = EndpointPair()
    offered: list[tuple[object, int, int]] = []

    def handler(source: object, match: int, length: int) -> bool:
        offered.append((source, match, length))
        return match == 1

    pair.ends[1].on_unexpected = handler
    taken_send, declined_send = pair.send(pattern(size), 1), pair.send(pattern(size), 2)
    pair.deliver_frames()
    assert offered == [(pair.partners[1], 1, size), (pair.partners[1], 2, size)]
    assert pair.ends[1].iprobe(1, MATCH_NONE) is None
    assert pair.ends[1].iprobe(2, MATCH_NONE) is not None
    buffer, request = pair.receive(size, 2)
    pair.finish(taken_send, declined_send, request)
    assert bytes(buffer) == pattern(size)
    assert len(offered) == 2


def test_the_unexpected_handler_may_disconnect() -> None:
    pair = EndpointPair()

    def handler(_source: object, _match: int, _length: int) -> bool:
        pair.ends[1].disconnect(pair.partners[1])
        return False

    pair.ends[1].on_unexpected = handler
    pair.send(pattern(5000))
    pair.deliver_frames()
    pair.ends[1].on_unexpected = None
    pair.ends[0].disconnect(pair.partners[0])
    pair.run(pair.ends[0].connect(1))
    requests = []
    for size in range(5000, 5009):
        requests.append(pair.receive(size)[1])
        pair.send(pattern(size))
    pair.finish(*requests)
    pair.elapse(RESEND)
    assert pair.counter(0, "resent") == 0


def test_ibuffered_returns_whether_the_buffer_is_free() -> None:
    pair = EndpointPair(Settings(zombies=0))
    pair.is_lost = lambda _: True
    small_send, large_send = pair.send(b"abc"), pair.send(pattern(40_000))
    pair.deliver_frames()
    assert not small_send.done
    assert pair.ends[0].ibuffered(small_send)
    assert not pair.ends[0].ibuffered(large_send)


def test_ibuffered_is_false_while_the_receiver_pulls_from_the_buffer_of_a_short_synchronous_send() -> None:
    pair = EndpointPair()
    sender, receiver = pair.ends
    send = sender.issend([bytearray(b"x")], sender.partner(1), 5)
    pair.deliver_frames()
    assert pinned_count(pair) > 0
    assert not sender.ibuffered(send)
    receive = receiver.irecv(bytearray(1), 5)
    pair.finish(send, receive)
    assert sender.ibuffered(send)


def test_ibuffered_is_false_for_a_receive_in_progress() -> None:
    pair = EndpointPair()
    pair.is_lost = lambda frame: kind_of(frame) == "MEDIUM" and frame[42] == 1  # its second fragment
    _, request = pair.receive(10_000)
    pair.send(pattern(10_000))
    pair.deliver_frames()
    assert not pair.ends[1].ibuffered(request)


def test_the_error_handler_receives_failed_requests() -> None:
    pair = EndpointPair()
    statuses: list[Status] = []
    pair.ends[1].on_error = statuses.append
    _, request = pair.receive(2)
    pair.send(b"long")
    pair.finish(request)
    assert statuses == [Status.TRUNCATED]


def test_the_error_handler_receives_failed_sends_that_wait_for_a_region() -> None:
    pair = EndpointPair()
    statuses: list[Status] = []
    pair.ends[0].on_error = statuses.append
    requests = [pair.send(pattern(40_000)) for _ in range(300)]
    pair.ends[0].disconnect(pair.partners[0])
    assert statuses == [Status.ENDPOINT_CLOSED] * 300
    assert all(request.done for request in requests)


# Closing.


def test_close_fails_transfers_in_progress_and_releases_the_memory() -> None:
    pair = EndpointPair()
    pair.is_lost = lambda frame: kind_of(frame) == "PULL_REPLY"
    (_, pulling_receive), (_, posted_receive) = pair.receive(40_000, 1), pair.receive(5, 2)
    send_request, own_send = pair.send(pattern(40_000), 1), pair.ends[1].issend([b"own"], pair.ends[1].partner(1), 3)
    pair.deliver_frames()
    pair.ends[1].close()
    pair.ends[1].close()
    assert [request.result().status for request in (pulling_receive, posted_receive, own_send)] == [
        Status.ENDPOINT_CLOSED
    ] * 3
    with pytest.raises(MxError, match="closed"):
        pair.ends[1].irecv(bytearray(1))
    late_send = pair.send(b"late", 4)
    statuses: list[Status] = []
    late_send.on_arrival = statuses.append
    pair.elapse(RESEND)
    assert statuses == [Status.ENDPOINT_CLOSED]
    assert send_request.result().status is Status.ENDPOINT_CLOSED
    assert pinned_count(pair) == 1


def test_close_acknowledges_received_messages() -> None:
    """See omx__flush_partners_to_ack in the source."""
    pair = EndpointPair()
    statuses: list[Status] = []
    _, request = pair.receive(4)
    pair.send(b"data").on_arrival = statuses.append
    pair.finish(request)
    assert statuses == []
    pair.ends[1].close()
    pair.deliver_frames()
    assert statuses == [Status.SUCCESS]


def test_an_endpoint_that_is_opened_again_is_another_session() -> None:
    pair = EndpointPair()
    pair.ends[1].close()
    reopened = pair.library(1).open_endpoint()
    late_send = pair.send(b"late")
    statuses: list[Status] = []
    late_send.on_arrival = statuses.append
    pair.elapse(RESEND)
    assert statuses == [Status.BAD_SESSION]
    buffer = bytearray(4)
    request = reopened.irecv(buffer, 5)
    pair.finish(pair.send(b"data"), request)
    assert buffer == b"data"


def test_pending_work_is_reported() -> None:
    pair = EndpointPair()
    pair.is_lost = lambda _: True
    pair.receive(4, 1)
    pair.send(b"x")
    pair.send(pattern(40_000))
    sentences = "\n".join(pair.wires.pending_work())
    assert "a receive of 4 bytes, match 0x1" in sentences
    assert "until <endpoint 0 of node 1> has pulled it" in sentences
    assert "acknowledgements of 2 messages to endpoint 0 of node 1" in sentences


def test_close_also_fails_messages_that_wait_for_a_region() -> None:
    pair = EndpointPair()
    pair.is_lost = lambda _: True
    sends = [pair.send(pattern(33_000), match) for match in range(300)]
    pair.ends[0].close()
    assert {request.result().status for request in sends} == {Status.ENDPOINT_CLOSED}


def test_endpoints_of_one_nic_communicate_by_loopback() -> None:
    """Messages are acknowledged before their sends return."""
    pair = EndpointPair(Settings(acknowledge=1), connected=False)
    first, second = pair.ends[0], pair.library(0).open_endpoint(1)
    pair.run(first.connect(0, 1))
    requests = []
    for size in (4, 5_000, 40_000):
        buffer = bytearray(size)
        requests.append(second.irecv(buffer, 9))
        pair.finish(first.isend([pattern(size)], first.partner(0, 1), 9), requests[-1])
        assert bytes(buffer) == pattern(size)
    assert pair.sent == []
    assert first._zombie_count == 0
    assert pinned_count(pair) == 3  # the receive rings
