"""Directories of processes that were killed, and what only looks like them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from testbed.cluster.records.ownership import collect_temporary, temporary_directory
from testbed.kernel.processes import Identity, identity

MAKES = (
    "import sys\n"
    "from testbed.cluster.records.ownership import temporary_directory\n"
    "with temporary_directory('logs') as path:\n"
    "    (path / 'n1.log').touch()\n"
    "    print(path, flush=True)\n"
    "    sys.stdin.read()\n"
)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_leftovers_of_killed_processes_are_collected_and_those_of_living_ones_are_kept(place: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(place)}
    command = [sys.executable, "-c", MAKES]
    with (
        subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
        temporary_directory("run") as ours,
    ):
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip())
        assert list(collect_temporary()) == []
        owner = identity(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert list(collect_temporary()) == [(path, owner)]
        assert not path.exists()
        assert ours.exists()
    assert list(place.iterdir()) == []


def test_what_nothing_can_be_told_of_stays(place: Path) -> None:
    us = identity()
    elsewhere = Identity("another-boot", us.pid_namespace, us.pid, us.start)
    dead = Identity(us.boot, us.pid_namespace, us.pid, us.start + 1)
    (place / f"testbed-logs-{elsewhere}-x").mkdir()
    (place / "testbed-logs-a:b:c:d-x").mkdir()
    (place / "testbed-notes").mkdir()
    (place / f"testbed-logs-{dead}-file").touch()
    (place / f"testbed-logs-{dead}-link").symlink_to(place / "testbed-notes")
    present = set(place.iterdir())
    assert list(collect_temporary()) == []
    assert set(place.iterdir()) == present
