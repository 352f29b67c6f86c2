"""Delta debugging: the few among many causes that are enough for an effect.

Zeller, Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (IEEE TSE 28(2), 2002), the algorithm ddmin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Cause = TypeVar("Cause")


@dataclass(frozen=True, slots=True)
class Shrunk(Generic[Cause]):
    """causes: all of the effect that are left. trials: how many it took. minimal: the effect needs every one of them;
    otherwise the trials were used up before that was known."""

    causes: Sequence[Cause]
    trials: int
    minimal: bool


def shrunk(causes: Sequence[Cause], has_effect: Callable[[Sequence[Cause]], bool], most: int) -> Shrunk[Cause]:
    """causes: that have the effect together. has_effect: tries some of them, in their order. most: trials."""
    left, parts, trials = list(causes), 2, 0
    if not left:
        return Shrunk(left, 0, True)
    if trials < most:
        trials += 1
        if has_effect([]):  # no cause at all is needed
            return Shrunk([], trials, True)
    while len(left) > 1:
        size = -(-len(left) // parts)
        chunks = [left[at : at + size] for at in range(0, len(left), size)]
        # With two parts, what is without the one is the other.
        without = [left[:at] + left[at + size :] for at in range(0, len(left), size)] if parts > 2 else []
        for number, some in enumerate([*chunks, *without]):
            if trials == most:
                return Shrunk(left, trials, False)
            trials += 1
            if has_effect(some):
                left, parts = some, 2 if number < len(chunks) else max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(left))
    return Shrunk(left, trials, True)
