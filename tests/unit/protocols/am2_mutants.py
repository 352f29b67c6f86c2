"""AM-II with one mistake each, for searches that must find it: the swarm, and random schedules of turns."""

from __future__ import annotations

import struct

import pytest

from protocols.active_messages.endpoint_names import ANY
from protocols.am2 import card, page, receiver
from protocols.am2.codec import REASON_NONE
from protocols.am2.endpoint_frames import Resident
from protocols.am2.host.endpoint import Endpoint
from protocols.am2.host.inbox import Inbox
from protocols.am2.host.outbox import Correspondent
from protocols.am2.host.segment_driver import SegmentDriver
from protocols.am2.receiver import Receiver
from protocols.am2.residency import Residency
from protocols.am2.sender import Sender
from protocols.am2.transport import Incoming, Outgoing, Packet, PacketClass, Sending
from protocols.am2.turns import Turns
from tests.unit.protocols.mutants import Mutant


def one_bit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(card, "MAX_SEQUENCES", 2)


def late_refusal(patch: pytest.MonkeyPatch) -> None:
    refused = Outgoing.refused

    def of_any_sending(
        table: Outgoing[Packet], now: int, channel: int, generation: int, sequence: int, stamp: int
    ) -> Sending[Packet] | None:
        for row in table.under_way():
            if row.channel == channel:
                stamp = row.stamp
        return refused(table, now, channel, generation, sequence, stamp)

    patch.setattr(Outgoing, "refused", of_any_sending)


def credit_kept(patch: pytest.MonkeyPatch) -> None:
    returned = Inbox._returned

    def without_its_credit(inbox: Inbox, view: memoryview, status: int, slot: int) -> None:
        before = {one: one.credits for one, _, _ in inbox._pending.values()}
        returned(inbox, view, status, slot)
        for one, credits_ in before.items():
            one.credits = credits_

    patch.setattr(Inbox, "_returned", without_its_credit)


def old_generation(patch: pytest.MonkeyPatch) -> None:
    row = Outgoing._row

    def of_any(table: Outgoing[Packet], channel: int, generation: int, sequence: int) -> Sending[Packet] | None:
        for one in table.under_way():
            if one.channel == channel:
                generation = one.generation
        return row(table, channel, generation, sequence)

    patch.setattr(Outgoing, "_row", of_any)


def not_answered_again(patch: pytest.MonkeyPatch) -> None:
    classify = Incoming.classify

    def once(table: Incoming, channel: int, generation: int, sequence: int, stamp: int) -> PacketClass:
        packet_class = classify(table, channel, generation, sequence, stamp)
        return PacketClass.OLD if packet_class is PacketClass.AGAIN else packet_class

    patch.setattr(Incoming, "classify", once)


def not_quiescent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Resident, "open", property(lambda _: 0, lambda *_: None))


def fragment_twice(patch: pytest.MonkeyPatch) -> None:
    part = Receiver._part

    def and_again(
        nic: Receiver, endpoint: Resident, view: memoryview, at: int, identity: tuple[int, int, int, int, int],
        body: bytes, length: int, offset: int, total: int,
    ) -> int:  # fmt: skip
        reason = part(nic, endpoint, view, at, identity, body, length, offset, total)
        if reason == REASON_NONE:
            come, first = endpoint.parts[identity]
            endpoint.parts[identity] = (min(come + length, total), first)
        return reason

    patch.setattr(Receiver, "_part", and_again)


def any_tag(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(receiver, "_TAG", lambda _: (ANY,))


def in_step(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Residency, "_stay", lambda residency: residency._card.settings.stay)


def by_name(patch: pytest.MonkeyPatch) -> None:
    reply = Inbox._reply

    def of_any_request(inbox: Inbox, view: memoryview) -> None:
        at = page.PLACES[inbox._next_reply]
        (_, status, node, *_, endpoint, _, tag, _, _, _) = page.READ(view, at)
        if not status:
            for number, (one, _, _) in inbox._pending.items():
                if one.key == (node, endpoint, tag):
                    struct.pack_into("!I", view, at + page.MESSAGE + 16, number)
                    break
        reply(inbox, view)

    patch.setattr(Inbox, "_reply", of_any_request)


def two_ends(patch: pytest.MonkeyPatch) -> None:
    returned = Inbox._returned

    def of_what_was_replied_to(inbox: Inbox, view: memoryview, status: int, slot: int) -> None:
        at = page.PLACES[slot]
        node, endpoint, tag, number = (page.READ(view, at)[field] for field in (2, 11, 12, 13))
        if slot < page.REPLIES:
            inbox._pending.setdefault(number, (Correspondent(node, endpoint, tag, 0), 0, ()))
        returned(inbox, view, status, slot)

    patch.setattr(Inbox, "_returned", of_what_was_replied_to)


def forgotten(patch: pytest.MonkeyPatch) -> None:
    abandon_unreachable = Endpoint.abandon_unreachable

    def what_is_on_its_way(endpoint: Endpoint, node: int, number: int | None = None) -> None:
        abandon_unreachable(endpoint, node, number)
        for message, (one, _, _) in list(endpoint.outbox.pending.items()):
            if one.node == node:
                del endpoint.outbox.pending[message]

    patch.setattr(Endpoint, "abandon_unreachable", what_is_on_its_way)


def no_empty_reply(patch: pytest.MonkeyPatch) -> None:
    reply = Inbox._reply

    def without_its_credit(inbox: Inbox, view: memoryview) -> None:
        at = page.PLACES[inbox._next_reply]
        handled, asked = view[at + page.MESSAGE + 2], inbox._pending.get(page.READ(view, at)[13])
        before = 0 if asked is None else asked[0].credits
        reply(inbox, view)
        if not handled and asked is not None:
            asked[0].credits = before

    patch.setattr(Inbox, "_reply", without_its_credit)


def untold(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sender, "announce", lambda *_: None)


def let_go_at_once(patch: pytest.MonkeyPatch) -> None:
    destroy = SegmentDriver.destroy

    def before_the_nic_has(driver: SegmentDriver, endpoint: Endpoint) -> None:
        destroy(driver, endpoint)
        driver.release(endpoint.name.endpoint, page.UNLOADED)

    patch.setattr(SegmentDriver, "destroy", before_the_nic_has)


MUTANTS = [
    Mutant("untold", "nobody is told of an endpoint that is gone", untold),
    Mutant("one bit", "sequence numbers are of one bit where links let frames overtake each other", one_bit),
    Mutant("late refusal", "a refusal of an earlier sending is taken for one of the latest", late_refusal),
    Mutant("credit kept", "a request that comes back does not bring its credit", credit_kept),
    Mutant("old generation", "an answer of an earlier generation of a channel is taken for a packet's", old_generation),
    Mutant("not answered again", "a packet that comes again is not answered again", not_answered_again),
    Mutant("not quiescent", "an endpoint leaves its frame while its packets are not answered", not_quiescent),
    Mutant("fragment twice", "a part of a bulk message counts twice", fragment_twice),
    Mutant("any tag", "tags are not compared", any_tag),
    Mutant("by name", "a reply is taken for one to any request to who replies", by_name),
    Mutant("two ends", "a request that was replied to comes back as well", two_ends),
    Mutant("forgotten", "requests that are under way to a NIC that starts again are forgotten", forgotten),
    Mutant("empty reply", "a request without a reply does not bring its credit", no_empty_reply),
    Mutant("let go", "the frame of a freed endpoint is another's before the NIC knows", let_go_at_once),
    Mutant("in step", "NICs page in step, each without the endpoint that the other one sends to", in_step),
]


def handled_again(patch: pytest.MonkeyPatch) -> None:
    request = Inbox._request

    def and_again(inbox: Inbox, view: memoryview) -> None:
        slot = inbox._next_request
        request(inbox, view)
        if slot == page.ARRIVED_REQUESTS and inbox.requests and inbox._endpoint.outbox.has_room(1):
            view[page.PLACES[slot]] = page.READY
            inbox._next_request = slot
            inbox.requests += 1
            request(inbox, view)

    patch.setattr(Inbox, "_request", and_again)


def all_of_its_node(patch: pytest.MonkeyPatch) -> None:
    abandon_unreachable = Endpoint.abandon_unreachable
    patch.setattr(
        Endpoint, "abandon_unreachable", lambda endpoint, node, _number=None: abandon_unreachable(endpoint, node)
    )


NATIVE = [
    Mutant("handled again", "the first entry of the ring is read twice where another is behind it", handled_again),
    Mutant("by name", "a reply is taken for one to any request to who replies", by_name),
    Mutant("all of its node", "the end of an endpoint returns requests to all endpoints of its node", all_of_its_node),
]
"""Mistakes that MPI's calls do not show: it has one endpoint on each node, and no program sees its requests' replies."""


def never_leaves(patch: pytest.MonkeyPatch) -> None:
    take = Turns.take

    def on_and_on(turns: Turns[str]) -> tuple[str, int]:
        turns._left = max(turns._left, 2)
        return take(turns)

    patch.setattr(Turns, "take", on_and_on)


def not_behind_the_others(patch: pytest.MonkeyPatch) -> None:
    take = Turns.take

    def first_again(turns: Turns[str]) -> tuple[str, int]:
        current = turns._current
        if current in turns.waiting and not turns._left:
            turns._left = turns._attempts
        return take(turns)

    patch.setattr(Turns, "take", first_again)


TURNS = [
    Mutant("never leaves", "the scheduler does not leave an endpoint that has something to send", never_leaves),
    Mutant("first again", "an endpoint whose turn is over has the next one, too", not_behind_the_others),
]
