"""Reconstruction of the fates decided by a loss classifier in the kernel, which does not report them.

The classifier decides as `testbed.fates` does: by a frame's number within its flow or its direction. Its maps count frames.
Once the number of one captured frame is known, the following frames are numbered in the order of capture. A count is read
between two readings of the clock. If no frame was captured from a millisecond before until the end of this reading, the
count is the number of the last captured frame. Under steady traffic 20 microseconds without a frame suffice, if two
consecutive readings agree.

The classifier also counts frames that the capture misses. The frames before such a gap keep their numbers, those after it
are numbered by new readings, and those captured between the two checks that found the gap remain undecided.

If Gilbert-Elliott has processed many frames before a capture begins, its state is read together with the count, and frames
before that reading remain undecided. There are such frames only if the link was busy at that time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from testbed.fates import fate_hash
from testbed.fates import records as fates
from testbed.fates.flows import Classifier, Flow
from testbed.fates.loss_models import GilbertElliott, Pattern
from testbed.fields import known_fields
from testbed.kernel.loss_classifier import losses_of, name_of
from testbed.spec.layout import Impairment

MIN_QUIET: Final = 1_000_000
"""Nanoseconds without a frame of the flow before a reading, so that no frame is between the capture point and the map."""

_MIN_SHORT_QUIET: Final = 20_000  # ns without a frame that suffice if a second reading agrees
_MAX_READINGS: Final = 50  # readings that are kept for a flow whose frame numbers are unknown
MAX_STEPS: Final = 50_000
"""Maximum number of Gilbert-Elliott's steps that are repeated from the first frame on; more would take noticeable time."""

_flows: Final = Classifier(known_fields())


class Program(Protocol):
    """A loss program in the kernel."""

    @property
    def id(self) -> int: ...


class CountSource(Protocol):
    """The part of `kernel.loss_classifier.Classifier` that a reconstruction reads."""

    @property
    def name(self) -> str: ...

    @property
    def program(self) -> Program: ...

    def count(self, flow: Flow) -> int: ...

    def state(self) -> int: ...

    def flows(self) -> Mapping[Flow, int]: ...


@dataclass(frozen=True, slots=True)
class Reading:
    """A frame count, read from a map between the times `before` and `after`, ns. number: the count. bad: whether
    Gilbert-Elliott is in its bad state."""

    before: int
    number: int
    after: int
    bad: bool = False


class FlowFrames:
    """Frames of a flow, in the order of capture, and their numbers.

    A frame's number is its position in the capture plus an offset, which a reading determines. It is less than 1 if the
    frame passed before the classifier existed.
    """

    __slots__ = ("_candidate", "_last", "_numbers", "_offset", "_passed", "_since", "readings", "start", "waiting")

    def __init__(self, start: int, since: int) -> None:
        """start: start of the flow's stream of draws. since: time since which every frame of the flow is added, ns."""
        self.start: Final = start
        self.waiting: deque[int] = deque()
        """Capture times of the frames that have not been taken, except those whose numbers are in `_numbers`."""
        self.readings: deque[Reading] = deque(maxlen=_MAX_READINGS)
        """Readings that have not been evaluated."""
        self._since = since  # the numbers of frames in `waiting` until then are unknown
        self._last = since  # the later of `_since` and the time of the last frame taken from `waiting`
        self._passed = 0  # frames taken from `waiting`
        self._offset: int | None = None
        self._candidate: int | None = None  # offset by the last reading, to be confirmed by the next
        self._numbers: deque[int | None] = deque()  # numbers of the next frames, which were captured before a gap

    @property
    def has_next(self) -> bool:
        """Whether there is a frame that has not been taken."""
        return bool(self._numbers or self.waiting)

    def find_offset(self, until: int) -> Reading | None:
        """Determine the offset; return the reading that determined it, None if it is still unknown. until: time before which
        all frames have been captured."""
        while self.readings and self.readings[0].after <= until:
            reading = self.readings.popleft()
            position, last = self._passed, self._last
            for stamp in self.waiting:
                if stamp > reading.after:
                    break
                position, last = position + 1, max(last, stamp)
            if last > reading.before - _MIN_SHORT_QUIET:
                continue
            offset = reading.number - position
            if offset == self._candidate or last < reading.before - MIN_QUIET:
                self._offset = offset
                self.readings.clear()
                return reading
            self._candidate = offset
        return None

    def take(self) -> int | None:
        """Remove the next frame; return its number, None if unknown."""
        return self._numbers.popleft() if self._numbers else self._take_waiting()

    def mark_gap(self, start: int, end: int) -> None:
        """Forget the offset: frames may be missing between these times. Frames until `start` keep their numbers."""
        while self.waiting and self.waiting[0] <= start:
            self._numbers.append(self._take_waiting())
        self._forget_offset(end)

    def restart(self, end: int) -> None:
        """Forget the numbers of all frames until `end`: the count of the flow has restarted."""
        self._numbers = deque([None] * len(self._numbers))
        self._forget_offset(end)

    def _forget_offset(self, since: int) -> None:
        self._since = self._last = since
        self._offset = self._candidate = None
        self.readings.clear()

    def _take_waiting(self) -> int | None:
        stamp = self.waiting.popleft()
        self._last = max(self._last, stamp)
        self._passed += 1
        return None if self._offset is None or stamp <= self._since else self._offset + self._passed


class FateReconstruction:
    """Reconstruction of the fates of one direction with a loss classifier. undecided: number of frames that a model may have
    lost, because their number or the model's state is unknown, and that no other model has lost. losses: the impairment's
    losses."""

    def __init__(
        self,
        link: str,
        direction: str,
        seed: int,
        impairment: Impairment,
        since: int,
        previous: FateReconstruction | None = None,
    ) -> None:
        """impairment: losses only. since: time since which every frame is added, ns. previous: the reconstruction for the
        classifier that the new classifier replaces."""
        self.undecided = 0
        self.losses: Final = impairment
        self.previous = previous
        if previous is not None and not any(frames.has_next for _, frames in previous._all_frames()):
            previous.previous = None
        self._key = fate_hash.direction_key(seed, link, direction)
        self.classifier_name: Final = name_of(losses_of(self._key, impairment, known_fields()))
        self._program: int | None = None  # id of the classifier's program at the last reading
        self._since = since
        self._loss = fate_hash.threshold(impairment.loss)
        self._gemodel = GilbertElliott(impairment.gemodel, self._key) if impairment.gemodel else None
        self._pattern = Pattern(impairment.loss_pattern) if impairment.loss_pattern else None
        self._last_step = 0  # number of the last frame that Gilbert-Elliott has decided
        self._state_reading: Reading | None = None  # the last reading that determined the direction's offset
        self._flows: dict[Flow, FlowFrames] = {}
        self._direction_frames = FlowFrames(0, since) if self._gemodel or self._pattern else None
        self._unknown: dict[Flow | None, FlowFrames] = {}  # flows, and the direction (None), whose offset is unknown
        # Reading of the counts of all flows: start time, counts, end time.
        self._base: tuple[int, Mapping[Flow, int], int] | None = None
        if self._direction_frames is not None:
            self._unknown[None] = self._direction_frames

    def add(self, when: int, frame: bytes) -> None:
        """Count a captured frame that enters the direction."""
        self._add(when, frame)
        if self.previous is not None:
            # Not further back: the classifier before the previous one was replaced before this object was made.
            self.previous._add(when, frame)

    def take_over(self, when: int, frame: bytes) -> None:
        """Count a frame that the previous reconstruction has counted, and on which this one will decide."""
        self._add(when, frame)

    def mark_gap(self, start: int, end: int) -> None:
        """Note that frames may be missing in the capture between these times. All captured frames until `start` have been
        added. Later frames are numbered by new readings."""
        self._find_numbers(start)
        for flow, flow_frames in self._all_frames():
            flow_frames.mark_gap(start, end)
            self._unknown[flow] = flow_frames
        self._base, self._since = None, end
        if self.previous is not None:
            self.previous.mark_gap(start, end)

    @property
    def needs_reading(self) -> bool:
        """Whether another reading of the classifier is needed."""
        return bool(self._unknown) or (self._base is None and self._loss > 0)

    def read(self, classifier: CountSource, clock: Callable[[], int] = time.time_ns) -> None:
        """Read the counts that are still needed. classifier: the one that is on the interface now. clock: clock of the
        frames' timestamps, ns."""
        if classifier.name != self.classifier_name:
            if self.previous is not None:  # its classifier has not been replaced yet
                self.previous.read(classifier, clock)
            return
        if self._program not in (None, classifier.program.id):
            self._restart(clock())
        self._program = classifier.program.id
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

    def decide(self, frame: bytes, until: int) -> tuple[str, str]:
        """Reconstruct the fate of the next frame: its cause and a text; both empty if it passes.

        Frames must be passed in the order of capture. until: time before which all frames have been captured.
        """
        numbers = self._take(frame, until)
        known_numbers = [number for number in numbers if number is not None]
        is_earlier = bool(known_numbers) and max(known_numbers) <= 0  # the frame passed before the classifier existed
        previous = self.previous
        if previous is not None:
            previous_numbers = previous._take(frame, until)
            if is_earlier:
                return previous._decide(frame, *previous_numbers)
            if known_numbers:
                self.previous = None  # all later frames are decided by this classifier
        return ("", "") if is_earlier else self._decide(frame, *numbers)

    def skip(self, frame: bytes, until: int) -> None:
        """Pass over the next frame, whose fate is not needed. until: as for `decide`."""
        self._take(frame, until)
        if self.previous is not None:
            self.previous._take(frame, until)

    def _all_frames(self) -> list[tuple[Flow | None, FlowFrames]]:
        direction = [] if self._direction_frames is None else [(None, self._direction_frames)]
        return [*self._flows.items(), *direction]

    def _add(self, when: int, frame: bytes) -> None:
        if self._loss:
            flow = _flows.of(frame)[0]
            flow_frames = self._flows.get(flow)
            if flow_frames is None:
                start = fate_hash.absorb(fate_hash.flow_key(self._key, *flow), fate_hash.LOSS)
                flow_frames = self._flows[flow] = self._unknown[flow] = FlowFrames(start, self._since)
                if self._base is not None:
                    before, numbers, after = self._base
                    flow_frames.readings.append(Reading(before, numbers.get(flow, 0), after))
            flow_frames.waiting.append(when)
        if self._direction_frames is not None:
            self._direction_frames.waiting.append(when)

    def _restart(self, now: int) -> None:
        """Handle the replacement of the classifier by an equal one, which counts from 1. It is unknown which of the frames
        until `now` the new classifier has decided."""
        for flow, flow_frames in self._all_frames():
            flow_frames.restart(now)
            self._unknown[flow] = flow_frames
        self._base, self._since = None, now
        self._state_reading, self._last_step = None, 0
        if self._gemodel is not None:
            self._gemodel = GilbertElliott(self.losses.gemodel, self._key)

    def _find_numbers(self, until: int) -> None:
        for flow, flow_frames in list(self._unknown.items()):
            reading = flow_frames.find_offset(until)
            if reading is not None:
                del self._unknown[flow]
                if flow is None:
                    self._state_reading = reading

    def _take(self, frame: bytes, until: int) -> tuple[int | None, int | None]:
        """Remove the next frame; return its numbers in its flow and in the direction, None if unknown or not needed."""
        self._find_numbers(until)
        return (
            self._flows[_flows.of(frame)[0]].take() if self._loss else None,
            self._direction_frames.take() if self._direction_frames is not None else None,
        )

    def _decide(self, frame: bytes, in_flow: int | None, in_direction: int | None) -> tuple[str, str]:
        """Reconstruct the fate of a frame by its numbers in its flow and in the direction."""
        is_unknown = (in_flow is None and self._loss > 0) or (
            in_direction is None and self._direction_frames is not None
        )
        losses: list[tuple[str, str]] = []
        if in_flow is not None and in_flow > 0:
            flow = _flows.of(frame)[0]
            if fate_hash.draw(self._flows[flow].start, in_flow) >> 11 < self._loss:
                losses.append((fates.LOSS, f"frame {in_flow} of flow {flow}"))
        if in_direction is not None and in_direction > 0:
            if self._gemodel is not None:
                is_lost = self._gemodel_loses(self._gemodel, in_direction)
                is_unknown |= is_lost is None
                if is_lost:
                    losses.append((fates.GEMODEL, f"frame {in_direction} of the direction"))
            if self._pattern is not None and self._pattern.loses(in_direction):
                losses.append((fates.PATTERN, f"frame {in_direction} of the direction"))
        if losses:
            cause, frame_number = losses[0]
            return cause, f"dropped by {cause}, {frame_number}"
        self.undecided += is_unknown
        return "", ""

    def _gemodel_loses(self, gemodel: GilbertElliott, number: int) -> bool | None:
        """Whether Gilbert-Elliott loses frame `number`; None if its state is unknown. Numbers must increase."""
        if number > self._last_step + MAX_STEPS and self._state_reading is not None:
            if number <= self._state_reading.number:
                return None
            gemodel.set_state(is_bad=self._state_reading.bad)
            self._last_step = self._state_reading.number
        if number <= self._last_step:
            return None
        lost = False
        while self._last_step < number:
            self._last_step += 1
            lost = gemodel.step(self._last_step)
        return lost
