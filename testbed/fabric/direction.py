"""One direction of a link: a stage that decides the fates of its frames, in front of the line that carries them.

A frame that passes goes straight on the line. The line carries corrupt frames and copies as any other; a copy follows its
original at once. A dropped frame takes no time of the line. A full queue drops frames after their fate was decided; these
drops are counted, not logged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protocols.core.compiled_build import mypyc_attr
from testbed.errors import DescriptionError, Problem
from testbed.fabric.line import Delivery, Line, Shape
from testbed.fates.fate_counters import Counters, Outcome
from testbed.fates.stage import FateOptions, FateStage, Verdict
from testbed.spec.contradictions import contradictions
from testbed.spec.layout import DirectionName, Impairment

__all__ = ["Delivery", "LinkDirection", "Outcome"]

_ACCEPTED: Final = Outcome.ACCEPTED


@mypyc_attr(allow_interpreted_subclasses=True)
class LinkDirection:
    """One direction of a link: offer frames, poll when `deadline` says so, change the impairment at any time.

    Times in nanoseconds never go backwards. fates: the stage. line: behind it. counters: frames by result.
    """

    __slots__ = ("_beyond", "_link", "_name", "counters", "fates", "line")

    def __init__(
        self,
        link: str,
        direction: DirectionName,
        impairment: Impairment,
        options: FateOptions,
    ) -> None:
        """Compose a stage and a line.

        Raises DescriptionError for contradictions, BrokenFileError for a broken file, RuleError for a broken rule.
        """
        self._link = link
        self._name = direction
        self._beyond = 0  # segments under way in GSO frames, but for one of each
        self.counters: Final = Counters()
        check(link, direction, impairment)
        shape = Shape.of(impairment, options.files)
        self.fates: Final = FateStage(link, direction, impairment, options)
        self.line: Final = Line(options.now)
        self.line.change(options.now, shape, self.fates.spread)

    @property
    def deadline(self) -> int | None:
        """When `poll` has something to do, or None."""
        return self.line.deadline

    @property
    def impairment(self) -> Impairment:
        return self.fates.impairment

    @property
    def held(self) -> int:
        """Frames in the queue, on the line and under way."""
        return self.line.held + self._beyond

    @property
    def queue(self) -> tuple[int, int]:
        """The queue's limits: bytes, frames; 0 for the one that does not apply."""
        return self.line.queue

    def queued(self, now: int) -> tuple[int, int]:
        """Return the bytes and frames that wait to be sent."""
        return self.line.queued(now)

    def idle_rules(self) -> list[str]:
        """Return a sentence for each of the impairment's own rules that has never decided anything."""
        return self.fates.idle_rules()

    def change(
        self,
        now: int,
        impairment: Impairment,
        files: Mapping[str, str] | None = None,
        restart: bool | None = None,
    ) -> None:
        """Set another impairment for frames offered from now on. restart: as for `FateStage.change`. Raises what the
        constructor does, and then nothing has changed."""
        check(self._link, self._name, impairment)
        shape = Shape.of(impairment, files or {})
        self.fates.change(now, impairment, files, restart)
        self.line.change(now, shape, self.fates.spread)

    def offer(self, now: int, frame: bytes) -> Outcome:
        """Offer a frame: the bytes from its destination on, without a frame check sequence."""
        counters, fates = self.counters, self.fates
        counters.offered += 1
        verdict = fates.decide(now, frame)
        if verdict is not None:
            return self._carry_out(now, verdict)
        if self.line.put(now, frame):
            return _ACCEPTED
        counters.queue += 1
        return Outcome.QUEUE

    def _carry_out(self, now: int, verdict: Verdict) -> Outcome:
        """Carry out a verdict."""
        outcome, frame, spread, late, copy, skip, flipped = verdict
        counters, line = self.counters, self.line
        if outcome is not _ACCEPTED:
            counters.drop(outcome)
            return outcome
        counters.corrupted += flipped
        counters.delayed += late > 0
        if spread < 0:  # jitter takes no more than the delay
            spread = max(spread, -line.delay)
        if copy or skip or late:
            taken = line.put_any(now, frame, spread, skip=skip, late=late)
        else:
            taken = line.put(now, frame, spread)
        if not taken:
            counters.queue += 1
            return Outcome.QUEUE
        counters.reordered += skip
        if copy:
            counters.duplicated += 1
            counters.queue += not line.put_any(now, frame, spread, skip=skip, late=late)
        return _ACCEPTED

    def poll(self, now: int) -> list[Delivery]:
        """Return the frames that are due by now, in the order in which they arrive."""
        out = self.line.poll(now)
        if out:
            size = 0
            for delivery in out:
                size += len(delivery[1])
            counters = self.counters
            counters.delivered += len(out)
            counters.delivered_bytes += size
        return out

    # GSO frames, as a sender's offloads leave them.

    @property
    def carries_gso(self) -> bool:
        """Whether a GSO frame may stay one, until the next `change` or rule: frames that are offered together leave
        together, and all of them pass."""
        return self.fates.is_uneventful and self.line.is_instant

    def offer_gso(self, now: int, frame: bytes, frames: int) -> None:
        """Put a GSO frame of two or more frames of one flow on the line, which carries it unchanged; only where
        `carries_gso`. Its frames count one by one; call `count_gso` when it has come out."""
        self.fates.count(frame, frames)
        self.counters.offered += frames
        self._beyond += frames - 1
        self.line.put(now, frame)

    def count_gso(self, frames: int, octets: int) -> None:
        """Count a GSO frame that `poll` has returned. frames: how many it is on a wire. octets: bytes that they have more
        than it."""
        self.counters.delivered += frames - 1
        self.counters.delivered_bytes += octets
        self._beyond -= frames - 1


def check(link: str, direction: str, impairment: Impairment) -> None:
    """Check an impairment. Raises DescriptionError for one that contradicts itself or is out of range."""
    found = [Problem(key, what, expected) for key, what, expected in contradictions(impairment, is_resolved=True)]
    for key in ("delay", "jitter", "rate", "queue", "queue_frames", "corrupt_bits", "minimum_frame", "cell_size"):
        if getattr(impairment, key) < 0:
            found.append(Problem(key, str(getattr(impairment, key)), "0 or more"))
    for key in ("loss", "corrupt", "duplicate", "reorder"):
        if not 0.0 <= getattr(impairment, key) <= 1.0:
            found.append(Problem(key, str(getattr(impairment, key)), "a probability, 0 to 1"))
    if impairment.gemodel and (
        len(impairment.gemodel) != 4 or not all(0 <= share <= 1 for share in impairment.gemodel)
    ):
        found.append(Problem("gemodel", str(impairment.gemodel), "four probabilities: p, r, 1-h, 1-k"))
    if found:
        raise DescriptionError(f"{link} {direction}", found)
