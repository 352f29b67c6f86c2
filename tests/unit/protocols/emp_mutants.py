"""EMP with one mistake each, for searches that must find it: random schedules, the swarm, exhaustive schedules."""

from __future__ import annotations

import pytest

from protocols.core.memory import HostMemory
from protocols.emp.card import CachedHeader, Card, Peer
from protocols.emp.descriptors import DONE
from protocols.emp.receiver import Receiver
from protocols.emp.sender import Sender, Sending
from tests.unit.protocols.mutants import Mutant

_HALF = 1 << 31


def no_second_acknowledgement(patch: pytest.MonkeyPatch) -> None:
    acknowledge = Card.acknowledge

    def only_of_what_is_incomplete(card: Card, cached: CachedHeader, message: int, number: int) -> None:
        if message in cached.peer.receiving:
            acknowledge(card, cached, message, number)

    patch.setattr(Card, "acknowledge", only_of_what_is_incomplete)


def acknowledged_up_to(patch: pytest.MonkeyPatch) -> None:
    acknowledged = Sender.acknowledged

    def with_all_before(sender: Sender, now: int, peer: Peer, message: int, frame: int) -> None:
        sending = peer.sending.get(message)
        if sending is not None:
            unit = sending.unit
            for number in [number for number in sending.open if number < frame // unit]:
                acknowledged(sender, now, peer, message, number * unit)
        acknowledged(sender, now, peer, message, frame)

    patch.setattr(Sender, "acknowledged", with_all_before)


def never_parked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sender, "_park", lambda sender, peer, sending: None)  # noqa: ARG005


def counted_twice(patch: pytest.MonkeyPatch) -> None:
    again = Receiver._acknowledge_again

    def as_another_collection(receiver: Receiver, cached: CachedHeader, message: int, number: int) -> None:
        again(receiver, cached, message, number)
        receiving = cached.peer.receiving.get(message)
        if receiving is not None and receiving.left > 1:
            receiving.left -= 1

    patch.setattr(Receiver, "_acknowledge_again", as_another_collection)


def admitted_out_of_order(patch: pytest.MonkeyPatch) -> None:
    first = Receiver.first

    def whatever_is_missing_before(receiver: Receiver, cached: CachedHeader, message: int, *rest: object) -> None:
        peer = cached.peer
        if peer.expected is not None and 0 < (message - peer.expected) & 0xFFFF_FFFF < _HALF:
            peer.expected = message
        first(receiver, cached, message, *rest)  # type: ignore[arg-type]  # as they came

    patch.setattr(Receiver, "first", whatever_is_missing_before)


def freed_when_sent(patch: pytest.MonkeyPatch) -> None:
    sent, give_back = Sender._sent, Sender._give_back

    def and_give_back(
        sender: Sender, now: int, peer: Peer, sending: Sending, number: int, remains: bool | None
    ) -> None:
        sent(sender, now, peer, sending, number, remains)
        if sending.sent == sending.collections:
            give_back(sender, peer, sending, DONE)

    def what_has_failed(sender: Sender, peer: Peer, sending: Sending, status: int) -> None:
        if status != DONE:
            give_back(sender, peer, sending, status)

    patch.setattr(Sender, "_sent", and_give_back)
    patch.setattr(Sender, "_give_back", what_has_failed)


def answered_by_the_present_unit(patch: pytest.MonkeyPatch) -> None:
    acknowledged = Sender.acknowledged

    def by_the_cards(sender: Sender, now: int, peer: Peer, message: int, frame: int) -> None:
        sending, unit = peer.sending.get(message), sender._card.settings.unit
        if sending is not None and unit != sending.unit:
            frame = frame // unit * sending.unit
        acknowledged(sender, now, peer, message, frame)

    patch.setattr(Sender, "acknowledged", by_the_cards)


def kept_pinned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HostMemory, "unpin", lambda *_: None)


MUTANTS = [
    Mutant("acknowledged once", "a completed message is not acknowledged again", no_second_acknowledgement),
    Mutant(
        "acknowledged up to",
        "a lost acknowledgement of a collection is forgotten once the next is acknowledged",
        acknowledged_up_to,
    ),
    Mutant(
        "never parked", "messages that nobody receives keep the window from those behind them", never_parked
    ),
    Mutant("counted twice", "a resent frame of an older collection counts as a newer one", counted_twice),
    Mutant("out of order", "a header is admitted though one before it is missing", admitted_out_of_order),
    Mutant("kept pinned", "a buffer stays pinned when its transfer is over", kept_pinned),
    Mutant("freed when sent", "a send's descriptor is the host's before all is acknowledged", freed_when_sent),
]  # fmt: skip

CHANGED_UNIT = Mutant(
    "the present unit",
    "an acknowledgement is counted in the unit set since its message began",
    answered_by_the_present_unit,
)
"""Shows only where a host changes the unit."""
