"""State tables of AM-II: logical channels, implemented by `transport`, and an endpoint's residency, implemented by
`residency`. The state table of peers is `protocols.core.peers.PEER`.

Sources in Chun, Mainwaring, Culler: section "Transport protocols", stop and wait with one unanswered packet per
channel; section "Endpoint unloading", an endpoint leaves its frame when none of its packets is in flight.
"""

from __future__ import annotations

from typing import Final

from protocols.core.peers import PEER
from protocols.core.states import Row, StateTable

FREE: Final = "free"
UNANSWERED: Final = "unanswered"
REFUSED: Final = "refused"

_RESENT: Final = ("packets_resent",)
_LATE_ANSWER: Final = ("late_answers",)
_REFUSAL: Final = ("refusals_received",)
_ANSWER_SENT: Final = ("acknowledgements_sent",)
_ANSWER_REPEATED: Final = ("duplicates", "acknowledgements_sent")
_OLD_COPY: Final = ("old",)

SEND_CHANNEL: Final = StateTable(
    "AM-II send channel",
    FREE,
    (
        Row(FREE, "packet to send", "send", UNANSWERED, ("packets_sent",)),
        Row(FREE, "late answer", "ignore", FREE, _LATE_ANSWER),
        Row(FREE, "late refusal", "ignore", FREE, _LATE_ANSWER),
        Row(UNANSWERED, "answer", "release the channel", FREE),
        Row(UNANSWERED, "late answer", "ignore", UNANSWERED, _LATE_ANSWER),
        Row(UNANSWERED, "refusal", "wait before the next sending", REFUSED, _REFUSAL),
        Row(UNANSWERED, "late refusal", "ignore", UNANSWERED, _LATE_ANSWER),
        Row(UNANSWERED, "timeout", "resend", UNANSWERED, _RESENT),
        Row(UNANSWERED, "peer introduced", "resend", UNANSWERED, _RESENT),
        Row(UNANSWERED, "sent once", "wait for a late answer", UNANSWERED),
        Row(UNANSWERED, "gave up", "begin a new generation", FREE),
        Row(REFUSED, "timeout", "resend", UNANSWERED, _RESENT),
        Row(REFUSED, "late answer", "ignore", REFUSED, _LATE_ANSWER),
        Row(REFUSED, "refusal", "wait before the next sending", REFUSED, _REFUSAL),
        Row(REFUSED, "late refusal", "ignore", REFUSED, _LATE_ANSWER),
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
        Row(EXPECTING, "packet accepted", "advance and acknowledge", EXPECTING, _ANSWER_SENT),
        Row(EXPECTING, "packet refused", "remember the stamp", EXPECTING_LATER, _ANSWER_SENT),
        Row(EXPECTING, "duplicate", "repeat the answer", EXPECTING, _ANSWER_REPEATED),
        Row(EXPECTING, "old copy", "drop", EXPECTING, _OLD_COPY),
        Row(EXPECTING_LATER, "new generation", "adopt its sequence number", EXPECTING),
        Row(EXPECTING_LATER, "expected packet", "offer", EXPECTING_LATER),
        Row(EXPECTING_LATER, "packet accepted", "advance and acknowledge", EXPECTING_LATER, _ANSWER_SENT),
        Row(EXPECTING_LATER, "packet refused", "remember the stamp", EXPECTING_LATER, _ANSWER_SENT),
        Row(EXPECTING_LATER, "duplicate", "repeat the answer", EXPECTING_LATER, _ANSWER_REPEATED),
        Row(EXPECTING_LATER, "old copy", "drop", EXPECTING_LATER, _OLD_COPY),
    ),
)
"""One channel of the receive table for one peer. After a refusal only later sendings are accepted
(`EXPECTING_LATER`)."""

ABSENT: Final = "absent"
NOT_RESIDENT: Final = "not resident"
AWAITING: Final = "awaiting a frame"
RESIDENT: Final = "resident"
EVICTION_PENDING: Final = "eviction pending"
RELEASING: Final = "releasing"
DRAINING: Final = "draining"

_LOADED: Final = ("loaded",)
_UNLOADED: Final = ("unloaded",)
_MESSAGE_REFUSED: Final = ("not_resident",)

ENDPOINT: Final = StateTable(
    "AM-II endpoint, residency",
    ABSENT,
    (
        Row(ABSENT, "host creates it", "register it", NOT_RESIDENT),
        Row(NOT_RESIDENT, "host loads it", "wait for a frame", AWAITING),
        Row(NOT_RESIDENT, "message", "refuse and interrupt the host", NOT_RESIDENT, _MESSAGE_REFUSED),
        Row(NOT_RESIDENT, "host destroys it", "forget it and notify requesters", ABSENT),
        Row(AWAITING, "frame", "load", RESIDENT, _LOADED),
        Row(AWAITING, "message", "refuse and interrupt the host", AWAITING, _MESSAGE_REFUSED),
        Row(AWAITING, "host destroys it", "forget it and notify requesters", ABSENT),
        Row(RESIDENT, "message", "deliver", RESIDENT),
        Row(RESIDENT, "frame needed", "set the time to leave", EVICTION_PENDING),
        Row(RESIDENT, "host destroys it", "forget it and notify requesters", ABSENT),
        Row(EVICTION_PENDING, "message", "deliver", EVICTION_PENDING),
        Row(EVICTION_PENDING, "time to leave", "stop sending and ask the host to release it", RELEASING),
        Row(EVICTION_PENDING, "host destroys it", "forget it and notify requesters", ABSENT),
        Row(RELEASING, "message", "refuse and interrupt the host", RELEASING, _MESSAGE_REFUSED),
        Row(RELEASING, "host releases it", "wait for answers", DRAINING),
        Row(RELEASING, "host takes too long", "wait for answers", DRAINING, ("forced",)),
        Row(RELEASING, "host destroys it", "forget it and notify requesters", ABSENT),
        Row(DRAINING, "message", "refuse and interrupt the host", DRAINING, _MESSAGE_REFUSED),
        Row(DRAINING, "all packets answered", "unload", NOT_RESIDENT, _UNLOADED),
        Row(DRAINING, "host destroys it", "forget it and notify requesters", ABSENT),
    ),
)
"""One endpoint of a host. A message for a resident endpoint may be refused for another reason, such as a full ring."""

TABLES: Final = (SEND_CHANNEL, RECEIVE_CHANNEL, ENDPOINT, PEER)

STATELESS: Final = frozenset({
    "packets_received", "packets_taken", "messages_delivered", "acknowledgements_received", "undone", "overruns",
    "unmapped", "bad_tags", "bad_endpoints", "bad_segments", "dropped", "returned", "unreachable", "faults", "taken_back",
    "malformed", "corrupt", "strangers", "invalid",
})  # fmt: skip
"""Counters of messages, frames and doorbells outside these state machines."""
