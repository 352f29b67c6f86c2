"""Explanations for messages that were sent and matched by no receive. Without one, a message is lost.

- Its receiver, or its sender after a buffered send, was restarted and lost its memory.
- A receive may have had it that failed as a fault allows, or ended with its program. One receive explains one message.
- No receive was posted for it; or it may have been on its way when the run ended.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from testbed.controller.checkers.alignment import EXCUSED, FINISHED, UNFINISHED
from testbed.controller.checkers.disturbances import CRASH, RESET, Disturbance
from testbed.controller.checkers.histories import Histories, Receive, Send, Transfer

_NEVER: Final = 1 << 62


class Restarts:
    """Spans in which nodes lost their memory: crashes, resets, and restarts of programs that histories show."""

    def __init__(self, histories: Histories, disturbances: Iterable[Disturbance]) -> None:
        self.faults: Final = [fault for fault in disturbances if fault.kind in (CRASH, RESET)]
        self._spans: dict[str, list[tuple[int, int]]] = {
            name: [(fault.begin, fault.end) for fault in self.faults if fault.touches(name)] for name in histories.names
        }
        for name, lives in zip(histories.names, histories.lives, strict=True):
            self._spans[name] += [(last + 1, first - 1) for (_, last), (first, _) in itertools.pairwise(lives)]
        self._last = {name: max((end for _, end in spans), default=-1) for name, spans in self._spans.items()}

    def costs(self, lane: Sequence[Send]) -> list[int]:
        """Return the cost of leaving each send without a receive (see `alignment`), as far as known before matching."""
        costs: list[int] = []
        until, life = _NEVER, -1  # the next one of the same life of its sender has come by then
        for send in reversed(lane):
            if send.life != life:
                until, life = _NEVER, send.life
            if not send.done:
                costs.append(UNFINISHED)
                continue
            is_excused = self.explains(send, until)
            costs.append(EXCUSED if is_excused else FINISHED)
            until = send.ended
        return costs[::-1]

    def explains(self, send: Send, until: int = _NEVER) -> bool:
        """Whether a restart explains the loss of a message, a later one of which was received at the time `until`.
        Buffered messages end with their sender."""
        return self.forgot(send.to, send.begun, until) or (until == _NEVER and self.forgot(send.node, send.begun))

    def forgot(self, node: str, since: int, until: int = _NEVER) -> bool:
        """Whether a node may have lost, by `until`, what it had received since `since`."""
        if self._last.get(node, -1) < since:
            return False
        return until == _NEVER or any(end >= since and begin <= until for begin, end in self._spans[node])


class Spare:
    """Receives that reported no message, and may have had one. Each explains at most one message; augmenting paths
    (Kuhn's matching) find an assignment that explains as many as possible."""

    def __init__(self, histories: Histories, may_have_had: Callable[[Receive], bool]) -> None:
        """may_have_had: whether a receive that failed, or ended with its program, may have had a message."""
        self._places: dict[Receive, int] = {}
        self._candidates: list[list[Receive]] = []
        for receives in histories.receives:
            unmatched = [receive for receive in receives if receive.source < 0]
            self._places |= {receive: at for at, receive in enumerate(receives)}
            self._candidates.append([receive for receive in unmatched if receive.under_way or may_have_had(receive)])
        self._lives = histories.lives
        self._taken: dict[Receive, tuple[Send, Receive | None]] = {}

    def claim(self, send: Send, before: Receive | None) -> Receive | None:
        """Take a receive that fits, begun before `before` and in the same life; None where there is none."""
        seen: set[Receive] = set()
        # Depth first: a receive for the message, and another one for the message that holds it.
        trail: list[tuple[Send, Receive | None, Iterator[Receive]]] = [(send, before, self._matching(send, before))]
        chosen: list[Receive] = []
        while trail:
            receive = next((candidate for candidate in trail[-1][2] if candidate not in seen), None)
            if receive is None:
                trail.pop()
                if chosen:
                    chosen.pop()
                continue
            seen.add(receive)
            chosen.append(receive)
            holder = self._taken.get(receive)
            if holder is None:
                for (message, bound, _), taken in zip(trail, chosen, strict=True):
                    self._taken[taken] = message, bound
                return chosen[0]
            trail.append((*holder, self._matching(*holder)))
        return None

    def _matching(self, send: Send, before: Receive | None) -> Iterator[Receive]:
        if not 0 <= send.peer < len(self._candidates):
            return
        last = self._places[before] if before is not None else _NEVER
        for receive in self._candidates[send.peer]:
            if self._places[receive] >= last:
                return
            if (before is None or receive.life == before.life) and receive.fits(send) and self._lasted(receive, send):
                yield receive

    def _lasted(self, receive: Receive, send: Send) -> bool:
        """Whether the receive was still pending when the message was sent."""
        if receive.gone:
            return self._lives[receive.rank][receive.life + 1][0] > send.begun
        return receive.under_way or receive.ended >= send.begun


class Heard:
    """Times at which each program was last notified of a transfer."""

    def __init__(self, histories: Histories) -> None:
        self._last: dict[tuple[int, int], int] = defaultdict(int)
        for sends, receives in zip(histories.sends, histories.receives, strict=True):
            for transfer in itertools.chain[Transfer](sends, receives):
                key = transfer.rank, transfer.life
                self._last[key] = max(self._last[key], transfer.ended)

    def last(self, receive: Receive) -> int:
        """Return when the program of a receive was last notified of the end of any transfer."""
        return self._last[receive.rank, receive.life]


def sort_by_proof(missing: Sequence[tuple[Send, Receive | None]]) -> list[tuple[Send, Receive | None]]:
    """Sort those first whose followers were received."""
    return sorted(missing, key=lambda entry: entry[1] is None)
