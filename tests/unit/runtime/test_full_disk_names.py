"""An error of a full disk names the file that could not be written; /dev/full stands in for the disk."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.errors import reason_of
from testbed.kernel.filesystem import replace_file
from testbed.runtime import event_log


@pytest.mark.parametrize(
    ("written", "name", "write"),
    [
        (".state.json.new", "state.json", lambda folder: replace_file(folder / "state.json", "{}")),
        (event_log.FILE, event_log.FILE, lambda folder: event_log.record(folder, "up")),
    ],
)
def test_an_error_of_a_clusters_file_names_it(
    tmp_path: Path, written: str, name: str, write: Callable[[Path], None]
) -> None:
    (tmp_path / written).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as raised:
        write(tmp_path)
    assert reason_of(raised.value) == f"No space left on device: {tmp_path / name}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("topologies", "No space left on device: standard output"),
        ("dissector --output /dev/full", "the dissector cannot be written: No space left on device: /dev/full"),
    ],
)
def test_an_error_of_a_commands_output_names_it(arguments: str, message: str) -> None:
    command = [sys.executable, "-c", "from testbed.cli.entry import main; main()", *arguments.split()]
    full = os.open("/dev/full", os.O_WRONLY)
    completed = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    os.close(full)
    assert completed.stderr.splitlines()[-1] == f"testbed: {message}"
    assert completed.returncode == 1
