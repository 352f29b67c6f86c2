"""Losses that step with the direction's frames: Gilbert-Elliott's two states, and explicit patterns.

Independent losses need no state: see `hashing.threshold`.
"""

from __future__ import annotations

from testbed.spec.losses import parse_pattern
from testbed.wire import hashing


class GilbertElliott:
    """A good and a bad state, each with a probability of loss (Gilbert 1960, Elliott 1963), as netem's gemodel.

    It begins in the good state. A frame is lost or not in the state that it finds, and moves the state for the next. The
    mean length of a stay in the bad state is 1/r frames; the share of losses is
    (p * (1-h) + r * (1-k)) / (p + r).
    """

    __slots__ = ("_bad", "_into", "_lost", "_move", "_out", "_when_bad", "_when_good")

    def __init__(self, parameters: tuple[float, ...], key: int) -> None:
        """parameters: p, r, 1-h, 1-k. key: the direction's."""
        p, r, bad, good = parameters
        self._into, self._out = hashing.threshold(p), hashing.threshold(r)
        self._when_bad, self._when_good = hashing.threshold(bad), hashing.threshold(good)
        self._move = hashing.absorb(key, hashing.TRANSITION)
        self._lost = hashing.absorb(key, hashing.STATE_LOSS)
        self._bad = False

    def stand(self, *, bad: bool) -> None:
        """Go on from a state that is known: the next frame finds it."""
        self._bad = bad

    def step(self, n: int) -> bool:
        """Whether the direction's n-th frame is lost. To be asked once for each n, in order."""
        bad = self._bad
        limit = self._when_bad if bad else self._when_good
        if hashing.draw(self._move, n) >> 11 < (self._out if bad else self._into):
            self._bad = not bad
        # Certainties need no draw; with the usual two parameters both are.
        if limit in (0, hashing.CERTAIN):
            return limit > 0
        return hashing.draw(self._lost, n) >> 11 < limit


def long_run_loss(parameters: tuple[float, ...]) -> float:
    """The share of frames that Gilbert-Elliott loses in the long run."""
    p, r, bad, good = parameters
    return (p * bad + r * good) / (p + r) if p + r else good


class Pattern:
    """The direction's frames of certain numbers are lost: "5, 12, 24", "3 every 10"."""

    __slots__ = ("_numbers", "_period")

    def __init__(self, text: str) -> None:
        self._numbers, self._period = parse_pattern(text)

    def loses(self, n: int) -> bool:
        """Whether it is the direction's n-th frame that is lost; n counts from 1."""
        return (n if not self._period else (n - 1) % self._period + 1) in self._numbers
