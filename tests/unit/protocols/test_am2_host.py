"""AM-II's host library with the test as its NIC: refused arguments, and the segment driver."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import cast

import pytest

from protocols.active_messages.am_errors import Returned, RuleError, Status
from protocols.active_messages.endpoint_names import ANY, EndpointName
from protocols.am2 import page as layout
from protocols.am2.host.endpoint import Endpoint, Events
from protocols.am2.host.library import ActiveMessages, ResourceError
from protocols.am2.host.outbox import Translation
from protocols.am2.host.segment_driver import Residence
from protocols.am2.host.token import MAY_REPLY, Token
from protocols.am2.nic_memory import NicMemory
from protocols.am2.settings import Settings
from protocols.core.firmware import Adapter
from protocols.core.split_memory import HostSlot

ADDRESSES = tuple(bytes((2, 0, 0, 0, 0, number)) for number in range(3))
REMOTE = EndpointName(1, 0)
SINGLE_HOST = HostSlot(0, 1, 1)


class Host:
    """A host's library. doorbells: those that it has rung, (endpoint, subject). reply_counts:
    replies delivered to each endpoint."""

    def __init__(self, settings: Settings | None = None, host_slot: HostSlot = SINGLE_HOST) -> None:
        library_settings = settings or Settings(medium=1024, packet=1024)
        self.doorbells: list[tuple[int, int]] = []
        self.memory = NicMemory(library_settings.frames)
        self.am = ActiveMessages(Adapter(0, ADDRESSES), self, self.memory, library_settings, host_slot)
        self.bundle = self.am.allocate_bundle()
        self.reply_counts: Counter[Endpoint] = Counter()

    def ring_doorbell(self, index: int, written: int, translated: int) -> None:
        assert written > 0
        assert translated >= 0
        self.doorbells.append((index >> layout.SUBJECT_BITS, index & layout.SUBJECT_MASK))

    def endpoint(self, *, resident: bool = True) -> Endpoint:
        endpoint = self.bundle.allocate_endpoint()
        if resident:
            self.am.driver.fault(endpoint)
            self.notify(endpoint, layout.LOADED)
        endpoint.map(0, REMOTE, 7)
        self.doorbells.clear()
        return endpoint

    def notify(self, endpoint: Endpoint, subject: int) -> None:
        """Post a completion, as the NIC does."""
        self.am.on_completion(endpoint.name.endpoint << layout.SUBJECT_BITS | subject)

    def state(self, endpoint: Endpoint) -> Residence:
        return self.am.driver.state(endpoint)


def start_waiting(host: Host, endpoint: Endpoint) -> Callable[[], bool]:
    """Start a task that waits for an event at an endpoint; return a function that tells whether the wait has ended."""
    ended: list[bool] = []

    async def wait_for_event() -> None:
        await endpoint.wait()
        ended.append(True)

    task = wait_for_event()

    def resume(*_: object) -> None:
        try:
            task.send(None).add_callback(resume)
        except StopIteration:
            return

    resume()
    assert host.am.pending_work() or ended
    return lambda: bool(ended)


# Endpoints and arguments.


def test_endpoints_are_numbered_in_the_order_of_their_allocation_and_the_last_one_is_refused() -> None:
    host = Host(Settings(endpoints=2))
    first, second = host.bundle.allocate_endpoint(), host.bundle.allocate_endpoint()
    assert (first.name, second.name) == (EndpointName(0, 0), EndpointName(0, 1))
    with pytest.raises(ResourceError, match="all 2 endpoints"):
        host.bundle.allocate_endpoint()
    first.free()
    assert host.am.endpoints == [second]
    assert host.bundle.allocate_endpoint().name.endpoint != 1


def test_an_endpoint_moves_to_another_bundle_and_is_freed_with_it() -> None:
    host = Host()
    endpoint, other_bundle = host.endpoint(), host.am.allocate_bundle(parallel=False)
    other_bundle.move(endpoint)
    assert (host.bundle.endpoints, other_bundle.endpoints) == ([], [endpoint])
    other_bundle.free()
    assert (host.am.endpoints, host.am.bundles) == ([], [host.bundle])
    assert host.doorbells == [(0, layout.DESTROY)]
    host.am.terminate()
    assert host.am.bundles == []


def test_the_translation_table_has_names_and_tags() -> None:
    endpoint = Host(Settings(translations=3)).endpoint()
    assert endpoint.translations == 3
    assert endpoint.translation(0) == Translation(REMOTE, 7)
    assert endpoint.map_any(EndpointName(2, 5), ANY) == 1
    assert endpoint.translation(1) == Translation(EndpointName(2, 5), ANY)
    assert endpoint.translation(2) is None
    endpoint.unmap(0)
    assert endpoint.map_any(REMOTE, 8) == 0
    endpoint.map(2, REMOTE, 9)
    with pytest.raises(LookupError, match="all 3 indexes"):
        endpoint.map_any(REMOTE, 9)


@pytest.mark.parametrize(
    ("index", "name", "tag"),
    [
        (0, REMOTE, 1), (256, REMOTE, 1), (-1, REMOTE, 1), (1, EndpointName(3, 0), 1), (1, EndpointName(1, 1 << 16), 1),
        (1, REMOTE, -1), (1, REMOTE, ANY + 1),
    ],
)  # fmt: skip
def test_an_invalid_translation_is_refused(index: int, name: EndpointName, tag: int) -> None:
    endpoint = Host().endpoint()
    with pytest.raises(ValueError, match=r"\d"):
        endpoint.map(index, name, tag)


def test_requests_to_an_empty_index_are_refused() -> None:
    endpoint = Host().endpoint()
    for call in (
        lambda: endpoint.try_request(5, 1),
        lambda: endpoint.try_request_medium(5, 1, b""),
        lambda: endpoint.try_request_bulk(5, 1, b"", 0),
        lambda: endpoint.unmap(5),
        lambda: endpoint.credits(5),
    ):
        with pytest.raises(LookupError, match="translation table is empty"):
            call()


@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_outside_of_the_translation_table_is_refused(index: int) -> None:
    endpoint = Host(Settings(translations=3)).endpoint()
    endpoint.map(2, REMOTE, 8)
    for call in (
        lambda: endpoint.try_request(index, 5),
        lambda: endpoint.try_request_medium(index, 5, b""),
        lambda: endpoint.try_request_bulk(index, 5, b"", 0),
        lambda: endpoint.translation(index),
        lambda: endpoint.unmap(index),
        lambda: endpoint.credits(index),
    ):
        with pytest.raises(LookupError, match=f"index must be 0 to 2, got {index}"):
            call()
    assert endpoint.credits(2) == 4


@pytest.mark.parametrize(
    ("handler", "arguments", "message"),
    [
        (1, (-1,), "argument 0 must be an integer from 0 to 4294967295, got -1"),
        (1, (7, 1 << 32), "argument 1 must be an integer from 0 to 4294967295, got 4294967296"),
        (1, tuple(range(17)), "at most 16 arguments, got 17"),
        (0, (), "handler must be 1 to 255, got 0"),
        (-1, (), "handler must be 1 to 255, got -1"),
        (256, (1,), "handler must be 1 to 255, got 256"),
    ],
)
def test_an_invalid_handler_or_argument_is_rejected_without_effect(
    handler: int, arguments: tuple[int, ...], message: str
) -> None:
    host = Host()
    endpoint = host.endpoint()
    token = Token(endpoint)
    token.state = MAY_REPLY
    for call in (
        lambda: endpoint.try_request(0, handler, *arguments),
        lambda: endpoint.try_request_medium(0, handler, b"data", *arguments),
        lambda: endpoint.try_request_bulk(0, handler, b"data", 0, *arguments),
        lambda: token.reply(handler, *arguments),
        lambda: token.reply_medium(handler, b"data", *arguments),
        lambda: token.reply_bulk(handler, b"data", 0, *arguments),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert (endpoint.credits(0), host.doorbells, token.state) == (4, [], MAY_REPLY)
    assert endpoint.outbox.is_idle
    assert endpoint.try_request(0, 1, 1)


def test_data_that_fits_nowhere_is_rejected_without_effect() -> None:
    endpoint = Host().endpoint()
    with pytest.raises(ValueError, match="at most 1024"):
        endpoint.try_request_medium(0, 1, bytes(1025))
    with pytest.raises(ValueError, match="a segment has at most"):
        endpoint.try_request_bulk(0, 1, b"x", (1 << 32) - 1)
    with pytest.raises(ValueError, match="offset must be 0 or more, got -1"):
        endpoint.try_request_bulk(0, 1, b"x", -1)
    assert endpoint.credits(0) == 4


def test_data_of_items_of_several_bytes_is_sent_completely() -> None:
    host = Host()
    endpoint, words = host.endpoint(), array("I", range(8))
    assert endpoint.try_request_medium(0, 1, memoryview(words))
    assert endpoint.try_request_bulk(0, 1, memoryview(words), 0)
    page, staging = endpoint.outbox.page, endpoint.outbox.staging
    assert page is not None
    assert staging is not None
    assert [layout.READ_ENTRY(page, layout.SLOT_OFFSETS[slot])[3] for slot in (0, 1)] == [32, 32]
    assert staging[:32] == endpoint.outbox.bulk_data[1] == words.tobytes()


def test_handlers_have_numbers_from_1_on() -> None:
    endpoint = Host(Settings(handlers=4)).endpoint()
    endpoint.set_handler(2, print)
    assert [endpoint.set_handler_any(print), endpoint.set_handler_any(print)] == [1, 3]
    with pytest.raises(LookupError, match="all 3 handlers"):
        endpoint.set_handler_any(print)
    for number in (0, 4):
        with pytest.raises(ValueError, match="1 to 3"):
            endpoint.set_handler(number, print)


def test_tag_and_segment_are_written_to_the_page_in_host_or_nic_memory() -> None:
    host = Host()
    endpoint = host.endpoint(resident=False)
    endpoint.tag = 99
    endpoint.segment = bytearray(500)
    assert (layout.TAG.unpack_from(endpoint.backing)[0], layout.segment_length(endpoint.backing)) == (99, 500)
    host.am.driver.fault(endpoint)
    assert layout.TAG.unpack_from(host.memory.frames[0])[0] == 99
    host.notify(endpoint, layout.LOADED)
    endpoint.tag = 100
    endpoint.segment = None
    assert (layout.TAG.unpack_from(host.memory.frames[0])[0], layout.segment_length(host.memory.frames[0])) == (100, 0)
    with pytest.raises(ValueError, match="must be writable"):
        endpoint.segment = memoryview(b"constant")
    with pytest.raises(ValueError, match="tag must be"):
        endpoint.tag = -1


# Credits and rings.


def test_credits_limit_requests_of_all_forms() -> None:
    host = Host()
    endpoint = host.endpoint()
    assert endpoint.try_request(0, 1)
    assert endpoint.try_request_medium(0, 1, b"x")
    assert endpoint.try_request_bulk(0, 1, b"x", 0)
    assert endpoint.try_request(0, 1)
    assert not endpoint.try_request(0, 1)
    assert not endpoint.try_request_medium(0, 1, b"x")
    assert not endpoint.try_request_bulk(0, 1, b"x", 0)
    assert [subject for _, subject in host.doorbells] == [0, 1, 2, 3]
    endpoint.map(1, REMOTE, 8)  # another tag is another virtual network
    assert endpoint.try_request(1, 1)


def test_a_full_ring_accepts_a_message_again_in_whichever_slot_is_free() -> None:
    host = Host()
    endpoint = host.endpoint()
    for slot in range(1, 5):
        endpoint.map(slot, REMOTE, 100 + slot)
        for _ in range(4):
            assert endpoint.try_request(slot, 1)
    assert not endpoint.try_request(0, 1)
    assert endpoint.credits(0) == 4
    page = cast(memoryview, endpoint.outbox.page)
    page[layout.SLOT_OFFSETS[9]] = layout.FREE
    assert endpoint.try_request(0, 1)
    assert host.doorbells[-1] == (0, 9)


def test_the_copy_of_a_bulk_messages_data_is_kept_until_the_page_shows_that_it_is_answered() -> None:
    host = Host()
    endpoint = host.endpoint()
    data = bytearray(b"first")
    endpoint.try_request_bulk(0, 1, data, 0)
    data[:] = b"other"
    assert bytes(host.memory.mapped_regions[0]) == b"first"
    frame = cast(memoryview, endpoint.outbox.page)
    frame[layout.SLOT_OFFSETS[0]] = layout.ANSWERED
    endpoint.set_page(None)
    host.notify(endpoint, 0)
    assert endpoint.outbox.bulk_data
    endpoint.set_page(frame)
    assert not endpoint.outbox.bulk_data
    assert not host.memory.mapped_regions
    assert frame[layout.SLOT_OFFSETS[0]] == layout.FREE


def test_a_request_that_waits_for_a_credit_handles_messages_of_its_bundle_only() -> None:
    host = Host(Settings(credits=1, medium=1024, packet=1024))
    requester, sibling = host.endpoint(), host.endpoint()
    host.bundle = host.am.allocate_bundle()
    in_other_bundle = host.endpoint()
    handlers_run: list[str] = []
    sibling.set_handler(1, lambda _: handlers_run.append("in the same bundle"))
    in_other_bundle.set_handler(1, lambda _: handlers_run.append("in another bundle"))
    assert requester.try_request(0, 1)
    request = requester.request(0, 1)
    pending = request.send(None)
    assert str(pending) == "a credit, or room, to send to endpoint 0 of node 1"
    for endpoint in (in_other_bundle, sibling):
        deliver_request(endpoint)
        host.notify(endpoint, layout.ARRIVED_REQUESTS)
    assert pending.done, "the task is woken"
    request.send(None)
    assert handlers_run == ["in the same bundle"]
    request.close()


def test_a_request_that_waits_for_a_credit_continues_after_its_endpoint_moves_to_another_bundle() -> None:
    host = Host(Settings(credits=1, medium=1024, packet=1024))
    endpoint = host.endpoint()
    assert endpoint.try_request(0, 1)
    request = endpoint.request(0, 1)
    first = request.send(None)
    host.am.allocate_bundle().move(endpoint)
    assert first.done, "the task is woken"
    second = request.send(None)
    endpoint.wake()
    assert second.done, "the task waits for the endpoint's present bundle"
    request.close()


# Residency.


def deliver_request(endpoint: Endpoint) -> None:
    """Put a short request for handler 1 into the endpoint's ring, as the NIC does."""
    page = endpoint.inbox.page
    assert page is not None
    layout.WRITE_ENTRY[0](
        page, layout.SLOT_OFFSETS[layout.ARRIVED_REQUESTS], layout.READY, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0,
        endpoint.name.endpoint, 7, 1, 0, 0,
    )  # fmt: skip


def test_a_request_of_a_non_resident_endpoint_loads_it_and_is_then_sent() -> None:
    host = Host()
    endpoint = host.endpoint(resident=False)
    assert not endpoint.try_request(0, 1)
    request = endpoint.request(0, 1)
    request.send(None)
    assert host.doorbells == [(0, layout.LOAD)]
    assert host.state(endpoint) is Residence.LOADING
    host.notify(endpoint, layout.LOADED)
    with pytest.raises(StopIteration):
        request.send(None)
    assert host.doorbells[-1] == (0, 0)


def test_the_least_recently_used_idle_endpoint_gives_up_its_frame() -> None:
    host = Host(Settings(frames=3))
    busy, oldest, newest = host.endpoint(), host.endpoint(), host.endpoint()
    busy.try_request(0, 1)
    for endpoint in (oldest, newest):
        host.notify(endpoint, 5)  # a free slot counts as a use
    faulting = host.endpoint(resident=False)
    host.notify(faulting, layout.FAULT)
    assert host.doorbells == [(1, layout.UNLOAD)]
    host.notify(oldest, layout.RELEASE)
    assert oldest.outbox.page is None
    host.notify(oldest, layout.UNLOADED)
    assert host.doorbells == [(1, layout.UNLOAD), (1, layout.RELEASED), (3, layout.LOAD)]
    assert [host.state(endpoint).name for endpoint in (busy, oldest, newest, faulting)] == [
        "RESIDENT",
        "ON_HOST",
        "RESIDENT",
        "LOADING",
    ]


def test_an_endpoint_with_unsent_messages_faults_again() -> None:
    host = Host(Settings(frames=1))
    endpoint, other_endpoint = host.endpoint(), host.endpoint(resident=False)
    endpoint.try_request(0, 1)
    host.notify(other_endpoint, layout.FAULT)
    host.notify(endpoint, layout.RELEASE)
    endpoint.backing[:] = host.memory.frames[0]
    host.notify(endpoint, layout.UNLOADED)
    assert host.state(endpoint) is Residence.FAULTING
    assert host.state(other_endpoint) is Residence.LOADING


def test_a_task_that_waits_for_a_message_waits_until_its_endpoint_is_resident() -> None:
    host = Host()
    endpoint = host.endpoint(resident=False)
    has_ended = start_waiting(host, endpoint)
    host.notify(endpoint, layout.ARRIVED_REQUESTS)
    assert not has_ended()
    assert host.doorbells == [(0, layout.LOAD)]
    host.notify(endpoint, layout.LOADED)
    assert has_ended()


def test_an_endpoint_is_not_released_while_its_handler_runs() -> None:
    host = Host(Settings(frames=1))
    endpoint, waiting_endpoint = host.endpoint(), host.endpoint(resident=False)
    host.notify(waiting_endpoint, layout.FAULT)
    assert host.state(endpoint) is Residence.LEAVING
    host.am.handling_endpoint = endpoint
    host.notify(endpoint, layout.RELEASE)
    assert endpoint.outbox.page is not None
    host.am.handling_endpoint = None
    assert host.am.driver.has_deferred
    host.am.driver.run_deferred()
    assert endpoint.outbox.page is None
    assert host.doorbells == [(0, layout.UNLOAD), (0, layout.RELEASED)]


def test_requested_regions_are_mapped_and_excess_ones_of_non_resident_endpoints_unmapped() -> None:
    host = Host(Settings(mappings=1, medium=512, packet=512))
    non_resident, resident = host.endpoint(resident=False), host.endpoint()
    regions = [
        endpoint.name.endpoint << layout.SUBJECT_BITS | layout.RECEIVE_STAGING for endpoint in (non_resident, resident)
    ]
    for region in regions:
        host.am.on_completion(region << layout.SUBJECT_BITS | layout.UNMAPPED)
        assert host.doorbells.pop() == (region, layout.MAPPED)
    assert list(host.memory.mapped_regions) == regions[1:]
    absent_region = resident.name.endpoint << layout.SUBJECT_BITS | layout.SEGMENT
    host.am.on_completion(absent_region << layout.SUBJECT_BITS | layout.UNMAPPED)
    assert host.doorbells == [(absent_region, layout.ABSENT)]


# Waiting.


def test_waiting_with_an_empty_event_mask_is_rejected() -> None:
    host = Host()
    endpoint = host.endpoint()
    endpoint.event_mask = Events.NONE
    with pytest.raises(ValueError, match="wait forever"):
        endpoint.wait().send(None)
    with pytest.raises(ValueError, match="wait forever"):
        host.bundle.wait().send(None)


def test_two_tasks_may_wait_for_a_parallel_bundle_and_one_for_a_sequential_bundle() -> None:
    host = Host()
    endpoint = host.endpoint()
    first, second = host.bundle.wait(), host.bundle.wait()
    first.send(None)
    second.send(None)
    host.notify(endpoint, layout.ARRIVED_REPLIES)
    for waiting in (first, second):
        with pytest.raises(StopIteration):
            waiting.send(None)
    sequential = host.am.allocate_bundle(parallel=False)
    sequential.allocate_endpoint()
    pending = sequential.wait()
    pending.send(None)
    with pytest.raises(RuntimeError, match="AM_SEQ"):
        sequential.wait().send(None)
    pending.close()


def test_notifications_about_a_freed_endpoint_are_ignored() -> None:
    host = Host()
    endpoint = host.endpoint()
    endpoint.free()
    for subject in (layout.ARRIVED_REQUESTS, layout.LOADED, layout.RELEASE, layout.UNLOADED, layout.UNMAPPED, 0):
        host.notify(endpoint, subject)
    assert host.am.pending_work() == []
    endpoint.free()


@pytest.mark.parametrize("wait", [lambda endpoint: endpoint.wait(), lambda endpoint: endpoint.request(0, 1)])
@pytest.mark.parametrize("is_first_freed", [False, True])
def test_a_call_that_waits_for_a_freed_endpoint_raises(
    wait: Callable[[Endpoint], Coroutine[object, None, None]], is_first_freed: bool
) -> None:
    endpoint = Host().endpoint()
    while endpoint.credits(0):
        assert endpoint.try_request(0, 1)
    call = wait(endpoint)
    if not is_first_freed:
        call.send(None)
    endpoint.free()
    with pytest.raises(RuleError, match="endpoint 0 has been freed"):
        call.send(None)


def test_a_wait_for_a_bundle_ends_with_its_last_endpoint() -> None:
    host = Host()
    endpoints = [host.endpoint() for _ in range(2)]
    wait = host.bundle.wait()
    wait.send(None)
    endpoints[0].free()
    wait.send(None)
    endpoints[1].free()
    with pytest.raises(ValueError, match="this would wait forever"):
        wait.send(None)


# Replies.


REMOTE_GONE = (REMOTE.node << layout.ENDPOINT_BITS | REMOTE.endpoint) << layout.SUBJECT_BITS | layout.GONE


def deliver_reply(
    host: Host, endpoint: Endpoint, message: int, *, source: EndpointName = REMOTE, handler: int = 2
) -> None:
    """Deliver a remote endpoint's reply to request `message`, and handle it."""
    page = cast(memoryview, endpoint.inbox.page)
    slot = layout.ARRIVED_REPLIES + host.reply_counts[endpoint] % layout.RING_SIZE
    host.reply_counts[endpoint] += 1
    layout.WRITE_ENTRY[1](
        page, layout.SLOT_OFFSETS[slot], layout.READY, 0, source.node, 0, 0, 1, 0, 1, handler, 1, source.endpoint,
        endpoint.name.endpoint, 7, message, 0, 0, message,
    )  # fmt: skip
    host.notify(endpoint, slot)
    assert endpoint.handle()


def send_requests(host: Host, count: int) -> tuple[Endpoint, list[int]]:
    """Return an endpoint that has sent `count` requests, and the list of the replies that it handles."""
    endpoint, replies = host.endpoint(), []
    endpoint.set_handler(2, lambda _, message: replies.append(message))
    for _ in range(count):
        assert endpoint.try_request(0, 1)
    return endpoint, replies


def test_each_request_has_one_reply_in_any_order_which_returns_its_credit() -> None:
    host = Host()
    endpoint, replies = send_requests(host, 4)
    for message in (3, 1, 3, 9, 4, 2, 0):
        deliver_reply(host, endpoint, message)
    assert replies == [3, 1, 4, 2]
    assert (endpoint.credits(0), endpoint.inbox.stray_replies, endpoint.outbox.pending) == (4, 3, {})


def test_a_reply_of_another_endpoint_is_a_stray() -> None:
    host = Host()
    endpoint, replies = send_requests(host, 1)
    for source in (EndpointName(2, 0), EndpointName(1, 1)):
        deliver_reply(host, endpoint, 1, source=source)
    assert (replies, endpoint.credits(0), endpoint.inbox.stray_replies) == ([], 3, 2)
    deliver_reply(host, endpoint, 1)
    assert (replies, endpoint.credits(0)) == ([1], 4)


@pytest.mark.parametrize("notification", [REMOTE.node << layout.SUBJECT_BITS | layout.LOST, REMOTE_GONE])
def test_accepted_requests_to_a_dead_endpoint_are_returned_and_the_nic_returns_the_others(notification: int) -> None:
    host = Host()
    endpoint, replies = send_requests(host, 3)
    returned_messages: list[Returned] = []
    endpoint.error_handler = returned_messages.append
    endpoint.map(1, EndpointName(2, 0), 7)
    assert endpoint.try_request(1, 1)
    page = cast(memoryview, endpoint.outbox.page)
    page[layout.SLOT_OFFSETS[0]] = page[layout.SLOT_OFFSETS[2]] = layout.FREE  # accepted
    host.am.on_completion(notification)
    assert endpoint.is_ready
    assert returned_messages == []
    assert endpoint.handle() == 2
    assert [(message.status, message.message, message.destination, message.handler) for message in returned_messages] == [
        (Status.UNREACHABLE, 1, REMOTE, 1), (Status.UNREACHABLE, 3, REMOTE, 1),
    ]  # fmt: skip
    assert (endpoint.credits(0), endpoint.credits(1)) == (3, 3)
    for message in (1, 2):
        deliver_reply(host, endpoint, message)
    assert (replies, endpoint.credits(0), endpoint.inbox.stray_replies) == ([2], 4, 1)
    host.am.on_completion(notification)
    assert endpoint.is_empty


def test_a_lost_reply_ends_only_a_request_to_its_replier() -> None:
    host = Host()
    endpoint, _ = send_requests(host, 2)
    returned_messages: list[Returned] = []
    endpoint.error_handler = returned_messages.append
    page = cast(memoryview, endpoint.outbox.page)
    page[layout.SLOT_OFFSETS[0]] = page[layout.SLOT_OFFSETS[1]] = layout.FREE  # accepted
    for replier in (REMOTE.node + 1, REMOTE.node):
        assert endpoint.is_empty
        subject_number = (1 << layout.NODE_BITS | replier) << layout.ENDPOINT_BITS | endpoint.name.endpoint
        host.am.on_completion(subject_number << layout.SUBJECT_BITS | layout.LOST_REPLY)
    assert endpoint.handle() == 1
    assert [(message.status, message.message) for message in returned_messages] == [(Status.UNREACHABLE, 1)]


def test_requests_to_a_dead_endpoint_are_returned_when_the_page_is_accessible_again() -> None:
    host = Host()
    endpoint, _ = send_requests(host, 2)
    endpoint.error_handler = lambda _: None
    page = cast(memoryview, endpoint.outbox.page)
    endpoint.set_page(None)
    host.am.on_completion(REMOTE_GONE)
    assert endpoint.is_empty
    page[layout.SLOT_OFFSETS[0]] = layout.FREE
    endpoint.set_page(page)
    assert endpoint.handle() == 1
    assert list(endpoint.outbox.pending) == [2]


def test_a_reply_to_an_earlier_process_of_a_host_slot_is_a_stray() -> None:
    processes = [Host(host_slot=HostSlot(0, 1, incarnation)) for incarnation in range(1, 1001)]
    first_requests = sorted(send_requests(host, 1)[0].outbox.last_request for host in processes)
    gaps = [
        later - earlier
        for earlier, later in zip(first_requests, [*first_requests[1:], first_requests[0] + (1 << 32)], strict=True)
    ]
    assert min(gaps) > 1_000_000
    endpoint, replies = send_requests(processes[1], 2)
    for message in (1, 2):
        deliver_reply(processes[1], endpoint, message)
    assert (replies, endpoint.inbox.stray_replies, endpoint.credits(0)) == ([], 2, 2)
