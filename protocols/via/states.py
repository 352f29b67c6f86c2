"""State tables of a NIC and of a VI, executed by `card`, and of a VI's send queue at the reliable levels, implemented
by `sender`.

Section 2.2 of the specification: a VI is Idle, Pending Connect, Connected or in Error. The state machine of peers is
`protocols.core.peers.PEER`.
"""

from __future__ import annotations

from typing import Final

from protocols.core.peers import PEER
from protocols.core.states import Row, StateTable

VACANT: Final = "vacant"
OPEN: Final = "open"
CLOSED: Final = "closed"

NIC: Final = StateTable(
    "NIC",
    VACANT,
    (
        Row(VACANT, "host attaches", "take its commands", OPEN),
        Row(OPEN, "close", "end connections, forget memory and VIs", CLOSED, ("closings",)),
        Row(OPEN, "open", "do nothing", OPEN),
        Row(CLOSED, "open", "take commands again", OPEN),
        Row(CLOSED, "close", "do nothing", CLOSED),
        Row(OPEN, "host detaches", "begin a new incarnation", VACANT),
        Row(CLOSED, "host detaches", "begin a new incarnation", VACANT),
    ),
)
"""A NIC. A vacant NIC leaves connection requests unanswered, so that peers resend them; a closed NIC refuses them."""

IDLE: Final = "idle"
PENDING: Final = "connect pending"
CONNECTED: Final = "connected"
ERROR: Final = "error"

_ESTABLISHED: Final = ("connections_made",)
_LOST: Final = ("connections_lost",)
_FAILED: Final = ("requests_failed",)
_REQUEST: Final = ("requests_sent",)
_RESENT: Final = ("requests_resent",)
_ACCEPT_RESENT: Final = ("accepts_resent",)
_DISCONNECTED: Final = ("disconnections",)

VI: Final = StateTable(
    "VI",
    IDLE,
    (
        Row(IDLE, "connect", "send a request", PENDING, _REQUEST),
        Row(IDLE, "accept", "answer the request", CONNECTED, _ESTABLISHED),
        Row(IDLE, "connect to a peer that has requested it", "answer the request", CONNECTED, _ESTABLISHED),
        Row(IDLE, "disconnect", "flush", IDLE),
        Row(PENDING, "time-out", "send the request again", PENDING, _RESENT),
        Row(PENDING, "accepted", "connect", CONNECTED, _ESTABLISHED),
        Row(PENDING, "matching peer request", "answer and connect", CONNECTED, _ESTABLISHED),
        Row(PENDING, "refused", "fail the request", IDLE, _FAILED),
        Row(PENDING, "expired", "fail the request and notify the peer", IDLE, _FAILED),
        Row(PENDING, "disconnect", "fail the request and notify the peer", IDLE, _FAILED),
        Row(CONNECTED, "repeated request", "resend the answer", CONNECTED, _ACCEPT_RESENT),
        Row(CONNECTED, "disconnect", "flush and notify the peer", IDLE, _DISCONNECTED),
        Row(CONNECTED, "peer disconnected", "flush", ERROR, _LOST),
        Row(CONNECTED, "peer restarted", "flush", ERROR, _LOST),
        Row(CONNECTED, "gave up", "flush and notify the peer", ERROR, _LOST),
        Row(CONNECTED, "violation", "flush and notify the peer", ERROR, _LOST),
        Row(CONNECTED, "no receive descriptor", "flush and notify the peer", ERROR, _LOST),
        Row(CONNECTED, "error at the peer", "flush", ERROR, _LOST),
        Row(ERROR, "disconnect", "flush", IDLE, _DISCONNECTED),
    ),
)
"""A VI. The host requests "connect" (as a client, or as a peer), "accept" and "disconnect". "connect to a peer that has
requested it": the peer's matching request arrived before the host's own; "matching peer request": after it. "expired":
the host's time limit for the connection has passed; "gave up": the peer does not acknowledge frames."""

EMPTY: Final = "all acknowledged"
WAITING: Final = "unacknowledged"

SEND_QUEUE: Final = StateTable(
    "Send queue, reliable",
    EMPTY,
    (
        Row(EMPTY, "window has room", "send a frame", WAITING, ("frames_sent",)),
        Row(WAITING, "window has room", "send a frame", WAITING, ("frames_sent",)),
        Row(WAITING, "acknowledgement", "forget the frames", WAITING, ("acknowledgements_received",)),
        Row(WAITING, "last acknowledgement", "forget the frames", EMPTY, ("acknowledgements_received",)),
        Row(WAITING, "frame is missing", "resend all", WAITING, ("frames_resent",)),
        Row(WAITING, "time-out", "resend all", WAITING, ("frames_resent", "timeouts")),
        Row(WAITING, "connection ended", "forget the frames", EMPTY),
    ),
)
"""The frames of a send queue at a reliable level: go-back-N."""

TABLES: Final = (NIC, VI, SEND_QUEUE, PEER)

STATELESS: Final = frozenset(
    {
        "acknowledgements_sent",
        "corrupt",
        "data_stored",
        "duplicates",
        "early",
        "endings_resent",
        "frames_received",
        "invalid",
        "late_acknowledgements",
        "malformed",
        "messages_received",
        "messages_sent",
        "partial",
        "reads_served",
        "receive_queue_empty",
        "strangers",
        "unconnected",
        "violations",
    }
)
"""Counters that no state table increments."""
