"""Results on a disk that is full."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from testbed.kernel import syscalls
from testbed.kernel.userns import is_root
from tests.live.file_damage import run_command


@pytest.mark.skipif(not is_root(), reason="mounts a small file system, in the sandbox's own mount namespace")
@pytest.mark.parametrize("option", ["--capture", "--history", "--check"])
def test_a_simulation_says_that_its_results_cannot_be_written(option: str, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    syscalls.mount("small", str(small), "tmpfs", 0, "size=64k")
    try:
        result = run_command("run", "star-4", "random", "--mode", "sim", option, "--output", str(small / "run"))
        assert (result.code, result.is_sentence) == (1, True), result
        assert f"results cannot be written to {small}" in result.text
        assert "understood" not in result.text
    finally:
        syscalls.umount(str(small))
    assert os.listdir(small) == []
