"""State tables of an EMP message: `SEND_MESSAGE`, implemented by module `sender`, and `RECEIVE_MESSAGE`, implemented by
module `receiver`.

Section 4.1: a message is sent as collections of frames. Each collection is acknowledged separately, and is resent when it
times out. Section 3.1.1: a frame for which no receive has been posted is dropped. The state table of a peer is
`protocols.core.peers.PEER`.
"""

from __future__ import annotations

from typing import Final

from protocols.core.peers import PEER
from protocols.core.states import Row, StateTable

# States of an outgoing message. PARKED: see `sender`. ENDED is also a state of an incoming message.
QUEUED: Final = "queued"
ACTIVE: Final = "active"
PARKED: Final = "parked"
ENDED: Final = "ended"

# Counters of rows.
_FRAMES_SENT: Final = ("frames_sent",)
_RESENT: Final = ("frames_resent", "collections_resent")
_ACKNOWLEDGED: Final = ("acknowledgements_received",)
_MESSAGE_SENT: Final = ("acknowledgements_received", "messages_sent")
_LATE_ACKNOWLEDGEMENT: Final = ("late_acknowledgements",)
_WRONG_ACKNOWLEDGEMENT: Final = ("wrong_acknowledgements",)
_GAVE_UP: Final = ("given_up",)

SEND_MESSAGE: Final = StateTable(
    "EMP message, sender",
    QUEUED,
    (
        Row(QUEUED, "window has room", "send the first collection", ACTIVE, _FRAMES_SENT),
        Row(QUEUED, "wrong acknowledgement", "ignore", QUEUED, _WRONG_ACKNOWLEDGEMENT),
        Row(QUEUED, "peer restarted", "keep for the new incarnation", QUEUED),
        Row(ACTIVE, "window has room", "send the next collection", ACTIVE, _FRAMES_SENT),
        Row(ACTIVE, "acknowledgement", "close the collection", ACTIVE, _ACKNOWLEDGED),
        Row(ACTIVE, "last acknowledgement", "complete", ENDED, _MESSAGE_SENT),
        Row(ACTIVE, "late acknowledgement", "ignore", ACTIVE, _LATE_ACKNOWLEDGEMENT),
        Row(ACTIVE, "wrong acknowledgement", "ignore", ACTIVE, _WRONG_ACKNOWLEDGEMENT),
        Row(ACTIVE, "timeout", "resend the collection", ACTIVE, _RESENT),
        Row(
            ACTIVE,
            "timeout with nothing acknowledged",
            "leave the window and resend the first collection",
            PARKED,
            _RESENT,
        ),
        Row(ACTIVE, "peer introduced", "resend the open collections", ACTIVE, _RESENT),
        Row(ACTIVE, "gave up", "fail", ENDED, _GAVE_UP),
        Row(ACTIVE, "peer restarted", "fail", ENDED),
        Row(PARKED, "timeout", "resend the first collection", PARKED, _RESENT),
        Row(
            PARKED,
            "acknowledgement",
            "return to the window and resend the open collections but the first",
            ACTIVE,
            _ACKNOWLEDGED,
        ),
        Row(PARKED, "last acknowledgement", "complete", ENDED, _MESSAGE_SENT),
        Row(PARKED, "wrong acknowledgement", "ignore", PARKED, _WRONG_ACKNOWLEDGEMENT),
        Row(PARKED, "peer introduced", "resend the first collection", PARKED, _RESENT),
        Row(PARKED, "gave up", "fail", ENDED, _GAVE_UP),
        Row(PARKED, "peer restarted", "fail", ENDED),
        Row(ENDED, "late acknowledgement", "ignore", ENDED, _LATE_ACKNOWLEDGEMENT),
    ),
)
"""An outgoing message."""

# States of an incoming message. HELD: its header is kept until a receive matches it. CLAIMED: kept for the receive that
# names it.
EXPECTED: Final = "expected"
HELD: Final = "held"
CLAIMED: Final = "claimed"
RECEIVING: Final = "receiving"

# Counters of rows.
_STORED: Final = ("data_stored",)
_COLLECTION_STORED: Final = ("data_stored", "acknowledgements_sent")
_MESSAGE_STORED: Final = ("data_stored", "acknowledgements_sent", "messages_received")
_ADMITTED: Final = "headers_admitted"
_UNMATCHED: Final = ("unmatched",)
_REPEATED: Final = ("duplicates", "reacknowledgements_sent")

RECEIVE_MESSAGE: Final = StateTable(
    "EMP message, receiver",
    EXPECTED,
    (
        Row(EXPECTED, "header and receive", "admit and store", RECEIVING, (_ADMITTED, *_STORED)),
        Row(
            EXPECTED,
            "header, collection and receive",
            "admit, store, acknowledge",
            RECEIVING,
            (_ADMITTED, *_COLLECTION_STORED),
        ),
        Row(EXPECTED, "message and receive", "store, acknowledge, complete", ENDED, (_ADMITTED, *_MESSAGE_STORED)),
        Row(EXPECTED, "header", "keep the header and drop the data", HELD, (_ADMITTED, *_UNMATCHED)),
        Row(EXPECTED, "header, limit of kept headers reached", "drop", EXPECTED, ("held_full",)),
        Row(EXPECTED, "frame of a header not admitted yet", "drop", EXPECTED, ("early",)),
        Row(EXPECTED, "data of an unknown peer", "drop", EXPECTED, ("unknown",)),
        Row(EXPECTED, "sender gave up", "skip", ENDED),
        Row(HELD, "frame", "drop", HELD, _UNMATCHED),
        Row(HELD, "receive", "match", RECEIVING),
        Row(HELD, "probe that claims", "keep for its receive", CLAIMED),
        Row(HELD, "sender gave up", "forget", ENDED, ("abandoned",)),
        Row(HELD, "peer restarted", "forget", ENDED),
        Row(HELD, "peer crashed", "forget", ENDED),
        Row(CLAIMED, "frame", "drop", CLAIMED, _UNMATCHED),
        Row(CLAIMED, "receive", "match", RECEIVING),
        Row(CLAIMED, "sender gave up", "forget", ENDED, ("abandoned",)),
        Row(CLAIMED, "peer restarted", "forget", ENDED),
        Row(CLAIMED, "peer crashed", "forget", ENDED),
        Row(RECEIVING, "frame", "store", RECEIVING, _STORED),
        Row(RECEIVING, "last frame of a collection", "store and acknowledge", RECEIVING, _COLLECTION_STORED),
        Row(RECEIVING, "last frame", "store, acknowledge, complete", ENDED, _MESSAGE_STORED),
        Row(RECEIVING, "duplicate", "drop", RECEIVING, ("duplicates",)),
        Row(RECEIVING, "duplicate end of a collection", "acknowledge again", RECEIVING, _REPEATED),
        Row(RECEIVING, "sender gave up", "fail the receive", ENDED, ("abandoned",)),
        Row(RECEIVING, "peer restarted", "fail the receive", ENDED),
        Row(RECEIVING, "peer crashed", "fail the receive", ENDED),
        Row(ENDED, "duplicate", "drop", ENDED, ("duplicates",)),
        Row(ENDED, "duplicate end of a collection", "acknowledge again", ENDED, _REPEATED),
    ),
)
"""An incoming message. The messages of a peer are expected in order. If the sender gives up a message, it may end before
any of its frames has arrived."""

TABLES: Final = (SEND_MESSAGE, RECEIVE_MESSAGE, PEER)

STATELESS: Final = frozenset({"frames_received", "malformed", "corrupt", "strangers", "invalid"})
"""Counters that no row increments: of all received frames, of frames dropped before they reach a state machine, and of
invalid descriptors."""
