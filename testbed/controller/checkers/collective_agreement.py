"""Check that ranks agree on their collective calls: all ranks of a communicator make the same ones in the same order, with
the same root, operation and sizes (MPI 4.1, sections 6.1 and 6.14).

The k-th calls of a communicator's ranks are compared. A communicator is known by its context and its ranks; when its calls
are numbered from the beginning again, it has been freed, and another one has its context.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from testbed.controller.checkers.check_report import Check
from testbed.controller.checkers.histories import Collective, Histories

AGREEMENT: Final = "collective calls"
_EQUAL: Final = {"call": "calls", "root": "roots", "op": "operations", "datatype": "datatypes", "size": "sizes"}
"""Fields that are equal at all ranks, and their names in a sentence."""


class _Place(NamedTuple):
    """A call's place. life: how many communicators of this context and these ranks were before. number: of the call."""

    context: int
    ranks: tuple[int, ...]
    life: int
    number: int

    def __str__(self) -> str:
        return f"collective call {self.number + 1} of ranks {list(self.ranks)} (context {self.context})"


Calls = Mapping[int, Collective]
"""Calls that meet each other, by rank in the communicator."""


def check_agreement(histories: Histories, is_over: bool, is_excused: Callable[[str], bool]) -> Check:
    """Compare the collective calls of all ranks. is_over: the programs have ended, or nothing could happen any more, so that
    a rank that has not made a call does not make it. is_excused: whether a node crashed."""
    check = Check(AGREEMENT, "calls")
    for place, calls in _by_place(histories).items():
        check.checked += 1
        sentence = _difference(place, calls)
        if not sentence and is_over:
            sentence = _absence(histories.names, place, calls, is_excused)
        if sentence:
            check.add_violation(sentence)
    return check


def _by_place(histories: Histories) -> Mapping[_Place, dict[int, Collective]]:
    found: defaultdict[_Place, dict[int, Collective]] = defaultdict(dict)
    for rank, calls in enumerate(histories.collectives):
        last: dict[tuple[int, tuple[int, ...]], tuple[int, int]] = {}  # life and number
        for call in calls:
            ranks = tuple(range(len(histories.names))) if call.ranks is None else call.ranks
            life, number = last.get((call.context, ranks), (0, -1))
            if call.number <= number:
                life += 1
            last[call.context, ranks] = life, call.number
            if rank in ranks:
                found[_Place(call.context, ranks, life, call.number)][ranks.index(rank)] = call
    return found


def _difference(place: _Place, calls: Calls) -> str:
    """Return a sentence on the first two ranks whose calls do not fit each other; empty where all do."""
    first, *others = sorted(calls)
    for rank in others:
        for what, name in _EQUAL.items():
            if getattr(calls[first], what) != getattr(calls[rank], what):
                return f"{place}, {name} differ: {calls[first]}; {calls[rank]}"
    for sender, receiver in _pairs(calls, calls[first].root):
        sent, expected = _bytes(calls[sender].out, receiver), _bytes(calls[receiver].into, sender)
        if sent is not None and expected is not None and sent != expected:
            return (
                f"{place}, rank {sender} sends {sent} bytes to rank {receiver}, which expects {expected}: {calls[sender]}; "
                f"{calls[receiver]}"
            )
    return ""


def _pairs(calls: Calls, root: int) -> Iterator[tuple[int, int]]:
    """Yield senders and receivers of blocks whose sizes may differ."""
    for sender in calls:
        for receiver in calls:
            if root in (-1, sender, receiver):
                yield sender, receiver


def _bytes(sizes: Sequence[int] | None, rank: int) -> int | None:
    """Return the bytes for a rank, or from one; one size is for all."""
    if sizes is None or (len(sizes) > 1 and rank >= len(sizes)):
        return None
    return sizes[0] if len(sizes) == 1 else sizes[rank]


def _absence(names: Sequence[str], place: _Place, calls: Calls, is_excused: Callable[[str], bool]) -> str:
    """Return a sentence on ranks that have not made a call which others have made; empty where all have."""
    nodes = [names[rank] for rank in place.ranks if 0 <= rank < len(names)]
    missing = [node for rank, node in enumerate(nodes) if rank not in calls]
    if not missing or place.life or any(map(is_excused, nodes)):
        return ""
    return f"{place}, not made by {', '.join(missing)}: {calls[min(calls)]}"
