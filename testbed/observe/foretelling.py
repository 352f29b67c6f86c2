"""Which frames a loss classifier in the kernel loses, computed: it tells nobody, but decides as `testbed.wire` does.

A fate follows from a frame's number among its flow's or its direction's, and the classifier's maps say how many frames
there have been. So the number of one frame has to be found; from there on frames are counted as they pass. A count is
read between two looks at the clock: where no frame passed just then, it is that of the frame before. Where frames pass
all the time, two such readings must agree.

Where Gilbert-Elliott has run for long when a capture begins, its state is read with the count, and frames before that
reading remain undecided; there are none unless the link was busy just then.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from testbed.fields import known_fields
from testbed.spec.layout import Impairment
from testbed.wire import fates, hashing
from testbed.wire.flows import Classifier, Flow
from testbed.wire.losses import GilbertElliott, Pattern

QUIET: Final = 1_000_000
"""Nanoseconds before a reading without a frame of the flow: then no frame is on its way between our ear and the map."""

_CLOSE: Final = 20_000  # the same, where a second reading must agree
_READINGS: Final = 50  # that are kept of a flow whose numbers they have not told
_FEW: Final = 50_000  # steps of Gilbert-Elliott that take no noticeable time
_flows: Final = Classifier(known_fields())


class Counted(Protocol):
    """What is asked of a `kernel.loss_classifier.Classifier`."""

    def count(self, flow: Flow) -> int: ...

    def state(self) -> int: ...

    def flows(self) -> Mapping[Flow, int]: ...


@dataclass(frozen=True, slots=True)
class Reading:
    """number: how many frames there had been at some time from `before` to `after`. bad: Gilbert-Elliott's state."""

    before: int
    number: int
    after: int
    bad: bool = False


@dataclass(slots=True)
class Counting:
    """Frames of a flow, in the order in which they were heard.

    passed: of how many the fate has been asked for. waiting: when the others were heard. first: the number of the first
    frame ever heard, once it is known; below 1 if it came before the classifier. start: where the flow's draws begin.
    """

    start: int
    passed: int = 0
    waiting: deque[int] = field(default_factory=deque)
    first: int | None = None
    readings: list[Reading] = field(default_factory=list)

    def learn(self, until: int) -> Reading | None:
        """The reading that has told the numbers. until: all frames that passed before have been heard."""
        guess: int | None = None
        for reading in self.readings:
            if reading.after > until:
                break
            heard, last = self.passed, 0
            for when in self.waiting:
                if when > reading.after:
                    break
                heard, last = heard + 1, when
            if last > reading.before - _CLOSE:
                continue
            first = reading.number - heard + 1
            if first == guess or last < reading.before - QUIET:
                self.first = first
                self.readings = []
                return reading
            guess = first
        return None


class Foretelling:
    """One direction with a classifier. undecided: frames of which nothing could be said."""

    def __init__(
        self, link: str, direction: str, seed: int, impairment: Impairment, before: Foretelling | None = None
    ) -> None:
        """before: of the classifier whose place this one takes."""
        self.undecided = 0
        self.losses: Final = impairment
        self._before = before
        if before is not None:
            before._before = None
        self._key = hashing.direction_key(seed, link, direction)
        self._loss = hashing.threshold(impairment.loss)
        self._gemodel = GilbertElliott(impairment.gemodel, self._key) if impairment.gemodel else None
        self._pattern = Pattern(impairment.loss_pattern) if impairment.loss_pattern else None
        self._stepped = 0  # what Gilbert-Elliott has decided, up to that frame
        self._flows: dict[Flow, Counting] = {}
        self._all = Counting(0)
        self._unknown: dict[Flow | None, Counting] = {}
        self._base: tuple[int, Mapping[Flow, int], int] | None = None  # all flows, as in a reading
        if self._gemodel or self._pattern:
            self._unknown[None] = self._all

    def hear(self, when: int, frame: bytes) -> None:
        """A frame enters the direction."""
        if self._loss:
            flow = _flows.of(frame)[0]
            counting = self._flows.get(flow)
            if counting is None:
                start = hashing.absorb(hashing.flow_key(self._key, *flow), hashing.LOSS)
                counting = self._flows[flow] = self._unknown[flow] = Counting(start)
                if self._base is not None:
                    before, numbers, after = self._base
                    counting.readings.append(Reading(before, numbers.get(flow, 0), after))
            counting.waiting.append(when)
        self._all.waiting.append(when)
        if self._before is not None:
            self._before.hear(when, frame)

    def forget(self) -> None:
        """Frames have not been heard: the numbers are to be found again."""
        self._base = None
        for flow, counting in self._flows.items():
            counting.first, counting.readings = None, []
            self._unknown[flow] = counting
        if self._gemodel or self._pattern:
            self._all.first, self._all.readings = None, []
            self._unknown[None] = self._all

    @property
    def wants(self) -> bool:
        """Whether a reading would help."""
        return bool(self._unknown) or (self._base is None and self._loss > 0)

    def read(self, classifier: Counted, clock: Callable[[], int] = time.time_ns) -> None:
        """Read what is not known yet. clock: the one that frames are stamped by."""
        if self._base is None and self._loss:
            # Flows of which nothing is heard until a classifier is taken off again cannot be read any more.
            self._base = clock(), classifier.flows(), clock()
        for flow, counting in self._unknown.items():
            before, bad = clock(), False
            if flow is not None:
                number = classifier.count(flow)
            else:
                number = classifier.state()
                if self._gemodel is not None:
                    number, bad = number >> 1, bool(number & 1)
            counting.readings.append(Reading(before, number, clock(), bad))
            del counting.readings[:-_READINGS]

    def decide(self, frame: bytes, until: int) -> tuple[str, str]:
        """What the next frame meets: cause, and in words; empty for nothing.

        Frames must come in the order in which they were heard. until: all frames that passed before have been heard.
        """
        found: list[tuple[str, str]] = []
        numbers: list[int] = []
        self._learn(until)
        if self._loss:
            flow = _flows.of(frame)[0]
            counting = self._flows[flow]
            n = self._next(counting, numbers)
            if n > 0 and hashing.draw(counting.start, n) >> 11 < self._loss:
                found.append((fates.LOSS, f"frame {n} of flow {flow}"))
        n = self._next(self._all, numbers if self._gemodel or self._pattern else [])
        if self._gemodel is not None and self._steps_to(n):
            found.append((fates.GEMODEL, f"frame {n} of the direction"))
        if self._pattern is not None and n > 0 and self._pattern.loses(n):
            found.append((fates.PATTERN, f"frame {n} of the direction"))
        if self._before is not None and numbers and max(numbers) <= 0:
            return self._before.decide(frame, until)
        if not found:
            return "", ""
        cause, which = found[0]
        return cause, f"dropped by {cause}, {which}"

    def _learn(self, until: int) -> None:
        for flow, counting in list(self._unknown.items()):
            reading = counting.learn(until)
            if reading is not None:
                del self._unknown[flow]
                if flow is None and self._gemodel is not None and reading.number > _FEW:
                    self._gemodel.stand(bad=reading.bad)
                    self._stepped = reading.number

    def _next(self, counting: Counting, numbers: list[int]) -> int:
        """The number of the next frame; 0 if it is not known or none."""
        counting.waiting.popleft()
        counting.passed += 1
        if counting.first is None:
            if counting is not self._all or self._gemodel or self._pattern:
                self.undecided += 1
            return 0
        n = counting.first + counting.passed - 1
        numbers.append(n)
        return n

    def _steps_to(self, n: int) -> bool:
        """Whether Gilbert-Elliott loses that frame. It is asked for frames in order, but for those before a reading."""
        gone = False
        if self._gemodel is not None:
            while self._stepped < n:
                self._stepped += 1
                gone = self._gemodel.step(self._stepped)
        return gone
