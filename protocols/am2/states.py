"""State tables of AM-II: of its logical channels, implemented by `transport`, and of an endpoint's residency,
implemented by `residency`. The state machine of peers is `protocols.core.peers.PEER`.

Section "Transport protocols" of Chun, Mainwaring, Culler: stop and wait, one unanswered packet per channel. Section
"Endpoint unloading": an endpoint leaves its frame when none of its packets is in flight.
"""

from __future__ import annotations

from typing import Final

from protocols.core.peers import PEER
from protocols.core.states import Row, StateTable

FREE: Final = "free"
UNANSWERED: Final = "unanswered"
REFUSED: Final = "refused"

_AGAIN: Final = ("packets_resent",)
_LATE: Final = ("late_answers",)
_REFUSED: Final = ("refusals_received",)
_ANSWERED: Final = ("acknowledgements_sent",)
_REPEATED: Final = ("duplicates", "acknowledgements_sent")
_OLD: Final = ("old",)

SEND_CHANNEL: Final = StateTable(
    "AM-II send channel",
    FREE,
    (
        Row(FREE, "packet to send", "send", UNANSWERED, ("packets_sent",)),
        Row(FREE, "late answer", "ignore", FREE, _LATE),
        Row(FREE, "late refusal", "ignore", FREE, _LATE),
        Row(UNANSWERED, "answer", "release the channel", FREE),
        Row(UNANSWERED, "late answer", "ignore", UNANSWERED, _LATE),
        Row(UNANSWERED, "refusal", "wait before the next sending", REFUSED, _REFUSED),
        Row(UNANSWERED, "late refusal", "ignore", UNANSWERED, _LATE),
        Row(UNANSWERED, "timeout", "resend", UNANSWERED, _AGAIN),
        Row(UNANSWERED, "peer introduced", "send anew", UNANSWERED, _AGAIN),
        Row(UNANSWERED, "no resend wanted", "wait for a late answer", UNANSWERED),
        Row(UNANSWERED, "gave up", "begin a new generation", FREE),
        Row(REFUSED, "timeout", "resend", UNANSWERED, _AGAIN),
        Row(REFUSED, "late answer", "ignore", REFUSED, _LATE),
        Row(REFUSED, "refusal", "wait before the next sending", REFUSED, _REFUSED),
        Row(REFUSED, "late refusal", "ignore", REFUSED, _LATE),
        Row(REFUSED, "packet withdrawn", "release the channel", FREE),
    ),
)
"""One channel of the send table for one peer."""

UNUSED: Final = "unused"
EXPECTING: Final = "expecting"
EXPECTING_LATER: Final = "expecting a later sending"

RECEIVE_CHANNEL: Final = StateTable(
    "AM-II receive channel",
    UNUSED,
    (
        Row(UNUSED, "new generation", "adopt its sequence number", EXPECTING),
        Row(EXPECTING, "new generation", "adopt its sequence number", EXPECTING),
        Row(EXPECTING, "expected packet", "offer", EXPECTING),
        Row(EXPECTING, "packet accepted", "advance and acknowledge", EXPECTING, _ANSWERED),
        Row(EXPECTING, "packet refused", "remember the stamp", EXPECTING_LATER, _ANSWERED),
        Row(EXPECTING, "duplicate", "repeat the answer", EXPECTING, _REPEATED),
        Row(EXPECTING, "old copy", "drop", EXPECTING, _OLD),
        Row(EXPECTING_LATER, "new generation", "adopt its sequence number", EXPECTING),
        Row(EXPECTING_LATER, "expected packet", "offer", EXPECTING_LATER),
        Row(EXPECTING_LATER, "packet accepted", "advance and acknowledge", EXPECTING_LATER, _ANSWERED),
        Row(EXPECTING_LATER, "packet refused", "remember the stamp", EXPECTING_LATER, _ANSWERED),
        Row(EXPECTING_LATER, "duplicate", "repeat the answer", EXPECTING_LATER, _REPEATED),
        Row(EXPECTING_LATER, "old copy", "drop", EXPECTING_LATER, _OLD),
    ),
)
"""One channel of the receive table for one peer. After a refusal only later sendings are offered (`EXPECTING_LATER`)."""

ABSENT: Final = "absent"
AWAY: Final = "away"
AWAITING: Final = "awaiting a frame"
RESIDENT: Final = "resident"
OUTGOING: Final = "to leave"
RELEASING: Final = "releasing"
DRAINING: Final = "draining"

_LOADED: Final = ("loaded",)
_UNLOADED: Final = ("unloaded",)
_NOT_RESIDENT: Final = ("not_resident",)

ENDPOINT: Final = StateTable(
    "AM-II endpoint, residency",
    ABSENT,
    (
        Row(ABSENT, "host creates it", "know it", AWAY),
        Row(AWAY, "host wants it in", "look for a frame", AWAITING),
        Row(AWAY, "message", "refuse and interrupt the host", AWAY, _NOT_RESIDENT),
        Row(AWAY, "host destroys it", "forget", ABSENT),
        Row(AWAITING, "frame", "load", RESIDENT, _LOADED),
        Row(AWAITING, "message", "refuse and interrupt the host", AWAITING, _NOT_RESIDENT),
        Row(AWAITING, "host destroys it", "forget", ABSENT),
        Row(RESIDENT, "message", "deliver", RESIDENT),
        Row(RESIDENT, "frame wanted", "choose when it leaves", OUTGOING),
        Row(RESIDENT, "host destroys it", "forget and tell those who asked it", ABSENT),
        Row(OUTGOING, "message", "deliver", OUTGOING),
        Row(OUTGOING, "time to leave", "stop sending and ask the host to release it", RELEASING),
        Row(OUTGOING, "host destroys it", "forget and tell those who asked it", ABSENT),
        Row(RELEASING, "message", "refuse and interrupt the host", RELEASING, _NOT_RESIDENT),
        Row(RELEASING, "host releases it", "wait for answers", DRAINING),
        Row(RELEASING, "host takes too long", "wait for answers", DRAINING, ("forced",)),
        Row(RELEASING, "host destroys it", "forget and tell those who asked it", ABSENT),
        Row(DRAINING, "message", "refuse and interrupt the host", DRAINING, _NOT_RESIDENT),
        Row(DRAINING, "all is answered", "unload", AWAY, _UNLOADED),
        Row(DRAINING, "host destroys it", "forget and tell those who asked it", ABSENT),
    ),
)
"""One endpoint of a host. When it is resident, a message may still be refused for another reason, such as a full
ring."""

TABLES: Final = (SEND_CHANNEL, RECEIVE_CHANNEL, ENDPOINT, PEER)

STATELESS: Final = frozenset({
    "packets_received", "packets_taken", "messages_delivered", "acknowledgements_received", "undone", "overruns",
    "unmapped", "bad_tags", "bad_endpoints", "bad_segments", "dropped", "returned", "unreachable", "faults", "taken_back",
    "malformed", "corrupt", "strangers", "invalid",
})  # fmt: skip
"""Counters of what happens to messages, frames and doorbells outside these state machines."""
