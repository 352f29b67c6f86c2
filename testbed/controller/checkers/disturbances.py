"""What disturbed a run on purpose, and which errors a program may be told because of it.

Loss, delay, corruption, duplication and reordering by chance allow none: to hide them is what the protocols promise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from protocols.mpi.errors import ERR_PROC_FAILED, ERR_TRUNCATE
from testbed.controller.checkers.histories import UNDER_WAY, Send, Transfer

FOREVER: Final = 1 << 62
"""The end of what had not ended when the run was over."""

CRASH, PAUSE, RESET, CUT, OTHER = "crash", "pause", "reset", "cut", "other"
"""Kinds: a node's process is gone (and, restarted, has forgotten all); it stands still; its NIC has forgotten all; nothing
passes between nodes (a link that is down, a partition, a loss of 100 %); whatever else."""

ALLOWING: Final = {ERR_PROC_FAILED: frozenset({CRASH, PAUSE, RESET, CUT})}
"""Class of error -> kinds of which one must have touched the transfer. ERR_TRUNCATE is right where the message is too
long, and needs no fault; no other error is ever right."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """nodes: those whose transfers it can touch, by name; none: everybody's. begin, end: nanoseconds of the history's
    clock. what: in words."""

    kind: str
    begin: int
    end: int = FOREVER
    nodes: frozenset[str] = frozenset()
    what: str = ""

    def touches(self, *nodes: str) -> bool:
        return not self.nodes or not self.nodes.isdisjoint(nodes)


def allowed(transfer: Transfer, peer: str, disturbances: Iterable[Disturbance]) -> bool:
    """Whether a transfer may have failed as it has. peer: the other node, "" where it is not known."""
    if transfer.error_class == ERR_TRUNCATE:
        return True  # by the length of what came: the checker of contents
    kinds = ALLOWING.get(transfer.error_class, frozenset())
    nodes = (transfer.node, peer) if peer else ()
    return any(
        one.kind in kinds and one.begin <= transfer.ended and (not nodes or one.touches(*nodes)) for one in disturbances
    )


def healed_before(send: Send, until: int, disturbances: Iterable[Disturbance]) -> int:
    """When the last disturbance of a message was over, of those that were until then; -1 where there was none."""
    return max(
        (
            one.end
            for one in disturbances
            if one.end <= until
            and one.touches(send.node, send.to)
            and (send.ended == UNDER_WAY or send.ended > one.begin)
        ),
        default=-1,
    )
