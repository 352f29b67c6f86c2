"""EMP with one mistake each, which searches must find: random schedules, the swarm, exhaustive schedules."""

from __future__ import annotations

import pytest

from protocols.core.memory import HostMemory
from protocols.emp.card import CachedHeader, Card, Peer
from protocols.emp.descriptors import DONE
from protocols.emp.receiver import Receiver
from protocols.emp.sender import OutgoingMessage, Sender
from tests.unit.protocols.mutants import Mutant

_HALF = 1 << 31


def no_second_acknowledgement(patch: pytest.MonkeyPatch) -> None:
    acknowledge = Card.acknowledge

    def acknowledge_incomplete_only(card: Card, cached: CachedHeader, message_id: int, frame_number: int) -> None:
        if message_id in cached.peer.incoming_messages:
            acknowledge(card, cached, message_id, frame_number)

    patch.setattr(Card, "acknowledge", acknowledge_incomplete_only)


def cumulative_acknowledgements(patch: pytest.MonkeyPatch) -> None:
    on_acknowledgement = Sender.on_acknowledgement

    def acknowledge_all_before(sender: Sender, now: int, peer: Peer, message_id: int, frame_number: int) -> None:
        message = peer.outgoing_messages.get(message_id)
        if message is not None:
            unit = message.unit
            for collection in [number for number in message.open_collections if number < frame_number // unit]:
                on_acknowledgement(sender, now, peer, message_id, collection * unit)
        on_acknowledgement(sender, now, peer, message_id, frame_number)

    patch.setattr(Sender, "on_acknowledgement", acknowledge_all_before)


def never_parked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sender, "_park", lambda sender, peer, message: None)  # noqa: ARG005


def collection_counted_twice(patch: pytest.MonkeyPatch) -> None:
    acknowledge_again = Receiver._acknowledge_again

    def count_as_another(receiver: Receiver, cached: CachedHeader, message_id: int, frame_number: int) -> None:
        acknowledge_again(receiver, cached, message_id, frame_number)
        message = cached.peer.incoming_messages.get(message_id)
        if message is not None and message.incomplete_collection_count > 1:
            message.incomplete_collection_count -= 1

    patch.setattr(Receiver, "_acknowledge_again", count_as_another)


def admitted_out_of_order(patch: pytest.MonkeyPatch) -> None:
    on_first_frame = Receiver.on_first_frame

    def skip_missing_headers(receiver: Receiver, cached: CachedHeader, message_id: int, *fields: object) -> None:
        peer = cached.peer
        if peer.expected_id is not None and 0 < (message_id - peer.expected_id) & 0xFFFF_FFFF < _HALF:
            peer.expected_id = message_id
        on_first_frame(receiver, cached, message_id, *fields)  # type: ignore[arg-type]

    patch.setattr(Receiver, "on_first_frame", skip_missing_headers)


def freed_when_sent(patch: pytest.MonkeyPatch) -> None:
    record, return_descriptor = Sender._record_first_transmission, Sender._return_descriptor

    def record_and_return(
        sender: Sender, now: int, peer: Peer, message: OutgoingMessage, collection: int, is_queued: bool | None
    ) -> None:
        record(sender, now, peer, message, collection, is_queued)
        if message.sent_collection_count == message.collection_count:
            return_descriptor(sender, peer, message, DONE)

    def return_failed(sender: Sender, peer: Peer, message: OutgoingMessage, status: int) -> None:
        if status != DONE:
            return_descriptor(sender, peer, message, status)

    patch.setattr(Sender, "_record_first_transmission", record_and_return)
    patch.setattr(Sender, "_return_descriptor", return_failed)


def acknowledged_in_current_unit(patch: pytest.MonkeyPatch) -> None:
    on_acknowledgement = Sender.on_acknowledgement

    def convert_to_current_unit(sender: Sender, now: int, peer: Peer, message_id: int, frame_number: int) -> None:
        message, unit = peer.outgoing_messages.get(message_id), sender._card.settings.unit
        if message is not None and unit != message.unit:
            frame_number = frame_number // unit * message.unit
        on_acknowledgement(sender, now, peer, message_id, frame_number)

    patch.setattr(Sender, "on_acknowledgement", convert_to_current_unit)


def kept_pinned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HostMemory, "unpin", lambda *_: None)


MUTANTS = [
    Mutant("acknowledged once", "a completed message is not acknowledged again", no_second_acknowledgement),
    Mutant(
        "acknowledged up to",
        "a lost acknowledgement of a collection is forgotten once the next is acknowledged",
        cumulative_acknowledgements,
    ),
    Mutant(
        "never parked", "messages without a receive keep the window from later ones", never_parked
    ),
    Mutant("counted twice", "a resent frame of an older collection counts as a newer one", collection_counted_twice),
    Mutant("out of order", "a header is admitted though one before it is missing", admitted_out_of_order),
    Mutant("kept pinned", "a buffer stays pinned when its transfer is over", kept_pinned),
    Mutant("freed when sent", "a send's descriptor is the host's before all is acknowledged", freed_when_sent),
]  # fmt: skip

CHANGED_UNIT = Mutant(
    "current unit",
    "an acknowledgement is counted in the unit set since its message began",
    acknowledged_in_current_unit,
)
"""Shows only where a host changes the unit."""
