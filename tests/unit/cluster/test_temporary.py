"""Temporary directories: those of killed processes are collected, others stay."""

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

OWNER_SCRIPT = (
    "import sys\n"
    "from testbed.cluster.records.ownership import temporary_directory\n"
    "with temporary_directory('logs') as path:\n"
    "    (path / 'n1.log').touch()\n"
    "    print(path, flush=True)\n"
    "    sys.stdin.read()\n"
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_leftovers_of_killed_processes_are_collected_and_those_of_living_ones_are_kept(folder: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(folder)}
    command = [sys.executable, "-c", OWNER_SCRIPT]
    with (
        subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
        temporary_directory("run") as own_folder,
    ):
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip())
        assert list(collect_temporary()) == []
        owner = identity(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert list(collect_temporary()) == [(path, owner)]
        assert not path.exists()
        assert own_folder.exists()
    assert list(folder.iterdir()) == []


def test_directories_of_unknown_owners_stay(folder: Path) -> None:
    own_identity = identity()
    other_boot = Identity("another-boot", own_identity.pid_namespace, own_identity.pid, own_identity.start)
    dead_process = Identity(own_identity.boot, own_identity.pid_namespace, own_identity.pid, own_identity.start + 1)
    (folder / f"testbed-logs-{other_boot}-x").mkdir()
    (folder / "testbed-logs-a:b:c:d-x").mkdir()
    (folder / "testbed-notes").mkdir()
    (folder / f"testbed-logs-{dead_process}-file").touch()
    (folder / f"testbed-logs-{dead_process}-link").symlink_to(folder / "testbed-notes")
    contents = set(folder.iterdir())
    assert list(collect_temporary()) == []
    assert set(folder.iterdir()) == contents
