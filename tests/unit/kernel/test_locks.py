"""Locks held for the life of a process: a lock has one holder, and its note remains if the holder died."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from testbed.kernel import daemons, locks, processes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    locks.make(tmp_path / "lock")
    return tmp_path / "lock"


def hold_lock(path: Path, *, note: str = "") -> processes.Identity:
    """Start another process that holds the lock until it is killed."""

    def acquire() -> None:
        locks.Lock(path).note(note)

    return daemons.start("holding", (), acquire, signal.pause)


def test_others_can_read_the_pid_of_a_locks_holder(path: Path) -> None:
    assert locks.holder(path) == 0
    assert locks.holder_pidfd(path) is None
    holding_process = hold_lock(path)
    assert locks.holder(path) == holding_process.pid
    holder = locks.holder_pidfd(path)
    assert holder is not None
    assert holder[0] == holding_process.pid
    os.close(holder[1])
    with pytest.raises(locks.LockedError, match=f"is locked by process {holding_process.pid}"):
        locks.Lock(path)
    with pytest.raises(locks.LockedError):
        hold_lock(path)
    processes.end(holding_process)
    assert locks.holder(path) == 0


def test_the_next_holder_reads_the_notes_of_a_dead_holder_only(path: Path) -> None:
    processes.end(hold_lock(path, note="first"))
    assert locks.read_note(path) == "first"
    lock = locks.Lock(path)
    assert lock.previous_note == "first"
    lock.note("second")
    lock.release()
    assert locks.Lock(path).previous_note == ""


def test_a_process_that_a_holder_forks_does_not_hold_the_lock(path: Path) -> None:
    lock = locks.Lock(path)
    child = daemons.start("child", (), lambda: None, signal.pause)
    lock.release()
    assert locks.holder(path) == 0
    processes.end(child)


def test_a_lock_on_a_missing_or_replaced_file_fails(path: Path) -> None:
    path.unlink()
    assert (locks.holder(path), locks.read_note(path)) == (0, "")
    locks.clear(path)
    with pytest.raises(FileNotFoundError):
        locks.Lock(path)
