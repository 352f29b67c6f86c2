"""AM-II's host library with the test as its NIC: refused arguments, and the segment driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from protocols.active_messages.am_errors import Returned, Status
from protocols.active_messages.endpoint_names import ANY, EndpointName
from protocols.am2 import page as layout
from protocols.am2.host.endpoint import Endpoint, Events, Translation
from protocols.am2.host.library import ActiveMessages, ResourceError
from protocols.am2.host.segment_driver import Residence
from protocols.am2.nic_memory import NicMemory
from protocols.am2.settings import Settings
from protocols.core.firmware import Adapter
from protocols.core.split_memory import HostSlot

ADDRESSES = tuple(bytes((2, 0, 0, 0, 0, number)) for number in range(3))
AWAY = EndpointName(1, 0)
ALONE = HostSlot(0, 1, 1)


class Host:
    """Library with a record of its doorbells: (endpoint, subject)."""

    def __init__(self, settings: Settings | None = None, place: HostSlot = ALONE) -> None:
        own = settings or Settings(medium=1024, packet=1024)
        self.told: list[tuple[int, int]] = []
        self.memory = NicMemory(own.frames)
        self.am = ActiveMessages(Adapter(0, ADDRESSES), self, self.memory, own, place)
        self.bundle = self.am.allocate_bundle()

    def ring_doorbell(self, index: int, written: int, translated: int) -> None:
        assert written > 0
        assert translated >= 0
        self.told.append((index >> layout.SUBJECTS, index & layout.SUBJECT))

    def endpoint(self, *, resident: bool = True) -> Endpoint:
        endpoint = self.bundle.allocate_endpoint()
        if resident:
            self.am.driver.fault(endpoint)
            self.say(endpoint, layout.LOADED)
        endpoint.map(0, AWAY, 7)
        self.told.clear()
        return endpoint

    def say(self, endpoint: Endpoint, subject: int) -> None:
        """Post a completion, as the NIC does."""
        self.am.completed(endpoint.name.endpoint << layout.SUBJECTS | subject)

    def state(self, endpoint: Endpoint) -> Residence:
        return self.am.driver.state(endpoint)


def waits(host: Host, endpoint: Endpoint) -> Callable[[], bool]:
    """A task that waits for an event at that endpoint; whether it has gone on."""
    over = []

    async def wait() -> None:
        await endpoint.wait()
        over.append(True)

    task = wait()

    def go_on(*_: object) -> None:
        try:
            task.send(None).add_callback(go_on)
        except StopIteration:
            return

    go_on()
    assert host.am.waiting() or over
    return lambda: bool(over)


# What there is, and what is refused.


def test_endpoints_are_numbered_in_the_order_of_their_allocation_and_the_last_one_is_refused() -> None:
    host = Host(Settings(endpoints=2))
    first, second = host.bundle.allocate_endpoint(), host.bundle.allocate_endpoint()
    assert (first.name, second.name) == (EndpointName(0, 0), EndpointName(0, 1))
    with pytest.raises(ResourceError, match="2 endpoints"):
        host.bundle.allocate_endpoint()
    first.free()
    assert host.am.endpoints == [second]
    assert host.bundle.allocate_endpoint().name.endpoint != 1


def test_an_endpoint_moves_to_another_bundle_and_is_freed_with_it() -> None:
    host = Host()
    endpoint, other = host.endpoint(), host.am.allocate_bundle(parallel=False)
    other.take(endpoint)
    assert (host.bundle.endpoints, other.endpoints) == ([], [endpoint])
    other.free()
    assert (host.am.endpoints, host.am.bundles) == ([], [host.bundle])
    assert host.told == [(0, layout.DESTROY)]
    host.am.terminate()
    assert host.am.bundles == []


def test_the_translation_table_says_where_its_places_lead() -> None:
    endpoint = Host(Settings(translations=3)).endpoint()
    assert endpoint.translations == 3
    assert endpoint.translation(0) == Translation(AWAY, 7)
    assert endpoint.map_any(EndpointName(2, 5), ANY) == 1
    assert endpoint.translation(1) == Translation(EndpointName(2, 5), ANY)
    assert endpoint.translation(2) is None
    endpoint.unmap(0)
    assert endpoint.map_any(AWAY, 8) == 0
    endpoint.map(2, AWAY, 9)
    with pytest.raises(LookupError, match="all 3 places"):
        endpoint.map_any(AWAY, 9)


@pytest.mark.parametrize(
    ("place", "name", "tag"),
    [
        (0, AWAY, 1), (256, AWAY, 1), (-1, AWAY, 1), (1, EndpointName(3, 0), 1), (1, EndpointName(1, 1 << 16), 1),
        (1, AWAY, -1), (1, AWAY, ANY + 1),
    ],
)  # fmt: skip
def test_a_translation_that_cannot_be_is_refused(place: int, name: EndpointName, tag: int) -> None:
    endpoint = Host().endpoint()
    with pytest.raises(ValueError, match=r"\d"):
        endpoint.map(place, name, tag)


def test_requests_to_a_place_that_leads_nowhere_are_refused() -> None:
    endpoint = Host().endpoint()
    for ask in (
        lambda: endpoint.try_request(5, 1),
        lambda: endpoint.try_request_medium(5, 1, b""),
        lambda: endpoint.try_request_bulk(5, 1, b"", 0),
        lambda: endpoint.unmap(5),
        lambda: endpoint.credits(300),
    ):
        with pytest.raises(LookupError, match="translation table is empty"):
            ask()


@pytest.mark.parametrize("arguments", [(-1,), (1 << 32,), tuple(range(17))])
def test_arguments_that_cannot_be_are_refused_and_cost_nothing(arguments: tuple[int, ...]) -> None:
    host = Host()
    endpoint = host.endpoint()
    with pytest.raises(ValueError, match="at most 16 integers"):
        endpoint.try_request(0, 1, *arguments)
    with pytest.raises(ValueError, match="at most 16 integers"):
        endpoint.try_request_medium(0, 1, b"data", *arguments)
    assert (endpoint.credits(0), host.told) == (4, [])
    assert endpoint.outbox.is_idle
    assert endpoint.try_request(0, 1, 1)


def test_data_that_is_too_long_is_refused_and_costs_nothing() -> None:
    endpoint = Host().endpoint()
    with pytest.raises(ValueError, match="at most 1024"):
        endpoint.try_request_medium(0, 1, bytes(1025))
    with pytest.raises(ValueError, match="a segment has at most"):
        endpoint.try_request_bulk(0, 1, b"x", (1 << 32) - 1)
    assert endpoint.credits(0) == 4


def test_handlers_have_numbers_from_1_on() -> None:
    endpoint = Host(Settings(handlers=4)).endpoint()
    endpoint.set_handler(2, print)
    assert [endpoint.set_handler_any(print), endpoint.set_handler_any(print)] == [1, 3]
    with pytest.raises(LookupError, match="all 3 handlers"):
        endpoint.set_handler_any(print)
    for number in (0, 4):
        with pytest.raises(ValueError, match="1 to 3"):
            endpoint.set_handler(number, print)


def test_a_tag_and_a_segment_are_in_the_page_wherever_it_is() -> None:
    host = Host()
    endpoint = host.endpoint(resident=False)
    endpoint.tag = 99
    endpoint.segment = bytearray(500)
    assert (layout.tag_of(endpoint.backing), layout.segment_of(endpoint.backing)) == (99, 500)
    host.am.driver.fault(endpoint)
    assert layout.tag_of(host.memory.frames[0]) == 99
    host.say(endpoint, layout.LOADED)
    endpoint.tag = 100
    endpoint.segment = None
    assert (layout.tag_of(host.memory.frames[0]), layout.segment_of(host.memory.frames[0])) == (100, 0)
    with pytest.raises(ValueError, match="must be writable"):
        endpoint.segment = memoryview(b"constant")
    with pytest.raises(ValueError, match="a tag of"):
        endpoint.tag = -1


# Credits and rings.


def test_there_are_as_many_requests_under_way_as_credits_whatever_their_form() -> None:
    host = Host()
    endpoint = host.endpoint()
    assert endpoint.try_request(0, 1)
    assert endpoint.try_request_medium(0, 1, b"x")
    assert endpoint.try_request_bulk(0, 1, b"x", 0)
    assert endpoint.try_request(0, 1)
    assert not endpoint.try_request(0, 1)
    assert not endpoint.try_request_medium(0, 1, b"x")
    assert not endpoint.try_request_bulk(0, 1, b"x", 0)
    assert [subject for _, subject in host.told] == [0, 1, 2, 3]
    endpoint.map(1, AWAY, 8)  # another tag is another virtual network
    assert endpoint.try_request(1, 1)


def test_a_ring_that_is_full_takes_nothing_and_then_whichever_slot_is_free() -> None:
    host = Host()
    endpoint = host.endpoint()
    for place in range(1, 5):
        endpoint.map(place, AWAY, 100 + place)
        for _ in range(4):
            assert endpoint.try_request(place, 1)
    assert not endpoint.try_request(0, 1)
    assert endpoint.credits(0) == 4
    page = cast(memoryview, endpoint.outbox.page)
    page[layout.PLACES[9]] = layout.FREE
    assert endpoint.try_request(0, 1)
    assert host.told[-1] == (0, 9)


def test_a_bulk_messages_copy_is_kept_until_it_is_answered_though_that_is_told_while_its_page_is_away() -> None:
    host = Host()
    endpoint = host.endpoint()
    data = bytearray(b"first")
    endpoint.try_request_bulk(0, 1, data, 0)
    data[:] = b"other"
    assert bytes(host.memory.reachable[0]) == b"first"
    frame = cast(memoryview, endpoint.outbox.page)
    frame[layout.PLACES[0]] = layout.ANSWERED
    endpoint.moved(None)
    host.say(endpoint, 0)
    assert endpoint.outbox.sources
    endpoint.moved(frame)
    assert not endpoint.outbox.sources
    assert not host.memory.reachable
    assert frame[layout.PLACES[0]] == layout.FREE


def test_a_request_that_waits_for_a_credit_serves_its_whole_bundle_and_no_other() -> None:
    host = Host(Settings(credits=1, medium=1024, packet=1024))
    asking, beside = host.endpoint(), host.endpoint()
    host.bundle = host.am.allocate_bundle()
    elsewhere = host.endpoint()
    handled: list[str] = []
    beside.set_handler(1, lambda _: handled.append("beside"))
    elsewhere.set_handler(1, lambda _: handled.append("elsewhere"))
    assert asking.try_request(0, 1)
    request = asking.request(0, 1)
    waiting = request.send(None)
    assert str(waiting) == "a credit, or room, to send to endpoint 0 of node 1"
    for endpoint in (elsewhere, beside):
        arrived(endpoint)
        host.say(endpoint, layout.ARRIVED_REQUESTS)
    assert waiting.done, "the task is woken"
    request.send(None)
    assert handled == ["beside"]
    request.close()


# Residency.


def arrived(endpoint: Endpoint) -> None:
    """The NIC has put a short request for handler 1 into the endpoint's ring."""
    page = endpoint.inbox.page
    assert page is not None
    layout.WRITE[0](
        page, layout.PLACES[layout.ARRIVED_REQUESTS], layout.READY, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, endpoint.name.endpoint,
        7, 1, 0, 0,
    )  # fmt: skip


def test_an_endpoint_is_wanted_in_the_nic_when_it_is_to_send_and_sends_when_it_is_there() -> None:
    host = Host()
    endpoint = host.endpoint(resident=False)
    assert not endpoint.try_request(0, 1)
    request = endpoint.request(0, 1)
    request.send(None)
    assert host.told == [(0, layout.LOAD)]
    assert host.state(endpoint) is Residence.LOADING
    host.say(endpoint, layout.LOADED)
    with pytest.raises(StopIteration):
        request.send(None)
    assert host.told[-1] == (0, 0)


def test_whoever_has_nothing_to_do_and_was_not_used_for_longest_gives_up_its_frame() -> None:
    host = Host(Settings(frames=3))
    busy, old, new = host.endpoint(), host.endpoint(), host.endpoint()
    busy.try_request(0, 1)
    for endpoint in (old, new):
        host.say(endpoint, 5)  # a slot is free: it is used
    wanted = host.endpoint(resident=False)
    host.say(wanted, layout.FAULT)
    assert host.told == [(1, layout.UNLOAD)]
    host.say(old, layout.RELEASE)
    assert old.outbox.page is None
    host.say(old, layout.UNLOADED)
    assert host.told == [(1, layout.UNLOAD), (1, layout.RELEASED), (3, layout.LOAD)]
    assert [host.state(one).name for one in (busy, old, new, wanted)] == ["RESIDENT", "ON_HOST", "RESIDENT", "LOADING"]


def test_an_endpoint_that_has_not_sent_all_comes_again_by_itself() -> None:
    host = Host(Settings(frames=1))
    endpoint, other = host.endpoint(), host.endpoint(resident=False)
    endpoint.try_request(0, 1)
    host.say(other, layout.FAULT)
    host.say(endpoint, layout.RELEASE)
    endpoint.backing[:] = host.memory.frames[0]
    host.say(endpoint, layout.UNLOADED)
    assert host.state(endpoint) is Residence.FAULTING
    assert host.state(other) is Residence.LOADING


def test_a_task_that_waits_for_a_message_sleeps_while_its_endpoint_is_away() -> None:
    host = Host()
    endpoint = host.endpoint(resident=False)
    over = waits(host, endpoint)
    host.say(endpoint, layout.ARRIVED_REQUESTS)
    assert not over()
    assert host.told == [(0, layout.LOAD)]
    host.say(endpoint, layout.LOADED)
    assert over()


def test_an_endpoint_is_not_taken_from_under_a_handler() -> None:
    host = Host()
    endpoint = host.endpoint()
    host.am.driver._states[endpoint] = Residence.LEAVING
    host.am.handling = endpoint
    host.say(endpoint, layout.RELEASE)
    assert endpoint.outbox.page is not None
    host.am.handling = None
    assert host.am.driver.unsettled
    host.am.driver.handled()
    assert endpoint.outbox.page is None
    assert host.told == [(0, layout.RELEASED)]


def test_what_the_nic_wants_to_reach_is_mapped_and_what_no_resident_endpoint_needs_is_unmapped() -> None:
    host = Host(Settings(mappings=1, medium=512, packet=512))
    away, here = host.endpoint(resident=False), host.endpoint()
    regions = [one.name.endpoint << layout.SUBJECTS | layout.STAGING for one in (away, here)]
    for region in regions:
        host.am.completed(region << layout.SUBJECTS | layout.UNMAPPED)
        assert host.told.pop() == (region, layout.MAPPED)
    assert list(host.memory.reachable) == regions[1:]
    nowhere = here.name.endpoint << layout.SUBJECTS | layout.SEGMENT
    host.am.completed(nowhere << layout.SUBJECTS | layout.UNMAPPED)
    assert host.told == [(nowhere, layout.ABSENT)]


# Waiting.


def test_to_wait_for_nothing_is_refused() -> None:
    host = Host()
    endpoint = host.endpoint()
    endpoint.event_mask = Events.NONE
    with pytest.raises(ValueError, match="wait for ever"):
        endpoint.wait().send(None)
    with pytest.raises(ValueError, match="wait for ever"):
        host.bundle.wait().send(None)


def test_two_tasks_may_wait_for_a_parallel_bundle_and_one_for_a_sequential() -> None:
    host = Host()
    endpoint = host.endpoint()
    first, second = host.bundle.wait(), host.bundle.wait()
    first.send(None)
    second.send(None)
    host.say(endpoint, layout.ARRIVED_REPLIES)
    for waiter in (first, second):
        with pytest.raises(StopIteration):
            waiter.send(None)
    sequential = host.am.allocate_bundle(parallel=False)
    sequential.allocate_endpoint()
    waiting = sequential.wait()
    waiting.send(None)
    with pytest.raises(RuntimeError, match="AM_SEQ"):
        sequential.wait().send(None)
    waiting.close()


def test_what_comes_for_an_endpoint_that_was_freed_is_nobodys() -> None:
    host = Host()
    endpoint = host.endpoint()
    endpoint.free()
    for subject in (layout.ARRIVED_REQUESTS, layout.LOADED, layout.RELEASE, layout.UNLOADED, layout.UNMAPPED, 0):
        host.say(endpoint, subject)
    assert host.am.waiting() == []
    endpoint.free()


# Replies.


GONE = (AWAY.node << layout.NAMES | AWAY.endpoint) << layout.SUBJECTS | layout.GONE


def reply(host: Host, endpoint: Endpoint, message: int, *, source: EndpointName = AWAY, handler: int = 2) -> None:
    """Write a remote endpoint's reply to request `message` into the inbox."""
    page, slot = cast(memoryview, endpoint.inbox.page), endpoint.inbox._next_reply
    layout.WRITE[1](
        page, layout.PLACES[slot], layout.READY, 0, source.node, 0, 0, 1, 0, 1, handler, 1, source.endpoint,
        endpoint.name.endpoint, 7, message, 0, 0, message,
    )  # fmt: skip
    host.say(endpoint, slot)
    assert endpoint.handle()


def asks(host: Host, count: int) -> tuple[Endpoint, list[int]]:
    """Return an endpoint that has sent `count` requests, and its replies."""
    endpoint, heard = host.endpoint(), []
    endpoint.set_handler(2, lambda _, message: heard.append(message))
    for _ in range(count):
        assert endpoint.try_request(0, 1)
    return endpoint, heard


def test_each_request_has_one_reply_in_any_order_and_that_brings_its_credit() -> None:
    host = Host()
    endpoint, heard = asks(host, 4)
    for message in (3, 1, 3, 9, 4, 2, 0):
        reply(host, endpoint, message)
    assert heard == [3, 1, 4, 2]
    assert (endpoint.credits(0), endpoint.inbox.strays, endpoint.outbox.pending) == (4, 3, {})


def test_a_reply_of_another_endpoint_than_the_request_was_for_is_nobodys() -> None:
    host = Host()
    endpoint, heard = asks(host, 1)
    for source in (EndpointName(2, 0), EndpointName(1, 1)):
        reply(host, endpoint, 1, source=source)
    assert (heard, endpoint.credits(0), endpoint.inbox.strays) == ([], 3, 2)
    reply(host, endpoint, 1)
    assert (heard, endpoint.credits(0)) == ([1], 4)


@pytest.mark.parametrize("gone", [AWAY.node << layout.SUBJECTS | layout.RESTARTED, GONE])
def test_what_was_taken_where_nobody_is_any_more_comes_back_and_what_was_not_the_nic_gives_back(gone: int) -> None:
    host = Host()
    endpoint, heard = asks(host, 3)
    came_back: list[Returned] = []
    endpoint.error_handler = came_back.append
    endpoint.map(1, EndpointName(2, 0), 7)
    assert endpoint.try_request(1, 1)
    page = cast(memoryview, endpoint.outbox.page)
    page[layout.PLACES[0]] = page[layout.PLACES[2]] = layout.FREE  # they have been taken
    host.am.completed(gone)
    assert endpoint.is_ready
    assert came_back == []
    assert endpoint.handle() == 2
    assert [(one.status, one.message, one.destination, one.handler) for one in came_back] == [
        (Status.UNREACHABLE, 1, AWAY, 1), (Status.UNREACHABLE, 3, AWAY, 1),
    ]  # fmt: skip
    assert (endpoint.credits(0), endpoint.credits(1)) == (3, 3)
    for message in (1, 2):
        reply(host, endpoint, message)
    assert (heard, endpoint.credits(0), endpoint.inbox.strays) == ([2], 4, 1)
    host.am.completed(gone)
    assert endpoint.is_empty


def test_which_requests_were_taken_is_seen_when_the_page_is_there() -> None:
    host = Host()
    endpoint, _ = asks(host, 2)
    endpoint.error_handler = lambda _: None
    page = cast(memoryview, endpoint.outbox.page)
    endpoint.moved(None)
    host.am.completed(GONE)
    assert endpoint.is_empty
    page[layout.PLACES[0]] = layout.FREE
    endpoint.moved(page)
    assert endpoint.handle() == 1
    assert list(endpoint.outbox.pending) == [2]


def test_a_reply_to_an_earlier_life_of_a_host_process_finds_nobody() -> None:
    lives = [Host(place=HostSlot(0, 1, turn)) for turn in range(1, 1001)]
    began = sorted(asks(host, 1)[0].outbox.number for host in lives)
    split_driver = [later - earlier for earlier, later in zip(began, [*began[1:], began[0] + (1 << 32)], strict=True)]
    assert min(split_driver) > 1_000_000
    endpoint, heard = asks(lives[1], 2)
    for message in (1, 2):
        reply(lives[1], endpoint, message)
    assert (heard, endpoint.inbox.strays, endpoint.credits(0)) == ([], 2, 2)
