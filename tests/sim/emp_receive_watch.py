"""Compare each transition of an incoming message of EMP's firmware with the state table.

The row that a frame takes is identified by the counters that the frame increments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from protocols.emp import descriptors as stat
from protocols.emp.card import CachedHeader, Card, Peer
from protocols.emp.receiver import IncomingMessage, PostedReceive, Receiver
from protocols.emp.states import CLAIMED, ENDED, EXPECTED, HELD, RECEIVE_MESSAGE, RECEIVING
from tests.sim.state_watch import Watch

_HALF = 1 << 31
_MASK = 0xFFFF_FFFF
_COUNTERS = sorted({"malformed", *RECEIVE_MESSAGE.counters} - {"abandoned"})


def state_of(receiver: Receiver, peer: Peer, message_id: int) -> str:
    message = peer.incoming_messages.get(message_id)
    if message is None:
        expected_id = peer.expected_id
        return EXPECTED if expected_id is None or (message_id - expected_id) & _MASK < _HALF else ENDED
    if message.receive is not None:
        return RECEIVING
    return CLAIMED if (peer.number, message_id) in receiver._claimed else HELD


@dataclass
class _Frame:
    """A message's frame that the receiver is handling. expected_id: id of the peer's next message to be admitted."""

    receiver: Receiver
    peer: Peer
    message_id: int
    state: str
    expected_id: int | None
    counts: Counter[str]


class _ReceiveWatch:
    """Wraps the receiver's methods. frames: stack of the frames being handled, as the host may act and frames from the NIC
    to itself may arrive meanwhile; None: an event that is not a frame. claims: the claimed messages."""

    def __init__(self, patch: pytest.MonkeyPatch, watch: Watch) -> None:
        self._patch = patch
        self._watch = watch
        self._frames: list[_Frame | None] = []
        self._claims: dict[tuple[int, int, int], IncomingMessage] = {}
        self._watch_frames("on_first_frame")
        self._watch_frames("on_later_frame")
        self._watch_replies()
        self._watch_drops()
        self._watch_posts()

    def _record(self, before: str, event: str, after: str) -> None:
        self._watch.record(RECEIVE_MESSAGE, before, event, after)

    def _begin(self, receiver: Receiver, peer: Peer, message_id: int) -> _Frame:
        counters = receiver._card.counters
        counts = Counter({name: getattr(counters, name) for name in _COUNTERS})
        return _Frame(receiver, peer, message_id, state_of(receiver, peer, message_id), peer.expected_id, counts)

    def _finish_frame(self) -> None:
        """Attribute all effects so far to the current frame; later ones belong to the next event."""
        if not self._frames or (frame := self._frames[-1]) is None:
            return
        self._frames[-1] = None
        receiver, peer = frame.receiver, frame.peer
        counters = receiver._card.counters
        raised_counters = {name for name in _COUNTERS if getattr(counters, name) > frame.counts[name]}
        after = state_of(receiver, peer, frame.message_id)
        expected_id = peer.expected_id
        if frame.expected_id is not None and expected_id is not None and frame.expected_id != expected_id:
            skipped = (expected_id - frame.expected_id - ("headers_admitted" in raised_counters)) & _MASK
            for _ in range(min(skipped, 100)):
                self._record(EXPECTED, "sender gave up", ENDED)
        if raised_counters == {"malformed"} and after == frame.state:
            return
        for row in RECEIVE_MESSAGE.rows:
            if (row.state, set(row.counters), row.next_state) == (
                frame.state,
                raised_counters,
                after,
            ) and raised_counters:
                self._record(frame.state, row.event, after)
                return
        self._record(frame.state, f"frame that raises {sorted(raised_counters)}", after)

    def _watch_frames(self, name: str) -> None:
        method = getattr(Receiver, name)

        def observed(receiver: Receiver, cached: CachedHeader, message_id: int, *fields: object) -> None:
            self._frames.append(self._begin(receiver, cached.peer, message_id))
            method(receiver, cached, message_id, *fields)
            self._finish_frame()
            self._frames.pop()

        self._patch.setattr(Receiver, name, observed)

    def _outside_frame(self, method: Callable[..., None]) -> Callable[..., None]:
        def observed(*arguments: object) -> None:
            self._finish_frame()
            self._frames.append(None)
            method(*arguments)
            self._frames.pop()

        return observed

    def _watch_replies(self) -> None:
        """Exclude the host's actions after a returned descriptor, and replies to probes, from a frame's effects."""
        self._patch.setattr(Card, "return_descriptor", self._outside_frame(Card.return_descriptor))
        self._patch.setattr(Receiver, "_answer_probes", self._outside_frame(Receiver._answer_probes))
        complete_probe = Receiver._complete_probe

        def watched_complete_probe(receiver: Receiver, probe: PostedReceive, message: IncomingMessage) -> None:
            key = message.source, message.id
            frame_key = (id(receiver), *key)
            if receiver._claimed.get(key) is message and self._claims.get(frame_key) is not message:
                self._claims[frame_key] = message
                peer = receiver._card.peers.known[message.source]
                self._record(HELD, "probe that claims", state_of(receiver, peer, message.id))
            complete_probe(receiver, probe, message)

        self._patch.setattr(Receiver, "_complete_probe", watched_complete_probe)

    def _watch_drops(self) -> None:
        drop, drop_abandoned = Receiver._drop, Receiver._drop_abandoned
        events = {stat.ABANDONED: "sender gave up", stat.RESTARTED: "peer restarted", stat.CRASHED: "peer crashed"}

        def watched_drop(receiver: Receiver, peer: Peer, messages: list[IncomingMessage], status: int) -> None:
            before = [state_of(receiver, peer, message.id) for message in messages]
            for state in before:
                self._record(state, events[status], ENDED)
            drop(receiver, peer, messages, status)
            assert not any(peer.incoming_messages.get(message.id) is message for message in messages)

        def watched_drop_abandoned(receiver: Receiver, peer: Peer, oldest: int) -> None:
            frame = self._frames[-1]
            assert frame is not None
            self._frames.append(None)
            drop_abandoned(receiver, peer, oldest)
            self._frames.pop()
            expected_id = frame.expected_id
            self._frames[-1] = self._begin(receiver, peer, frame.message_id)  # the host may have acted
            self._frames[-1].expected_id = expected_id

        self._patch.setattr(Receiver, "_drop", watched_drop)
        self._patch.setattr(Receiver, "_drop_abandoned", watched_drop_abandoned)

    def _watch_posts(self) -> None:
        post, post_claimed = Receiver.post, Receiver.post_claimed

        def watched_post(receiver: Receiver, receive: PostedReceive) -> None:
            before = list(receiver._unmatched)
            post(receiver, receive)
            for peer, message in before:
                if message.receive is receive:
                    self._record(HELD, "receive", state_of(receiver, peer, message.id))

        def watched_claimed(receiver: Receiver, receive: PostedReceive) -> None:
            message = receiver._claimed.get((receive.source, receive.tag))
            post_claimed(receiver, receive)
            if message is not None:
                peer = receiver._card.peers.known[receive.source]
                self._record(CLAIMED, "receive", state_of(receiver, peer, message.id))

        self._patch.setattr(Receiver, "post", watched_post)
        self._patch.setattr(Receiver, "post_claimed", watched_claimed)


def watch_receptions(patch: pytest.MonkeyPatch, watch: Watch) -> None:
    """Watch every message received in this process until the patch is undone."""
    _ReceiveWatch(patch, watch)
