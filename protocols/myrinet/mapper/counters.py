"""Counters of a mapper."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Counters of one mapper, of frames unless stated otherwise."""

    probes_sent: int = 0
    """Probes for hosts and for switches, each try."""
    answers_received: int = 0
    """Answers to a probe that waited for one, or that probe itself, returned."""
    late_answers: int = 0
    """Answers to a probe that was answered before, or that is no longer waited for."""
    silent: int = 0
    """Probes given up after all tries."""
    answers_sent: int = 0
    explorations: int = 0
    """Maps begun."""
    contradictions: int = 0
    """Maps given up because answers were inconsistent: the network has changed meanwhile."""
    watches: int = 0
    """Checks of the map that have found no change."""
    changes: int = 0
    """Checks of the map that have found a change."""
    parts_sent: int = 0
    """Parts of tables, each try."""
    tables_given_up: int = 0
    """Tables that a host did not acknowledge."""
    tables_installed: int = 0
    """Tables installed in this NIC."""
    hints_sent: int = 0
    hints_received: int = 0
    elections: int = 0
    """Number of times that this mapper began to lead."""
    abdications: int = 0
    """Number of times that this mapper yielded to a better leader."""

    malformed: int = 0
    """Dropped: too short, of another type, inconsistent, or with a route that is not used up."""
    corrupt: int = 0
    """Dropped: wrong check."""
    strangers: int = 0
    """Dropped: not for this NIC, with its number from another one, or a table from a mapper that does not lead."""

    def counted(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}
