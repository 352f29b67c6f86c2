"""What a NIC has done and seen: the rows of the firmware's state table, each counted whenever it is taken."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Frames unless said otherwise."""

    frames_sent: int = 0
    """Data, for the first time."""
    frames_resent: int = 0
    collections_resent: int = 0
    """Collections: their time was over, or the peer has answered after a silence."""
    acknowledgements_sent: int = 0
    reacknowledgements_sent: int = 0
    """For a collection that was complete already: its acknowledgement may have been lost."""
    frames_received: int = 0
    """Of any kind, good or not."""
    data_stored: int = 0
    headers_admitted: int = 0
    messages_sent: int = 0
    """Messages: all their collections have been acknowledged."""
    messages_received: int = 0
    """Messages, complete."""
    acknowledgements_received: int = 0
    """Each for a collection that was not acknowledged yet."""

    malformed: int = 0
    """Dropped: too short, of another version or type, or contradicting itself or its message."""
    corrupt: int = 0
    """Dropped: the check does not fit."""
    strangers: int = 0
    """Dropped: from no known peer, or not for this NIC."""
    stale: int = 0
    """Dropped: from, or about, an earlier incarnation."""
    unknown: int = 0
    """Dropped: data from a peer of whose messages no header has come yet."""
    early: int = 0
    """Dropped: its message's header, or an older one, has not been admitted."""
    unmatched: int = 0
    """Dropped: no receive has been posted for its message."""
    held_full: int = 0
    """Dropped: a header, while as many as are kept wait for a receive."""
    duplicates: int = 0
    """Dropped: it had come before."""
    late_acknowledgements: int = 0
    """For what was acknowledged already."""
    wrong_acknowledgements: int = 0
    """For what was not sent."""
    restarts: int = 0
    """How often a peer was found to have started again."""
    given_up: int = 0
    """Messages that failed for want of acknowledgements."""
    abandoned: int = 0
    """Messages that a peer has given up, half received."""
    invalid: int = 0
    """Descriptors that made no sense."""

    def counted(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}
