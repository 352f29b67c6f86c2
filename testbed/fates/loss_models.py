"""Loss models with a state per direction: Gilbert-Elliott, and explicit patterns.

Independent losses have no state: see `fate_hash.threshold`.
"""

from __future__ import annotations

from testbed.fates import fate_hash
from testbed.spec.losses import parse_pattern


class GilbertElliott:
    """A good and a bad state, each with a probability of loss (Gilbert 1960, Elliott 1963), as netem's gemodel.

    The model starts in the good state. For each frame, the current state decides on the loss, and then the state may change:
    from good to bad with probability p, from bad to good with r. 1-h and 1-k are the probabilities of loss in the bad and in
    the good state. The bad state lasts 1/r frames on average; the share of losses is (p * (1-h) + r * (1-k)) / (p + r).
    """

    __slots__ = (
        "_bad_threshold",
        "_good_threshold",
        "_loss_start",
        "_loss_when_bad",
        "_loss_when_good",
        "_transition_start",
        "is_bad",
    )

    def __init__(self, parameters: tuple[float, ...], key: int) -> None:
        """parameters: p, r, 1-h, 1-k. key: key of the direction (`fate_hash.direction_key`)."""
        p, r, loss_when_bad, loss_when_good = parameters
        self._bad_threshold, self._good_threshold = fate_hash.threshold(p), fate_hash.threshold(r)
        self._loss_when_bad, self._loss_when_good = (
            fate_hash.threshold(loss_when_bad),
            fate_hash.threshold(loss_when_good),
        )
        self._transition_start = fate_hash.absorb(key, fate_hash.TRANSITION)
        self._loss_start = fate_hash.absorb(key, fate_hash.STATE_LOSS)
        self.is_bad = False
        """The state for the next frame."""

    def set_state(self, *, is_bad: bool) -> None:
        """Set the state for the next frame."""
        self.is_bad = is_bad

    def step(self, n: int) -> bool:
        """Step the state; return whether the direction's n-th frame is lost. Call once for each n, in order."""
        is_bad = self.is_bad
        threshold = self._loss_when_bad if is_bad else self._loss_when_good
        if fate_hash.draw(self._transition_start, n) >> 11 < (self._good_threshold if is_bad else self._bad_threshold):
            self.is_bad = not is_bad
        # Probabilities 0 and 1 need no draw.
        if threshold in (0, fate_hash.CERTAIN):
            return threshold > 0
        return fate_hash.draw(self._loss_start, n) >> 11 < threshold


def long_run_loss(parameters: tuple[float, ...]) -> float:
    """Return the share of frames that Gilbert-Elliott loses in the long run."""
    p, r, loss_when_bad, loss_when_good = parameters
    return (p * loss_when_bad + r * loss_when_good) / (p + r) if p + r else loss_when_good


class Pattern:
    """Loss of the direction's frames with given numbers: "5, 12, 24", "3 every 10"."""

    __slots__ = ("_numbers", "_period")

    def __init__(self, text: str) -> None:
        self._numbers, self._period = parse_pattern(text)

    def loses(self, n: int) -> bool:
        """Whether the direction's n-th frame is lost; n counts from 1."""
        return (n if not self._period else (n - 1) % self._period + 1) in self._numbers
