"""Counters of a NIC: those that the rows of the state tables (`states`) increment, and `STATELESS`."""

from __future__ import annotations

from dataclasses import dataclass, fields

from protocols.core.states import check_counters
from protocols.via.states import STATELESS, TABLES


@dataclass(slots=True)
class Counters:
    """Counters of one NIC, of frames unless stated otherwise."""

    frames_sent: int = 0
    """Data frames, sent for the first time."""
    frames_resent: int = 0
    timeouts: int = 0
    """Time-outs of send queues."""
    acknowledgements_sent: int = 0
    acknowledgements_received: int = 0
    """Acknowledgements of frames that were not acknowledged before."""
    late_acknowledgements: int = 0
    """Acknowledgements of frames that were acknowledged already, or not sent."""
    frames_received: int = 0
    """All frames, valid or not."""
    data_stored: int = 0
    messages_sent: int = 0
    """Messages whose descriptor was completed: at the reliable levels, acknowledged messages."""
    messages_received: int = 0
    requests_sent: int = 0
    """Connection requests."""
    requests_resent: int = 0
    requests_failed: int = 0
    """Connection requests refused, expired or withdrawn."""
    accepts_resent: int = 0
    connections_made: int = 0
    connections_lost: int = 0
    disconnections: int = 0
    endings_resent: int = 0
    """Disconnect frames that were resent."""
    closings: int = 0
    """Number of times that the host closed the NIC."""
    reads_served: int = 0
    """RDMA Reads of peers."""

    malformed: int = 0
    """Dropped: too short, unknown version or type, or inconsistent fields."""
    corrupt: int = 0
    """Dropped: wrong CRC-32."""
    strangers: int = 0
    """Dropped: from an unknown peer, or not for this NIC."""
    stale: int = 0
    """Dropped: sent by, or addressed to, an earlier incarnation."""
    unconnected: int = 0
    """Dropped: for a connection that does not exist, or is not established yet."""
    duplicates: int = 0
    """Dropped: already received."""
    early: int = 0
    """Dropped: out of order, an earlier frame is missing."""
    partial: int = 0
    """Dropped, at the unreliable level: another frame of the message is missing."""
    receive_queue_empty: int = 0
    """Messages for which no receive descriptor was posted."""
    violations: int = 0
    """Accesses refused: memory handle, protection tag, bounds, permission, or a message longer than its receive
    buffer."""
    restarts: int = 0
    """Restarts of peers."""
    invalid: int = 0
    """Invalid descriptors, commands and doorbells."""

    def counter_values(self) -> dict[str, int]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


check_counters(TABLES, STATELESS)(Counters)
