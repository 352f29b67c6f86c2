"""ci/demo, ci/test and ci/compiled on a machine that lacks packages, for a user who cannot install them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]

NO_PYTHON = ["missing: python3 (Debian package python3)", "missing: ensurepip (Debian package python3-venv)"]


def run_with_programs(script: str, folder: Path, *programs: str) -> subprocess.CompletedProcess[str]:
    """Run a script as an ordinary user who has these programs alone."""
    bash = shutil.which("bash")
    assert bash is not None
    for name in ("dirname", *programs):
        (folder / name).symlink_to(shutil.which(name) or name)
    (folder / "id").write_text(f"#!{bash}\necho 1000\n")
    (folder / "id").chmod(0o755)
    return subprocess.run(
        [bash, str(REPOSITORY / script)], env={"PATH": str(folder)}, capture_output=True, text=True, check=False
    )


def test_an_ordinary_user_is_told_all_missing_packages_at_once(tmp_path: Path) -> None:
    ended = run_with_programs("ci/demo", tmp_path)
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        "missing: ping (Debian package iputils-ping)",
        *NO_PYTHON,
        "run as root, then again: apt install iputils-ping python3 python3-venv",
    ]


def test_the_tests_ask_for_what_they_cannot_do_without_and_for_nothing_else(tmp_path: Path) -> None:
    ended = run_with_programs("ci/test", tmp_path)
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [*NO_PYTHON, "run as root, then again: apt install python3 python3-venv"]


@pytest.mark.parametrize("script", ["ci/compiled", "ci/wheel"])
def test_without_a_compiler_nothing_is_compiled_and_the_packages_are_named(script: str, tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    ended = run_with_programs(script, tmp_path)
    assert ended.returncode == 1
    lines = ended.stderr.splitlines()
    assert lines[0] == "missing: gcc (Debian package gcc)"
    assert lines[-1].startswith("run as root, then again: apt install gcc")
