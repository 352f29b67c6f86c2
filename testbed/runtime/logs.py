"""Log files of fates, one record per line (`testbed.fates.records.Record`). A log's size is limited, so that losses
cannot fill a disk; the writer is notified when the log ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from testbed.errors import NotFoundError, TestbedError, reason_of
from testbed.fates.records import Record
from testbed.kernel.filesystem import read_text

ROOM: Final = 128 << 20
"""Maximum bytes of a log; a fate takes about 150."""


class LogFile:
    """A log to which one or more processes append, without buffering, so that nothing is lost if a process is killed."""

    def __init__(self, path: str, room: int, ended: Callable[[str], object]) -> None:
        """room: bytes that this process may write. ended: called once with the reason when writing stops. OSError."""
        self.path: Final = path
        self._room = room
        self._ended = ended
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, record: Record) -> None:
        """Write a record; do nothing once the log has ended. Errors of the file never stop the carrying of frames."""
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
    """Read a log for replay from the first frame; the replay counts frames from 1.

    A direction must not have been changed in a way that affects fates while the log was written. Raises NotFoundError
    for a missing file, TestbedError that names file and line for an invalid one.
    """
    try:
        lines = read_text(path).splitlines()
    except FileNotFoundError as error:
        raise NotFoundError(reason_of(error)) from error
    except OSError as error:
        raise TestbedError(f"{path} cannot be read: {reason_of(error)}") from error
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
