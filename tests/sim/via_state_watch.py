"""Watches of VIA's state machines: the table-driven steps of NICs and VIs, and the send queues' transitions, which are
compared with their table."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from protocols.via.card import Card, Outgoing, Vi
from protocols.via.connections import Connections
from protocols.via.sender import Sender
from protocols.via.states import EMPTY, NIC, SEND_QUEUE, VI, WAITING
from protocols.via.vipl_names import Reliability
from tests.sim.state_watch import Watch


def state_of(vi: Vi) -> str:
    return WAITING if vi.unacknowledged else EMPTY


def watch_vis(patch: pytest.MonkeyPatch, watch: Watch) -> None:
    """Count the steps of NICs and VIs."""
    step, step_vi = Card.step, Card.step_vi

    def watched_step(card: Card, event: str) -> None:
        before = card.state
        step(card, event)
        watch.record(NIC, before, event, card.state)

    def watched_step_vi(card: Card, vi: Vi, event: str) -> None:
        before = vi.state
        step_vi(card, vi, event)
        watch.record(VI, before, event, vi.state)

    patch.setattr(Card, "step", watched_step)
    patch.setattr(Card, "step_vi", watched_step_vi)


class _QueueWatch:
    """acknowledging: the VI whose acknowledgement is being handled. cause: the reason for retransmissions."""

    def __init__(self, patch: pytest.MonkeyPatch, watch: Watch) -> None:
        self._patch = patch
        self._watch = watch
        self._acknowledging: Vi | None = None
        self._cause = "frame is missing"
        self._watch_frames()
        self._watch_acknowledgements()
        self._watch_ends()

    def _record(self, before: str, event: str, after: str) -> None:
        self._watch.record(SEND_QUEUE, before, event, after)

    def _watch_frames(self) -> None:
        frame, resend, on_timer = Sender._frame, Sender._resend, Sender.on_timer

        def watched_frame(sender: Sender, vi: Vi, outgoing: Outgoing) -> bytes:
            before = state_of(vi)
            built = frame(sender, vi, outgoing)
            if vi.reliability != Reliability.UNRELIABLE:
                self._record(before, "window has room", WAITING)
            return built

        def watched_resend(sender: Sender, vi: Vi) -> None:
            before = state_of(vi)
            resend(sender, vi)
            self._record(before, self._cause, state_of(vi))

        def watched_timer(sender: Sender, now: int, vi: Vi) -> None:
            self._cause = "time-out"
            on_timer(sender, now, vi)
            self._cause = "frame is missing"

        self._patch.setattr(Sender, "_frame", watched_frame)
        self._patch.setattr(Sender, "_resend", watched_resend)
        self._patch.setattr(Sender, "on_timer", watched_timer)

    def _watch_acknowledgements(self) -> None:
        acknowledged, complete = Sender.on_acknowledgement, Sender.complete

        def watched_acknowledged(sender: Sender, now: int, vi: Vi, sequence: int, is_missing: bool) -> None:
            self._acknowledging = vi
            acknowledged(sender, now, vi, sequence, is_missing)
            self._acknowledging = None

        def watched_complete(sender: Sender, vi: Vi) -> None:
            if self._acknowledging is vi:
                self._acknowledging = None
                after = state_of(vi)
                self._record(WAITING, "acknowledgement" if after == WAITING else "last acknowledgement", after)
            complete(sender, vi)

        self._patch.setattr(Sender, "on_acknowledgement", watched_acknowledged)
        self._patch.setattr(Sender, "complete", watched_complete)

    def _watch_ends(self) -> None:
        for name in ("lose", "disconnect"):
            self._patch.setattr(Connections, name, self._ending(getattr(Connections, name)))

    def _ending(self, method: Callable[..., None]) -> Callable[..., None]:
        def observed(connections: Connections, vi: Vi, *arguments: object, **keywords: object) -> None:
            before = state_of(vi)
            method(connections, vi, *arguments, **keywords)
            if before == WAITING and state_of(vi) == EMPTY:
                self._record(before, "connection ended", EMPTY)

        return observed


def watch_queues(patch: pytest.MonkeyPatch, watch: Watch) -> None:
    """Watch every reliable send queue of this process until the patch is undone."""
    _QueueWatch(patch, watch)
