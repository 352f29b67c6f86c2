"""What a mapper has done and seen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Frames unless said otherwise."""

    probes_sent: int = 0
    """For hosts and for switches, each try."""
    answers_received: int = 0
    """To a probe that waited for one, or that probe itself, come back."""
    late_answers: int = 0
    """To a probe that has its answer, or that nobody waits for any more."""
    silent: int = 0
    """Probes: given up after all tries."""
    answers_sent: int = 0
    explorations: int = 0
    """Maps begun."""
    contradictions: int = 0
    """Maps given up, as answers did not fit together: the network has changed meanwhile."""
    watches: int = 0
    """Looks at what is known that have found nothing new."""
    changes: int = 0
    """Looks that have found something new."""
    parts_sent: int = 0
    """Parts of tables, each try."""
    tables_given_up: int = 0
    """Tables: a host did not acknowledge."""
    tables_installed: int = 0
    """Tables: of this NIC."""
    hints_sent: int = 0
    hints_received: int = 0
    elections: int = 0
    """How often this mapper began to lead."""
    abdications: int = 0
    """How often it ended that, for a better one."""

    malformed: int = 0
    """Dropped: too short, a route that is not used up, of another type, or contradicting itself."""
    corrupt: int = 0
    """Dropped: a check does not fit."""
    strangers: int = 0
    """Dropped: not for this NIC, with its number from another one, or a table from a mapper that does not lead."""

    def counted(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}
