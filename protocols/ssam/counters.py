"""Counters of SSAM on one node."""

from __future__ import annotations

from dataclasses import dataclass, fields

from protocols.core.states import check_counters
from protocols.ssam.states import CONNECTION, REQUEST, SLOT

STATELESS = (
    "overruns", "bad_headers", "bad_checks", "no_circuit", "no_buffer", "no_handler", "cells_read", "cells_written",
)  # fmt: skip
"""Counters outside the state machines."""


@dataclass(slots=True)
class Counters:
    """Numbers of cells and messages."""

    requests: int = 0
    """Requests sent by programs."""
    resent: int = 0
    """Requests resent after a time-out."""
    hurried: int = 0
    """Requests resent without a time-out of their own, since the peer reported them missing or answered later requests,
    or since answers follow a time-out."""
    replies: int = 0
    """Requests answered by a reply."""
    acknowledged: int = 0
    """Requests answered without a reply."""
    returned: int = 0
    """Requests returned to the program, which may have been handled."""
    old_answers: int = 0
    """Duplicate answers."""

    handled: int = 0
    """Requests taken in order, with a handler or not (`no_handler`)."""
    early: int = 0
    """Requests received out of order and kept."""
    duplicates: int = 0
    """Copies of kept requests."""
    answered_again: int = 0
    """Kept answers that were resent."""

    restarts: int = 0
    """New sessions begun by peers, which have restarted or given up requests."""
    stale: int = 0
    """Cells of another session."""

    cells_read: int = 0
    """Cells that the kernel has read from the input FIFO."""
    cells_written: int = 0
    """Cells put into the output FIFO."""
    overruns: int = 0
    """Cells lost because the input FIFO was full."""
    bad_headers: int = 0
    """Cells with a wrong header checksum or size."""
    bad_checks: int = 0
    """Cells with a wrong CRC-10 or length."""
    no_circuit: int = 0
    """Cells of a circuit without a process on this node."""
    no_buffer: int = 0
    """Cells lost because the process had not read earlier cells of the connection, which filled the buffers."""
    no_handler: int = 0
    """Messages for unknown handlers, or with invalid contents; they count as handled."""

    def counter_values(self) -> dict[str, int]:
        """Return the counters by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


check_counters(Counters, (SLOT, REQUEST, CONNECTION), STATELESS)
