"""Counters of one node's SSAM."""

from __future__ import annotations

from dataclasses import dataclass

from protocols.core.states import counts
from protocols.ssam.states import CONNECTION, REQUEST, SLOT

STATELESS = ("overruns", "bad_headers", "bad_checks", "no_circuit", "no_handler", "cells_read", "cells_written")


@counts((SLOT, REQUEST, CONNECTION), STATELESS)
@dataclass(slots=True)
class Counters:
    """Cells and messages, by cause."""

    requests: int = 0
    """Requests that programs have sent."""
    resent: int = 0
    """Requests sent again after a time-out."""
    hurried: int = 0
    """Requests sent again because later ones had come, or had been answered."""
    replies: int = 0
    """Replies whose handlers have run."""
    acknowledged: int = 0
    """Requests answered without a reply."""
    returned: int = 0
    """Requests returned to the program, which may have been handled."""
    old_answers: int = 0
    """Answers to requests that had been answered."""

    handled: int = 0
    """Requests whose handlers have run."""
    early: int = 0
    """Requests kept until those before them have come."""
    duplicates: int = 0
    """Copies of kept requests."""
    answered_again: int = 0
    """Held answers sent again."""

    restarts: int = 0
    """Restarts of peers."""
    stale: int = 0
    """Cells of another session."""

    cells_read: int = 0
    """Cells that the kernel has taken out of the input FIFO."""
    cells_written: int = 0
    """Cells put into the output FIFO."""
    overruns: int = 0
    """Cells lost because the input FIFO was full."""
    bad_headers: int = 0
    """Cells with a wrong header check, or of another size."""
    bad_checks: int = 0
    """Cells with a wrong CRC-10 or length."""
    no_circuit: int = 0
    """Cells of a circuit that no process of the node has."""
    no_handler: int = 0
    """Messages for handlers that have not been set; they count as handled."""

    def counted(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}
