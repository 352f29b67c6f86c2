"""Watches EMP's sender: each transition of a message that the firmware takes is compared with the state table."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from protocols.emp.card import Card, Peer
from protocols.emp.sender import Sender, Sending
from protocols.emp.states import ACTIVE, ENDED, PARKED, QUEUED, SEND_MESSAGE
from tests.sim.state_watch import Watch

_MASK = 0xFFFF_FFFF


def state_of(peer: Peer, sending: Sending) -> str:
    if peer.sending.get(sending.id) is not sending:
        return ENDED
    if sending.parked:
        return PARKED
    return ACTIVE if sending.sent else QUEUED


class _SendWatch:
    """cause: what the firmware is handling: "timeout", "peer introduced", "peer restarted" or none of these. parking:
    the message just parked, whose first collection is sent again next. kept: messages queued to a restarted peer, until
    the sender goes on."""

    def __init__(self, patch: pytest.MonkeyPatch, watch: Watch) -> None:
        self._patch = patch
        self._watch = watch
        self._cause = ""
        self._parking: Sending | None = None
        self._kept: list[Sending] = []
        self._watch_causes()
        self._watch_first_sendings()
        self._watch_resends()
        self._watch_acknowledgements()
        self._watch_ends()

    def _saw(self, before: str, event: str, after: str) -> None:
        self._watch.saw(SEND_MESSAGE, before, event, after)

    def _watch_causes(self) -> None:
        for name, cause in (("on_timer", "timeout"), ("introduced", "peer introduced")):
            self._patch.setattr(Sender, name, self._with_cause(getattr(Sender, name), cause))
        restarted, pump = self._with_cause(Sender.restarted, "peer restarted"), Sender.pump

        def watched_restarted(sender: Sender, now: int, peer: Peer) -> None:
            self._kept = [sending for sending in peer.sending.values() if not sending.sent]
            restarted(sender, now, peer)

        def watched_pump(sender: Sender, now: int, peer: Peer) -> None:
            kept, self._kept = self._kept, []
            for sending in kept:
                self._saw(QUEUED, "peer restarted", state_of(peer, sending))
            pump(sender, now, peer)

        self._patch.setattr(Sender, "restarted", watched_restarted)
        self._patch.setattr(Sender, "pump", watched_pump)

    def _with_cause(self, method: Callable[..., None], cause: str) -> Callable[..., None]:
        def watched(*arguments: object) -> None:
            former, self._cause = self._cause, cause
            method(*arguments)
            self._cause = former

        return watched

    def _watch_first_sendings(self) -> None:
        sent = Sender._sent

        def watched_sent(
            sender: Sender, now: int, peer: Peer, sending: Sending, number: int, remains: bool | None
        ) -> None:
            before = state_of(peer, sending)
            sent(sender, now, peer, sending, number, remains)
            self._saw(before, "window has room", state_of(peer, sending))

        self._patch.setattr(Sender, "_sent", watched_sent)

    def _watch_resends(self) -> None:
        park, resend = Sender._park, Sender._resend

        def watched_park(sender: Sender, peer: Peer, sending: Sending) -> None:
            before = state_of(peer, sending)
            park(sender, peer, sending)
            self._parking = sending
            self._saw(before, f"{self._cause} with nothing acknowledged", state_of(peer, sending))

        def watched_resend(sender: Sender, now: int, peer: Peer, sending: Sending, number: int) -> None:
            before, is_parking, self._parking = state_of(peer, sending), self._parking is sending, None
            resend(sender, now, peer, sending, number)
            if self._cause and not is_parking:
                self._saw(before, self._cause, state_of(peer, sending))

        self._patch.setattr(Sender, "_park", watched_park)
        self._patch.setattr(Sender, "_resend", watched_resend)

    def _watch_acknowledgements(self) -> None:
        acknowledged = Sender.acknowledged

        def watched(sender: Sender, now: int, peer: Peer, message: int, frame: int) -> None:
            card: Card = sender._card
            sending = peer.sending.get(message)
            before = ENDED if sending is None else state_of(peer, sending)
            is_last = sending is not None and sending.left == 1
            was_begun = (message - peer.next_id) & _MASK >= 1 << 31
            counters = card.counters
            late, wrong = counters.late_acknowledgements, counters.wrong_acknowledgements
            acknowledged(sender, now, peer, message, frame)
            if counters.late_acknowledgements > late:
                event = "late acknowledgement"
            elif counters.wrong_acknowledgements > wrong:
                event = "wrong acknowledgement"
            else:
                event = "last acknowledgement" if is_last else "acknowledgement"
            if sending is not None:
                self._saw(before, event, state_of(peer, sending))
            elif was_begun:
                self._saw(before, event, ENDED)

        self._patch.setattr(Sender, "acknowledged", watched)

    def _watch_ends(self) -> None:
        forget = Sender._forget

        def watched_forget(sender: Sender, peer: Peer, sending: Sending) -> None:
            before = state_of(peer, sending)
            event = "gave up" if self._cause == "timeout" else self._cause
            forget(sender, peer, sending)
            self._saw(before, event, state_of(peer, sending))

        self._patch.setattr(Sender, "_forget", watched_forget)


def watch_messages(patch: pytest.MonkeyPatch, watch: Watch) -> None:
    """Watch every message sent in this process until the patch is undone."""
    _SendWatch(patch, watch)
