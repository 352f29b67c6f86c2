"""What a NIC has done and seen: the rows of the firmware's state table, each counted whenever it is taken."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Packets unless said otherwise."""

    packets_sent: int = 0
    """Of messages, for the first time."""
    packets_resent: int = 0
    """As no answer has come, as the last sending was refused, or as the peer has first said who it is."""
    packets_received: int = 0
    """Frames of any kind, good or not."""
    packets_taken: int = 0
    messages_delivered: int = 0
    """Messages: into an endpoint's ring."""
    acknowledgements_sent: int = 0
    acknowledgements_received: int = 0
    """Each for a packet that was not answered yet."""
    refusals_received: int = 0
    """NACKs of the last sending, for a reason that passes."""
    undone: int = 0
    """NACKs that undo a message."""
    late_answers: int = 0
    """To what has its answer, or to an earlier sending."""

    overruns: int = 0
    """Refused: the ring was full."""
    not_resident: int = 0
    """Refused: the endpoint was not in the NIC, or about to leave it."""
    unmapped: int = 0
    """Refused: memory of the host's that cannot be reached yet."""
    bad_tags: int = 0
    """Undone: the endpoint has another tag."""
    bad_endpoints: int = 0
    """Undone: there is no such endpoint."""
    bad_segments: int = 0
    """Undone: the data does not lie within the segment."""
    duplicates: int = 0
    """Answered as before: its answer may have been lost."""
    old: int = 0
    """Dropped: copies that nobody waits for any more."""
    dropped: int = 0
    """Without acknowledgements: there was no room, or no endpoint."""

    returned: int = 0
    """Messages: back to their sender."""
    unreachable: int = 0
    """Messages, of these: no answer, or no way."""
    restarts: int = 0
    """Peers that have started again."""

    loaded: int = 0
    """Endpoints: into a frame."""
    unloaded: int = 0
    faults: int = 0
    """Messages that have come for an endpoint that was not resident, and for which the host was interrupted."""
    taken_back: int = 0
    """Packets of an endpoint that leaves, whose last sending was refused."""
    forced: int = 0
    """Endpoints: out of their frames though their host process had not released them."""

    malformed: int = 0
    """Dropped: too short, of another type, contradicting itself, or with a route that is not used up."""
    corrupt: int = 0
    """Dropped: a check does not fit."""
    strangers: int = 0
    """Dropped: from no known peer, or not for this NIC."""
    stale: int = 0
    """Dropped: from, or about, an earlier incarnation, or for none, as its sender has heard of none."""
    invalid: int = 0
    """Doorbells, entries: they make no sense."""

    def counted(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}
