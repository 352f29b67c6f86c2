"""Counters of a NIC: those that the rows of the state tables (`states`) increment, and `STATELESS`."""

from __future__ import annotations

from dataclasses import dataclass

from protocols.core.states import counts
from protocols.via.states import STATELESS, TABLES


@counts(TABLES, STATELESS)
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
    """Acknowledgements of nothing new, or of frames that were not sent."""
    frames_received: int = 0
    """Frames of any kind, valid or not."""
    data_stored: int = 0
    messages_sent: int = 0
    """Messages whose descriptor was completed: at the reliable levels, those acknowledged."""
    messages_received: int = 0
    requests_sent: int = 0
    """Connection requests."""
    requests_resent: int = 0
    requests_failed: int = 0
    """Connection requests refused, expired or taken back."""
    accepts_resent: int = 0
    connections_made: int = 0
    connections_lost: int = 0
    disconnections: int = 0
    endings_resent: int = 0
    """Ends of connections, of which a peer was told again."""
    closings: int = 0
    """Times that the host has closed the NIC."""
    reads_served: int = 0
    """RDMA Reads of peers."""

    malformed: int = 0
    """Dropped: too short, of another version or type, or inconsistent with itself."""
    corrupt: int = 0
    """Dropped: wrong check."""
    strangers: int = 0
    """Dropped: from an unknown peer, or not for this NIC."""
    stale: int = 0
    """Dropped: from an earlier incarnation, or for one."""
    unconnected: int = 0
    """Dropped: for a connection that does not exist, or not yet."""
    duplicates: int = 0
    """Dropped: already received."""
    early: int = 0
    """Dropped: an earlier frame is missing."""
    partial: int = 0
    """Dropped, at the unreliable level: another frame of the message is missing."""
    receive_queue_empty: int = 0
    """Messages for which no receive descriptor was posted."""
    violations: int = 0
    """Accesses refused: memory handle, protection tag, bounds, permission, or a message longer than its receive."""
    restarts: int = 0
    """Restarts of peers."""
    invalid: int = 0
    """Invalid descriptors, commands and doorbells."""

    def counted(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}
