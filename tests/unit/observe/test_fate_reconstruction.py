"""Fates reconstructed from the maps of a loss classifier equal those of the model.

The model stands in for the classifier: it counts each frame shortly after its capture, and can be read at any time.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.fabric.direction import LinkDirection, Outcome
from testbed.fates.fate_hash import direction_key
from testbed.fates.flows import Classifier, Flow
from testbed.fates.loss_models import GilbertElliott
from testbed.fates.records import PATTERN
from testbed.fates.stage import FateOptions
from testbed.fields import known_fields
from testbed.kernel.loss_classifier import losses_of, name_of
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


SECOND = 10**9
START = 10**18


@dataclass
class ModelledProgram:
    """Stand-in for a loss program."""

    id: int


class ModelledClassifier:
    """Stand-in for a loss classifier and its maps."""

    def __init__(self, losses: Impairment, program: int = 1) -> None:
        self.name = name_of(losses_of(direction_key(3, "l", "forward"), losses, known_fields()))
        self.program = ModelledProgram(program)
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
    reconstruction = FateReconstruction("l", "forward", 3, losses, 0)
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
    reconstruction = FateReconstruction("l", "forward", 3, losses, 0)
    reconstruction.read(classifier, lambda: 10**18 - 10**9)
    captured, now = capture(reconstruction, classifier, rng, 100_000, 10**18)
    assert [reconstruction.decide(frame, now)[0] for frame, _ in captured] == [cause for _, cause in captured]


def test_a_classifier_that_replaces_another_decides_from_its_first_frame_on() -> None:
    rng = random.Random(5)
    first, second = ModelledClassifier(LOSSES[0]), ModelledClassifier(Impairment(loss=0.6))
    old = FateReconstruction("l", "forward", 3, LOSSES[0], 0)
    captured, now = capture(old, first, rng, 3_000_000, 10**18)
    new = FateReconstruction("l", "forward", 3, Impairment(loss=0.6), now, old)
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


def frames_of(count: int) -> list[bytes]:
    """Return frames of one flow."""
    return [FRAMES[0]] * count


def decided(reconstruction: FateReconstruction, frames: list[bytes]) -> list[str]:
    return [reconstruction.decide(frame, START + 100 * SECOND)[0] for frame in frames]


@pytest.mark.parametrize("losses", LOSSES, ids=["loss", "bursts", "pattern", "both"])
def test_counts_of_a_classifier_that_has_not_been_replaced_yet_are_not_those_of_the_new_one(losses: Impairment) -> None:
    first, second = ModelledClassifier(Impairment(loss=0.6)), ModelledClassifier(losses, 2)
    for frame in frames_of(1_000):
        first.classify(frame)
    old = FateReconstruction("l", "forward", 3, Impairment(loss=0.6), 0)
    new = FateReconstruction("l", "forward", 3, losses, 0, old)
    new.read(first, lambda: START)
    causes = []
    for number, frame in enumerate(frames_of(40)):
        new.add(START + number * SECOND + SECOND, frame)
        causes.append((first if number < 10 else second).classify(frame))
    new.read(second, lambda: START + 50 * SECOND)
    assert decided(new, frames_of(40)) == causes
    assert (old.undecided, new.undecided) == (0, 0)


@pytest.mark.parametrize("losses", LOSSES, ids=["loss", "bursts", "pattern", "both"])
def test_a_classifier_that_is_replaced_by_an_equal_one_counts_anew(losses: Impairment) -> None:
    first, second = ModelledClassifier(losses), ModelledClassifier(losses, 2)
    reconstruction = FateReconstruction("l", "forward", 3, losses, 0)
    reconstruction.read(first, lambda: START)
    for number, frame in enumerate(frames_of(6)):
        reconstruction.add(START + number * SECOND + SECOND, frame)
        (first if number < 3 else second).classify(frame)
    reconstruction.read(second, lambda: START + 10 * SECOND)
    causes = []
    for number, frame in enumerate(frames_of(20)):
        reconstruction.add(START + (number + 20) * SECOND, frame)
        causes.append(second.classify(frame))
    reconstruction.read(second, lambda: START + 50 * SECOND)
    assert decided(reconstruction, frames_of(26)) == [""] * 6 + causes
    assert reconstruction.undecided == 6


def test_a_reading_before_which_frames_may_not_have_been_captured_is_not_sufficient() -> None:
    """The classifier counts two frames that passed between the reading and the start of the capture."""
    classifier = ModelledClassifier(LOSSES[2])
    reconstruction = FateReconstruction("l", "forward", 3, LOSSES[2], START)
    reconstruction.read(classifier, lambda: START - 1)
    for frame in frames_of(2):
        classifier.classify(frame)
    causes = []
    for number, frame in enumerate(frames_of(10)):
        reconstruction.add(START + number * 100_000 + 1, frame)
        causes.append(classifier.classify(frame))
    reconstruction.read(classifier, lambda: START + SECOND)
    assert decided(reconstruction, frames_of(10)) == causes


@pytest.mark.parametrize("losses", [LOSSES[0], LOSSES[2]], ids=["loss", "pattern"])
def test_a_decided_frame_is_not_quiet_before_a_later_reading(losses: Impairment) -> None:
    """The reading is too early to count the first frame, whose fate is needed before that is known."""
    classifier = ModelledClassifier(losses)
    reconstruction = FateReconstruction("l", "forward", 3, losses, 0)
    reconstruction.add(START, FRAMES[0])
    reconstruction.read(classifier, lambda: START + 10_000)
    assert reconstruction.decide(FRAMES[0], START + 5_000) == ("", "")
    causes = []
    classifier.classify(FRAMES[0])
    for number, frame in enumerate(frames_of(10)):
        reconstruction.add(START + (number + 1) * SECOND, frame)
        causes.append(classifier.classify(frame))
    reconstruction.read(classifier, lambda: START + 50 * SECOND)
    assert decided(reconstruction, frames_of(10)) == causes
    assert reconstruction.undecided == 1


@pytest.mark.parametrize("losses", LOSSES, ids=["loss", "bursts", "pattern", "both"])
def test_frames_before_a_gap_keep_their_numbers_and_frames_around_it_are_undecided(losses: Impairment) -> None:
    classifier = ModelledClassifier(losses)
    reconstruction = FateReconstruction("l", "forward", 3, losses, 0)
    reconstruction.read(classifier, lambda: START)
    causes = []

    def capture_frames(times: range) -> None:
        for second in times:
            reconstruction.add(START + second * SECOND, FRAMES[0])
            causes.append(classifier.classify(FRAMES[0]))

    capture_frames(range(1, 7))
    for frame in frames_of(4):
        classifier.classify(frame)
    capture_frames(range(10, 12))
    reconstruction.mark_gap(START + 6 * SECOND, START + 11 * SECOND)
    capture_frames(range(12, 14))
    reconstruction.read(classifier, lambda: START + 15 * SECOND)
    capture_frames(range(20, 40))
    actual = decided(reconstruction, frames_of(len(causes)))
    assert actual[6:8] == ["", ""]
    assert actual[:6] + actual[8:] == causes[:6] + causes[8:]
    assert reconstruction.undecided == 2


def test_a_replaced_classifier_is_dropped_once_the_new_one_has_decided_a_frame() -> None:
    first, second = ModelledClassifier(LOSSES[0]), ModelledClassifier(LOSSES[2], 2)
    old = FateReconstruction("l", "forward", 3, LOSSES[0], 0)
    old.read(first, lambda: START)
    new = FateReconstruction("l", "forward", 3, LOSSES[2], 0, old)
    causes = []
    for number, frame in enumerate(frames_of(20)):
        new.add(START + (number + 1) * SECOND, frame)
        causes.append((first if number < 10 else second).classify(frame))
    assert decided(new, frames_of(3)) == ["", "", ""]  # not read yet
    assert (old.undecided, new.undecided) == (0, 3)
    new.read(second, lambda: START + 30 * SECOND)
    assert decided(new, frames_of(7)) == causes[3:10]
    assert new.previous is old
    assert decided(new, frames_of(10)) == causes[10:]
    assert new.previous is None


def test_idle_replaced_classifiers_are_not_kept() -> None:
    latest = FateReconstruction("l", "forward", 3, LOSSES[0], 0)
    for number in range(100):
        latest = FateReconstruction("l", "forward", 3, LOSSES[number % 2], 0, latest)
    assert latest.previous is not None
    assert latest.previous.previous is None


def test_frame_numbers_are_recovered_after_missed_frames() -> None:
    rng = random.Random(7)
    classifier = ModelledClassifier(LOSSES[0])
    reconstruction = FateReconstruction("l", "forward", 3, LOSSES[0], 0)
    captured, now = capture(reconstruction, classifier, rng, 3_000_000, 10**18)
    assert [reconstruction.decide(frame, now)[0] for frame, _ in captured] == [cause for _, cause in captured]
    for _ in range(13):
        classifier.classify(rng.choice(FRAMES))
    reconstruction.mark_gap(now, now + 1)
    captured, now = capture(reconstruction, classifier, rng, 3_000_000, now)
    assert [reconstruction.decide(frame, now)[0] for frame, _ in captured] == [cause for _, cause in captured]


def test_undecided_frames_are_counted() -> None:
    reconstruction = FateReconstruction("l", "forward", 3, Impairment(loss=1.0), 0)
    reconstruction.add(10**18, FRAMES[0])
    assert reconstruction.decide(FRAMES[0], 10**18) == ("", "")
    assert reconstruction.undecided == 1


def test_an_undecided_frame_is_counted_once() -> None:
    reconstruction = FateReconstruction(
        "l", "forward", 3, Impairment(loss=0.3, loss_pattern="2", gemodel=LOSSES[1].gemodel), 0
    )
    reconstruction.add(START, FRAMES[0])
    assert reconstruction.decide(FRAMES[0], START) == ("", "")
    assert reconstruction.undecided == 1


def test_a_frame_that_one_model_has_lost_is_not_undecided() -> None:
    losses = Impairment(loss=0.3, loss_pattern="1 every 1")
    classifier = ModelledClassifier(losses)
    reconstruction = FateReconstruction("l", "forward", 3, losses, 0)
    reconstruction.add(START, FRAMES[0])
    classifier.classify(FRAMES[0])
    # The readings of all flows and of the direction are earlier than `until`, that of the frame's flow is later.
    timestamps = itertools.chain([START + SECOND] * 4, itertools.repeat(START + 3 * SECOND))
    reconstruction.read(classifier, lambda: next(timestamps))
    assert reconstruction.decide(FRAMES[0], START + 2 * SECOND)[0] == PATTERN
    assert reconstruction.undecided == 0
