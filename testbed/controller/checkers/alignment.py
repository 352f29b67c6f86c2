"""Assign the receives of one channel to its sends, in order, so that as few completed sends as possible have no receive.

A channel has the messages from one rank to another with one communicator context and one tag (`match_messages`).

Contents may repeat: a restarted program sends the same bytes again, and nothing shows which of the two sends a receive got.
Therefore every assignment that keeps order and contents explains the history, and the one of least cost is used. It is
found by best-first search (A*, Hart, Nilsson, Raphael 1968), which branches only where it may be better to skip a send in
favour of a later one of equal content. The effort is linear without loss, and grows with the number of losses.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final

from testbed.controller.checkers.histories import Receive, Send

INCOMPLETE, EXCUSED, COMPLETE = 0, 1, 2
"""Costs of a send without a receive: the send is incomplete; it is complete, and a restart explains the loss; it is
complete."""

_NEVER: Final = 1 << 62

_Path = tuple[int, "_Path"] | None
"""Index of the send that is assigned to the last receive, and the path before it."""


def align(sends: Sequence[Send], receives: Sequence[Receive], costs: Sequence[int]) -> list[int] | None:
    """Return the index of each receive's send, in order; None if no assignment exists. costs: by send."""
    last_indices = _last_indices(sends, receives)
    if last_indices is None:
        return None
    next_costlier, count = _next_costlier(sends, costs), len(receives)
    # By send: the sum of its cost and those of all later sends.
    remaining_costs = [0, *itertools.accumulate(reversed(costs))][::-1]
    # Least cost first, then most progress: (lower bound of cost, -sends, -receives, entry number, cost so far, path).
    queue: list[tuple[int, int, int, int, int, _Path]] = [(0, 0, 0, 0, 0, None)]
    next_number = itertools.count(1).__next__
    visited: set[tuple[int, int]] = set()
    while queue:
        _, index, assigned, _, cost, path = heappop(queue)
        index, assigned = -index, -assigned
        if (index, assigned) in visited:
            continue
        visited.add((index, assigned))
        if assigned == count:
            return _indices(path)
        receive, skip_cost = receives[assigned], costs[index]
        successors: list[tuple[int, int, _Path]] = []
        if fits(sends[index], receive):
            successors.append((assigned + 1, cost, (index, path)))
            # Skipping this send pays only if an equal send of higher cost started before the receive ended.
            may_skip = skip_cost < COMPLETE and (receive.error or next_costlier[index] <= receive.ended)
        else:
            may_skip = True
        if may_skip and index < last_indices[assigned]:
            successors.append((assigned, cost + skip_cost, path))
        for new_assigned, new_cost, new_path in successors:
            bound = new_cost + max(0, remaining_costs[index + 1] - COMPLETE * (count - new_assigned))
            heappush(queue, (bound, -(index + 1), -new_assigned, next_number(), new_cost, new_path))
    raise AssertionError("an assignment exists, as last_indices is not None")


def _indices(path: _Path) -> list[int]:
    """Return the indices of a path's sends, in order."""
    indices: list[int] = []
    while path is not None:
        index, path = path
        indices.append(index)
    return indices[::-1]


def fits(send: Send, receive: Receive) -> bool:
    """Whether the receive may have got this send. A receive with an error is a truncated one: `match_messages` leaves out
    failed receives without a message. Of a truncated message it is only known that it is longer than the buffer."""
    if receive.error:
        return send.size > receive.size
    return send.digest == receive.digest and send.size == receive.received_size


def _last_indices(sends: Sequence[Send], receives: Sequence[Receive]) -> list[int] | None:
    """Return the last possible index of each receive's send; None if a receive has no possible send."""
    indices: list[int] = []
    index = len(sends)
    for receive in reversed(receives):
        index -= 1
        while index >= 0 and not fits(sends[index], receive):
            index -= 1
        if index < 0:
            return None
        indices.append(index)
    return indices[::-1]


def _next_costlier(sends: Sequence[Send], costs: Sequence[int]) -> list[int]:
    """Return, for each send, the start of the next send of equal content and higher cost, nanoseconds."""
    times = [_NEVER] * len(sends)
    starts: dict[tuple[int, str], list[int]] = {}  # by content, for each cost: of the next send of at least this cost
    for index in reversed(range(len(sends))):
        send, cost = sends[index], costs[index]
        next_starts = starts.setdefault((send.size, send.digest), [_NEVER] * (COMPLETE + 2))
        times[index] = next_starts[cost + 1]
        next_starts[: cost + 1] = [send.started] * (cost + 1)
    return times
