"""Counters of a NIC.

The state tables (`states`) decide which there are: those that their rows increment, and `STATELESS`, which count what
happens to messages, and the checks that frames pass before a state machine sees them.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocols.am2.states import STATELESS, TABLES
from protocols.core.states import check_counters


@check_counters(TABLES, STATELESS)
@dataclass(slots=True)
class Counters:
    """Counters of one NIC, of packets unless stated otherwise."""

    packets_sent: int = 0
    """Message packets, sent for the first time."""
    packets_resent: int = 0
    """Packets resent because no answer has come, the last sending was refused, or the peer's incarnation has become
    known."""
    packets_received: int = 0
    """Frames of any kind, valid or not."""
    packets_taken: int = 0
    messages_delivered: int = 0
    """Messages put into an endpoint's ring."""
    acknowledgements_sent: int = 0
    acknowledgements_received: int = 0
    """Acknowledgements of packets that were not answered before."""
    refusals_received: int = 0
    """NACKs of the last sending, for a temporary reason."""
    undone: int = 0
    """NACKs that undo a message."""
    late_answers: int = 0
    """Answers to packets that were answered before, or to an earlier sending."""

    overruns: int = 0
    """Refused: the ring was full."""
    not_resident: int = 0
    """Refused: the endpoint was not in the NIC, or about to leave it."""
    unmapped: int = 0
    """Refused: the host's memory cannot be reached yet."""
    bad_tags: int = 0
    """Undone: the endpoint has another tag."""
    bad_endpoints: int = 0
    """Undone: the endpoint does not exist."""
    bad_segments: int = 0
    """Undone: the data does not lie within the segment."""
    duplicates: int = 0
    """Answered as before: the first answer may have been lost."""
    old: int = 0
    """Dropped: copies that no sender waits for any more."""
    dropped: int = 0
    """Dropped without acknowledgements: no room, or no endpoint."""

    returned: int = 0
    """Messages returned to their sender."""
    unreachable: int = 0
    """Returned messages without an answer, or without a route."""
    restarts: int = 0
    """Restarts of peers."""

    loaded: int = 0
    """Endpoints loaded into a frame."""
    unloaded: int = 0
    faults: int = 0
    """Messages that arrived for a non-resident endpoint and interrupted the host."""
    taken_back: int = 0
    """Packets of an endpoint that is leaving, whose last sending was refused."""
    forced: int = 0
    """Endpoints removed from their frames although their host process had not released them."""

    malformed: int = 0
    """Dropped: too short, of another type, inconsistent, or with a route that is not used up."""
    corrupt: int = 0
    """Dropped: wrong check."""
    strangers: int = 0
    """Dropped: from an unknown peer, or not for this NIC."""
    stale: int = 0
    """Dropped: from an earlier incarnation, about one, or for incarnation 0, since its sender knows none."""
    invalid: int = 0
    """Invalid doorbells and entries."""

    def counted(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}
