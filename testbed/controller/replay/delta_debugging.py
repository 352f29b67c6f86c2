"""Delta debugging: reduce the causes of an effect to a minimal set.

Zeller, Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (IEEE TSE 28(2), 2002), the algorithm ddmin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Cause = TypeVar("Cause")


@dataclass(frozen=True, slots=True)
class ShrinkResult(Generic[Cause]):
    """Result of delta debugging. causes: remaining causes. trials: number of trials. minimal: whether every remaining cause
    is known to be needed; False if the limit of trials was reached earlier."""

    causes: Sequence[Cause]
    trials: int
    minimal: bool


def shrink(
    causes: Sequence[Cause], has_effect: Callable[[Sequence[Cause]], bool], max_trials: int
) -> ShrinkResult[Cause]:
    """Reduce causes that together have the effect. has_effect: whether a subset of the causes, in their order, has the
    effect. max_trials: maximum number of calls of `has_effect`. No causes remain if the effect needs none."""
    remaining, parts, trials = list(causes), 2, 0
    if not remaining:
        return ShrinkResult(remaining, 0, True)
    if trials < max_trials:
        trials += 1
        if has_effect([]):  # the effect needs no cause
            return ShrinkResult([], trials, True)
    while len(remaining) > 1:
        size = -(-len(remaining) // parts)
        starts = range(0, len(remaining), size)
        chunks = [remaining[start : start + size] for start in starts]
        # With two parts, the complement of each is the other part.
        complements = [remaining[:start] + remaining[start + size :] for start in starts] if parts > 2 else []
        for number, subset in enumerate([*chunks, *complements]):
            if trials == max_trials:
                return ShrinkResult(remaining, trials, False)
            trials += 1
            if has_effect(subset):
                remaining, parts = subset, 2 if number < len(chunks) else max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(remaining))
    return ShrinkResult(remaining, trials, True)
