"""Fates reconstructed from the maps of a loss classifier equal those of the model.

The model stands in for the classifier: it counts each frame shortly after its capture, and can be read at any time.
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


class ModelledClassifier:
    """Stand-in for a loss classifier and its maps."""

    def __init__(self, losses: Impairment) -> None:
        self._model = LinkDirection("l", "forward", losses, FateOptions(seed=3, fields=known_fields()))
        self._flow_counts: Counter[Flow] = Counter()
        self._frames = 0
        self._bursts = GilbertElliott(losses.gemodel, direction_key(3, "l", "forward")) if losses.gemodel else None

    def classify(self, frame: bytes) -> str:
        """Classify a frame; return the cause of its loss, or an empty string."""
        self._flow_counts[FLOWS.of(frame)[0]] += 1
        self._frames += 1
        if self._bursts is not None:
            self._bursts.step(self._frames)
        outcome = self._model.offer(0, frame)
        return "" if outcome is Outcome.ACCEPTED else outcome.value

    def count(self, flow: Flow) -> int:
        return self._flow_counts[flow]

    def flows(self) -> dict[Flow, int]:
        return dict(self._flow_counts)

    def state(self) -> int:
        return self._frames if self._bursts is None else self._frames << 1 | self._bursts.is_bad


def capture(
    reconstruction: FateReconstruction,
    classifier: ModelledClassifier,
    rng: random.Random,
    gap: int,
    now: int,
    count: int = 400,
) -> tuple[list[tuple[bytes, str]], int]:
    """Return frames with their fates, and the time of the last one.

    As in a capture, the maps are sometimes read between two frames, or between the capture of a frame and its
    classification.
    """
    captured = []
    due = now
    for _ in range(count):
        now += rng.randrange(gap // 2, gap)
        frame = rng.choice(FRAMES)
        reconstruction.add(now, frame)
        if rng.random() < 0.1 and reconstruction.needs_reading:
            timestamps = itertools.count(now + 500, 100)
            reconstruction.read(classifier, lambda: next(timestamps))  # noqa: B023  called at once
        captured.append((frame, classifier.classify(frame)))
        if now > due and reconstruction.needs_reading:
            clock = itertools.count(now + gap // 4, 100)
            reconstruction.read(classifier, lambda: next(clock))  # noqa: B023
            due = now + 20_000_000
    return captured, now


@pytest.mark.parametrize("gap", [100_000, 3_000_000], ids=["busy", "quiet"])
@pytest.mark.parametrize("losses", LOSSES, ids=["loss", "bursts", "pattern", "both"])
@given(seed=st.integers(0, 2**32), before=st.integers(0, 50))
def test_the_fate_of_every_frame_is_reconstructed_wherever_the_capture_begins(
    losses: Impairment, gap: int, seed: int, before: int
) -> None:
    rng = random.Random(seed)
    classifier = ModelledClassifier(losses)
    for _ in range(before):
        classifier.classify(rng.choice(FRAMES))
    reconstruction = FateReconstruction("l", "forward", 3, losses)
    captured, now = capture(reconstruction, classifier, rng, gap, 10**18)
    if reconstruction.needs_reading:
        reconstruction.read(classifier, lambda: now + 10**8)
    assert [reconstruction.decide(frame, now + 10**9)[0] for frame, _ in captured] == [cause for _, cause in captured]
    assert reconstruction.undecided == 0


def test_long_bursts_are_resumed_in_their_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fate_reconstruction, "MAX_STEPS", 10)
    losses, rng = LOSSES[1], random.Random(1)
    classifier = ModelledClassifier(losses)
    for _ in range(1_000):
        classifier.classify(rng.choice(FRAMES))
    reconstruction = FateReconstruction("l", "forward", 3, losses)
    reconstruction.read(classifier, lambda: 10**18 - 10**9)
    captured, now = capture(reconstruction, classifier, rng, 100_000, 10**18)
    assert [reconstruction.decide(frame, now)[0] for frame, _ in captured] == [cause for _, cause in captured]


def test_a_classifier_that_replaces_another_decides_from_its_first_frame_on() -> None:
    rng = random.Random(5)
    first, second = ModelledClassifier(LOSSES[0]), ModelledClassifier(Impairment(loss=0.6))
    old = FateReconstruction("l", "forward", 3, LOSSES[0])
    captured, now = capture(old, first, rng, 3_000_000, 10**18)
    new = FateReconstruction("l", "forward", 3, Impairment(loss=0.6), old)
    # The new classifier is expected, but the old one still decides 20 frames.
    for _ in range(20):
        now += 2_000_000
        frame = rng.choice(FRAMES)
        new.add(now, frame)
        captured.append((frame, first.classify(frame)))
    captured_later, now = capture(new, second, rng, 3_000_000, now)
    decided_causes = [old.decide(frame, now)[0] for frame, _ in captured[:-20]]
    decided_causes += [new.decide(frame, now)[0] for frame, _ in captured[-20:] + captured_later]
    assert decided_causes == [cause for _, cause in captured + captured_later]


def test_frame_numbers_are_recovered_after_missed_frames() -> None:
    rng = random.Random(7)
    classifier = ModelledClassifier(LOSSES[0])
    reconstruction = FateReconstruction("l", "forward", 3, LOSSES[0])
    captured, now = capture(reconstruction, classifier, rng, 3_000_000, 10**18)
    assert [reconstruction.decide(frame, now)[0] for frame, _ in captured] == [cause for _, cause in captured]
    for _ in range(13):
        classifier.classify(rng.choice(FRAMES))
    reconstruction.forget()
    captured, now = capture(reconstruction, classifier, rng, 3_000_000, now)
    assert [reconstruction.decide(frame, now)[0] for frame, _ in captured] == [cause for _, cause in captured]


def test_undecided_frames_are_counted() -> None:
    reconstruction = FateReconstruction("l", "forward", 3, Impairment(loss=1.0))
    reconstruction.add(10**18, FRAMES[0])
    assert reconstruction.decide(FRAMES[0], 10**18) == ("", "")
    assert reconstruction.undecided == 1
