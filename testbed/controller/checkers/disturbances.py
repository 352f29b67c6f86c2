"""Intended disturbances of a run, and the errors that they allow a transfer to have.

Random loss, delay, corruption, duplication and reordering allow none: the protocols promise to hide them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from protocols.mpi.mpi_errors import ERR_PROC_FAILED, ERR_TRUNCATE
from testbed.controller.checkers.histories import UNDER_WAY, Histories, Receive, Send, Transfer
from testbed.spec.placement import node_of

FOREVER: Final = 1 << 62
"""End of a disturbance that lasted beyond the run."""

CRASH, PAUSE, RESET, CUT, OTHER = "crash", "pause", "reset", "cut", "other"
"""Kinds: a node's process is killed (and loses its memory if restarted); a node is paused; a NIC loses its state;
nothing passes between nodes (a link that is down, a partition, a loss of 100 %); any other."""

OUTAGE: Final = "outage"
"""Unintended kind: a process of the tool that forwards frames died, and the frames it held are lost."""

ALLOWING: Final = {ERR_PROC_FAILED: frozenset({CRASH, PAUSE, RESET, CUT, OUTAGE})}
"""Error class -> kinds of disturbances, one of which must have touched the transfer. ERR_TRUNCATE is right where the
message is too long, and needs no fault; no other error is ever right."""


_GRACE: Final = 10_000_000
"""Nanoseconds after an error in which a program that it ends may begin transfers: until it awaits the failed one."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A disturbance of a run. nodes: names of those whose transfers it can touch; empty for all nodes. begin, end:
    nanoseconds of the history's clock. what: a description in words."""

    kind: str
    begin: int
    end: int = FOREVER
    nodes: frozenset[str] = frozenset()
    what: str = ""

    def touches(self, *ranks: str) -> bool:
        """Whether it concerns the node of any of these ranks."""
        return not self.nodes or not self.nodes.isdisjoint([*ranks, *map(node_of, ranks)])


def is_allowed(transfer: Transfer, peer: str, disturbances: Iterable[Disturbance]) -> bool:
    """Whether disturbances allow the error of a transfer. peer: the other node, "" where it is not known."""
    if transfer.error_class == ERR_TRUNCATE:
        return True  # the check of contents examines the message's length
    kinds = ALLOWING.get(transfer.error_class, frozenset())
    nodes = (transfer.node, peer) if peer else ()
    return any(
        disturbance.kind in kinds and disturbance.begin <= transfer.ended and (not nodes or disturbance.touches(*nodes))
        for disturbance in disturbances
    )


def consequences(histories: Histories, disturbances: Sequence[Disturbance]) -> list[Disturbance]:
    """Return the ends of programs that an allowed error may have ended: to its peers, such a program is as gone as one
    that was killed. It began no transfer later than _GRACE after the error; one that did has handled it."""
    ends: dict[str, Disturbance] = {}
    names, added = histories.names, True
    while added:
        added = False
        for name, sends, receives in zip(names, histories.sends, histories.receives, strict=True):
            if name in ends:
                continue
            transfers: list[Send | Receive] = [*sends, *receives]
            last = max((transfer.begun for transfer in transfers), default=0)
            for transfer in transfers:
                if not transfer.error or transfer.error_class == ERR_TRUNCATE or transfer.ended < last - _GRACE:
                    continue
                peer = names[transfer.peer] if 0 <= transfer.peer < len(names) else ""
                if is_allowed(transfer, peer, [*disturbances, *ends.values()]):
                    what = f"{name} ended by its error"
                    ends[name] = Disturbance(CRASH, transfer.ended, nodes=frozenset({name}), what=what)
                    added = True
                    break
    return list(ends.values())


def healed_before(send: Send, until: int, disturbances: Iterable[Disturbance]) -> int:
    """Return when the last disturbance of a message ended, of those that ended by `until`; -1 where there was none."""
    return max(
        (
            disturbance.end
            for disturbance in disturbances
            if disturbance.end <= until
            and disturbance.touches(send.node, send.to)
            and (send.ended == UNDER_WAY or send.ended > disturbance.begin)
        ),
        default=-1,
    )
