"""Log files of fates, one record per line (`testbed.fates.records.Record`). The size of a log is limited, so that it
cannot fill a disk; a callback reports that logging has stopped."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from testbed.errors import NotFoundError, TestbedError, reason_of
from testbed.fates.records import Record
from testbed.kernel.filesystem import read_text

MAX_LOG_SIZE: Final = 128 << 20
"""Maximum bytes of a log; a record takes about 150."""


class LogFile:
    """A log to which one or more processes append, without buffering, so that nothing is lost if a process is killed."""

    def __init__(self, path: str, max_size: int, on_end: Callable[[str], object]) -> None:
        """max_size: bytes that this process may write. on_end: called once, with the reason, when logging stops. Raises
        OSError."""
        self.path: Final = path
        self._remaining = max_size
        self._on_end = on_end
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, record: Record) -> None:
        """Write a record; do nothing once logging has stopped. An error of the file stops the logging, not the relay."""
        if self._descriptor < 0:
            return
        line = record.to_line().encode() + b"\n"
        self._remaining -= len(line)
        if self._remaining < 0:
            self._end("the log has reached its maximum size")
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
        self._on_end(reason)


def read_log(path: Path) -> list[Record]:
    """Read a log for a replay from the first frame. The records' epochs are set to 0.

    The impairments of a direction must not have changed while its fates were logged. Raises NotFoundError for a missing
    file; TestbedError, with file and line, for an invalid record.
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
                f"{path}, line {number}: the impairments of {record.link} {record.direction} changed while fates were "
                "logged; a replay needs a log without a change"
            )
        records.append(replace(record, epoch=0))
    return records
