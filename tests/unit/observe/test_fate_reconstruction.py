"""Losses of a loss classifier, reconstructed from its maps, equal those of the model.

The model plays the classifier: it counts each frame a moment after it was captured, and may be read at any time.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.fabric.direction import LinkDirection, Outcome
from testbed.fates.fate_hash import direction_key
from testbed.fates.flows import Classifier, Flow
from testbed.fates.loss_models import GilbertElliott
from testbed.fates.stage import FateOptions
from testbed.fields import known_fields
from testbed.observe.sniff import fate_reconstruction
from testbed.observe.sniff.fate_reconstruction import FateReconstruction
from testbed.spec.layout import Impairment
from tests.unit.fates.wire_frames import udp

FRAMES = [udp(1000 + port) for port in range(4)]
LOSSES = [
    Impairment(loss=0.3),
    Impairment(gemodel=(0.2, 0.3, 1.0, 0.0)),
    Impairment(loss_pattern="2, 5 every 7"),
    Impairment(loss=0.2, gemodel=(0.1, 0.3, 0.9, 0.1)),
]
FLOWS = Classifier(known_fields())


class Kernel:
    """A classifier as its maps show it."""

    def __init__(self, losses: Impairment) -> None:
        self._model = LinkDirection("l", "forward", losses, FateOptions(seed=3, fields=known_fields()))
        self._counts: Counter[Flow] = Counter()
        self._all = 0
        self._bursts = GilbertElliott(losses.gemodel, direction_key(3, "l", "forward")) if losses.gemodel else None

    def meet(self, frame: bytes) -> str:
        """The frame's fate: a cause, or empty."""
        self._counts[FLOWS.of(frame)[0]] += 1
        self._all += 1
        if self._bursts is not None:
            self._bursts.step(self._all)
        outcome = self._model.offer(0, frame)
        return "" if outcome is Outcome.ACCEPTED else outcome.value

    def count(self, flow: Flow) -> int:
        return self._counts[flow]

    def flows(self) -> dict[Flow, int]:
        return dict(self._counts)

    def state(self) -> int:
        return self._all if self._bursts is None else self._all << 1 | self._bursts.is_bad


def capture(
    reconstruction: FateReconstruction, kernel: Kernel, chance: random.Random, gap: int, now: int, count: int = 400
) -> tuple[list[tuple[bytes, str]], int]:
    """Return frames with their fates, and the time after the last of them.

    Between two frames the classifier's maps are read at times, as a capture does, and sometimes between the capture of
    a frame and its classification.
    """
    captured = []
    due = now
    for _ in range(count):
        now += chance.randrange(gap // 2, gap)
        frame = chance.choice(FRAMES)
        reconstruction.add(now, frame)
        if chance.random() < 0.1 and reconstruction.needs_reading:
            timestamps = itertools.count(now + 500, 100)
            reconstruction.read(kernel, lambda: next(timestamps))  # noqa: B023  it is called here and now
        captured.append((frame, kernel.meet(frame)))
        if now > due and reconstruction.needs_reading:
            clock = itertools.count(now + gap // 4, 100)
            reconstruction.read(kernel, lambda: next(clock))  # noqa: B023
            due = now + 20_000_000
    return captured, now


@pytest.mark.parametrize("gap", [100_000, 3_000_000], ids=["busy", "quiet"])
@pytest.mark.parametrize("losses", LOSSES, ids=["loss", "bursts", "pattern", "both"])
@given(seed=st.integers(0, 2**32), before=st.integers(0, 50))
def test_the_fate_of_every_frame_is_reported_wherever_the_capture_begins(
    losses: Impairment, gap: int, seed: int, before: int
) -> None:
    chance = random.Random(seed)
    kernel = Kernel(losses)
    for _ in range(before):
        kernel.meet(chance.choice(FRAMES))
    reconstruction = FateReconstruction("l", "forward", 3, losses)
    captured, now = capture(reconstruction, kernel, chance, gap, 10**18)
    if reconstruction.needs_reading:
        reconstruction.read(kernel, lambda: now + 10**8)
    assert [reconstruction.decide(frame, now + 10**9)[0] for frame, _ in captured] == [cause for _, cause in captured]
    assert reconstruction.undecided == 0


def test_long_bursts_are_resumed_in_their_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fate_reconstruction, "MAX_STEPS", 10)
    losses, chance = LOSSES[1], random.Random(1)
    kernel = Kernel(losses)
    for _ in range(1_000):
        kernel.meet(chance.choice(FRAMES))
    reconstruction = FateReconstruction("l", "forward", 3, losses)
    reconstruction.read(kernel, lambda: 10**18 - 10**9)
    captured, now = capture(reconstruction, kernel, chance, 100_000, 10**18)
    assert [reconstruction.decide(frame, now)[0] for frame, _ in captured] == [cause for _, cause in captured]


def test_a_classifier_that_takes_anothers_place_decides_from_its_first_frame_on() -> None:
    chance = random.Random(5)
    first, second = Kernel(LOSSES[0]), Kernel(Impairment(loss=0.6))
    old = FateReconstruction("l", "forward", 3, LOSSES[0])
    captured, now = capture(old, first, chance, 3_000_000, 10**18)
    new = FateReconstruction("l", "forward", 3, Impairment(loss=0.6), old)
    # It is expected already, but the old one decides some frames more.
    for _ in range(20):
        now += 2_000_000
        frame = chance.choice(FRAMES)
        new.add(now, frame)
        captured.append((frame, first.meet(frame)))
    captured_later, now = capture(new, second, chance, 3_000_000, now)
    fates_told = [old.decide(frame, now)[0] for frame, _ in captured[:-20]]
    fates_told += [new.decide(frame, now)[0] for frame, _ in captured[-20:] + captured_later]
    assert fates_told == [cause for _, cause in captured + captured_later]


def test_frame_numbers_are_recovered_after_missed_frames() -> None:
    chance = random.Random(7)
    kernel = Kernel(LOSSES[0])
    reconstruction = FateReconstruction("l", "forward", 3, LOSSES[0])
    captured, now = capture(reconstruction, kernel, chance, 3_000_000, 10**18)
    assert [reconstruction.decide(frame, now)[0] for frame, _ in captured] == [cause for _, cause in captured]
    for _ in range(13):
        kernel.meet(chance.choice(FRAMES))
    reconstruction.forget()
    captured, now = capture(reconstruction, kernel, chance, 3_000_000, now)
    assert [reconstruction.decide(frame, now)[0] for frame, _ in captured] == [cause for _, cause in captured]


def test_unknown_fates_are_counted() -> None:
    reconstruction = FateReconstruction("l", "forward", 3, Impairment(loss=1.0))
    reconstruction.add(10**18, FRAMES[0])
    assert reconstruction.decide(FRAMES[0], 10**18) == ("", "")
    assert reconstruction.undecided == 1
