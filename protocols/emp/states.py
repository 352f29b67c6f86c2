"""State tables of an EMP message: on its sender, implemented by `sender`, and on its receiver, implemented by
`receiver`.

Section 4.1: a message is sent as collections of frames, each acknowledged by itself and resent when it times out.
Section 3.1.1: a frame for which no receive has been posted is dropped. The state machine of peers is
`protocols.core.peers.PEER`.
"""

from __future__ import annotations

from typing import Final

from protocols.core.peers import PEER
from protocols.core.states import Row, StateTable

QUEUED: Final = "queued"
ACTIVE: Final = "active"
PARKED: Final = "parked"
ENDED: Final = "ended"

_FIRST: Final = ("frames_sent",)
_AGAIN: Final = ("frames_resent", "collections_resent")
_ACKNOWLEDGED: Final = ("acknowledgements_received",)
_SENT: Final = ("acknowledgements_received", "messages_sent")
_LATE: Final = ("late_acknowledgements",)
_WRONG: Final = ("wrong_acknowledgements",)
_GAVE_UP: Final = ("given_up",)

SEND_MESSAGE: Final = StateTable(
    "EMP message, sender",
    QUEUED,
    (
        Row(QUEUED, "window has room", "send the first collection", ACTIVE, _FIRST),
        Row(QUEUED, "wrong acknowledgement", "ignore", QUEUED, _WRONG),
        Row(QUEUED, "peer restarted", "keep for the new incarnation", QUEUED),
        Row(ACTIVE, "window has room", "send the next collection", ACTIVE, _FIRST),
        Row(ACTIVE, "acknowledgement", "close the collection", ACTIVE, _ACKNOWLEDGED),
        Row(ACTIVE, "last acknowledgement", "complete", ENDED, _SENT),
        Row(ACTIVE, "late acknowledgement", "ignore", ACTIVE, _LATE),
        Row(ACTIVE, "wrong acknowledgement", "ignore", ACTIVE, _WRONG),
        Row(ACTIVE, "timeout", "resend the collection", ACTIVE, _AGAIN),
        Row(
            ACTIVE,
            "timeout with nothing acknowledged",
            "leave the window and resend the first collection",
            PARKED,
            _AGAIN,
        ),
        Row(ACTIVE, "peer introduced", "resend the open collections", ACTIVE, _AGAIN),
        Row(ACTIVE, "gave up", "fail", ENDED, _GAVE_UP),
        Row(ACTIVE, "peer restarted", "fail", ENDED),
        Row(PARKED, "timeout", "resend the first collection", PARKED, _AGAIN),
        Row(PARKED, "acknowledgement", "return to the window and resend the open collections", ACTIVE, _ACKNOWLEDGED),
        Row(PARKED, "last acknowledgement", "complete", ENDED, _SENT),
        Row(PARKED, "wrong acknowledgement", "ignore", PARKED, _WRONG),
        Row(PARKED, "peer introduced", "resend the first collection", PARKED, _AGAIN),
        Row(PARKED, "gave up", "fail", ENDED, _GAVE_UP),
        Row(PARKED, "peer restarted", "fail", ENDED),
        Row(ENDED, "late acknowledgement", "ignore", ENDED, _LATE),
    ),
)
"""An outgoing message."""

EXPECTED: Final = "expected"
HELD: Final = "held"
CLAIMED: Final = "claimed"
RECEIVING: Final = "receiving"

_STORED: Final = ("data_stored",)
_COLLECTION: Final = ("data_stored", "acknowledgements_sent")
_MESSAGE: Final = ("data_stored", "acknowledgements_sent", "messages_received")
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
            (_ADMITTED, *_COLLECTION),
        ),
        Row(EXPECTED, "message and receive", "store, acknowledge, complete", ENDED, (_ADMITTED, *_MESSAGE)),
        Row(EXPECTED, "header", "keep the header and drop the data", HELD, (_ADMITTED, *_UNMATCHED)),
        Row(EXPECTED, "header beyond those kept", "drop", EXPECTED, ("held_full",)),
        Row(EXPECTED, "frame before its turn", "drop", EXPECTED, ("early",)),
        Row(EXPECTED, "data of an unknown peer", "drop", EXPECTED, ("unknown",)),
        Row(EXPECTED, "sender gave up", "skip", ENDED),
        Row(HELD, "frame", "drop", HELD, _UNMATCHED),
        Row(HELD, "receive", "match", RECEIVING),
        Row(HELD, "probe that claims", "keep for its receive", CLAIMED),
        Row(HELD, "sender gave up", "forget", ENDED, ("abandoned",)),
        Row(HELD, "peer restarted", "forget", ENDED),
        Row(CLAIMED, "frame", "drop", CLAIMED, _UNMATCHED),
        Row(CLAIMED, "receive", "match", RECEIVING),
        Row(CLAIMED, "sender gave up", "forget", ENDED, ("abandoned",)),
        Row(CLAIMED, "peer restarted", "forget", ENDED),
        Row(RECEIVING, "frame", "store", RECEIVING, _STORED),
        Row(RECEIVING, "last frame of a collection", "store and acknowledge", RECEIVING, _COLLECTION),
        Row(RECEIVING, "last frame", "store, acknowledge, complete", ENDED, _MESSAGE),
        Row(RECEIVING, "duplicate", "drop", RECEIVING, ("duplicates",)),
        Row(RECEIVING, "duplicate end of a collection", "acknowledge again", RECEIVING, _REPEATED),
        Row(RECEIVING, "sender gave up", "fail the receive", ENDED, ("abandoned",)),
        Row(RECEIVING, "peer restarted", "fail the receive", ENDED),
        Row(ENDED, "duplicate", "drop", ENDED, ("duplicates",)),
        Row(ENDED, "duplicate end of a collection", "acknowledge again", ENDED, _REPEATED),
    ),
)
"""An incoming message. Messages of one peer are expected in order. One that has ended before any frame of it arrived
has been given up by its sender."""

TABLES: Final = (SEND_MESSAGE, RECEIVE_MESSAGE, PEER)

STATELESS: Final = frozenset({"frames_received", "malformed", "corrupt", "strangers", "invalid"})
"""Counters of frames and descriptors that no state machine sees."""
