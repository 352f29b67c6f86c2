"""Counters of a mapper."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Counters of one mapper, of frames unless stated otherwise."""

    probes_sent: int = 0
    """Probes for hosts and for switches, including retries."""
    answers_received: int = 0
    """First answers to probes, and first returns of loopback probes."""
    late_answers: int = 0
    """Answers to a try that has expired, to a probe that has been answered, or to a probe of a batch that has ended."""
    silent: int = 0
    """Probes given up after all tries."""
    answers_sent: int = 0
    """Answers to probes of other mappers."""
    explorations: int = 0
    """Explorations started."""
    contradictions: int = 0
    """Explorations aborted because of inconsistent answers: the network changed meanwhile."""
    watches: int = 0
    """Checks of the map without a change."""
    changes: int = 0
    """Checks of the map that detected a change."""
    parts_sent: int = 0
    """Parts of tables, including retries."""
    tables_given_up: int = 0
    """Tables that a host did not acknowledge."""
    tables_installed: int = 0
    """Tables installed in this NIC."""
    hints_sent: int = 0
    """Requests to the leader to check the map."""
    hints_received: int = 0
    elections: int = 0
    """Number of times that this mapper began to lead."""
    abdications: int = 0
    """Number of times that this mapper yielded to a better leader."""

    malformed: int = 0
    """Dropped: too short, of another type, inconsistent, or with remaining route bytes."""
    corrupt: int = 0
    """Dropped: wrong CRC."""
    strangers: int = 0
    """Dropped: not for this NIC, with this NIC's number from another NIC, or a table from a mapper that is not the
    leader."""

    def counter_values(self) -> dict[str, int]:
        """Return the counters by name."""
        return {name: getattr(self, name) for name in self.__slots__}
