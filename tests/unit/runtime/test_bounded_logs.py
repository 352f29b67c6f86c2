"""Logs of fates have a maximum size; their writer continues beyond it."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.fates.flows import Flow
from testbed.fates.records import LOSS, Fate, Record
from testbed.runtime.logs import LogFile, read_log

RECORDS = [Record("n1--s1", "forward", 0, Flow(0x88B5, 1, 2, ()), n, LOSS, Fate(drop=True)) for n in range(1, 10)]
LINE_SIZE = len(RECORDS[0].to_line()) + 1


def test_records_beyond_the_maximum_size_are_not_written_and_the_end_is_reported_once(tmp_path: Path) -> None:
    reasons: list[str] = []
    log = LogFile(str(tmp_path / "log"), 3 * LINE_SIZE + LINE_SIZE // 2, reasons.append)
    for record in RECORDS:
        log.write(record)
    assert read_log(tmp_path / "log") == RECORDS[:3]
    assert reasons == ["the log has reached its maximum size"]
    log.close()


def test_two_processes_write_into_one_log(tmp_path: Path) -> None:
    first, second = (LogFile(str(tmp_path / "log"), 10 * LINE_SIZE, pytest.fail) for _ in range(2))
    for record, other_record in zip(RECORDS[:4], RECORDS[4:], strict=False):
        first.write(record)
        second.write(other_record)
    first.close()
    second.close()
    assert sorted(record.n for record in read_log(tmp_path / "log")) == list(range(1, 9))


def test_a_full_disk_ends_the_log_without_an_error() -> None:
    reasons: list[str] = []
    log = LogFile("/dev/full", 10 * LINE_SIZE, reasons.append)
    for record in RECORDS:
        log.write(record)
    assert reasons == ["No space left on device"]
