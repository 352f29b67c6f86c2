"""Disturbances of a run, and the errors of transfers that they excuse.

Random loss, delay, corruption, duplication and reordering excuse no error: protocols must hide them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from protocols.mpi.mpi_errors import ERR_PROC_FAILED, ERR_TRUNCATE
from testbed.controller.checkers.histories import PENDING, Histories, Receive, Send, Transfer
from testbed.spec.placement import node_of

FOREVER: Final = 1 << 62
"""End of a disturbance that lasts until the run ends."""

CRASH, PAUSE, RESET, CUT, OTHER = "crash", "pause", "reset", "cut", "other"
"""Kinds: a node's process is killed (which loses its memory if it is restarted); a node is paused; a NIC loses its state;
no frame passes between nodes (a link that is down, a partition, a loss of 100 %); any other."""

OUTAGE: Final = "outage"
"""Unintended kind: one of the testbed's own processes died, and frames that it held or forwarded may be lost."""

EXCUSING_KINDS: Final = {ERR_PROC_FAILED: frozenset({CRASH, PAUSE, RESET, CUT, OUTAGE})}
"""Error class -> kinds of disturbances that excuse it. ERR_TRUNCATE of a too long message needs no disturbance; other errors
are never excused."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A disturbance of a run. nodes: names of nodes whose transfers it can affect; empty for all nodes. begin, end:
    nanoseconds of the history's clock. what: a description for people."""

    kind: str
    begin: int
    end: int = FOREVER
    nodes: frozenset[str] = frozenset()
    what: str = ""

    def affects(self, *ranks: str) -> bool:
        """Whether the disturbance can affect the node of any of these ranks."""
        return not self.nodes or not self.nodes.isdisjoint([*ranks, *map(node_of, ranks)])


def is_excused(transfer: Transfer, peer: str, disturbances: Iterable[Disturbance]) -> bool:
    """Whether disturbances excuse the error of a transfer. peer: the other node; "" if unknown."""
    if transfer.error_class == ERR_TRUNCATE:
        return True  # the content check examines the message's length
    kinds = EXCUSING_KINDS.get(transfer.error_class, frozenset())
    nodes = (transfer.node, peer) if peer else ()
    return any(
        disturbance.kind in kinds and disturbance.begin <= transfer.ended and (not nodes or disturbance.affects(*nodes))
        for disturbance in disturbances
    )


def programs_ended_by_errors(histories: Histories, disturbances: Sequence[Disturbance]) -> list[Disturbance]:
    """Return a crash for each program that may have ended by an excused error: its peers see no difference to a
    killed program. A program may start transfers until it awaits the failed one, so it ended after its last transfer had
    started."""
    ends: dict[str, Disturbance] = {}
    names, added = histories.names, True
    while added:
        added = False
        for name, sends, receives in zip(names, histories.sends, histories.receives, strict=True):
            if name in ends:
                continue
            transfers: list[Send | Receive] = [*sends, *receives]
            last = max((transfer.started for transfer in transfers), default=0)
            for transfer in transfers:
                if not transfer.error or transfer.error_class == ERR_TRUNCATE:
                    continue
                peer = names[transfer.peer] if 0 <= transfer.peer < len(names) else ""
                if is_excused(transfer, peer, [*disturbances, *ends.values()]):
                    description = f"{name} ended by its error"
                    ends[name] = Disturbance(
                        CRASH, max(transfer.ended, last), nodes=frozenset({name}), what=description
                    )
                    added = True
                    break
    return list(ends.values())


def last_healing(send: Send, until: int, disturbances: Iterable[Disturbance]) -> int:
    """Return the end of the last disturbance that affected a message and ended by `until`; -1 if there is none."""
    return max(
        (
            disturbance.end
            for disturbance in disturbances
            if disturbance.end <= until
            and disturbance.affects(send.node, send.receiver)
            and (send.ended == PENDING or send.ended > disturbance.begin)
        ),
        default=-1,
    )
