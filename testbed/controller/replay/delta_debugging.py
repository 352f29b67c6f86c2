"""Delta debugging: reduce many causes of an effect to the few that are needed.

Zeller, Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (IEEE TSE 28(2), 2002), the algorithm ddmin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Cause = TypeVar("Cause")


@dataclass(frozen=True, slots=True)
class Shrunk(Generic[Cause]):
    """Result of delta debugging. causes: those left. trials: how many were made. minimal: whether every cause is
    needed; otherwise the trials were used up before that was known."""

    causes: Sequence[Cause]
    trials: int
    minimal: bool


def shrink(causes: Sequence[Cause], has_effect: Callable[[Sequence[Cause]], bool], most: int) -> Shrunk[Cause]:
    """Reduce causes that together have the effect. has_effect: tries some of them, in their order. most: trials
    allowed."""
    remaining, parts, trials = list(causes), 2, 0
    if not remaining:
        return Shrunk(remaining, 0, True)
    if trials < most:
        trials += 1
        if has_effect([]):  # the effect needs no cause
            return Shrunk([], trials, True)
    while len(remaining) > 1:
        size = -(-len(remaining) // parts)
        chunks = [remaining[at : at + size] for at in range(0, len(remaining), size)]
        # With two parts, the complement of one is the other.
        complements = (
            [remaining[:at] + remaining[at + size :] for at in range(0, len(remaining), size)] if parts > 2 else []
        )
        for number, some in enumerate([*chunks, *complements]):
            if trials == most:
                return Shrunk(remaining, trials, False)
            trials += 1
            if has_effect(some):
                remaining, parts = some, 2 if number < len(chunks) else max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(remaining))
    return Shrunk(remaining, trials, True)
