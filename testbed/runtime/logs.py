"""Logs of fates in files: one record a line, see `testbed.wire.fates.Record`. A log is bounded, so that no loss fills a
disk; what would go beyond is not written, and that is told."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from testbed.errors import NotFoundError, TestbedError, reason_of
from testbed.wire.fates import Record

ROOM: Final = 128 << 20
"""Bytes of a log; a fate takes some 150."""


class LogFile:
    """Where one process appends fates; several may append to one file. Each is in it as soon as it is written: what kills
    the process loses none."""

    def __init__(self, path: str, room: int, ended: Callable[[str], object]) -> None:
        """room: bytes that this process may write. ended: told once, and why, when no more is written. OSError."""
        self.path: Final = path
        self._room = room
        self._ended = ended
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, record: Record) -> None:
        """Nothing where it has ended. Whoever carries frames goes on, whatever becomes of the file."""
        if self._descriptor < 0:
            return
        line = record.to_line().encode() + b"\n"
        self._room -= len(line)
        if self._room < 0:
            self._end("the log is as long as it may be")
            return
        try:
            if os.write(self._descriptor, line) < len(line):
                self._end("the disk is full")
        except OSError as error:
            self._end(reason_of(error))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _end(self, reason: str) -> None:
        self.close()
        self._ended(reason)


def read_log(path: Path) -> list[Record]:
    """A log that links can replay from their beginning: of each direction one stretch without a change of what decides
    fates, whose frames are counted from 1 in the replay.

    NotFoundError for a file that is not there, TestbedError that names the file and the line for one that is no log.
    """
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError as error:
        raise NotFoundError(reason_of(error)) from error
    except UnicodeDecodeError as error:
        raise TestbedError(f"{path} is not text") from error
    records: list[Record] = []
    epochs: dict[tuple[str, str], int] = {}
    for number, line in enumerate(lines, 1):
        try:
            record = Record.from_line(line)
        except ValueError as error:
            raise TestbedError(f"{path}, line {number}: {error}") from error
        epoch = epochs.setdefault((record.link, record.direction), record.epoch)
        if epoch != record.epoch:
            raise TestbedError(
                f"{path}, line {number}: {record.link} {record.direction} was changed while fates were logged; a "
                "replay begins with the first frame, so it takes a log without a change"
            )
        records.append(replace(record, epoch=0))
    return records
