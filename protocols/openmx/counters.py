"""Counters of a NIC: those that the rows of the state tables (`states`) increment, and `STATELESS`.

Names with `send_`, `recv_`, `shared_`, `drop_`, `pull_` and `_eventq_` are Open-MX's (`OMX_COUNTER_...` in `omx_io.h`),
where both count the same events. `recv_messages` and `send_connect` are sums of several of Open-MX's counters; all other
names are ours.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from protocols.core.states import check_counters
from protocols.openmx.states import STATELESS, TABLES


@dataclass(slots=True)
class Counters:
    """Counters of one NIC, of frames unless stated otherwise. The library's are 0 if it is in another process."""

    # The driver's.
    send_tiny: int = 0
    send_small: int = 0
    send_mediumsq_frag: int = 0
    send_rndv: int = 0
    send_pull_req: int = 0
    send_pull_reply: int = 0
    send_notify: int = 0
    send_connect: int = 0
    send_liback: int = 0
    send_nack_lib: int = 0
    """Refusals of messages, including those to endpoints of the node, which need no frame."""
    send_nack_mcp: int = 0
    recv_messages: int = 0
    """Messages, fragments, acknowledgements and connection frames passed to the library."""
    recv_pull_req: int = 0
    recv_pull_reply: int = 0
    shared_tiny: int = 0
    """Tiny messages to endpoints of the node, which need no frame; the counters down to shared_truc are alike."""
    shared_small: int = 0
    shared_mediumsq_frag: int = 0
    shared_rndv: int = 0
    shared_notify: int = 0
    shared_connect: int = 0
    shared_truc: int = 0
    shared_pull: int = 0
    """Messages that were copied from the memory of another endpoint of the node."""
    recv_nack_lib: int = 0
    recv_nack_mcp: int = 0
    early_connects: int = 0
    """Requests for connections to an endpoint that was not open yet."""
    drop_bad_check: int = 0
    """Dropped: wrong CRC-32."""
    drop_bad_header_datalen: int = 0
    """Dropped: too short, or inconsistent with itself."""
    drop_invalid_type: int = 0
    drop_bad_peer_addr: int = 0
    """Dropped: for another NIC, the sender's address does not match its peer index, or a refusal for a closed endpoint."""
    drop_bad_endpoint: int = 0
    drop_bad_session: int = 0
    drop_pull_reply_duplicate: int = 0
    drop_pull_reply_bad_wire_handle: int = 0
    """Dropped: replies for an unknown or finished pull."""
    drop_pull_reply_bad_seqnum: int = 0
    drop_nack_mcp_bad_wire_handle: int = 0
    pull_nonfirst_block_done_early: int = 0
    """Blocks that were complete before an earlier one."""
    pull_timeout_handler_first_block: int = 0
    """Time-outs of pulls."""
    pull_timeout_abort: int = 0
    unexp_eventq_full: int = 0
    """Dropped: the receive ring was full."""
    invalid: int = 0
    """Invalid commands."""

    # The library's.
    connections: int = 0
    connections_lost: int = 0
    connections_refused: int = 0
    connect_requests_resent: int = 0
    acknowledged: int = 0
    """Sent messages that were acknowledged."""
    resent: int = 0
    """Messages that were sent again."""
    throttled: int = 0
    """Messages that were queued: the window of unacknowledged messages was full, or the connection not yet established."""
    duplicates: int = 0
    """Messages and fragments that were received before."""
    early: int = 0
    """Messages and fragments that were received out of order and kept."""
    too_early: int = 0
    """Messages and fragments that were dropped, too far out of order."""
    old_session: int = 0
    """Dropped: messages and acknowledgements of an earlier session."""
    unexpected: int = 0
    """Messages that arrived before a matching receive was posted."""

    def counter_values(self) -> dict[str, int]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def add(self, names: tuple[str, ...]) -> None:
        """Increment the counters of a state table's row."""
        for name in names:
            setattr(self, name, getattr(self, name) + 1)


check_counters(Counters, TABLES, STATELESS)
