"""Counters of a NIC.

There is a counter for each name in a row of the state tables (`states`), and for each name in `states.STATELESS`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from protocols.core.states import check_counters
from protocols.emp.states import STATELESS, TABLES


@dataclass(slots=True)
class Counters:
    """Counters of one NIC, of frames unless stated otherwise."""

    frames_sent: int = 0
    """Data frames sent for the first time."""
    frames_resent: int = 0
    """Data frames of resent collections."""
    collections_resent: int = 0
    """Collections resent: after a timeout, when the peer's incarnation becomes known, or when a parked message returns to
    the window."""
    acknowledgements_sent: int = 0
    reacknowledgements_sent: int = 0
    """Acknowledgements repeated for a complete collection, since an earlier one may have been lost."""
    frames_received: int = 0
    """Frames of any kind, valid or not."""
    data_stored: int = 0
    """Data frames written to a receive's buffer."""
    headers_admitted: int = 0
    messages_sent: int = 0
    """Messages whose collections have all been acknowledged."""
    messages_received: int = 0
    """Messages received completely."""
    acknowledgements_received: int = 0
    """First acknowledgements of collections."""

    malformed: int = 0
    """Dropped: too short, of another version or type, or with fields that contradict each other or the message's header."""
    corrupt: int = 0
    """Dropped: wrong checksum."""
    strangers: int = 0
    """Dropped: from an unknown peer, or not for this NIC."""
    stale: int = 0
    """Dropped: without an incarnation or from an earlier incarnation of the peer, from a peer whose program has crashed, or
    for an earlier incarnation of this NIC. Also notices of a peer's restart, which carry nothing else."""
    unknown: int = 0
    """Dropped: data from a peer whose first header has not arrived yet."""
    early: int = 0
    """Dropped: the message's header, or the header of an older message, has not been admitted yet."""
    unmatched: int = 0
    """Dropped: no receive is posted for the message."""
    held_full: int = 0
    """Dropped: a header, since the maximum number of headers (`Settings.held`) is kept already."""
    duplicates: int = 0
    """Dropped: already received."""
    late_acknowledgements: int = 0
    """Acknowledgements of collections that have been acknowledged already, or of messages that have failed."""
    wrong_acknowledgements: int = 0
    """Acknowledgements of frames that have not been sent."""
    restarts: int = 0
    """Restarts of peers."""
    given_up: int = 0
    """Messages not acknowledged within `Settings.give_up`."""
    abandoned: int = 0
    """Incoming messages that the peer has given up."""
    invalid: int = 0
    """Invalid descriptors and doorbells."""

    def counter_values(self) -> dict[str, int]:
        """Return the counters by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


check_counters(Counters, TABLES, STATELESS)
