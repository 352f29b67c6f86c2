"""Assign the receives of one lane to its sends, in order, so that as few finished sends as possible remain without one.

Contents may repeat: a program that is restarted sends the same bytes again, and nothing shows which of the two sends a
receive got. Therefore every assignment that keeps order and contents explains the history, and the cheapest one counts.
It is found by best-first search (A*, Hart, Nilsson, Raphael 1968), which branches only where a send is better skipped
in favour of a later one of equal content: linear without loss, otherwise a band as wide as the number of losses.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final

from testbed.controller.checkers.histories import Receive, Send

UNFINISHED, EXCUSED, FINISHED = 0, 1, 2
"""Costs of leaving a send without a receive: it was never done; it was done, and a restart explains its loss; it was
done."""

_NEVER: Final = 1 << 62

_Path = tuple[int, "_Path"] | None
"""The send assigned to the last receive, and the path before it."""


def align(sends: Sequence[Send], receives: Sequence[Receive], costs: Sequence[int]) -> list[int] | None:
    """Return the index of each receive's send, in order; None where no assignment exists. costs: by send."""
    latest = _latest(sends, receives)
    if latest is None:
        return None
    worth_more, count = _next_costlier(sends, costs), len(receives)
    remaining_costs = [0, *itertools.accumulate(reversed(costs))][::-1]  # by send, the costs of all sends from it on
    # Least cost in all, then the furthest: (cost at least, -(sends looked at), -(receives assigned), which, cost so far).
    queue: list[tuple[int, int, int, int, int, _Path]] = [(0, 0, 0, 0, 0, None)]
    number = itertools.count(1).__next__
    seen: set[tuple[int, int]] = set()
    while queue:
        _, at, assigned, _, spent, path = heappop(queue)
        at, assigned = -at, -assigned
        if (at, assigned) in seen:
            continue
        seen.add((at, assigned))
        if assigned == count:
            return _places(path)
        receive, cost = receives[assigned], costs[at]
        followers: list[tuple[int, int, _Path]] = []
        if fits(sends[at], receive):
            followers.append((assigned + 1, spent, (at, path)))
            # Skipping it pays only if an equal send of higher cost began before this was received.
            is_left_out = cost < FINISHED and (receive.error or worth_more[at] <= receive.ended)
        else:
            is_left_out = True
        if is_left_out and at < latest[assigned]:
            followers.append((assigned, spent + cost, path))
        for matched, so_far, trail in followers:
            least = so_far + max(0, remaining_costs[at + 1] - FINISHED * (count - matched))
            heappush(queue, (least, -(at + 1), -matched, number(), so_far, trail))
    raise AssertionError("each receive has a place, in order")


def _places(path: _Path) -> list[int]:
    places: list[int] = []
    while path is not None:
        at, path = path
        places.append(at)
    return places[::-1]


def fits(send: Send, receive: Receive) -> bool:
    """Whether the receive may have got this send. Of a truncated message only its excess length is known."""
    if receive.error:
        return send.size > receive.size
    return send.digest == receive.digest and send.size == receive.came_size


def _latest(sends: Sequence[Send], receives: Sequence[Receive]) -> list[int] | None:
    """Return the last index that each receive's send can have; None where a receive fits no send."""
    places: list[int] = []
    at = len(sends)
    for receive in reversed(receives):
        at -= 1
        while at >= 0 and not fits(sends[at], receive):
            at -= 1
        if at < 0:
            return None
        places.append(at)
    return places[::-1]


def _next_costlier(sends: Sequence[Send], costs: Sequence[int]) -> list[int]:
    """Return, for each send, when the next send of equal content and higher cost began, in nanoseconds."""
    times = [_NEVER] * len(sends)
    begun: dict[tuple[int, str], list[int]] = {}  # of a content: by cost, of the next one that costs at least that
    for at in reversed(range(len(sends))):
        send, cost = sends[at], costs[at]
        upcoming = begun.setdefault((send.size, send.digest), [_NEVER] * (FINISHED + 2))
        times[at] = upcoming[cost + 1]
        upcoming[: cost + 1] = [send.begun] * (cost + 1)
    return times
