"""Check that ranks agree on their collective calls: all ranks of a communicator make the same calls in the same order, with
the same root, operation and sizes (MPI 4.1, sections 6.1 and 6.14).

The k-th calls of a communicator's ranks are compared. A communicator is identified by its context and ranks. If the numbers
of its calls begin again, it was freed and a new communicator has its context, or the rank's program was restarted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from testbed.controller.checkers.check_report import Check
from testbed.controller.checkers.histories import Collective, Histories

AGREEMENT: Final = "collective calls"
_EQUAL: Final = {"call": "calls", "root": "roots", "op": "operations", "datatype": "datatypes", "size": "sizes"}
"""Fields that must be equal at all ranks, and their plural in a sentence."""


class _Position(NamedTuple):
    """Position of a call. reuse: number of earlier communicators with this context and ranks. number: number of the call,
    from 0."""

    context: int
    ranks: tuple[int, ...]
    reuse: int
    number: int

    def __str__(self) -> str:
        return f"collective call {self.number + 1} of ranks {list(self.ranks)} (context {self.context})"


Calls = Mapping[int, Collective]
"""Calls at one position, by rank in the communicator."""


def check_agreement(histories: Histories, is_over: bool, is_excused: Callable[[str], bool]) -> Check:
    """Compare the collective calls of all ranks. is_over: whether the programs have ended or are stuck, so that missing
    calls will not be made. is_excused: whether a node crashed."""
    check = Check(AGREEMENT, "calls")
    for position, calls in _by_position(histories).items():
        check.checked += 1
        sentence = _describe_difference(position, calls)
        if not sentence and is_over:
            sentence = _describe_missing(histories.names, position, calls, is_excused)
        if sentence:
            check.add_violation(sentence)
    return check


def _by_position(histories: Histories) -> Mapping[_Position, dict[int, Collective]]:
    by_position: defaultdict[_Position, dict[int, Collective]] = defaultdict(dict)
    for rank, calls in enumerate(histories.collectives):
        last: dict[tuple[int, tuple[int, ...]], tuple[int, int]] = {}  # reuse and number
        for call in calls:
            ranks = tuple(range(len(histories.names))) if call.ranks is None else call.ranks
            reuse, number = last.get((call.context, ranks), (0, -1))
            if call.number <= number:
                reuse += 1
            last[call.context, ranks] = reuse, call.number
            if rank in ranks:
                by_position[_Position(call.context, ranks, reuse, call.number)][ranks.index(rank)] = call
    return by_position


def _describe_difference(position: _Position, calls: Calls) -> str:
    """Return a sentence on the first two ranks whose calls disagree; empty if all agree."""
    first, *others = sorted(calls)
    for rank in others:
        for field, plural in _EQUAL.items():
            if getattr(calls[first], field) != getattr(calls[rank], field):
                return f"{position}, {plural} differ: {calls[first]}; {calls[rank]}"
    for sender, receiver in _pairs(calls, calls[first].root):
        sent, expected = _block_size(calls[sender].out, receiver), _block_size(calls[receiver].into, sender)
        if sent is not None and expected is not None and sent != expected:
            return (
                f"{position}, rank {sender} sends {sent} bytes to rank {receiver}, which expects {expected}: "
                f"{calls[sender]}; {calls[receiver]}"
            )
    return ""


def _pairs(calls: Calls, root: int) -> Iterator[tuple[int, int]]:
    """Yield the senders and receivers of blocks, whose sizes may disagree. root: -1 for none."""
    for sender in calls:
        for receiver in calls:
            if root in (-1, sender, receiver):
                yield sender, receiver


def _block_size(sizes: Sequence[int] | None, rank: int) -> int | None:
    """Return the bytes of the block to or from a rank; None if unknown. sizes: by rank, or one size for all ranks."""
    if sizes is None or (len(sizes) > 1 and rank >= len(sizes)):
        return None
    return sizes[0] if len(sizes) == 1 else sizes[rank]


def _describe_missing(
    names: Sequence[str], position: _Position, calls: Calls, is_excused: Callable[[str], bool]
) -> str:
    """Return a sentence on ranks that have not made a call which other ranks have made; empty if there are none, if a node
    is excused, or if the communicator's context was used before."""
    nodes = [names[rank] for rank in position.ranks if 0 <= rank < len(names)]
    missing = [node for rank, node in enumerate(nodes) if rank not in calls]
    if not missing or position.reuse or any(map(is_excused, nodes)):
        return ""
    return f"{position}, not made by {', '.join(missing)}: {calls[min(calls)]}"
