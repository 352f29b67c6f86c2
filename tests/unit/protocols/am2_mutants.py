"""AM-II with one mistake each, which searches must find: the swarm, and random floods of the endpoint scheduler."""

from __future__ import annotations

import struct

import pytest

from protocols.active_messages.endpoint_names import ANY
from protocols.am2 import card, page, receiver
from protocols.am2.codec import REASON_NONE
from protocols.am2.endpoint_scheduler import EndpointScheduler
from protocols.am2.host.endpoint import Endpoint
from protocols.am2.host.inbox import Inbox
from protocols.am2.host.outbox import Destination
from protocols.am2.host.segment_driver import SegmentDriver
from protocols.am2.nic_endpoint import BulkKey, NicEndpoint
from protocols.am2.receiver import Receiver
from protocols.am2.residency import Residency
from protocols.am2.sender import Sender
from protocols.am2.transport import Packet, PacketClass, ReceiveTable, SendRow, SendTable
from tests.unit.protocols.am2_single_nic import read_entry
from tests.unit.protocols.mutants import Mutant


def one_bit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(card, "MAX_SEQUENCES", 2)


def late_refusal(patch: pytest.MonkeyPatch) -> None:
    on_refusal = SendTable.on_refusal

    def refuse_any_sending(
        table: SendTable[Packet], now: int, channel: int, generation: int, sequence: int, stamp: int
    ) -> SendRow[Packet] | None:
        for row in table.unanswered_rows():
            if row.channel == channel:
                stamp = row.stamp
        return on_refusal(table, now, channel, generation, sequence, stamp)

    patch.setattr(SendTable, "on_refusal", refuse_any_sending)


def credit_kept(patch: pytest.MonkeyPatch) -> None:
    handle_nic_return = Inbox._handle_nic_return

    def return_without_credit(inbox: Inbox, view: memoryview, status: int, slot: int) -> None:
        credits_before = {destination: destination.credits for destination, _, _ in inbox._pending.values()}
        handle_nic_return(inbox, view, status, slot)
        for destination, before in credits_before.items():
            destination.credits = before

    patch.setattr(Inbox, "_handle_nic_return", return_without_credit)


def old_generation(patch: pytest.MonkeyPatch) -> None:
    find_row = SendTable._find_row

    def find_in_any_generation(
        table: SendTable[Packet], channel: int, generation: int, sequence: int
    ) -> SendRow[Packet] | None:
        for row in table.unanswered_rows():
            if row.channel == channel:
                generation = row.generation
        return find_row(table, channel, generation, sequence)

    patch.setattr(SendTable, "_find_row", find_in_any_generation)


def not_answered_again(patch: pytest.MonkeyPatch) -> None:
    classify = ReceiveTable.classify

    def classify_duplicate_as_old(
        table: ReceiveTable, channel: int, generation: int, sequence: int, stamp: int
    ) -> PacketClass:
        packet_class = classify(table, channel, generation, sequence, stamp)
        return PacketClass.OLD if packet_class is PacketClass.DUPLICATE else packet_class

    patch.setattr(ReceiveTable, "classify", classify_duplicate_as_old)


def not_quiescent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NicEndpoint, "unanswered_count", property(lambda _: 0, lambda *_: None))


def part_counted_twice(patch: pytest.MonkeyPatch) -> None:
    store_part = Receiver._store_part

    def store_and_count_twice(
        receiver: Receiver, endpoint: NicEndpoint, view: memoryview, entry_offset: int,
        key: BulkKey, body: bytes, length: int, offset: int, total: int,
    ) -> int:  # fmt: skip
        reason = store_part(receiver, endpoint, view, entry_offset, key, body, length, offset, total)
        if reason == REASON_NONE:
            received_bytes, min_offset = endpoint.bulk_parts[key]
            endpoint.bulk_parts[key] = (min(received_bytes + length, total), min_offset)
        return reason

    patch.setattr(Receiver, "_store_part", store_and_count_twice)


def any_tag(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(receiver, "_UNPACK_TAG", lambda _: (ANY,))


def in_step(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Residency, "_min_residence", lambda residency: residency._card.settings.stay)


def matched_by_name(patch: pytest.MonkeyPatch) -> None:
    handle_reply = Inbox._handle_reply

    def match_any_request(inbox: Inbox, view: memoryview) -> None:
        entry_offset = page.SLOT_OFFSETS[inbox._next_reply]
        entry = read_entry(view, inbox._next_reply)
        if not entry.status:
            for number, (destination, _, _) in inbox._pending.items():
                if destination.key == (entry.node, entry.origin, entry.tag):
                    struct.pack_into("!I", view, entry_offset + page.MESSAGE_OFFSET + 16, number)
                    break
        handle_reply(inbox, view)

    patch.setattr(Inbox, "_handle_reply", match_any_request)


def two_ends(patch: pytest.MonkeyPatch) -> None:
    handle_nic_return = Inbox._handle_nic_return

    def return_replied_request(inbox: Inbox, view: memoryview, status: int, slot: int) -> None:
        entry = read_entry(view, slot)
        if slot < page.REPLIES:
            destination = Destination(entry.node, entry.endpoint, entry.tag, 0)
            inbox._pending.setdefault(entry.message, (destination, 0, ()))
        handle_nic_return(inbox, view, status, slot)

    patch.setattr(Inbox, "_handle_nic_return", return_replied_request)


def forgotten(patch: pytest.MonkeyPatch) -> None:
    abandon_unreachable = Endpoint.abandon_unreachable

    def forget_requests_in_flight(endpoint: Endpoint, node: int, number: int | None = None) -> None:
        abandon_unreachable(endpoint, node, number)
        for request, (destination, _, _) in list(endpoint.outbox.pending.items()):
            if destination.node == node:
                del endpoint.outbox.pending[request]

    patch.setattr(Endpoint, "abandon_unreachable", forget_requests_in_flight)


def no_empty_reply(patch: pytest.MonkeyPatch) -> None:
    handle_reply = Inbox._handle_reply

    def reply_without_credit(inbox: Inbox, view: memoryview) -> None:
        entry = read_entry(view, inbox._next_reply)
        request = inbox._pending.get(entry.message)
        credits_before = 0 if request is None else request[0].credits
        handle_reply(inbox, view)
        if not entry.handler and request is not None:
            request[0].credits = credits_before

    patch.setattr(Inbox, "_handle_reply", reply_without_credit)


def not_announced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sender, "announce_gone", lambda *_: None)


def freed_early(patch: pytest.MonkeyPatch) -> None:
    destroy = SegmentDriver.destroy

    def free_before_the_nic(driver: SegmentDriver, endpoint: Endpoint) -> None:
        destroy(driver, endpoint)
        driver.on_destroyed(endpoint.name.endpoint, page.UNLOADED)

    patch.setattr(SegmentDriver, "destroy", free_before_the_nic)


def reply_lost_in_silence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Receiver, "_on_reply_lost", lambda *_: None)


MUTANTS = [
    Mutant("not announced", "a destroyed endpoint is not announced", not_announced),
    Mutant("one bit", "sequence numbers have one bit on links that reorder frames", one_bit),
    Mutant("late refusal", "a refusal of an earlier transmission is taken for one of the latest", late_refusal),
    Mutant("credit kept", "a returned request does not restore its credit", credit_kept),
    Mutant("old generation", "an answer of an earlier generation of a channel is taken for a packet's", old_generation),
    Mutant("not answered again", "a duplicate packet is not answered again", not_answered_again),
    Mutant("not quiescent", "an endpoint leaves its frame while its packets are not answered", not_quiescent),
    Mutant("fragment twice", "a part of a bulk message counts twice", part_counted_twice),
    Mutant("any tag", "tags are not compared", any_tag),
    Mutant("by name", "a reply is matched to any request to the replier", matched_by_name),
    Mutant("two ends", "a request that was replied to is returned as well", two_ends),
    Mutant("forgotten", "requests in flight to a restarting NIC are forgotten", forgotten),
    Mutant("empty reply", "a request without a reply does not restore its credit", no_empty_reply),
    Mutant("freed early", "the frame of a freed endpoint is reused before the NIC knows", freed_early),
    Mutant("in step", "NICs page in step, each without the endpoint that the other one sends to", in_step),
    Mutant("reply lost", "the notice that a reply was given up is ignored", reply_lost_in_silence),
]


def handled_again(patch: pytest.MonkeyPatch) -> None:
    handle_request = Inbox._handle_request

    def handle_twice(inbox: Inbox, view: memoryview) -> None:
        slot = inbox._next_request
        handle_request(inbox, view)
        if slot == page.ARRIVED_REQUESTS and inbox.request_count and inbox._endpoint.outbox.has_room(1):
            view[page.SLOT_OFFSETS[slot]] = page.READY
            inbox._next_request = slot
            inbox.request_count += 1
            handle_request(inbox, view)

    patch.setattr(Inbox, "_handle_request", handle_twice)


def all_of_its_node(patch: pytest.MonkeyPatch) -> None:
    abandon_unreachable = Endpoint.abandon_unreachable
    patch.setattr(
        Endpoint, "abandon_unreachable", lambda endpoint, node, _number=None: abandon_unreachable(endpoint, node)
    )


NATIVE = [
    Mutant("handled again", "the first entry of the ring is read twice if another follows it", handled_again),
    Mutant("by name", "a reply is matched to any request to the replier", matched_by_name),
    Mutant("all of its node", "the end of an endpoint returns requests to all endpoints of its node", all_of_its_node),
]
"""Mistakes that MPI's calls do not show: it has one endpoint on each node, and no program sees its requests' replies."""


def never_leaves(patch: pytest.MonkeyPatch) -> None:
    take = EndpointScheduler.take

    def never_end_a_turn(scheduler: EndpointScheduler[str]) -> tuple[str, int]:
        scheduler._remaining_attempts = max(scheduler._remaining_attempts, 2)
        return take(scheduler)

    patch.setattr(EndpointScheduler, "take", never_end_a_turn)


def first_again(patch: pytest.MonkeyPatch) -> None:
    take = EndpointScheduler.take

    def take_another_turn(scheduler: EndpointScheduler[str]) -> tuple[str, int]:
        current = scheduler._current
        if current in scheduler.waiting_slots and not scheduler._remaining_attempts:
            scheduler._remaining_attempts = scheduler._attempts
        return take(scheduler)

    patch.setattr(EndpointScheduler, "take", take_another_turn)


SCHEDULER_MUTANTS = [
    Mutant("never leaves", "the scheduler does not leave an endpoint that has something to send", never_leaves),
    Mutant("first again", "an endpoint whose turn has ended gets the next one, too", first_again),
]
