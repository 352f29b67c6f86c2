"""State tables of SSAM: a slot of the sender's window, a request at the receiver, and a connection."""

from __future__ import annotations

from typing import Final

from protocols.core.states import Row, StateTable

SLOT: Final = StateTable(
    "Slot",
    "free",
    (
        Row("free", "request", "keep the cell and send it", "sent", ("requests",)),
        Row("sent", "time-out", "send the kept cell again", "sent", ("resent",)),
        Row("sent", "missing, or a later answer", "send the kept cell again, once", "sent", ("hurried",)),
        Row("sent", "reply", "run its handler", "free", ("replies",)),
        Row("sent", "acknowledgement", "free the slot", "free", ("acknowledged",)),
        Row("sent", "peer lost", "return the request to the program", "free", ("returned",)),
        Row("free", "answer", "drop: it is a duplicate", "free", ("old_answers",)),
    ),
)
"""A slot of the window of requests to a peer (section 3.3.1)."""

REQUEST: Final = StateTable(
    "Request",
    "awaited",
    (
        Row("awaited", "in order", "run the handler, hold and send the answer", "answered", ("handled",)),
        Row("awaited", "ahead of another", "keep it", "kept", ("early",)),
        Row("awaited", "after the program's end", "keep it", "kept"),
        Row("kept", "its turn", "run the handler, hold and send the answer", "answered", ("handled",)),
        Row("kept", "again", "drop", "kept", ("duplicates",)),
        Row("answered", "again", "send the held answer", "answered", ("answered_again",)),
    ),
)
"""A request at the receiver. Section 3.3.1: a duplicate may mean that the reply was lost."""

CONNECTION: Final = StateTable(
    "Connection",
    "closed",
    (
        Row("closed", "request", "send an introduction", "opening"),
        Row("closed", "introduction", "adopt the peer's incarnation and answer", "open"),
        Row("closed", "another session's cell", "drop it and send an introduction", "opening", ("stale",)),
        Row("opening", "introduction", "adopt the peer's incarnation and send queued requests", "open"),
        Row("opening", "another session's cell", "drop it and send an introduction", "opening", ("stale",)),
        Row("opening", "time-out", "send an introduction again", "opening"),
        Row("opening", "given up", "return queued requests, renew the session and send an introduction", "opening"),
        Row("open", "introduction", "answer, unless it names both incarnations", "open"),
        Row("open", "given up", "return unanswered requests, renew the session and send an introduction", "open"),
        Row("open", "later incarnation", "return unanswered requests and adopt it", "open", ("restarts",)),
        Row("open", "another session's cell", "drop it and send an introduction", "open", ("stale",)),
    ),
)
"""A connection between two processes. Sessions are ours: the paper's prototype does not handle restarts."""

TABLES: Final = (SLOT, REQUEST, CONNECTION)
