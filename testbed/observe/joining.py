"""Frames of several interfaces in the order of time, each with what it met on its way.

Frames come from rings, block by block; what they met comes from the relay, by another way, earlier or later. So frames
are held back for a moment, and then given out in order, with what has been told of them until then. A frame is recognised
by the kernel's stamp, which is the same for the relay and for us, and by its content. The relay's idea of the stamp may be
off by the time between two readings of clocks, or be a neighbour's where two processors stamp frames: then the nearest
frame of the same content is meant, in the same direction, that has met nothing yet.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final
from zlib import crc32

from testbed.kernel.rings import Passed
from testbed.observe.foretelling import Foretelling
from testbed.observe.points import Point
from testbed.runtime.watching import Met

NEAR: Final = 1_000_000
"""Nanoseconds by which a stamp that the relay tells may differ from the frame's."""

_WHEN: Final = attrgetter("when")


def _at(point: Point) -> tuple[str, str]:
    return point.link, point.direction


@dataclass(slots=True)
class Seen:
    """A frame at a place. when: wall clock, nanoseconds. entering: it enters the link there, else it leaves it. met: what
    it met, and who decided that; nothing for most. foretelling: who may know that, if nobody tells."""

    when: int
    point: Point
    entering: bool
    frame: bytes
    met: str = ""
    causes: tuple[str, ...] = ()
    foretelling: Foretelling | None = None


class Joining:
    """unplaced: frames that met something and that we have not heard, or no more when we were told of it. late: frames that
    came when later ones had been given out."""

    def __init__(self, begun: int) -> None:
        """begun: frames until that time are nobody's business."""
        self.unplaced = 0
        self.late = 0
        self._begun = begun
        self._released = begun  # frames until then have been given out
        self._seen: list[Seen] = []
        self._met: list[Met] = []
        self._entering: dict[tuple[str, str], dict[int, list[Seen]]] = {}  # by link and direction, then by stamp

    def hear(self, point: Point, frames: Iterable[Passed], foretelling: Foretelling | None = None) -> None:
        """Frames that have passed there. foretelling: of the direction that begins there."""
        begun, released, mirrored, seen = self._begun, self._released, point.mirrored, self._seen
        entered = self._entering.setdefault((point.link, point.direction), {}) if point.datapath == "relay" else None
        for when, left, frame in frames:
            if when <= released:
                if when <= begun:
                    continue
                self.late += 1
            entering = left is not mirrored
            one = Seen(when, point, entering, frame)
            seen.append(one)
            if not entering:
                continue
            if entered is not None:
                entered.setdefault(when, []).append(one)
            elif foretelling is not None:
                one.foretelling = foretelling
                foretelling.hear(when, frame)

    def foretell(self, point: Point, foretelling: Foretelling, since: int) -> None:
        """Frames of that place from that time on, which have been heard already, may have met a classifier of which we have
        learned only now."""
        late = [
            seen
            for seen in self._seen
            if seen.when >= since and seen.entering and seen.foretelling is None and _at(seen.point) == _at(point)
        ]
        for seen in sorted(late, key=_WHEN):
            seen.foretelling = foretelling
            foretelling.hear(seen.when, seen.frame)

    def tell(self, met: Iterable[Met]) -> None:
        """What frames have met that have come, or are still to come."""
        self._met += met

    def ready(self, until: int, heard: int = 0) -> list[Seen]:
        """The frames until that time that have not been given out yet. heard: until when all frames have been heard, if that
        is later."""
        if self._met:
            self._place(until)
        self._seen.sort(key=_WHEN)  # nearly sorted already
        count = bisect_right(self._seen, until, key=_WHEN)
        given, self._seen = self._seen[:count], self._seen[count:]
        for entered in self._entering.values():
            for stamp in [stamp for stamp in entered if stamp <= until]:
                del entered[stamp]
        self._released = until
        for one in given:
            if one.foretelling is not None:
                cause, one.met = one.foretelling.decide(one.frame, max(until, heard))
                one.causes = (cause,) if cause else ()
        return given

    def _place(self, until: int) -> None:
        """Put what is known of frames until then beside them."""
        later: list[Met] = []
        stamps = {place: sorted(entered) for place, entered in self._entering.items()}
        for met in self._met:
            if met.stamp > until + NEAR:
                later.append(met)
                continue
            place = met.link, met.direction
            seen = self._find(met, self._entering.get(place, {}), stamps.get(place, []))
            if seen is not None:
                seen.met, seen.causes = met.words, met.causes
            elif met.stamp > until:
                later.append(met)
            elif met.stamp > self._begun:
                self.unplaced += 1
        self._met = later

    def _find(self, met: Met, entered: Mapping[int, list[Seen]], stamps: list[int]) -> Seen | None:
        """stamps: of all that entered, in order."""
        exact = _alike(met, entered.get(met.stamp, ()))
        if exact is not None:
            return exact
        near = stamps[bisect_left(stamps, met.stamp - NEAR) : bisect_right(stamps, met.stamp + NEAR)]
        for stamp in sorted(near, key=lambda stamp: abs(stamp - met.stamp)):
            found = _alike(met, entered[stamp])
            if found is not None:
                return found
        return None


def _alike(met: Met, frames: Iterable[Seen]) -> Seen | None:
    """The first frame of that content that has met nothing yet."""
    for seen in frames:
        if not seen.met and crc32(seen.frame) == met.check:
            return seen
    return None
