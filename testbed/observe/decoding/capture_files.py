"""Sources of captures: a file, a growing file, standard input, or a run's folder with several captures, merged by
time."""

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
_CHUNK: Final = 1 << 18
_PAUSE: Final = 0.05
"""Polling interval of a growing file, seconds: twenty polls a second need next to no processor time."""
_AT_ONCE: Final = 512  # frames of several captures per batch
_SUFFIXES: Final = (".pcapng", ".pcap")


@dataclass(slots=True)
class Source:
    """Captures read as one. path: a file, a folder, or "-". broken: an error for each damaged capture, whose frames up
    to the damage have been read. skipped: number of frames left out because they are not Ethernet's. nics: names of NIC
    interfaces by hardware address."""

    path: str
    follow: bool = False
    broken: list[str] = field(default_factory=list)
    skipped: int = 0
    nics: dict[bytes, str] = field(default_factory=dict)

    def batches(self) -> Iterator[list[Frame]]:
        """Yield frames in batches, as soon as they are there. Raises NotFoundError, BrokenCaptureError, TestbedError;
        OSError of a file that cannot be opened or read."""
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
        """Frames of one capture of several: damage to one does not stop the others."""
        try:
            for batch in self._read(path, label):
                yield from batch
        except BrokenCaptureError as error:
            self.broken.append(str(error))

    def _read(self, path: Path, label: str) -> Iterator[list[Frame]]:
        standard = str(path) == STANDARD_INPUT
        reader = CaptureReader("standard input" if standard else str(path), label, self.nics)
        descriptor = os.dup(0) if standard else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield from self._chunks(reader, descriptor)
        finally:
            self.skipped += reader.skipped
            os.close(descriptor)

    def _chunks(self, reader: CaptureReader, descriptor: int) -> Iterator[list[Frame]]:
        grows = self.follow and stat.S_ISREG(os.fstat(descriptor).st_mode)  # reading a pipe blocks
        read = 0
        while True:
            try:
                chunk = os.read(descriptor, _CHUNK)
            except OSError as error:
                raise TestbedError(f"{reader.name} cannot be read: {reason_of(error)}") from error
            if chunk:
                read += len(chunk)
                yield reader.feed(chunk)
            elif not grows:
                reader.end()
                return
            elif os.fstat(descriptor).st_size < read:
                raise BrokenCaptureError(
                    f"{reader.name} has become shorter while it was read: another program has overwritten it"
                )
            else:
                time.sleep(_PAUSE)


def _label(root: Path, path: Path) -> str:
    """Name of a capture within its folder."""
    own = path.relative_to(root)
    return str(own.parent) if own.stem == "capture" and own.parent.parts else str(own)
