"""Unbuffered journals: lines survive the death of the process, and a full disk is reported."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from testbed.kernel.children import fork
from testbed.runtime.journal import UnbufferedLines, UnwritableError, read


def test_lines_written_by_a_killed_process_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "n1.jsonl"
    child = fork()
    if not child:
        journal = UnbufferedLines(path)
        for number in range(100):
            journal.write({"n": number})
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert [line["n"] for line in read(path)] == list(range(100))


def test_a_program_without_output_has_no_file(tmp_path: Path) -> None:
    UnbufferedLines(tmp_path / "n1.jsonl").close()
    assert not (tmp_path / "n1.jsonl").exists()


def test_a_restarted_program_continues_after_the_existing_records(tmp_path: Path) -> None:
    for number in range(2):
        journal = UnbufferedLines(tmp_path / "n1.jsonl")
        journal.write({"n": number})
        journal.close()
    assert [line["n"] for line in read(tmp_path / "n1.jsonl")] == [0, 1]


def test_a_full_disk_is_reported() -> None:
    journal = UnbufferedLines(Path("/dev/full"))
    with pytest.raises(UnwritableError, match="No space left"):
        journal.write({"n": 1})
    journal.close()
