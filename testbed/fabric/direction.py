"""One direction of a link: a stage that decides the fates of its frames, followed by the line that carries them.

The line carries corrupted frames and copies like any other frame; a copy follows its original immediately. A dropped frame
does not occupy the line. A full queue drops frames whose fate has been decided already; these drops are counted, but not
logged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protocols.core.compiled_build import mypyc_attr
from testbed.errors import DescriptionError, Problem
from testbed.fabric.direction_counters import Counters
from testbed.fabric.event_queue import NEVER
from testbed.fabric.line import FrameInFlight, Line, Shape
from testbed.fates.fate_counters import Outcome
from testbed.fates.stage import FateOptions, FateStage, Verdict
from testbed.spec.contradictions import contradictions
from testbed.spec.layout import DirectionName, Impairment

__all__ = ["Delivery", "LinkDirection", "Outcome"]

Delivery = tuple[int, bytes]
"""Due time of a frame, and the frame."""

_ACCEPTED: Final = Outcome.ACCEPTED


@mypyc_attr(allow_interpreted_subclasses=True)
class LinkDirection:
    """One direction of a link: offer frames, poll at `deadline`, change the impairment at any time.

    Times are nanoseconds and never go backwards. fates: the stage. line: the line after it. counters: counters of frames,
    by outcome.
    """

    __slots__ = ("_extra_segments", "_link", "_name", "counters", "fates", "line")

    def __init__(
        self,
        link: str,
        direction: DirectionName,
        impairment: Impairment,
        options: FateOptions,
    ) -> None:
        """Compose a stage and a line.

        Raises DescriptionError for contradictions, BrokenFileError for an invalid file, RuleError for an invalid rule.
        """
        self._link = link
        self._name = direction
        self._extra_segments = 0  # segments in flight in GSO frames, without the first segment of each
        self.counters: Final = Counters()
        check_impairment(link, direction, impairment)
        shape = Shape.of(impairment, options.files)
        self.fates: Final = FateStage(link, direction, impairment, options)
        self.line: Final = Line(options.now)
        self.line.change(options.now, shape, self.fates.spread)

    @property
    def deadline(self) -> int | None:
        """Time at which to call `poll`, or None."""
        due = self.line.due
        return None if due == NEVER else due

    @property
    def impairment(self) -> Impairment:
        return self.fates.impairment

    @property
    def in_flight(self) -> int:
        """Number of frames in the queue, on the line and in flight."""
        return self.line.in_flight + self._extra_segments

    @property
    def queue(self) -> tuple[int, int]:
        """Limits of the queue: bytes, frames; 0 for the limit that does not apply."""
        return self.line.queue

    def queued(self, now: int) -> tuple[int, int]:
        """Return the bytes and frames that wait to be sent."""
        return self.line.queued(now)

    def change(
        self,
        now: int,
        impairment: Impairment,
        files: Mapping[str, str] | None = None,
        restart: bool | None = None,
    ) -> None:
        """Set another impairment for frames offered from now on. restart: see `FateStage.change`. Raises the constructor's
        errors before anything changes."""
        check_impairment(self._link, self._name, impairment)
        shape = Shape.of(impairment, files or {})
        self.fates.change(now, impairment, files, restart)
        self.line.change(now, shape, self.fates.spread)

    def offer(self, now: int, frame: bytes) -> Outcome:
        """Offer a frame, which begins with its destination address and has no frame check sequence."""
        counters, fates = self.counters, self.fates
        counters.offered += 1
        verdict = None if fates.is_idle else fates.decide(now, frame)
        if verdict is not None:
            return self.apply(now, verdict)
        if self.line.put(now, FrameInFlight(frame)):
            return _ACCEPTED
        counters.queue += 1
        return Outcome.QUEUE

    def apply(self, now: int, verdict: Verdict) -> Outcome:
        """Apply a verdict on an offered frame."""
        outcome, frame, spread, extra_delay, copy, skip, flipped = verdict
        counters = self.counters
        if outcome is not _ACCEPTED:
            counters.drop(outcome)
            return outcome
        counters.corrupted += flipped
        counters.delayed += extra_delay > 0
        if spread < 0:  # the sum of delay and jitter is at least 0
            spread = max(spread, -self.line.delay)
        if not self._put(now, frame, spread, extra_delay, skip):
            counters.queue += 1
            return Outcome.QUEUE
        counters.reordered += skip
        if copy:
            counters.duplicated += 1
            counters.queue += not self._put(now, frame, spread, extra_delay, skip)
        return _ACCEPTED

    def _put(self, now: int, frame: bytes, spread: int, extra_delay: int, skip: bool) -> bool:
        """Put a frame on the line. For arguments and result see `Line.put_out_of_order`."""
        if skip or extra_delay:
            return self.line.put_out_of_order(now, FrameInFlight(frame), spread, extra_delay, skip=skip)
        return self.line.put(now, FrameInFlight(frame), spread)

    def poll(self, now: int) -> list[Delivery]:
        """Return the frames that are due by now, in the order in which they arrive."""
        deliveries = self.line.take_due(now)
        size = 0
        for _, frame in deliveries:
            size += len(frame)
        self.counters.delivered += len(deliveries)
        self.counters.delivered_bytes += size
        return deliveries

    # GSO frames, which a sender's offloads produce

    @property
    def carries_gso(self) -> bool:
        """Whether a GSO frame need not be segmented, since frames that are offered together leave together, and all of them
        pass. Valid until the next `change` or rule."""
        return self.fates.passes_all and self.line.is_instant

    def offer_gso(self, now: int, frame: bytes, segments: int) -> None:
        """Put a GSO frame of two or more segments on the line, unchanged; requires `carries_gso`. The segments are counted
        individually; call `count_gso` when `poll` has returned the frame."""
        self.fates.count(frame, segments)
        self.counters.offered += segments
        self._extra_segments += segments - 1
        self.line.put(now, FrameInFlight(frame))

    def count_gso(self, segments: int, extra_bytes: int) -> None:
        """Count a GSO frame that `poll` has returned. segments: number of its segments. extra_bytes: bytes of the segments
        minus those of the GSO frame."""
        self.counters.delivered += segments - 1
        self.counters.delivered_bytes += extra_bytes
        self._extra_segments -= segments - 1


def check_impairment(link: str, direction: str, impairment: Impairment) -> None:
    """Check an impairment. Raises DescriptionError if it contradicts itself or is out of range."""
    problems = [Problem(key, what, expected) for key, what, expected in contradictions(impairment, is_resolved=True)]
    for key in ("delay", "jitter", "rate", "queue", "queue_frames", "corrupt_bits", "minimum_frame", "cell_size"):
        if getattr(impairment, key) < 0:
            problems.append(Problem(key, str(getattr(impairment, key)), "0 or more"))
    for key in ("loss", "corrupt", "duplicate", "reorder"):
        if not 0.0 <= getattr(impairment, key) <= 1.0:
            problems.append(Problem(key, str(getattr(impairment, key)), "a probability, 0 to 1"))
    if impairment.gemodel and (
        len(impairment.gemodel) != 4 or not all(0 <= share <= 1 for share in impairment.gemodel)
    ):
        problems.append(Problem("gemodel", str(impairment.gemodel), "four probabilities: p, r, 1-h, 1-k"))
    if problems:
        raise DescriptionError(f"{link} {direction}", problems)
