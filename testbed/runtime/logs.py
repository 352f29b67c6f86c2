"""Logs of fates in files: one record a line, see `testbed.wire.fates.Record`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from testbed.errors import NotFoundError, TestbedError, reason_of
from testbed.wire.fates import Record


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
