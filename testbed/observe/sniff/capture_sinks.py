"""Sinks for captured frames: a pcapng file, text lines for people, or JSON objects for programs."""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from testbed.fabric import pcapng
from testbed.observe.format.frame_labels import label
from testbed.observe.sniff.frame_merge import CapturedFrame
from testbed.observe.sniff.points import Point

_SECOND: Final = 1_000_000_000


class Sink(Protocol):
    """Consumer of captured frames."""

    def announce(self, points: Sequence[Point]) -> None:
        """Announce capture points whose frames may follow."""

    def take(self, frames: Sequence[CapturedFrame]) -> None:
        """Consume the next frames. Raises OSError if they cannot be written; frames written earlier stay readable."""

    def end(self, started: int, ended: int, dropped: Mapping[str, int]) -> None:
        """Finish the capture. started, ended: wall-clock times, ns. dropped: number of frames missing from the capture, by
        end of a link."""


class CaptureFile:
    """A pcapng file with an interface for each captured end of a link, and all frames in order of time."""

    def __init__(self, descriptor: int, name: str = "") -> None:
        """descriptor: of the file. name: name of the file, for error messages; may be empty."""
        self._descriptor = descriptor
        self._name = name
        self._written = 0  # bytes of complete writes
        self._numbers: dict[tuple[str, str], int] = {}  # numbers of interfaces, by end and link
        self._frames: Counter[int] = Counter()  # number of frames, by number of the interface
        self._write([pcapng.section_header("testbed capture")])

    def announce(self, points: Sequence[Point]) -> None:
        blocks = []
        for point in points:
            if (str(point.end), point.link) not in self._numbers:
                self._numbers[str(point.end), point.link] = len(self._numbers)
                blocks.append(pcapng.interface(str(point.end), point.link, point.mac))
        if blocks:
            self._write(blocks)

    def take(self, frames: Sequence[CapturedFrame]) -> None:
        self.announce([captured.point for captured in frames])
        blocks: list[bytes] = []
        for captured in frames:
            number = self._numbers[str(captured.point.end), captured.point.link]
            self._frames[number] += 1
            bound: pcapng.Bound = "outbound" if captured.entering else "inbound"
            header, trailer = pcapng.enclose(number, captured.when, len(captured.frame), bound, captured.fate)
            blocks += (header, captured.frame, trailer)
        if blocks:
            self._write(blocks)

    def end(self, started: int, ended: int, dropped: Mapping[str, int]) -> None:
        blocks = []
        for (end, _), number in self._numbers.items():
            missing = dropped.get(end, 0)
            blocks.append(pcapng.statistics(number, started, ended, self._frames[number] + missing, missing))
        self._write(blocks)

    def _write(self, blocks: Sequence[bytes]) -> None:
        """Write all blocks; on an error a regular file is truncated to its last complete write."""
        data = memoryview(b"".join(blocks))
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
        except OSError as error:
            if stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                os.ftruncate(self._descriptor, self._written)
            raise OSError(error.errno, error.strerror, self._name) from error
        self._written += written


class LineSink:
    """Text output, one line for each frame."""

    def __init__(self, print_line: Callable[[str], object]) -> None:
        """print_line: called with each line, without a line end."""
        self._print = print_line
        self._width = 0

    def announce(self, points: Sequence[Point]) -> None:
        self._width = max([self._width, *(len(str(point.end)) for point in points)])

    def take(self, frames: Sequence[CapturedFrame]) -> None:
        for captured in frames:
            seconds, rest = divmod(captured.when, _SECOND)
            clock = time.strftime("%H:%M:%S", time.localtime(seconds))
            fate = f"  [{captured.fate}]" if captured.fate else ""
            way = ">" if captured.entering else "<"
            self._print(f"{clock}.{rest:09} {captured.point.end!s:{self._width}} {way} {label(captured.frame)}{fate}")

    def end(self, started: int, ended: int, dropped: Mapping[str, int]) -> None:
        """Do nothing: the summary reports missing frames."""


class JsonSink:
    """JSON output: a frame's data without its bytes."""

    def __init__(self, print_line: Callable[[Mapping[str, object]], object]) -> None:
        """print_line: called with each frame's data."""
        self._print = print_line

    def announce(self, points: Sequence[Point]) -> None:
        """Do nothing: the point is part of each frame."""

    def take(self, frames: Sequence[CapturedFrame]) -> None:
        for captured in frames:
            point = captured.point
            self._print(
                {
                    "time": captured.when,
                    "link": point.link,
                    "end": str(point.end),
                    "way": "out" if captured.entering else "in",
                    "bytes": len(captured.frame),
                    "what": label(captured.frame),
                    "causes": list(captured.causes),
                    "fate": captured.fate,
                }
            )

    def end(self, started: int, ended: int, dropped: Mapping[str, int]) -> None:
        """Do nothing: the summary reports missing frames."""
