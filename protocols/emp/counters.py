"""Counters of a NIC.

The state tables (`states`) decide which there are: those that their rows increment, and `STATELESS`, which count the
checks that frames and descriptors pass before a state machine sees them.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocols.core.states import check_counters
from protocols.emp.states import STATELESS, TABLES


@check_counters(TABLES, STATELESS)
@dataclass(slots=True)
class Counters:
    """Counters of one NIC, of frames unless stated otherwise."""

    frames_sent: int = 0
    """Data frames, sent for the first time."""
    frames_resent: int = 0
    collections_resent: int = 0
    """Collections resent after a timeout, or because the peer has answered after a silence."""
    acknowledgements_sent: int = 0
    reacknowledgements_sent: int = 0
    """Acknowledgements for a collection that was complete already: the first one may have been lost."""
    frames_received: int = 0
    """Frames of any kind, valid or not."""
    data_stored: int = 0
    headers_admitted: int = 0
    messages_sent: int = 0
    """Messages of which all collections have been acknowledged."""
    messages_received: int = 0
    """Messages received completely."""
    acknowledgements_received: int = 0
    """Acknowledgements of collections that were not acknowledged before."""

    malformed: int = 0
    """Dropped: too short, of another version or type, or inconsistent with itself or its message."""
    corrupt: int = 0
    """Dropped: wrong check."""
    strangers: int = 0
    """Dropped: from an unknown peer, or not for this NIC."""
    stale: int = 0
    """Dropped: from an earlier incarnation, or about one."""
    unknown: int = 0
    """Dropped: data from a peer that has not sent any header yet."""
    early: int = 0
    """Dropped: the message's header, or an older one, has not been admitted."""
    unmatched: int = 0
    """Dropped: no receive is posted for the message."""
    held_full: int = 0
    """Dropped: a header, while the maximum number of headers waits for receives."""
    duplicates: int = 0
    """Dropped: already received."""
    late_acknowledgements: int = 0
    """Acknowledgements of collections that were acknowledged before."""
    wrong_acknowledgements: int = 0
    """Acknowledgements of frames that were not sent."""
    restarts: int = 0
    """Restarts of peers."""
    given_up: int = 0
    """Messages that failed for lack of acknowledgements."""
    abandoned: int = 0
    """Partly received messages that the peer has given up."""
    invalid: int = 0
    """Invalid descriptors."""

    def counted(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}
