"""Watches EMP's receiver: each transition of a message that the firmware takes is compared with the state table.

What a frame causes is named by the counters that it raises: the row of the table that raises just these is the one taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from protocols.emp import descriptors as stat
from protocols.emp.card import CachedHeader, Card, Peer
from protocols.emp.receiver import Posted, Receiver, Receiving
from protocols.emp.states import CLAIMED, ENDED, EXPECTED, HELD, RECEIVE_MESSAGE, RECEIVING
from tests.sim.state_watch import Watch

_HALF = 1 << 31
_MASK = 0xFFFF_FFFF
_COUNTED = sorted({"malformed", *RECEIVE_MESSAGE.counters} - {"abandoned"})


def state_of(receiver: Receiver, peer: Peer, message: int) -> str:
    receiving = peer.receiving.get(message)
    if receiving is None:
        expected = peer.expected
        return EXPECTED if expected is None or (message - expected) & _MASK < _HALF else ENDED
    if receiving.posted is not None:
        return RECEIVING
    return CLAIMED if (peer.number, message) in receiver._claimed else HELD


@dataclass
class _Frame:
    """A message's frame that the receiver is handling. expected: the message that the peer's next header is to have."""

    receiver: Receiver
    peer: Peer
    message: int
    state: str
    expected: int | None
    counts: Counter[str]


class _ReceiveWatch:
    """frames: those being handled, innermost last, since hosts may act and frames to the NIC itself arrive meanwhile;
    None: an event that is no frame. claims: the claimed messages seen."""

    def __init__(self, patch: pytest.MonkeyPatch, watch: Watch) -> None:
        self._patch = patch
        self._watch = watch
        self._frames: list[_Frame | None] = []
        self._claims: dict[tuple[int, int, int], Receiving] = {}
        self._watch_frames("first")
        self._watch_frames("another")
        self._watch_answers()
        self._watch_ends()
        self._watch_hosts()

    def _saw(self, before: str, event: str, after: str) -> None:
        self._watch.saw(RECEIVE_MESSAGE, before, event, after)

    def _begun(self, receiver: Receiver, peer: Peer, message: int) -> _Frame:
        counters = receiver._card.counters
        counts = Counter({name: getattr(counters, name) for name in _COUNTED})
        return _Frame(receiver, peer, message, state_of(receiver, peer, message), peer.expected, counts)

    def _settle(self) -> None:
        """Attribute all effects so far to the present frame; later ones belong to the next event."""
        if not self._frames or (frame := self._frames[-1]) is None:
            return
        self._frames[-1] = None
        receiver, peer = frame.receiver, frame.peer
        counters = receiver._card.counters
        raised = {name for name in _COUNTED if getattr(counters, name) > frame.counts[name]}
        after = state_of(receiver, peer, frame.message)
        expected = peer.expected
        if frame.expected is not None and expected is not None and frame.expected != expected:
            skipped = (expected - frame.expected - ("headers_admitted" in raised)) & _MASK
            for _ in range(min(skipped, 100)):
                self._saw(EXPECTED, "sender gave up", ENDED)
        if raised == {"malformed"} and after == frame.state:
            return
        for row in RECEIVE_MESSAGE.rows:
            if (row.state, set(row.counters), row.next_state) == (frame.state, raised, after) and raised:
                self._saw(frame.state, row.event, after)
                return
        self._saw(frame.state, f"frame that raises {sorted(raised)}", after)

    def _watch_frames(self, name: str) -> None:
        method = getattr(Receiver, name)

        def watched(receiver: Receiver, cached: CachedHeader, message: int, *rest: object) -> None:
            self._frames.append(self._begun(receiver, cached.peer, message))
            method(receiver, cached, message, *rest)
            self._settle()
            self._frames.pop()

        self._patch.setattr(Receiver, name, watched)

    def _aside(self, method: Callable[..., None]) -> Callable[..., None]:
        def watched(*arguments: object) -> None:
            self._settle()
            self._frames.append(None)
            method(*arguments)
            self._frames.pop()

        return watched

    def _watch_answers(self) -> None:
        """Exclude from a frame's effects: descriptors returned to the host, which may act, and answers to probes."""
        self._patch.setattr(Card, "give_back", self._aside(Card.give_back))
        self._patch.setattr(Receiver, "_answer", self._aside(Receiver._answer))
        tell = Receiver._announce

        def watched_tell(receiver: Receiver, posted: Posted, receiving: Receiving) -> None:
            key = receiving.source, receiving.id
            claim = (id(receiver), *key)
            if receiver._claimed.get(key) is receiving and self._claims.get(claim) is not receiving:
                self._claims[claim] = receiving
                peer = receiver._card.peers.known[receiving.source]
                self._saw(HELD, "probe that claims", state_of(receiver, peer, receiving.id))
            tell(receiver, posted, receiving)

        self._patch.setattr(Receiver, "_announce", watched_tell)

    def _watch_ends(self) -> None:
        drop, abandon = Receiver._drop, Receiver._abandon
        events = {stat.ABANDONED: "sender gave up", stat.RESTARTED: "peer restarted"}

        def watched_drop(receiver: Receiver, peer: Peer, dropped: list[Receiving], status: int) -> None:
            before = [state_of(receiver, peer, receiving.id) for receiving in dropped]
            for state in before:
                self._saw(state, events[status], ENDED)
            drop(receiver, peer, dropped, status)
            assert not any(peer.receiving.get(receiving.id) is receiving for receiving in dropped)

        def watched_abandon(receiver: Receiver, peer: Peer, oldest: int) -> None:
            frame = self._frames[-1]
            assert frame is not None
            self._frames.append(None)
            abandon(receiver, peer, oldest)
            self._frames.pop()
            expected = frame.expected
            self._frames[-1] = self._begun(receiver, peer, frame.message)  # the host may have acted
            self._frames[-1].expected = expected

        self._patch.setattr(Receiver, "_drop", watched_drop)
        self._patch.setattr(Receiver, "_abandon", watched_abandon)

    def _watch_hosts(self) -> None:
        post, post_claimed = Receiver.post, Receiver.post_claimed

        def watched_post(receiver: Receiver, posted: Posted) -> None:
            before = list(receiver._held)
            post(receiver, posted)
            for peer, receiving in before:
                if receiving.posted is posted:
                    self._saw(HELD, "receive", state_of(receiver, peer, receiving.id))

        def watched_claimed(receiver: Receiver, posted: Posted) -> None:
            receiving = receiver._claimed.get((posted.source, posted.tag))
            post_claimed(receiver, posted)
            if receiving is not None:
                peer = receiver._card.peers.known[posted.source]
                self._saw(CLAIMED, "receive", state_of(receiver, peer, receiving.id))

        self._patch.setattr(Receiver, "post", watched_post)
        self._patch.setattr(Receiver, "post_claimed", watched_claimed)


def watch_receptions(patch: pytest.MonkeyPatch, watch: Watch) -> None:
    """Watch every message received in this process until the patch is undone."""
    _ReceiveWatch(patch, watch)
