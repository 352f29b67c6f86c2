"""Histories as checkers read them: the transfers of each node, from what `testbed.workloads.history` has written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from protocols.mpi.constants import ANY_SOURCE, ANY_TAG
from testbed.runtime.journal import read

UNDER_WAY: Final = -1
"""The end of what has not ended."""


@dataclass(slots=True, eq=False)
class Transfer:
    """What a program has begun. rank, node: of that program. number: of its transfers. begun, ended: nanoseconds of the
    history's clock. error: why it failed, in a sentence, and its class, of MPI's. place: where its beginning is told. gone:
    its program was started again before it had ended."""

    rank: int
    node: str
    number: int
    peer: int
    context: int
    tag: int
    size: int
    begun: int
    place: str
    ended: int = UNDER_WAY
    error: str = ""
    error_class: int = 0
    gone: bool = False

    @property
    def done(self) -> bool:
        return self.ended != UNDER_WAY and not self.error

    @property
    def under_way(self) -> bool:
        return self.ended == UNDER_WAY and not self.gone


@dataclass(slots=True, eq=False)
class Send(Transfer):
    """A message. to: the receiver's node."""

    to: str = ""
    digest: str = ""

    def __str__(self) -> str:
        return (
            f"message {self.number} of {self.node} to {self.to} (context {self.context}, tag {self.tag}, {self.size} bytes; "
            f"{self.place})"
        )


@dataclass(slots=True, eq=False)
class Receive(Transfer):
    """peer, tag, size: what it was begun for, -1 for any, and its buffer's size. source, came_tag, came_size, digest: of
    what has come; source is -1 while nothing has."""

    source: int = -1
    came_tag: int = -1
    came_size: int = 0
    digest: str = ""

    def __str__(self) -> str:
        return f"receive {self.number} of {self.node} ({self.place})"

    def fits(self, send: Send) -> bool:
        """Whether this message may be received by it."""
        return (
            send.peer == self.rank
            and send.context == self.context
            and self.peer in (ANY_SOURCE, send.rank)
            and self.tag in (ANY_TAG, send.tag)
        )


@dataclass(slots=True)
class Histories:
    """Of all nodes of a run, by rank. sends, receives: in the order in which each program began them."""

    names: Sequence[str]
    sends: list[list[Send]] = field(default_factory=list)
    receives: list[list[Receive]] = field(default_factory=list)
    last: int = 0
    """The latest time in any of them."""

    def __len__(self) -> int:
        """How many transfers."""
        return sum(map(len, self.sends)) + sum(map(len, self.receives))


def read_histories(folder: Path, names: Sequence[str]) -> Histories:
    """From a run's folder ``history``, one file for each node. names: by rank. A node without a file has done nothing."""
    return histories_of({name: read(folder / f"{name}.jsonl") for name in names}, folder.name)


def histories_of(events: Mapping[str, Iterable[Mapping[str, Any]]], folder: str = "history") -> Histories:
    """From events by node, in the order of ranks. Raises KeyError for an event that is none."""
    names = list(events)
    histories = Histories(names)
    for rank, name in enumerate(names):
        sends: list[Send] = []
        receives: list[Receive] = []
        begun: dict[int, Send | Receive] = {}
        for line, event in enumerate(events[name], 1):
            clock, what, number = event["clock_ns"], event["what"], event["n"]
            histories.last = max(histories.last, clock)
            if what in ("send", "receive"):
                if number in begun:  # a program that was started again numbers its transfers from 1 again
                    for transfer in begun.values():
                        transfer.gone = transfer.under_way
                    begun.clear()
                place = f"{folder}/{name}.jsonl:{line}"
                peer, context, tag, size = event["peer"], event["context"], event["tag"], event["bytes"]
                if what == "send":
                    to = names[peer] if 0 <= peer < len(names) else f"rank {peer}"
                    send = Send(
                        rank, name, number, peer, context, tag, size, clock, place, to=to, digest=event["digest"]
                    )
                    sends.append(send)
                    begun[number] = send
                else:
                    receive = Receive(rank, name, number, peer, context, tag, size, clock, place)
                    receives.append(receive)
                    begun[number] = receive
                continue
            transfer = begun[number]
            if what == "cancelled":  # as if it had never been
                if isinstance(transfer, Send):
                    sends.remove(transfer)
                else:
                    receives.remove(transfer)
                continue
            transfer.ended = clock
            if what == "failed":
                transfer.error, transfer.error_class = event["error"] or "it failed", event.get("class", 0)
            if isinstance(transfer, Receive) and "peer" in event:
                transfer.source, transfer.came_tag = event["peer"], event["tag"]
                transfer.came_size, transfer.digest = event["bytes"], event.get("digest", "")
        histories.sends.append(sends)
        histories.receives.append(receives)
    return histories
