"""Assertions on shares of frames: lost, doubled, overtaken, answered. The exact binomial distribution decides."""

from __future__ import annotations

import math
from functools import cache
from typing import Final

from testbed.controller.verdict.statistics import COARSEST, LEVEL, LEVEL_Z, POWER_Z
from testbed.spec.units import parse_probability

MISSED: Final = 0.01
"""Share of the links that are off by the deviation, and pass: at most."""

_NEGLIGIBLE: Final = 1e-18  # fraction of a tail's sum below which terms are ignored


class SampleTooSmallError(ValueError):
    """A sample in which the deviation that is looked for could hide."""


def assert_loss(asked: float | str, lost: int, sent: int, *, off: float = COARSEST) -> None:
    """Fail unless `lost` of `sent` frames are consistent with independent losses of this probability.

    asked: 0..1, or text as in a description: "30%". The exact binomial distribution decides, two-sided, at the level
    1e-6. off: the relative deviation to be seen. Raises AssertionError with the observation; SampleTooSmallError where
    too few were sent to show that deviation; ValueError for impossible numbers. A probability of 0 or 1 leaves nothing
    to chance, and one frame is enough.
    """
    __tracebackhide__ = True
    _assert_share("lost", asked, lost, sent, off)


def assert_duplicates(asked: float | str, copies: int, frames: int, *, off: float = COARSEST) -> None:
    """Fail unless `copies` second copies of `frames` different frames are consistent with this probability of a copy. As
    `assert_loss`."""
    __tracebackhide__ = True
    _assert_share("doubled", asked, copies, frames, off)


def assert_order(asked: float | str, overtaken: int, frames: int, *, off: float = COARSEST) -> None:
    """Fail unless `overtaken` of `frames` frames that arrived out of order are consistent with this probability; 0: order
    is kept. As `assert_loss`. `out_of_order` counts them."""
    __tracebackhide__ = True
    _assert_share("out of order", asked, overtaken, frames, off)


def assert_reachable(answered: int, sent: int, *, loss: float | str = 0.0) -> None:
    """Fail unless a probe was answered. loss: the share of unanswered probes on a sound path, both directions together.

    Raises AssertionError if none was answered, where chance leaves a reachable peer silent in one of a million cases at
    most; SampleTooSmallError if none was answered and too few were sent to tell that.
    """
    __tracebackhide__ = True
    share = _checked(loss, answered, sent)
    if not answered:
        _enough_silence(share, sent)
        raise AssertionError(f"none of {sent:,} probes was answered; {_expected(share)}")


def assert_unreachable(answered: int, sent: int, *, loss: float | str = 0.0) -> None:
    """Fail if a probe was answered; as `assert_reachable`, whose sample it needs, too."""
    __tracebackhide__ = True
    share = _checked(loss, answered, sent)
    if answered:
        raise AssertionError(f"{answered:,} of {sent:,} probes were answered; expected was none")
    _enough_silence(share, sent)


def out_of_order(numbers: list[int]) -> int:
    """Count the frames that arrived behind one that was sent later. numbers: of the frames as they arrived, ascending as
    they were sent; the second copy of a frame is not counted."""
    seen: set[int] = set()
    last, count = -1, 0
    for number in numbers:
        if number not in seen:
            seen.add(number)
            count += number < last
            last = max(last, number)
    return count


@cache
def enough_frames(share: float, off: float = COARSEST) -> int:
    """Return how many frames show in 99 of 100 cases or more that a share is off by that part of it, up or down. Begins at
    the normal distribution's answer, and goes on until the binomial one agrees."""
    others = [other for other in (share * (1 - off), share * (1 + off)) if other < 1]
    deviations = [math.sqrt(other * (1 - other)) for other in others]
    frames = ((LEVEL_Z * math.sqrt(share * (1 - share)) + POWER_Z * max(deviations)) / (off * share)) ** 2
    while any(_seen(math.ceil(frames), share, other) < 1 - MISSED for other in others):
        frames *= 1.01
    return math.ceil(frames)


def _seen(frames: int, share: float, other: float) -> float:
    """Return the probability that `two_sided` rejects `share` on the side of `other`, which is the real one."""
    step = 1 if other > share else -1
    near, far = round(frames * share), frames if step > 0 else 0
    if two_sided(far, frames, share) >= LEVEL:
        return 0.0
    while abs(far - near) > 1:  # between a number that is accepted and one that is rejected
        middle = (near + far) // 2
        if two_sided(middle, frames, share) < LEVEL:
            far = middle
        else:
            near = middle
    if (far - frames * other) * step >= 0:
        return binomial_tail(far, frames, other, step)
    return 1 - binomial_tail(far - step, frames, other, -step)


def enough_probes(loss: float) -> int:
    """Return how many probes a reachable peer leaves unanswered once in a million, if each is with that probability."""
    return 1 if loss <= LEVEL else math.ceil(math.log(LEVEL) / math.log(loss) - 1e-9)


def _assert_share(done: str, asked: float | str, hits: int, frames: int, off: float) -> None:
    __tracebackhide__ = True
    share = _checked(asked, hits, frames, done)
    check_deviation(off)
    if not 0 < share < 1:
        expected = frames if share else 0
        if hits != expected:
            raise AssertionError(
                f"{hits:,} of {frames:,} frames were {done}, expected {share:.4g}: exactly {expected:,}"
            )
        return
    enough = enough_frames(share, off)
    if frames < enough:
        raise SampleTooSmallError(
            f"{frames:,} frames cannot show that a share of {share:.4g} is off by {off:.0%}: send {enough:,} or more "
            f"({hits:,} were {done})"
        )
    chance = two_sided(hits, frames, share)
    if chance < LEVEL:
        deviation = math.sqrt(share * (1 - share) / frames)
        low, high = (frames * (share - LEVEL_Z * deviation), frames * (share + LEVEL_Z * deviation))
        visible = (LEVEL_Z + POWER_Z) * deviation / share
        raise AssertionError(
            f"{hits:,} of {frames:,} frames were {done}, {hits / frames:.4g}; expected {share:.4g}. Chance gives that "
            f"in {chance:.2g} of all cases (level {LEVEL:g}); expected were {frames * share:,.0f}, about {max(0, low):,.0f} "
            f"to {min(frames, high):,.0f}; this sample sees deviations from {visible:.1%} on"
        )


def _checked(asked: float | str, hits: int, frames: int, done: str = "answered") -> float:
    """Parse a probability; check that so many of the frames are possible."""
    share = parse_probability(asked)
    if not 0 <= hits <= frames:
        raise ValueError(f"{hits} of {frames} frames cannot be {done}")
    if not frames:
        raise SampleTooSmallError(f"no frame was sent: nothing can be said of those {done}")
    return share


def check_deviation(off: float) -> None:
    """Check a relative deviation. Raises ValueError."""
    if not 0 < off < 1:
        raise ValueError(f"a deviation of {off:g} cannot be looked for: it is a part of the value, above 0 and below 1")


def _enough_silence(loss: float, sent: int) -> None:
    if loss >= 1:
        raise SampleTooSmallError("a path that loses every probe cannot be told from none")
    if sent < (enough := enough_probes(loss)):
        raise SampleTooSmallError(
            f"{sent:,} probes without an answer cannot tell an unreachable peer from a loss of {loss:.4g}: send {enough:,}"
        )


def _expected(loss: float) -> str:
    return f"expected a loss of {loss:.4g}" if loss else "expected no loss"


def two_sided(hits: int, samples: int, share: float) -> float:
    """Probability that independent samples with probability `share` (0 < share < 1) deviate at least so far on that
    side; doubled for the other side, at most 1. Exact but for rounding (relative error below 1e-6)."""
    return min(1.0, 2 * binomial_tail(hits, samples, share, 1 if hits > samples * share else -1))


def binomial_tail(hits: int, samples: int, share: float, step: int) -> float:
    """Probability of `hits` or more (step 1) or fewer (step -1) of so many samples. `hits` lies on that side of the
    expected number, so that each term of the sum is smaller than the one before."""
    if not 0 <= hits <= samples:
        return 0.0
    term = math.exp(log_binomial(hits, samples, share))
    odds = share / (1 - share)
    total, count = 0.0, hits
    while term > total * _NEGLIGIBLE:
        total += term
        if step > 0:
            term *= (samples - count) / (count + 1) * odds
        else:
            term *= count / (samples - count + 1) / odds
        count += step
    return total


def log_binomial(hits: int, samples: int, share: float) -> float:
    """Logarithm of the probability of so many hits (0 < share < 1)."""
    return (
        math.lgamma(samples + 1)
        - math.lgamma(hits + 1)
        - math.lgamma(samples - hits + 1)
        + hits * math.log(share)
        + (samples - hits) * math.log1p(-share)
    )
