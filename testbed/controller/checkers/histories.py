"""Histories in memory: the transfers of each node, read from files that `testbed.workloads.history` writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from protocols.mpi.constants import ANY_SOURCE, ANY_TAG
from testbed.runtime.journal import broken_line, read_numbered
from testbed.workloads.history import COLLECTIVE, check_event

PENDING: Final = -1
"""End of a transfer that has not ended."""


@dataclass(slots=True, eq=False)
class Transfer:
    """A transfer that a program started. rank, node: rank and node of the program. number: number of the transfer in its
    program. peer: rank of the other program. size: bytes. started, ended: nanoseconds of the history's clock. error,
    error_class: reason of the failure, as a sentence, and MPI's error class. location: file and line of its start. life:
    life of its program, from 0. abandoned: the program was restarted before the transfer ended."""

    rank: int
    node: str
    number: int
    peer: int
    context: int
    tag: int
    size: int
    started: int
    location: str
    life: int
    ended: int = PENDING
    error: str = ""
    error_class: int = 0
    abandoned: bool = False

    @property
    def is_complete(self) -> bool:
        return self.ended != PENDING and not self.error

    @property
    def is_pending(self) -> bool:
        return self.ended == PENDING and not self.abandoned


@dataclass(slots=True, eq=False)
class Send(Transfer):
    """A send and its message. receiver: node. buffered: when the send returned to the program before its delivery was
    known, nanoseconds; PENDING if it did not."""

    receiver: str = ""
    digest: str = ""
    buffered: int = PENDING

    @property
    def is_promised(self) -> bool:
        """Whether the program was notified that the send is complete or buffered, and not of an error since."""
        return self.is_complete or (self.buffered != PENDING and not self.error)

    def __str__(self) -> str:
        return (
            f"message {self.number} of {self.node} to {self.receiver} (context {self.context}, tag {self.tag}, "
            f"{self.size} bytes; {self.location})"
        )


@dataclass(slots=True, eq=False)
class Receive(Transfer):
    """A receive. peer, tag: as posted, -1 for any. size: size of the buffer. source, received_tag, received_size, digest:
    those of the received message; source is -1 if there is none."""

    source: int = -1
    received_tag: int = -1
    received_size: int = 0
    digest: str = ""

    def __str__(self) -> str:
        return f"receive {self.number} of {self.node} ({self.location})"

    def matches(self, send: Send) -> bool:
        """Whether the receive matches this message."""
        return (
            send.peer == self.rank
            and send.context == self.context
            and self.peer in (ANY_SOURCE, send.rank)
            and self.tag in (ANY_TAG, send.tag)
        )


@dataclass(slots=True, eq=False)
class Collective:
    """A collective call of one rank. number: number of the call in its communicator, which has `context` and `ranks`
    (ranks in the run; None: all). at: line of the program. For root, size, op, datatype, out and into see
    `CallArguments`."""

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
    """Transfers of all nodes of a run, by rank. sends, receives, collectives: in the order in which each program started
    them."""

    names: Sequence[str]
    sends: list[list[Send]] = field(default_factory=list)
    receives: list[list[Receive]] = field(default_factory=list)
    collectives: list[list[Collective]] = field(default_factory=list)
    lives: list[list[tuple[int, int]]] = field(default_factory=list)
    """By program: times of the first and last event of each of its lives, nanoseconds."""
    last_time: int = 0
    """Time of the last event of all histories, nanoseconds."""

    def __len__(self) -> int:
        """Return the number of transfers."""
        return sum(map(len, self.sends)) + sum(map(len, self.receives))


def read_histories(folder: Path, names: Sequence[str]) -> Histories:
    """Read a run's folder ``history``, with one file for each node. names: by rank. A node without a file has no transfers.
    Raises BrokenFileError, which names the line."""
    return _build_histories({name: read_numbered(folder / f"{name}.jsonl") for name in names}, folder)


def histories_of(events: Mapping[str, Iterable[Mapping[str, Any]]], folder: str = "history") -> Histories:
    """Convert events by node, in the order of ranks. A transfer without its start is left out, since its line may have been
    truncated. Raises BrokenFileError for an invalid event."""
    return _build_histories({name: enumerate(node_events, 1) for name, node_events in events.items()}, Path(folder))


def _build_histories(events: Mapping[str, Iterable[tuple[int, Mapping[str, Any]]]], folder: Path) -> Histories:
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
    by_number: dict[int, Send | Receive] = {}  # of the current life
    for line, event in events:
        try:
            check_event(event)
        except ValueError as error:
            raise broken_line(file, line, error) from error
        clock, kind, number = event["clock_ns"], event["what"], event["n"]
        histories.last_time = max(histories.last_time, clock)
        if kind in ("send", "receive"):
            if number in by_number or not lives:  # a restarted program numbers its transfers from 1
                for transfer in by_number.values():
                    transfer.abandoned = transfer.is_pending
                by_number.clear()
                lives.append((clock, clock))
            by_number[number] = _start_transfer(
                histories.names, rank, event, f"{file.parent.name}/{file.name}:{line}", len(lives) - 1
            )
            if isinstance(transfer := by_number[number], Send):
                sends.append(transfer)
            else:
                receives.append(transfer)
        elif kind == COLLECTIVE:
            collectives.append(_build_collective(histories.names[rank], event))
        elif number in by_number:
            transfer = by_number[number]
            if kind != "cancelled":
                _end_transfer(transfer, event)
            elif isinstance(transfer, Send):  # a cancelled transfer is left out
                sends.remove(transfer)
            else:
                receives.remove(transfer)
        if lives:
            lives[-1] = lives[-1][0], clock
    histories.sends.append(sends)
    histories.receives.append(receives)
    histories.collectives.append(collectives)
    histories.lives.append(lives)


def _start_transfer(
    names: Sequence[str], rank: int, event: Mapping[str, Any], location: str, life: int
) -> Send | Receive:
    peer, context, tag, size = event["peer"], event["context"], event["tag"], event["bytes"]
    common = (rank, names[rank], event["n"], peer, context, tag, size, event["clock_ns"], location, life)
    if event["what"] == "receive":
        return Receive(*common)
    receiver = names[peer] if 0 <= peer < len(names) else f"rank {peer}"
    return Send(*common, receiver=receiver, digest=event["digest"])


def _build_collective(node: str, event: Mapping[str, Any]) -> Collective:
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


def _end_transfer(transfer: Send | Receive, event: Mapping[str, Any]) -> None:
    if event["what"] == "buffered" and isinstance(transfer, Send):
        transfer.buffered = event["clock_ns"]
        return
    transfer.ended = event["clock_ns"]
    if event["what"] in ("failed", "undelivered"):
        transfer.error, transfer.error_class = event["error"] or "it failed", event.get("class", 0)
    if isinstance(transfer, Receive) and "peer" in event:
        transfer.source, transfer.received_tag = event["peer"], event["tag"]
        transfer.received_size, transfer.digest = event["bytes"], event.get("digest", "")
