"""Logs of fates have a maximum size; their writer goes on beyond it."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.fates.flows import Flow
from testbed.fates.records import LOSS, Fate, Record
from testbed.runtime.logs import LogFile, read_log

LOST = [Record("n1--s1", "forward", 0, Flow(0x88B5, 1, 2, ()), n, LOSS, Fate(drop=True)) for n in range(1, 10)]
LINE = len(LOST[0].to_line()) + 1


def test_what_goes_beyond_the_bound_is_not_written_and_that_is_told_once(tmp_path: Path) -> None:
    said: list[str] = []
    log = LogFile(str(tmp_path / "log"), 3 * LINE + LINE // 2, said.append)
    for record in LOST:
        log.write(record)
    assert read_log(tmp_path / "log") == LOST[:3]
    assert said == ["the log is as long as it may be"]
    log.close()


def test_two_processes_write_into_one_log(tmp_path: Path) -> None:
    one, other = (LogFile(str(tmp_path / "log"), 10 * LINE, pytest.fail) for _ in range(2))
    for mine, its in zip(LOST[:4], LOST[4:], strict=False):
        one.write(mine)
        other.write(its)
    one.close()
    other.close()
    assert sorted(record.n for record in read_log(tmp_path / "log")) == list(range(1, 9))


def test_a_disk_that_is_full_ends_the_log_and_nothing_else() -> None:
    said: list[str] = []
    log = LogFile("/dev/full", 10 * LINE, said.append)
    for record in LOST:
        log.write(record)
    assert said == ["No space left on device"]
