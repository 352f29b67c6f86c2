"""Explanations of messages that were sent and have no receive. Without an explanation, a message is lost.

- The receiver, or the sender of a buffered send, was restarted and lost its memory.
- A receive that failed with an excuse, or that ended with its program, may have got the message. One receive explains one
  message.
- No receive was posted for the message, or it may have been in flight when the run ended.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from testbed.controller.checkers.alignment import COMPLETE, EXCUSED, INCOMPLETE
from testbed.controller.checkers.disturbances import CRASH, RESET, Disturbance
from testbed.controller.checkers.histories import Histories, Receive, Send, Transfer

_NEVER: Final = 1 << 62


class Restarts:
    """Spans in which nodes lost their memory: crashes, resets, and restarts of programs according to the histories."""

    def __init__(self, histories: Histories, disturbances: Iterable[Disturbance]) -> None:
        self.faults: Final = [fault for fault in disturbances if fault.kind in (CRASH, RESET)]
        self._spans: dict[str, list[tuple[int, int]]] = {
            name: [(fault.begin, fault.end) for fault in self.faults if fault.affects(name)] for name in histories.names
        }
        for name, lives in zip(histories.names, histories.lives, strict=True):
            self._spans[name] += [(last + 1, first - 1) for (_, last), (first, _) in itertools.pairwise(lives)]
        self._last = {name: max((end for _, end in spans), default=-1) for name, spans in self._spans.items()}

    def costs(self, channel: Sequence[Send]) -> list[int]:
        """Return, for each send, the cost of leaving it without a receive (see `alignment`), as far as known before
        matching."""
        costs: list[int] = []
        until, life = _NEVER, -1  # end of the next complete send in this life of the sender
        for send in reversed(channel):
            if send.life != life:
                until, life = _NEVER, send.life
            if not send.is_complete:
                costs.append(INCOMPLETE)
                continue
            is_excused = self.explains(send, until)
            costs.append(EXCUSED if is_excused else COMPLETE)
            until = send.ended
        return costs[::-1]

    def explains(self, send: Send, until: int = _NEVER) -> bool:
        """Whether a restart explains the loss of a message. until: when a later message of the channel was received.
        Buffered messages are lost with their sender."""
        return self.lost_memory(send.receiver, send.started, until) or (
            until == _NEVER and self.lost_memory(send.node, send.started)
        )

    def lost_memory(self, node: str, since: int, until: int = _NEVER) -> bool:
        """Whether a node may have lost its memory between `since` and `until`, nanoseconds."""
        if self._last.get(node, -1) < since:
            return False
        return until == _NEVER or any(end >= since and begin <= until for begin, end in self._spans[node])


class UnmatchedReceives:
    """Receives that have no message in the history but may have got one. Each explains at most one message; augmenting
    paths (Kuhn's matching) find an assignment that explains as many messages as possible."""

    def __init__(self, histories: Histories, may_have_received: Callable[[Receive], bool]) -> None:
        """may_have_received: whether a receive that failed, or ended with its program, may have got a message."""
        self._indices: dict[Receive, int] = {}
        self._candidates: list[list[Receive]] = []
        for receives in histories.receives:
            unmatched = [receive for receive in receives if receive.source < 0]
            self._indices |= {receive: index for index, receive in enumerate(receives)}
            candidates = [receive for receive in unmatched if receive.is_pending or may_have_received(receive)]
            self._candidates.append(candidates)
        self._lives = histories.lives
        self._taken: dict[Receive, tuple[Send, Receive | None]] = {}

    def claim(self, send: Send, before: Receive | None) -> Receive | None:
        """Assign a matching receive to a message, and return it; None if there is none. before: the receive must be posted
        before this one, and in the same life."""
        visited: set[Receive] = set()
        # Depth first: a receive for the message, then another receive for the message to which it is assigned, and so on.
        trail: list[tuple[Send, Receive | None, Iterator[Receive]]] = [(send, before, self._matching(send, before))]
        chosen: list[Receive] = []
        while trail:
            receive = next((candidate for candidate in trail[-1][2] if candidate not in visited), None)
            if receive is None:
                trail.pop()
                if chosen:
                    chosen.pop()
                continue
            visited.add(receive)
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
        last = self._indices[before] if before is not None else _NEVER
        for receive in self._candidates[send.peer]:
            if self._indices[receive] >= last:
                return
            if (
                (before is None or receive.life == before.life)
                and receive.matches(send)
                and self._overlaps(receive, send)
            ):
                yield receive

    def _overlaps(self, receive: Receive, send: Send) -> bool:
        """Whether the receive was still pending when the message was sent."""
        if receive.abandoned:
            return self._lives[receive.rank][receive.life + 1][0] > send.started
        return receive.is_pending or receive.ended >= send.started


class LastNotifications:
    """Times of the last notification of each program."""

    def __init__(self, histories: Histories) -> None:
        self._times: dict[tuple[int, int], int] = defaultdict(int)  # by rank and life
        for sends, receives in zip(histories.sends, histories.receives, strict=True):
            for transfer in itertools.chain[Transfer](sends, receives):
                key = transfer.rank, transfer.life
                self._times[key] = max(self._times[key], transfer.ended)

    def time(self, receive: Receive) -> int:
        """Return when the program of a receive was last notified of the end of a transfer, nanoseconds."""
        return self._times[receive.rank, receive.life]


def sort_followed_first(missing: Sequence[tuple[Send, Receive | None]]) -> list[tuple[Send, Receive | None]]:
    """Sort messages so that those with a later received message come first."""
    return sorted(missing, key=lambda entry: entry[1] is None)
