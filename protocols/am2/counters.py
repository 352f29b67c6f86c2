"""Counters of a NIC.

There is a counter for each name in a row of the state tables (`states`), and for each name in `STATELESS`. The latter
count messages, frames that fail a check before a state machine handles them, and invalid doorbells.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from protocols.am2.states import STATELESS, TABLES
from protocols.core.states import check_counters


@dataclass(slots=True)
class Counters:
    """Counters of one NIC, of packets unless stated otherwise."""

    packets_sent: int = 0
    """Message packets sent, without resends on the same channel."""
    packets_resent: int = 0
    """Packets resent after a timeout, after a refusal, or when the peer's incarnation becomes known."""
    packets_received: int = 0
    """Frames of any kind, valid or not."""
    packets_taken: int = 0
    """Message packets accepted on channels, so none without acknowledgements (`Settings.reliable`)."""
    messages_delivered: int = 0
    """Messages put into an endpoint's ring."""
    acknowledgements_sent: int = 0
    """ACKs and NACKs of messages, repeated ones included; not the NACKs of messages for another incarnation."""
    acknowledgements_received: int = 0
    """ACKs of packets, each packet's first one."""
    refusals_received: int = 0
    """NACKs for a temporary reason, each of a packet's last sending."""
    undone: int = 0
    """NACKs that undo a message."""
    late_answers: int = 0
    """Answers to packets that have been answered already, or to an earlier sending of a packet."""

    overruns: int = 0
    """Refused because the ring was full; mapping packets that a mapper daemon's ring could not take are dropped."""
    not_resident: int = 0
    """Refused: the endpoint was not resident, or was leaving its frame."""
    unmapped: int = 0
    """Refused: the host memory was not mapped."""
    bad_tags: int = 0
    """Undone: the endpoint has another tag."""
    bad_endpoints: int = 0
    """Undone: the endpoint does not exist."""
    bad_segments: int = 0
    """Undone: the data does not lie within the segment."""
    duplicates: int = 0
    """Accepted or undone before: the answer is repeated, since the earlier one may have been lost."""
    old: int = 0
    """Dropped: outdated copies."""
    dropped: int = 0
    """Not delivered by a NIC without acknowledgements (`Settings.reliable`), for any reason."""

    returned: int = 0
    """Messages returned to their sender, for any reason."""
    unreachable: int = 0
    """Messages returned as unreachable: no answer or no route, or the peer has restarted, or its endpoint or its reply is
    gone."""
    restarts: int = 0
    """Restarts of peers."""

    loaded: int = 0
    """Endpoints loaded into a frame."""
    unloaded: int = 0
    """Endpoints that have left their frames."""
    faults: int = 0
    """Interrupts of the host by messages for a non-resident endpoint: the first message after each unloading."""
    taken_back: int = 0
    """Packets withdrawn after a refusal, to be sent later on another channel."""
    forced: int = 0
    """Endpoints that left their frames without a release by their host process."""

    malformed: int = 0
    """Dropped: too short, of another type, with inconsistent fields, or with a route that is not used up."""
    corrupt: int = 0
    """Dropped: wrong checksum."""
    strangers: int = 0
    """Dropped: from an unknown NIC, or not for this NIC."""
    stale: int = 0
    """Dropped: from an earlier incarnation of the peer, for another incarnation of this NIC, or with an unknown one
    (0)."""
    invalid: int = 0
    """Invalid doorbells and entries."""

    def counter_values(self) -> dict[str, int]:
        """Return the counters by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


check_counters(Counters, TABLES, STATELESS)
