"""Loss models that step with the direction's frames: Gilbert-Elliott's two states, and explicit patterns.

Independent losses need no state: see `fate_hash.threshold`.
"""

from __future__ import annotations

from testbed.fates import fate_hash
from testbed.spec.losses import parse_pattern


class GilbertElliott:
    """A good and a bad state, each with a probability of loss (Gilbert 1960, Elliott 1963), as netem's gemodel.

    It begins in the good state. The present state decides on a frame, then the frame steps the state for the next. The mean
    length of a stay in the bad state is 1/r frames; the share of losses is
    (p * (1-h) + r * (1-k)) / (p + r).
    """

    __slots__ = ("_into", "_lost", "_move", "_out", "_when_bad", "_when_good", "bad")

    def __init__(self, parameters: tuple[float, ...], key: int) -> None:
        """parameters: p, r, 1-h, 1-k. key: the direction's."""
        p, r, bad, good = parameters
        self._into, self._out = fate_hash.threshold(p), fate_hash.threshold(r)
        self._when_bad, self._when_good = fate_hash.threshold(bad), fate_hash.threshold(good)
        self._move = fate_hash.absorb(key, fate_hash.TRANSITION)
        self._lost = fate_hash.absorb(key, fate_hash.STATE_LOSS)
        self.bad = False
        """The state that the next frame finds."""

    def stand(self, *, bad: bool) -> None:
        """Set the state that the next frame finds."""
        self.bad = bad

    def step(self, n: int) -> bool:
        """Step the state; return whether the direction's n-th frame is lost. Call once for each n, in order."""
        bad = self.bad
        limit = self._when_bad if bad else self._when_good
        if fate_hash.draw(self._move, n) >> 11 < (self._out if bad else self._into):
            self.bad = not bad
        # Certainties need no draw; with two parameters both are.
        if limit in (0, fate_hash.CERTAIN):
            return limit > 0
        return fate_hash.draw(self._lost, n) >> 11 < limit


def long_run_loss(parameters: tuple[float, ...]) -> float:
    """Return the share of frames that Gilbert-Elliott loses in the long run."""
    p, r, bad, good = parameters
    return (p * bad + r * good) / (p + r) if p + r else good


class Pattern:
    """Loss of the direction's frames with certain numbers: "5, 12, 24", "3 every 10"."""

    __slots__ = ("_numbers", "_period")

    def __init__(self, text: str) -> None:
        self._numbers, self._period = parse_pattern(text)

    def loses(self, n: int) -> bool:
        """Whether the direction's n-th frame is lost; n counts from 1."""
        return (n if not self._period else (n - 1) % self._period + 1) in self._numbers
