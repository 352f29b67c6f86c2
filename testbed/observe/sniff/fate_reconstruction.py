"""Reconstruction of the fates decided by a loss classifier in the kernel, which does not report them.

The classifier decides as `testbed.fates` does: by a frame's number within its flow or its direction. Its maps count
frames. Once the number of one captured frame is known, the following frames are numbered in the order of capture. The
clock is read before and after a count is read: if no frame passed around that time, the count is the number of the last
frame before it. Under steady traffic two readings must agree.

If Gilbert-Elliott has processed many frames before a capture begins, its state is read with the count, and frames before
that reading remain undecided. There are such frames only if the link was busy at that time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from testbed.fates import fate_hash
from testbed.fates import records as fates
from testbed.fates.flows import Classifier, Flow
from testbed.fates.loss_models import GilbertElliott, Pattern
from testbed.fields import known_fields
from testbed.spec.layout import Impairment

MIN_QUIET: Final = 1_000_000
"""Nanoseconds without a frame of the flow before a reading, so that no frame is between the capture point and the map."""

_MIN_SHORT_QUIET: Final = 20_000  # ns, sufficient if a second reading agrees
_MAX_READINGS: Final = 50  # maximum for a flow whose frame numbers are unknown
MAX_STEPS: Final = 50_000
"""Maximum steps of Gilbert-Elliott that are replayed from the first frame; more would take noticeable time."""

_flows: Final = Classifier(known_fields())


class CountSource(Protocol):
    """Counters and state of a `kernel.loss_classifier.Classifier`."""

    def count(self, flow: Flow) -> int: ...

    def state(self) -> int: ...

    def flows(self) -> Mapping[Flow, int]: ...


@dataclass(frozen=True, slots=True)
class Reading:
    """A frame count read from a map at some time between `before` and `after`. bad: Gilbert-Elliott's state."""

    before: int
    number: int
    after: int
    bad: bool = False


@dataclass(slots=True)
class FlowFrames:
    """Frames of a flow, in the order of capture.

    passed: number of frames whose fate has been decided. waiting: capture times of the undecided frames. first: number of
    the first captured frame, None if unknown; below 1 if it passed before the classifier existed. start: initial state of
    the flow's random draws.
    """

    start: int
    passed: int = 0
    waiting: deque[int] = field(default_factory=deque)
    first: int | None = None
    readings: list[Reading] = field(default_factory=list)

    def find_first(self, until: int) -> Reading | None:
        """Find the number of the first frame; return the reading that determined it. until: time before which all frames are
        captured."""
        candidate: int | None = None
        for reading in self.readings:
            if reading.after > until:
                break
            passed, last = self.passed, 0
            for stamp in self.waiting:
                if stamp > reading.after:
                    break
                passed, last = passed + 1, stamp
            if last > reading.before - _MIN_SHORT_QUIET:
                continue
            first = reading.number - passed + 1
            if first == candidate or last < reading.before - MIN_QUIET:
                self.first = first
                self.readings = []
                return reading
            candidate = first
        return None


class FateReconstruction:
    """Fates of one direction with a loss classifier. undecided: frames whose fate could not be reconstructed."""

    def __init__(
        self, link: str, direction: str, seed: int, impairment: Impairment, before: FateReconstruction | None = None
    ) -> None:
        """before: the reconstruction for the previous classifier, which this classifier replaces."""
        self.undecided = 0
        self.losses: Final = impairment
        self._previous = before
        if before is not None:
            before._previous = None
        self._key = fate_hash.direction_key(seed, link, direction)
        self._loss = fate_hash.threshold(impairment.loss)
        self._gemodel = GilbertElliott(impairment.gemodel, self._key) if impairment.gemodel else None
        self._pattern = Pattern(impairment.loss_pattern) if impairment.loss_pattern else None
        self._last_step = 0  # the last frame that Gilbert-Elliott has decided
        self._flows: dict[Flow, FlowFrames] = {}
        self._direction_frames = FlowFrames(0)
        self._unknown: dict[Flow | None, FlowFrames] = {}
        self._base: tuple[int, Mapping[Flow, int], int] | None = (
            None  # reading of all flows: start time, counts, end time
        )
        if self._gemodel or self._pattern:
            self._unknown[None] = self._direction_frames

    def add(self, when: int, frame: bytes) -> None:
        """Count a captured frame that enters the direction."""
        if self._loss:
            flow = _flows.of(frame)[0]
            flow_frames = self._flows.get(flow)
            if flow_frames is None:
                start = fate_hash.absorb(fate_hash.flow_key(self._key, *flow), fate_hash.LOSS)
                flow_frames = self._flows[flow] = self._unknown[flow] = FlowFrames(start)
                if self._base is not None:
                    before, numbers, after = self._base
                    flow_frames.readings.append(Reading(before, numbers.get(flow, 0), after))
            flow_frames.waiting.append(when)
        self._direction_frames.waiting.append(when)
        if self._previous is not None:
            self._previous.add(when, frame)

    def forget(self) -> None:
        """Discard the frame numbers after a gap in the capture; they are determined from new readings."""
        self._base = None
        for flow, flow_frames in self._flows.items():
            flow_frames.first, flow_frames.readings = None, []
            self._unknown[flow] = flow_frames
        if self._gemodel or self._pattern:
            self._direction_frames.first, self._direction_frames.readings = None, []
            self._unknown[None] = self._direction_frames

    @property
    def needs_reading(self) -> bool:
        """Whether another reading of the classifier is needed."""
        return bool(self._unknown) or (self._base is None and self._loss > 0)

    def read(self, classifier: CountSource, clock: Callable[[], int] = time.time_ns) -> None:
        """Read the counts that are still needed. clock: clock of the frames' timestamps, in nanoseconds."""
        if self._base is None and self._loss:
            # Read all flows now: the counts are lost when the classifier is removed.
            self._base = clock(), classifier.flows(), clock()
        for flow, flow_frames in self._unknown.items():
            before, bad = clock(), False
            if flow is not None:
                number = classifier.count(flow)
            else:
                number = classifier.state()
                if self._gemodel is not None:
                    number, bad = number >> 1, bool(number & 1)
            flow_frames.readings.append(Reading(before, number, clock(), bad))
            del flow_frames.readings[:-_MAX_READINGS]

    def decide(self, frame: bytes, until: int) -> tuple[str, str]:
        """Reconstruct the fate of the next frame: its cause and a text; both empty if it passes.

        Frames must be passed in the order of capture. until: time before which all frames are captured.
        """
        losses: list[tuple[str, str]] = []
        numbers: list[int] = []
        self._find_numbers(until)
        if self._loss:
            flow = _flows.of(frame)[0]
            flow_frames = self._flows[flow]
            number = self._next_number(flow_frames, numbers)
            if number > 0 and fate_hash.draw(flow_frames.start, number) >> 11 < self._loss:
                losses.append((fates.LOSS, f"frame {number} of flow {flow}"))
        number = self._next_number(self._direction_frames, numbers if self._gemodel or self._pattern else [])
        if self._gemodel is not None and self._gemodel_loses(number):
            losses.append((fates.GEMODEL, f"frame {number} of the direction"))
        if self._pattern is not None and number > 0 and self._pattern.loses(number):
            losses.append((fates.PATTERN, f"frame {number} of the direction"))
        if self._previous is not None and numbers and max(numbers) <= 0:
            return self._previous.decide(frame, until)
        if not losses:
            return "", ""
        cause, frame_number = losses[0]
        return cause, f"dropped by {cause}, {frame_number}"

    def _find_numbers(self, until: int) -> None:
        for flow, flow_frames in list(self._unknown.items()):
            reading = flow_frames.find_first(until)
            if reading is not None:
                del self._unknown[flow]
                if flow is None and self._gemodel is not None and reading.number > MAX_STEPS:
                    self._gemodel.set_state(is_bad=reading.bad)
                    self._last_step = reading.number

    def _next_number(self, flow_frames: FlowFrames, numbers: list[int]) -> int:
        """Return the number of the next frame; 0 if unknown or not needed."""
        flow_frames.waiting.popleft()
        flow_frames.passed += 1
        if flow_frames.first is None:
            if flow_frames is not self._direction_frames or self._gemodel or self._pattern:
                self.undecided += 1
            return 0
        number = flow_frames.first + flow_frames.passed - 1
        numbers.append(number)
        return number

    def _gemodel_loses(self, number: int) -> bool:
        """Whether Gilbert-Elliott loses frame `number`. Numbers must increase, except for frames before a reading."""
        lost = False
        if self._gemodel is not None:
            while self._last_step < number:
                self._last_step += 1
                lost = self._gemodel.step(self._last_step)
        return lost
