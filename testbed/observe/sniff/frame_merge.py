"""Merge of the frames of several interfaces into one stream ordered by time, each frame with its fate.

Frames come from the rings in blocks; the relay reports their fates, earlier or later. So frames are delayed and then
released in order, with the fates reported so far. A fate is matched to its frame by the kernel's timestamp, which the relay
and the capture have in common, and by the frame's content. The timestamp that the relay reports may be wrong by the time
between two clock readings, or be that of a neighbouring frame if two processors stamp frames. The match is then the nearest
frame with that content and direction that has no fate yet.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final
from zlib import crc32

from testbed.kernel.tpacket import TappedFrame
from testbed.observe.sniff.fate_reconstruction import FateReconstruction
from testbed.observe.sniff.points import Point
from testbed.runtime.relay.relay_watch import FrameFates

MAX_STAMP_DIFFERENCE: Final = 1_000_000
"""Maximum difference in nanoseconds between the timestamp that the relay reports and that of the frame."""

_by_time: Final = attrgetter("when")


def _direction_of(point: Point) -> tuple[str, str]:
    return point.link, point.direction


@dataclass(slots=True)
class CapturedFrame:
    """A frame captured at a point. when: wall-clock time, ns. entering: whether the frame enters the link at the point;
    otherwise it leaves the link there. fate: the frame's fate as text; empty if it passed. causes: causes of that fate.
    reconstruction: reconstructs the fate, if the relay does not report it."""

    when: int
    point: Point
    entering: bool
    frame: bytes
    fate: str = ""
    causes: tuple[str, ...] = ()
    reconstruction: FateReconstruction | None = None


class FrameMerge:
    """Buffer of frames that wait for their fates. unplaced: number of fates whose frame was not captured, or was already
    released. late: number of frames that arrived after later frames had been released."""

    def __init__(self, started: int) -> None:
        """started: wall-clock time, ns. Earlier frames are not released, but counted for the reconstruction of later
        fates."""
        self.unplaced = 0
        self.late = 0
        self._start_time = started
        self._released = started  # frames until then have been released
        self._frames: list[CapturedFrame] = []
        self._fates: list[FrameFates] = []
        # By link and direction, then by stamp.
        self._entering: dict[tuple[str, str], dict[int, list[CapturedFrame]]] = {}

    def add(
        self, point: Point, frames: Iterable[TappedFrame], reconstruction: FateReconstruction | None = None
    ) -> None:
        """Add frames captured at a point. reconstruction: that of the direction that enters at the point."""
        started, released, mirrored, waiting = self._start_time, self._released, point.mirrored, self._frames
        entered = self._entering.setdefault((point.link, point.direction), {}) if point.datapath == "relay" else None
        for when, left, frame in frames:
            if when <= released:
                if when > started:
                    self.late += 1
                elif reconstruction is None or left is mirrored:
                    continue
            entering = left is not mirrored
            captured = CapturedFrame(when, point, entering, frame)
            waiting.append(captured)
            if not entering:
                continue
            if entered is not None:
                entered.setdefault(when, []).append(captured)
            elif reconstruction is not None:
                captured.reconstruction = reconstruction
                reconstruction.add(when, frame)

    def reconstruct(self, point: Point, reconstruction: FateReconstruction, since: int) -> None:
        """Apply a reconstruction to the waiting frames that were captured at the point after `since`, before their
        classifier was known: frames without a reconstruction, or with the previous one."""
        affected = [
            captured
            for captured in self._frames
            if captured.when > since
            and captured.entering
            and (captured.reconstruction is None or captured.reconstruction is reconstruction.previous)
            and _direction_of(captured.point) == _direction_of(point)
        ]
        for captured in sorted(affected, key=_by_time):
            if captured.reconstruction is None:
                reconstruction.add(captured.when, captured.frame)
            else:
                reconstruction.take_over(captured.when, captured.frame)
            captured.reconstruction = reconstruction

    def add_fates(self, fates: Iterable[FrameFates]) -> None:
        """Add fates reported by the relay; their frames may be added later."""
        self._fates += fates

    def release(self, until: int, captured_until: int = 0) -> list[CapturedFrame]:
        """Remove and return the frames with timestamps up to `until`, in order. captured_until: time until which all frames
        have been captured, if that is later."""
        if self._fates:
            self._match_fates(until)
        self._frames.sort(key=_by_time)  # nearly sorted already
        count = bisect_right(self._frames, until, key=_by_time)
        released, self._frames = self._frames[:count], self._frames[count:]
        for entered in self._entering.values():
            for stamp in [stamp for stamp in entered if stamp <= until]:
                del entered[stamp]
        self._released = until
        ignored = bisect_right(released, self._start_time, key=_by_time)
        for frame in released[:ignored]:
            if frame.reconstruction is not None:
                frame.reconstruction.skip(frame.frame, max(until, captured_until))
        released = released[ignored:]
        for frame in released:
            if frame.reconstruction is not None:
                cause, frame.fate = frame.reconstruction.decide(frame.frame, max(until, captured_until))
                frame.causes = (cause,) if cause else ()
        return released

    def _match_fates(self, until: int) -> None:
        """Match the reported fates to the frames with timestamps up to `until`."""
        later: list[FrameFates] = []
        stamps = {key: sorted(entered) for key, entered in self._entering.items()}
        for fate in self._fates:
            if fate.stamp > until + MAX_STAMP_DIFFERENCE:
                later.append(fate)
                continue
            key = fate.link, fate.direction
            captured = self._frame_of(fate, self._entering.get(key, {}), stamps.get(key, []))
            if captured is not None:
                captured.fate, captured.causes = fate.text, fate.causes
            elif fate.stamp > until:
                later.append(fate)
            elif fate.stamp > self._start_time:
                self.unplaced += 1
        self._fates = later

    def _frame_of(
        self, fate: FrameFates, entered: Mapping[int, list[CapturedFrame]], stamps: list[int]
    ) -> CapturedFrame | None:
        """Find the frame of a fate. stamps: sorted timestamps of all frames that entered the direction."""
        exact = _first_without_fate(fate, entered.get(fate.stamp, ()))
        if exact is not None:
            return exact
        near = stamps[
            bisect_left(stamps, fate.stamp - MAX_STAMP_DIFFERENCE) : bisect_right(
                stamps, fate.stamp + MAX_STAMP_DIFFERENCE
            )
        ]
        for stamp in sorted(near, key=lambda stamp: abs(stamp - fate.stamp)):
            frame = _first_without_fate(fate, entered[stamp])
            if frame is not None:
                return frame
        return None


def _first_without_fate(fate: FrameFates, frames: Iterable[CapturedFrame]) -> CapturedFrame | None:
    """Return the first frame with the fate's content that has no fate yet."""
    return next((captured for captured in frames if not captured.fate and crc32(captured.frame) == fate.crc), None)
