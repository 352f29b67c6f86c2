"""Histories as checkers read them: the transfers of each node, written by `testbed.workloads.history`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from protocols.mpi.constants import ANY_SOURCE, ANY_TAG
from testbed.runtime.journal import broken_line, read_numbered
from testbed.workloads.history import COLLECTIVE, check_event

UNDER_WAY: Final = -1
"""End of a transfer that has not ended."""


@dataclass(slots=True, eq=False)
class Transfer:
    """A transfer that a program began. rank, node: of that program. number: counts its transfers. begun, ended:
    nanoseconds of the history's clock. error, error_class: why it failed, in a sentence, and MPI's error class. place:
    file and line of its beginning. life: of its program, counted from 0. gone: its program was restarted before the
    transfer ended."""

    rank: int
    node: str
    number: int
    peer: int
    context: int
    tag: int
    size: int
    begun: int
    place: str
    life: int
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
    """A message. to: the receiver's node. buffered: when its program continued before delivery was known."""

    to: str = ""
    digest: str = ""
    buffered: int = UNDER_WAY

    @property
    def is_promised(self) -> bool:
        """Whether its program was notified that it is done, and of nothing else since."""
        return self.done or (self.buffered != UNDER_WAY and not self.error)

    def __str__(self) -> str:
        return (
            f"message {self.number} of {self.node} to {self.to} (context {self.context}, tag {self.tag}, {self.size} bytes; "
            f"{self.place})"
        )


@dataclass(slots=True, eq=False)
class Receive(Transfer):
    """A receive. peer, tag, size: what it was posted for (-1 for any) and its buffer's size. source, came_tag,
    came_size, digest: of the message that came; source is -1 while none has."""

    source: int = -1
    came_tag: int = -1
    came_size: int = 0
    digest: str = ""

    def __str__(self) -> str:
        return f"receive {self.number} of {self.node} ({self.place})"

    def fits(self, send: Send) -> bool:
        """Whether this message may match the receive."""
        return (
            send.peer == self.rank
            and send.context == self.context
            and self.peer in (ANY_SOURCE, send.rank)
            and self.tag in (ANY_TAG, send.tag)
        )


@dataclass(slots=True, eq=False)
class Collective:
    """A collective call of one rank. number: in its communicator, of `context` and `ranks` (by rank in the run; None: all).
    at: the program's line. For root, size, op, datatype, out and into see `CallArguments`."""

    node: str
    number: int
    call: str
    context: int
    ranks: tuple[int, ...] | None
    at: str
    root: int = -1
    size: int = -1
    op: str = ""
    datatype: str = ""
    out: Sequence[int] | None = None
    into: Sequence[int] | None = None

    def __str__(self) -> str:
        words = [f"root {self.root}"] if self.root >= 0 else []
        words += [self.op] if self.op else []
        if self.size >= 0:
            words.append(f"{self.size} bytes" + (f" of {self.datatype}" if self.datatype else ""))
        words += [f"sends {list(self.out)} bytes"] if self.out is not None else []
        words += [f"expects {list(self.into)} bytes"] if self.into is not None else []
        return f"{self.node} calls {self.call}({', '.join(words)})" + (f" at {self.at}" if self.at else "")


@dataclass(slots=True)
class Histories:
    """Transfers of all nodes of a run, by rank. sends, receives, collectives: in the order in which each program began
    them."""

    names: Sequence[str]
    sends: list[list[Send]] = field(default_factory=list)
    receives: list[list[Receive]] = field(default_factory=list)
    collectives: list[list[Collective]] = field(default_factory=list)
    lives: list[list[tuple[int, int]]] = field(default_factory=list)
    """By program: the times of the first and last event of each of its lives, in nanoseconds."""
    last: int = 0
    """The latest time of all histories."""

    def __len__(self) -> int:
        """Return the number of transfers."""
        return sum(map(len, self.sends)) + sum(map(len, self.receives))


def read_histories(folder: Path, names: Sequence[str]) -> Histories:
    """Read a run's folder ``history``, one file for each node. names: by rank. A node without a file has no transfers.
    BrokenFileError names the broken line."""
    return _histories({name: read_numbered(folder / f"{name}.jsonl") for name in names}, folder)


def histories_of(events: Mapping[str, Iterable[Mapping[str, Any]]], folder: str = "history") -> Histories:
    """Read events by node, in the order of ranks. A transfer without its beginning is left out, as a truncated line is
    skipped when a file is read. Raises BrokenFileError for an invalid event."""
    return _histories({name: enumerate(some, 1) for name, some in events.items()}, Path(folder))


def _histories(events: Mapping[str, Iterable[tuple[int, Mapping[str, Any]]]], folder: Path) -> Histories:
    names = list(events)
    histories = Histories(names)
    for rank, name in enumerate(names):
        _read_node(histories, rank, events[name], folder / f"{name}.jsonl")
    return histories


def _read_node(histories: Histories, rank: int, events: Iterable[tuple[int, Mapping[str, Any]]], file: Path) -> None:
    sends: list[Send] = []
    receives: list[Receive] = []
    lives: list[tuple[int, int]] = []
    collectives: list[Collective] = []
    begun: dict[int, Send | Receive] = {}
    for line, event in events:
        try:
            check_event(event)
        except ValueError as error:
            raise broken_line(file, line, error) from error
        clock, what, number = event["clock_ns"], event["what"], event["n"]
        histories.last = max(histories.last, clock)
        if what in ("send", "receive"):
            if number in begun or not lives:  # a program that is started again numbers its transfers from 1 again
                for transfer in begun.values():
                    transfer.gone = transfer.under_way
                begun.clear()
                lives.append((clock, clock))
            begun[number] = _begun(
                histories.names, rank, event, f"{file.parent.name}/{file.name}:{line}", len(lives) - 1
            )
            if isinstance(transfer := begun[number], Send):
                sends.append(transfer)
            else:
                receives.append(transfer)
        elif what == COLLECTIVE:
            collectives.append(_collective(histories.names[rank], event))
        elif number in begun:
            transfer = begun[number]
            if what != "cancelled":
                _end(transfer, event)
            elif isinstance(transfer, Send):  # a cancelled transfer is forgotten
                sends.remove(transfer)
            else:
                receives.remove(transfer)
        if lives:
            lives[-1] = lives[-1][0], clock
    histories.sends.append(sends)
    histories.receives.append(receives)
    histories.collectives.append(collectives)
    histories.lives.append(lives)


def _begun(names: Sequence[str], rank: int, event: Mapping[str, Any], location: str, life: int) -> Send | Receive:
    peer, context, tag, size = event["peer"], event["context"], event["tag"], event["bytes"]
    common = (rank, names[rank], event["n"], peer, context, tag, size, event["clock_ns"], location, life)
    if event["what"] == "receive":
        return Receive(*common)
    to = names[peer] if 0 <= peer < len(names) else f"rank {peer}"
    return Send(*common, to=to, digest=event["digest"])


def _collective(node: str, event: Mapping[str, Any]) -> Collective:
    ranks = event.get("ranks")
    return Collective(
        node,
        event["n"],
        event["call"],
        event["context"],
        None if ranks is None else tuple(ranks),
        event["at"],
        event.get("root", -1),
        event.get("bytes", -1),
        event.get("op", ""),
        event.get("datatype", ""),
        event.get("out"),
        event.get("into"),
    )


def _end(transfer: Send | Receive, event: Mapping[str, Any]) -> None:
    if event["what"] == "buffered" and isinstance(transfer, Send):
        transfer.buffered = event["clock_ns"]
        return
    transfer.ended = event["clock_ns"]
    if event["what"] in ("failed", "undelivered"):
        transfer.error, transfer.error_class = event["error"] or "it failed", event.get("class", 0)
    if isinstance(transfer, Receive) and "peer" in event:
        transfer.source, transfer.came_tag = event["peer"], event["tag"]
        transfer.came_size, transfer.digest = event["bytes"], event.get("digest", "")
