"""EMP with one mistake, for whatever looks for mistakes: random schedules between lists, and the simulator's swarm."""

from __future__ import annotations

import pytest
from mutants import Mutant

from protocols.emp.card import Card
from protocols.emp.sender import Sender
from protocols.emp.transfers import Peer


def no_second_acknowledgement(patch: pytest.MonkeyPatch) -> None:
    acknowledge = Card.acknowledge

    def only_of_what_is_incomplete(
        card: Card, peer: Peer, flags: int, unit: int, message: int, number: int, status: int = 0
    ) -> None:
        if message in peer.receiving:
            acknowledge(card, peer, flags, unit, message, number, status)

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


MUTANTS = [
    Mutant("a completed message is not acknowledged again", no_second_acknowledgement),
    Mutant("a lost acknowledgement of a collection is forgotten once the next is acknowledged", acknowledged_up_to),
    Mutant("messages that nobody receives keep the window from those behind them", never_parked),
]
