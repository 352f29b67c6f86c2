"""Where captures are: a file, one that grows, standard input, or a run's folder with several, merged by time."""

from __future__ import annotations

import heapq
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from testbed.errors import NotFoundError, TestbedError, reason_of
from testbed.observe.decoding.reading import BrokenCaptureError, CaptureReader, Frame

STANDARD_INPUT: Final = "-"
_PIECE: Final = 1 << 18
_PAUSE: Final = 0.05
"""Seconds between two looks at a file that grows: twenty a second cost a processor next to nothing."""
_AT_ONCE: Final = 512  # frames of several captures that are given together
_SUFFIXES: Final = (".pcapng", ".pcap")


@dataclass(slots=True)
class Source:
    """Captures that are read as one. path: a file, a folder, or "-". broken: what is wrong with captures of which the
    frames before have been given; strange: frames left out, since they are not Ethernet's. nics: by hardware address, the
    names of interfaces that are NICs."""

    path: str
    follow: bool = False
    broken: list[str] = field(default_factory=list)
    strange: int = 0
    nics: dict[bytes, str] = field(default_factory=dict)

    def batches(self) -> Iterator[list[Frame]]:
        """Frames, some at a time, as soon as they are there. Raises NotFoundError, BrokenCaptureError, TestbedError; OSError
        of a file that cannot be opened or read."""
        captures = self._captures()
        if len(captures) == 1:
            yield from self._one(captures[0], "")
            return
        if self.follow:
            raise TestbedError(f"{self.path} has {len(captures)} captures: --follow goes on with one file")
        root = Path(self.path)
        frames = heapq.merge(*(self._frames(path, _label(root, path)) for path in captures), key=lambda one: one.when)
        batch: list[Frame] = []
        for frame in frames:
            batch.append(frame)
            if len(batch) >= _AT_ONCE:
                yield batch
                batch = []
        yield batch
        if self.broken:
            raise BrokenCaptureError("\n".join(self.broken))

    def _captures(self) -> list[Path]:
        path = Path(self.path)
        if self.path == STANDARD_INPUT:
            return [path]
        if not path.exists():
            path.stat()  # a folder that may not be looked into says so
        if not path.is_dir():
            return [path]
        found = sorted(one for one in path.rglob("*") if one.suffix in _SUFFIXES and one.is_file())
        if not found:
            raise NotFoundError(
                f"{path} has no captures: a simulated run has them with --capture, a cluster with 'testbed capture -w'"
            )
        return found

    def _frames(self, path: Path, label: str) -> Iterator[Frame]:
        """Of one of several: what is wrong with one keeps nobody from the others."""
        try:
            for batch in self._one(path, label):
                yield from batch
        except BrokenCaptureError as error:
            self.broken.append(str(error))

    def _one(self, path: Path, label: str) -> Iterator[list[Frame]]:
        standard = str(path) == STANDARD_INPUT
        reader = CaptureReader("standard input" if standard else str(path), label, self.nics)
        descriptor = os.dup(0) if standard else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield from self._pieces(reader, descriptor)
        finally:
            self.strange += reader.strange
            os.close(descriptor)

    def _pieces(self, reader: CaptureReader, descriptor: int) -> Iterator[list[Frame]]:
        grows = self.follow and stat.S_ISREG(os.fstat(descriptor).st_mode)  # a pipe is waited for by the kernel
        read = 0
        while True:
            try:
                piece = os.read(descriptor, _PIECE)
            except OSError as error:
                raise TestbedError(f"{reader.name} cannot be read: {reason_of(error)}") from error
            if piece:
                read += len(piece)
                yield reader.feed(piece)
            elif not grows:
                reader.end()
                return
            elif os.fstat(descriptor).st_size < read:
                raise BrokenCaptureError(
                    f"{reader.name} has become shorter while it was read: somebody has begun it anew"
                )
            else:
                time.sleep(_PAUSE)


def _label(root: Path, path: Path) -> str:
    """What tells a capture from others of its folder."""
    own = path.relative_to(root)
    return str(own.parent) if own.stem == "capture" and own.parent.parts else str(own)
