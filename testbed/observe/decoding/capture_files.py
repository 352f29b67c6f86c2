"""Frames of one or several captures: of a file, which may grow, of standard input, or of all captures in a folder, merged
by time."""

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
from testbed.observe.decoding.capture_reader import BrokenCaptureError, CaptureReader, Frame

STANDARD_INPUT: Final = "-"
_CHUNK_BYTES: Final = 1 << 18
_POLL_INTERVAL: Final = 0.05
"""Interval in seconds at which a growing file is polled."""
_BATCH_FRAMES: Final = 512  # frames of several captures per batch
_SUFFIXES: Final = (".pcapng", ".pcap")


@dataclass(slots=True)
class CaptureSource:
    """Captures read as one stream. path: a file, a folder, or "-" for standard input. follow: wait for more frames at the
    end of a file. broken: an error message for each damaged capture of a folder, whose frames before the damage were read.
    skipped: number of frames left out because they are not Ethernet frames. nics: names of NIC interfaces by hardware
    address."""

    path: str
    follow: bool = False
    broken: list[str] = field(default_factory=list)
    skipped: int = 0
    nics: dict[bytes, str] = field(default_factory=dict)

    def batches(self) -> Iterator[list[Frame]]:
        """Yield frames in batches, as soon as they are available; a batch may be empty. Raises NotFoundError,
        BrokenCaptureError; TestbedError for `follow` with several captures or a failed read; OSError if a file cannot be
        opened."""
        captures = self._captures()
        if len(captures) == 1:
            yield from self._read(captures[0], "")
            return
        if self.follow:
            raise TestbedError(f"{self.path} has {len(captures)} captures: --follow needs a single file")
        root = Path(self.path)
        frames = heapq.merge(
            *(self._frames(path, _label(root, path)) for path in captures), key=lambda frame: frame.when
        )
        batch: list[Frame] = []
        for frame in frames:
            batch.append(frame)
            if len(batch) >= _BATCH_FRAMES:
                yield batch
                batch = []
        yield batch
        if self.broken:
            raise BrokenCaptureError("\n".join(self.broken))

    def _captures(self) -> list[Path]:
        path = Path(self.path)
        if self.path == STANDARD_INPUT:
            return [path]
        try:
            path.stat()  # raises PermissionError for an unreadable folder
        except FileNotFoundError as error:
            raise NotFoundError(f"there is no file {path}") from error
        if not path.is_dir():
            return [path]
        captures = sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES and file.is_file())
        if not captures:
            raise NotFoundError(
                f"{path} has no captures: a simulated run has them with --capture, a cluster with 'testbed capture -w'"
            )
        return captures

    def _frames(self, path: Path, label: str) -> Iterator[Frame]:
        """Yield the frames of one of several captures. A damaged capture does not end the merge."""
        try:
            for batch in self._read(path, label):
                yield from batch
        except BrokenCaptureError as error:
            self.broken.append(str(error))

    def _read(self, path: Path, label: str) -> Iterator[list[Frame]]:
        is_stdin = str(path) == STANDARD_INPUT
        reader = CaptureReader("standard input" if is_stdin else str(path), label, self.nics)
        descriptor = os.dup(0) if is_stdin else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield from self._chunks(reader, descriptor)
        finally:
            self.skipped += reader.skipped
            os.close(descriptor)

    def _chunks(self, reader: CaptureReader, descriptor: int) -> Iterator[list[Frame]]:
        is_growing = self.follow and stat.S_ISREG(
            os.fstat(descriptor).st_mode
        )  # a pipe needs no polling: reading it blocks
        bytes_read = 0
        while True:
            try:
                chunk = os.read(descriptor, _CHUNK_BYTES)
            except OSError as error:
                raise TestbedError(f"{reader.name} cannot be read: {reason_of(error)}") from error
            if chunk:
                bytes_read += len(chunk)
                yield reader.feed(chunk)
            elif not is_growing:
                reader.end()
                return
            elif os.fstat(descriptor).st_size < bytes_read:
                raise BrokenCaptureError(
                    f"{reader.name} has become shorter while it was read: another program has overwritten it"
                )
            else:
                time.sleep(_POLL_INTERVAL)


def _label(root: Path, path: Path) -> str:
    """Return the name of a capture within its folder."""
    relative = path.relative_to(root)
    return str(relative.parent) if relative.stem == "capture" and relative.parent.parts else str(relative)
