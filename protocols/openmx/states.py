"""State tables of an endpoint and of a pull, executed by the driver, and of a partner, executed by the library."""

from __future__ import annotations

from typing import Final

from protocols.core.states import Row, StateTable

UNOPENED: Final = "not opened"
OPEN: Final = "open"
CLOSED: Final = "closed"

_MESSAGES: Final = ("recv_messages",)
_BAD_ENDPOINT: Final = ("drop_bad_endpoint",)

ENDPOINT: Final = StateTable(
    "Open-MX endpoint",
    UNOPENED,
    (
        Row(UNOPENED, "open", "pass on earlier connection requests", OPEN),
        Row(UNOPENED, "connection request", "keep it", UNOPENED, ("early_connects",)),
        Row(UNOPENED, "message", "refuse it", UNOPENED, _BAD_ENDPOINT),
        Row(OPEN, "connection request", "hand it over", OPEN, _MESSAGES),
        Row(OPEN, "message", "hand it over", OPEN, _MESSAGES),
        Row(OPEN, "message of another session", "refuse it", OPEN, ("drop_bad_session",)),
        Row(OPEN, "message without room", "drop it", OPEN, ("unexp_eventq_full",)),
        Row(OPEN, "close", "forget regions and pulls", CLOSED),
        Row(CLOSED, "connection request", "refuse it", CLOSED, _BAD_ENDPOINT),
        Row(CLOSED, "message", "refuse it", CLOSED, _BAD_ENDPOINT),
        Row(CLOSED, "open", "begin a session", OPEN),
    ),
)
"""An endpoint, in the driver. A message is any frame for the endpoint's library except a connection request."""

PULLING: Final = "pulling"
RETRIED: Final = "requested again"
DONE: Final = "done"

_REPLY: Final = ("recv_pull_reply",)
_DUPLICATE: Final = ("drop_pull_reply_duplicate",)

PULL: Final = StateTable(
    "Open-MX pull",
    PULLING,
    (
        Row(PULLING, "reply", "store it", PULLING, _REPLY),
        Row(PULLING, "reply again", "drop it", PULLING, _DUPLICATE),
        Row(PULLING, "first block is complete", "request the next blocks", PULLING),
        Row(
            PULLING, "later block is complete", "request the first block again", RETRIED,
            ("pull_nonfirst_block_done_early",),
        ),
        Row(PULLING, "time-out", "request all blocks again", PULLING, ("pull_timeout_handler_first_block",)),
        Row(PULLING, "last reply", "return the pull", DONE, _REPLY),
        Row(PULLING, "refused", "return the pull", DONE, ("recv_nack_mcp",)),
        Row(PULLING, "gave up", "return the pull", DONE, ("pull_timeout_abort",)),
        Row(PULLING, "ended by the library", "forget it", DONE),
        Row(RETRIED, "reply", "store it", RETRIED, _REPLY),
        Row(RETRIED, "reply again", "drop it", RETRIED, _DUPLICATE),
        Row(RETRIED, "first block is complete", "request the next blocks", PULLING),
        Row(RETRIED, "later block is complete", "wait", RETRIED, ("pull_nonfirst_block_done_early",)),
        Row(RETRIED, "time-out", "request all blocks again", PULLING, ("pull_timeout_handler_first_block",)),
        Row(RETRIED, "last reply", "return the pull", DONE, _REPLY),
        Row(RETRIED, "refused", "return the pull", DONE, ("recv_nack_mcp",)),
        Row(RETRIED, "ended by the library", "forget it", DONE),
    ),
)  # fmt: skip
"""A pull, at the requesting endpoint. The first block is the oldest incomplete block."""

UNCONNECTED: Final = "not connected"
CONNECTING: Final = "connecting"
CONNECTED: Final = "connected"

_CONNECTED: Final = ("connections",)
_LOST: Final = ("connections_lost",)

PARTNER: Final = StateTable(
    "Open-MX partner",
    UNCONNECTED,
    (
        Row(UNCONNECTED, "connect", "send a request", CONNECTING),
        Row(UNCONNECTED, "request", "answer it", CONNECTED, _CONNECTED),
        Row(CONNECTING, "tick", "send the request again", CONNECTING, ("connect_requests_resent",)),
        Row(CONNECTING, "answer", "send queued messages", CONNECTED, _CONNECTED),
        Row(CONNECTING, "answer with a used session", "send another request", CONNECTING),
        Row(CONNECTING, "request", "answer it and send queued messages", CONNECTED, _CONNECTED),
        Row(CONNECTING, "refused", "fail queued messages", UNCONNECTED, ("connections_refused",)),
        Row(CONNECTING, "unreachable", "fail queued messages", UNCONNECTED, _LOST),
        Row(CONNECTED, "request again", "answer it", CONNECTED),
        Row(CONNECTED, "request of a new session", "fail messages in flight, answer it", CONNECTED, _LOST),
        Row(CONNECTED, "refused", "fail messages in flight", UNCONNECTED, _LOST),
        Row(CONNECTED, "unreachable", "fail messages in flight", UNCONNECTED, _LOST),
        Row(CONNECTED, "disconnect", "fail messages in flight", UNCONNECTED, _LOST),
        Row(CONNECTING, "disconnect", "fail queued messages", UNCONNECTED, ("connections_refused",)),
    ),
)
"""The connection to a partner, in the library."""

TABLES: Final = (ENDPOINT, PULL, PARTNER)

STATELESS: Final = frozenset(
    {
        "acknowledged", "drop_bad_check", "drop_bad_header_datalen", "drop_bad_peer_addr", "drop_invalid_type",
        "drop_nack_mcp_bad_wire_handle", "drop_pull_reply_bad_seqnum", "drop_pull_reply_bad_wire_handle",
        "duplicates", "early", "invalid", "old_session", "recv_nack_lib", "recv_pull_req", "resent", "send_connect",
        "send_liback", "send_mediumsq_frag", "send_nack_lib", "send_nack_mcp", "send_notify", "send_pull_reply",
        "send_pull_req", "send_rndv", "send_small", "send_tiny", "shared_connect", "shared_mediumsq_frag", "shared_notify",
        "shared_pull", "shared_rndv", "shared_small", "shared_tiny", "shared_truc", "throttled", "too_early", "unexpected",
    }
)  # fmt: skip
"""Counters that no state table increments."""
