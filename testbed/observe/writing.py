"""Where captured frames go: a file of pcapng, lines for people, or facts for programs."""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from testbed.observe.joining import Seen
from testbed.observe.naming import named
from testbed.observe.points import Point
from testbed.wire import pcapng

_SECOND: Final = 1_000_000_000


class Sink(Protocol):
    """Who takes frames."""

    def know(self, points: Sequence[Point]) -> None:
        """Frames of these places may come."""

    def take(self, frames: Sequence[Seen]) -> None:
        """The next ones. OSError where they cannot be written; what was written before stays readable."""

    def end(self, begun: int, ended: int, dropped: Mapping[str, int]) -> None:
        """There are no more. begun, ended: wall clock, nanoseconds. dropped: by end, frames that are lacking."""


class CaptureFile:
    """An interface for every end that is heard, all of them in one file in the order of time."""

    def __init__(self, descriptor: int, name: str = "") -> None:
        """name: of the file, for errors; empty where it has none."""
        self._descriptor = descriptor
        self._name = name
        self._whole = 0  # bytes written: where the last block has ended
        self._numbers: dict[tuple[str, str], int] = {}  # by end and link
        self._frames: Counter[int] = Counter()
        self._write([pcapng.section_header("testbed capture")])

    def know(self, points: Sequence[Point]) -> None:
        blocks = []
        for point in points:
            if (str(point.end), point.link) not in self._numbers:
                self._numbers[str(point.end), point.link] = len(self._numbers)
                blocks.append(pcapng.interface(str(point.end), point.link, point.mac))
        if blocks:
            self._write(blocks)

    def take(self, frames: Sequence[Seen]) -> None:
        self.know([seen.point for seen in frames])
        blocks: list[bytes] = []
        for seen in frames:
            number = self._numbers[str(seen.point.end), seen.point.link]
            self._frames[number] += 1
            bound: pcapng.Bound = "outbound" if seen.entering else "inbound"
            before, after = pcapng.around(number, seen.when, len(seen.frame), bound, seen.met)
            blocks += (before, seen.frame, after)
        if blocks:
            self._write(blocks)

    def end(self, begun: int, ended: int, dropped: Mapping[str, int]) -> None:
        blocks = []
        for (end, _), number in self._numbers.items():
            lacking = dropped.get(end, 0)
            blocks.append(pcapng.statistics(number, begun, ended, self._frames[number] + lacking, lacking))
        self._write(blocks)

    def _write(self, blocks: Sequence[bytes]) -> None:
        """All of them; where that cannot be, a file ends with the last whole write."""
        data = memoryview(b"".join(blocks))
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
        except OSError as error:
            if stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                os.ftruncate(self._descriptor, self._whole)
            raise OSError(error.errno, error.strerror, self._name) from error
        self._whole += written


class Lines:
    """A line for every frame."""

    def __init__(self, say: Callable[[str], object]) -> None:
        """say: is given lines, without their ends."""
        self._say = say
        self._width = 0

    def know(self, points: Sequence[Point]) -> None:
        self._width = max([self._width, *(len(str(point.end)) for point in points)])

    def take(self, frames: Sequence[Seen]) -> None:
        for seen in frames:
            seconds, rest = divmod(seen.when, _SECOND)
            clock = time.strftime("%H:%M:%S", time.localtime(seconds))
            met = f"  [{seen.met}]" if seen.met else ""
            way = ">" if seen.entering else "<"
            self._say(f"{clock}.{rest:09} {seen.point.end!s:{self._width}} {way} {named(seen.frame)}{met}")

    def end(self, begun: int, ended: int, dropped: Mapping[str, int]) -> None:
        """What is lacking is told with the sum."""


class Facts:
    """What is known of every frame but its content, which a file has."""

    def __init__(self, say: Callable[[Mapping[str, object]], object]) -> None:
        """say: is given each frame's."""
        self._say = say

    def know(self, points: Sequence[Point]) -> None:
        """They are told with each frame."""

    def take(self, frames: Sequence[Seen]) -> None:
        for seen in frames:
            point = seen.point
            self._say(
                {
                    "time": seen.when,
                    "link": point.link,
                    "end": str(point.end),
                    "way": "out" if seen.entering else "in",
                    "bytes": len(seen.frame),
                    "what": named(seen.frame),
                    "causes": list(seen.causes),
                    "met": seen.met,
                }
            )

    def end(self, begun: int, ended: int, dropped: Mapping[str, int]) -> None:
        """What is lacking is told with the sum."""
