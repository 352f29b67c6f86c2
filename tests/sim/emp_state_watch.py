"""Compare each transition of an outgoing message of EMP's firmware with the state table."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from protocols.emp.card import Card, Peer
from protocols.emp.sender import OutgoingMessage, Sender
from protocols.emp.states import ACTIVE, ENDED, PARKED, QUEUED, SEND_MESSAGE
from tests.sim.state_watch import Watch

_MASK = 0xFFFF_FFFF


def state_of(peer: Peer, message: OutgoingMessage) -> str:
    if peer.outgoing_messages.get(message.id) is not message:
        return ENDED
    if message.is_parked:
        return PARKED
    return ACTIVE if message.sent_collection_count else QUEUED


class _SendWatch:
    """Wraps the sender's methods. cause: event that the firmware is handling: "timeout", "peer introduced", "peer
    restarted", or "" for others. parking: the message just parked, whose first collection is resent next. kept: messages
    queued to a restarted peer, until the next `pump`."""

    def __init__(self, patch: pytest.MonkeyPatch, watch: Watch) -> None:
        self._patch = patch
        self._watch = watch
        self._cause = ""
        self._parking: OutgoingMessage | None = None
        self._kept: list[OutgoingMessage] = []
        self._watch_causes()
        self._watch_first_transmissions()
        self._watch_resends()
        self._watch_acknowledgements()
        self._watch_removals()

    def _record(self, before: str, event: str, after: str) -> None:
        self._watch.record(SEND_MESSAGE, before, event, after)

    def _watch_causes(self) -> None:
        for name, cause in (("on_timer", "timeout"), ("on_peer_introduced", "peer introduced")):
            self._patch.setattr(Sender, name, self._with_cause(getattr(Sender, name), cause))
        restarted, pump = self._with_cause(Sender.on_peer_restarted, "peer restarted"), Sender.pump

        def watched_restarted(sender: Sender, now: int, peer: Peer) -> None:
            self._kept = [message for message in peer.outgoing_messages.values() if not message.sent_collection_count]
            restarted(sender, now, peer)

        def watched_pump(sender: Sender, now: int, peer: Peer) -> None:
            kept, self._kept = self._kept, []
            for message in kept:
                self._record(QUEUED, "peer restarted", state_of(peer, message))
            pump(sender, now, peer)

        self._patch.setattr(Sender, "on_peer_restarted", watched_restarted)
        self._patch.setattr(Sender, "pump", watched_pump)

    def _with_cause(self, method: Callable[..., None], cause: str) -> Callable[..., None]:
        def observed(*arguments: object) -> None:
            former_cause, self._cause = self._cause, cause
            method(*arguments)
            self._cause = former_cause

        return observed

    def _watch_first_transmissions(self) -> None:
        record = Sender._record_first_transmission

        def watched_record(
            sender: Sender, now: int, peer: Peer, message: OutgoingMessage, collection: int, is_queued: bool | None
        ) -> None:
            before = state_of(peer, message)
            record(sender, now, peer, message, collection, is_queued)
            self._record(before, "window has room", state_of(peer, message))

        self._patch.setattr(Sender, "_record_first_transmission", watched_record)

    def _watch_resends(self) -> None:
        park, resend = Sender._park, Sender._resend

        def watched_park(sender: Sender, peer: Peer, message: OutgoingMessage) -> None:
            before = state_of(peer, message)
            park(sender, peer, message)
            self._parking = message
            self._record(before, f"{self._cause} with nothing acknowledged", state_of(peer, message))

        def watched_resend(sender: Sender, now: int, peer: Peer, message: OutgoingMessage, collection: int) -> None:
            before, is_parking, self._parking = state_of(peer, message), self._parking is message, None
            resend(sender, now, peer, message, collection)
            if self._cause and not is_parking:
                self._record(before, self._cause, state_of(peer, message))

        self._patch.setattr(Sender, "_park", watched_park)
        self._patch.setattr(Sender, "_resend", watched_resend)

    def _watch_acknowledgements(self) -> None:
        on_acknowledgement = Sender.on_acknowledgement

        def observed(sender: Sender, now: int, peer: Peer, message_id: int, frame_number: int) -> None:
            card: Card = sender._card
            message = peer.outgoing_messages.get(message_id)
            before = ENDED if message is None else state_of(peer, message)
            is_last = message is not None and message.unacknowledged_collection_count == 1
            was_begun = (message_id - peer.next_id) & _MASK >= 1 << 31
            counters = card.counters
            late_count, wrong_count = counters.late_acknowledgements, counters.wrong_acknowledgements
            on_acknowledgement(sender, now, peer, message_id, frame_number)
            if counters.late_acknowledgements > late_count:
                event = "late acknowledgement"
            elif counters.wrong_acknowledgements > wrong_count:
                event = "wrong acknowledgement"
            else:
                event = "last acknowledgement" if is_last else "acknowledgement"
            if message is not None:
                self._record(before, event, state_of(peer, message))
            elif was_begun:
                self._record(before, event, ENDED)

        self._patch.setattr(Sender, "on_acknowledgement", observed)

    def _watch_removals(self) -> None:
        remove = Sender._remove

        def watched_remove(sender: Sender, peer: Peer, message: OutgoingMessage) -> None:
            before = state_of(peer, message)
            event = "gave up" if self._cause == "timeout" else self._cause
            remove(sender, peer, message)
            self._record(before, event, state_of(peer, message))

        self._patch.setattr(Sender, "_remove", watched_remove)


def watch_messages(patch: pytest.MonkeyPatch, watch: Watch) -> None:
    """Watch every message sent in this process until the patch is undone."""
    _SendWatch(patch, watch)
