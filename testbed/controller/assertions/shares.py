"""Assertions on shares of frames that are lost, duplicated, overtaken or answered, by the exact binomial distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Final

from testbed.controller.verdict.statistics import LEVEL, LEVEL_Z, MIN_DEVIATION, POWER_Z
from testbed.spec.units import parse_probability

MAX_MISSED: Final = 0.01
"""Maximum probability that a link with the deviation passes."""

_MIN_OFF: Final = 0.001
"""Minimum relative deviation: a smaller one needs more frames than floating-point numbers can count."""

_NEGLIGIBLE: Final = 1e-18  # fraction of a tail's sum below which terms are ignored


class SampleTooSmallError(ValueError):
    """A sample is too small to show the deviation."""


def assert_loss(asked: float | str, lost: int, sent: int, *, off: float = MIN_DEVIATION) -> None:
    """Fail unless `lost` of `sent` frames are consistent with independent losses of this probability.

    asked: configured probability, 0..1, or text as in a description: "30%". The test is two-sided by the exact binomial
    distribution, at the level 1e-6. off: relative deviation to detect. Raises AssertionError with the observation;
    SampleTooSmallError for a consistent sample of too few frames to show that deviation; ValueError for impossible numbers.
    For a probability of 0 or 1, one frame is enough.
    """
    __tracebackhide__ = True
    _assert_share("lost", asked, lost, sent, off)


def assert_duplicates(asked: float | str, copies: int, frames: int, *, off: float = MIN_DEVIATION) -> None:
    """Fail unless `copies` second copies of `frames` different frames are consistent with this probability of a duplicate.
    The other arguments and errors are those of `assert_loss`."""
    __tracebackhide__ = True
    _assert_share("duplicated", asked, copies, frames, off)


def assert_order(asked: float | str, overtaking: int, frames: int, *, off: float = MIN_DEVIATION) -> None:
    """Fail unless `overtaking` of `frames` frames that overtook an earlier one are consistent with this probability of
    reordering; 0: order is kept. `out_of_order` counts these frames.

    Frames must follow each other at a small fraction of the link's delay: a frame that skips the delay overtakes only frames
    in flight. The other arguments and errors are those of `assert_loss`.
    """
    __tracebackhide__ = True
    _assert_share("out of order", asked, overtaking, frames, off)


def assert_reachable(answered: int, sent: int, *, loss: float | str = 0.0) -> None:
    """Fail unless a probe was answered. loss: share of unanswered probes to a reachable peer, both directions together.

    Raises AssertionError if none was answered, which happens with a reachable peer in at most one of a million cases;
    SampleTooSmallError if none was answered and too few were sent for that level.
    """
    __tracebackhide__ = True
    share = _parse_share(loss, answered, sent)
    if not answered:
        _check_unanswered(share, sent)
        raise AssertionError(f"none of {sent:,} probes was answered; {_expected(share)}")


def assert_unreachable(answered: int, sent: int, *, loss: float | str = 0.0) -> None:
    """Fail if a probe was answered. The arguments and SampleTooSmallError are those of `assert_reachable`."""
    __tracebackhide__ = True
    share = _parse_share(loss, answered, sent)
    if answered:
        raise AssertionError(f"{answered:,} of {sent:,} probes were answered, expected none")
    _check_unanswered(share, sent)


def out_of_order(numbers: Sequence[int]) -> int:
    """Count the frames that overtook one that was sent earlier. numbers: numbers of frames in the order of arrival; they
    ascend in the order of sending. Second copies are ignored."""
    return sum(overtakes(numbers))


def overtakes(numbers: Sequence[int]) -> list[bool]:
    """Return, for each frame in the order of arrival, whether it overtook one that was sent earlier. The argument is that of
    `out_of_order`.

    A link chooses each overtaking frame independently, so their share shows the probability of reordering. The number of
    overtaken frames does not: it depends on how many frames are in flight.
    """
    arrived = list(dict.fromkeys(numbers))
    results: list[bool] = []
    lowest = math.inf  # number of the frames that arrived later
    for number in reversed(arrived):
        results.append(number > lowest)
        lowest = min(lowest, number)
    results.reverse()
    return results


@cache
def required_frames(share: float, off: float = MIN_DEVIATION) -> int:
    """Return the number of frames that show, in at least 99 of 100 cases, that a share deviates by the relative deviation
    `off`. The search starts at the number by the normal distribution, and ends where the binomial distribution gives that
    power."""
    alternatives = [alternative for alternative in (share * (1 - off), share * (1 + off)) if alternative < 1]
    deviations = [math.sqrt(alternative * (1 - alternative)) for alternative in alternatives]
    frames = ((LEVEL_Z * math.sqrt(share * (1 - share)) + POWER_Z * max(deviations)) / (off * share)) ** 2
    while any(_power(math.ceil(frames), share, alternative) < 1 - MAX_MISSED for alternative in alternatives):
        frames *= 1.01
    return math.ceil(frames)


def _power(frames: int, share: float, alternative: float) -> float:
    """Return the probability that `two_sided` rejects `share` if the true share is `alternative`."""
    step = 1 if alternative > share else -1
    near, far = round(frames * share), frames if step > 0 else 0
    if two_sided(far, frames, share) >= LEVEL:
        return 0.0
    while abs(far - near) > 1:  # near is accepted, far is rejected
        middle = (near + far) // 2
        if two_sided(middle, frames, share) < LEVEL:
            far = middle
        else:
            near = middle
    if (far - frames * alternative) * step >= 0:
        return binomial_tail(far, frames, alternative, step)
    return 1 - binomial_tail(far - step, frames, alternative, -step)


def required_probes(loss: float) -> int:
    """Return the minimum number of probes that a reachable peer leaves all unanswered in at most one of a million cases.
    loss: probability of a missing answer. Raises ValueError for a loss of 1."""
    if loss >= 1:
        raise ValueError("a loss of 1 cannot be distinguished from an unreachable peer")
    return 1 if loss <= LEVEL else math.ceil(math.log(LEVEL) / math.log(loss) - 1e-9)


def _assert_share(outcome: str, asked: float | str, hits: int, frames: int, off: float) -> None:
    __tracebackhide__ = True
    share = _parse_share(asked, hits, frames, outcome)
    check_deviation(off)
    if not 0 < share < 1:
        expected = frames if share else 0
        if hits != expected:
            raise AssertionError(
                f"{hits:,} of {frames:,} frames were {outcome}, expected {share:.4g}: exactly {expected:,}"
            )
        return
    chance = two_sided(hits, frames, share)
    if chance < LEVEL:
        deviation = math.sqrt(share * (1 - share) / frames)
        low, high = (frames * (share - LEVEL_Z * deviation), frames * (share + LEVEL_Z * deviation))
        visible = (LEVEL_Z + POWER_Z) * deviation / share
        raise AssertionError(
            f"{hits:,} of {frames:,} frames were {outcome}, {hits / frames:.4g}; expected {share:.4g}. The probability of "
            f"this is {chance:.2g} (level {LEVEL:g}); {frames * share:,.0f} were expected, about {max(0, low):,.0f} to "
            f"{min(frames, high):,.0f}; this sample detects deviations of {visible:.1%} or more"
        )
    if frames < (required := required_frames(share, off)):
        raise SampleTooSmallError(
            f"{frames:,} frames cannot show that a share of {share:.4g} is off by {off:.0%}: send {required:,} or more "
            f"({hits:,} were {outcome})"
        )


def _parse_share(asked: float | str, hits: int, frames: int, outcome: str = "answered") -> float:
    """Parse a probability; check the numbers of frames. Raises ValueError, and SampleTooSmallError for an empty sample."""
    share = parse_probability(asked)
    if not 0 <= hits <= frames:
        raise ValueError(f"the number of frames that were {outcome} must be 0 to {frames}, got {hits}")
    if not frames:
        raise SampleTooSmallError(f"no frame was sent: the share of frames that were {outcome} is unknown")
    return share


def check_deviation(off: float) -> None:
    """Check a relative deviation. Raises ValueError."""
    if not _MIN_OFF <= off < 1:
        raise ValueError(f"the relative deviation must be {_MIN_OFF} or more, and below 1, got {off:g}")


def _check_unanswered(loss: float, sent: int) -> None:
    """Check that enough probes were sent. Raises SampleTooSmallError."""
    if loss >= 1:
        raise SampleTooSmallError("a loss of 1 cannot be distinguished from an unreachable peer")
    if sent < (required := required_probes(loss)):
        raise SampleTooSmallError(
            f"{sent:,} unanswered probes cannot distinguish an unreachable peer from a loss of {loss:.4g}: send {required:,}"
        )


def _expected(loss: float) -> str:
    return f"expected a loss of {loss:.4g}" if loss else "expected no loss"


def two_sided(hits: int, samples: int, share: float) -> float:
    """Return twice the probability, at most 1, that the number of hits deviates at least as far on its side of the expected
    number. share: probability of a hit, 0 < share < 1. The relative error is below 1e-6."""
    return min(1.0, 2 * binomial_tail(hits, samples, share, 1 if hits > samples * share else -1))


def binomial_tail(hits: int, samples: int, share: float, step: int) -> float:
    """Return the probability of at least (step 1) or at most (step -1) `hits` of `samples`. `hits` must lie on that side of
    the expected number, so that the terms of the sum decrease."""
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
    """Return the logarithm of the probability of exactly `hits` of `samples`. share: probability of a hit, 0 < share < 1."""
    return (
        math.lgamma(samples + 1)
        - math.lgamma(hits + 1)
        - math.lgamma(samples - hits + 1)
        + hits * math.log(share)
        + (samples - hits) * math.log1p(-share)
    )
