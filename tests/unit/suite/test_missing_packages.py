"""ci/demo, ci/test and ci/compiled for an ordinary user of a machine that lacks packages, and ci/demo with and without a
compiler."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]

NO_PYTHON = ["missing: python3 (Debian package python3)", "missing: ensurepip (Debian package python3-venv)"]


def run_with_programs(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run bash as an ordinary user who has only the programs of a folder."""
    bash, dirname = shutil.which("bash"), shutil.which("dirname")
    assert bash is not None
    assert dirname is not None
    (folder / "dirname").symlink_to(dirname)
    (folder / "id").write_text(f"#!{bash}\necho 1000\n")
    (folder / "id").chmod(0o755)
    return subprocess.run([bash, *command], env={"PATH": str(folder)}, capture_output=True, text=True, check=False)


def test_all_missing_packages_are_reported_to_an_ordinary_user_at_once(tmp_path: Path) -> None:
    completed = run_with_programs(tmp_path, f"{REPOSITORY}/ci/demo")
    assert completed.returncode == 1
    assert completed.stderr.splitlines() == [
        "missing: ping (Debian package iputils-ping)",
        *NO_PYTHON,
        "run as root, then again: apt install iputils-ping python3 python3-venv",
    ]


def test_the_tests_require_python_only(tmp_path: Path) -> None:
    completed = run_with_programs(tmp_path, f"{REPOSITORY}/ci/test")
    assert completed.returncode == 1
    assert completed.stderr.splitlines() == [*NO_PYTHON, "run as root, then again: apt install python3 python3-venv"]


@pytest.mark.parametrize("script", ["ci/compiled", "ci/wheel"])
def test_without_a_compiler_the_missing_packages_are_reported(script: str, tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    completed = run_with_programs(tmp_path, f"{REPOSITORY}/{script}")
    assert completed.returncode == 1
    lines = completed.stderr.splitlines()
    assert lines[0] == "missing: gcc (Debian package gcc)"
    assert lines[-1].startswith("run as root, then again: apt install gcc")


def write_script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def run_demo(folder: Path, *options: str, has_headers: bool) -> list[str]:
    """Run ci/demo in a folder with gcc and an environment; return the lines that it and its scripts print."""
    for script in ("demo", "environment"):
        (folder / "ci").mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / "ci" / script, folder / "ci")
    (folder / "include").mkdir()
    if has_headers:
        (folder / "include" / "Python.h").touch()
    write_script(
        folder / "bin" / "python3", f'case "$*" in --version) echo Python 3;; *sysconfig*) echo {folder}/include;; esac'
    )
    for program in ("gcc", "ping"):
        write_script(folder / "bin" / program, "exit 1")
    write_script(folder / "ci" / "compiled", 'echo "ci/compiled $*"')
    write_script(folder / ".venv" / "bin" / "testbed", "echo testbed of .venv; exit 7")
    (folder / "pyproject.toml").write_text("[project]\n")
    digest = hashlib.sha256(b"[project]\n").hexdigest()[:16]
    (folder / ".venv" / "ready").write_text(f"Python 3 {digest} {folder} \n")
    environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    command = [folder / "ci" / "demo", *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout.splitlines()


def test_the_demonstration_runs_compiled_where_there_is_a_compiler(tmp_path: Path) -> None:
    printed = run_demo(tmp_path, has_headers=True)
    assert printed == [
        "making a compiled copy in build/compiled/checkout (ci/demo --interpreted: without it)",
        "ci/compiled ci/demo --installed",
    ]


@pytest.mark.parametrize(("options", "has_headers"), [((), False), (("--interpreted",), True)])
def test_the_demonstration_runs_interpreted_without_a_compiler_or_on_request(
    options: tuple[str, ...], has_headers: bool, tmp_path: Path
) -> None:
    printed = run_demo(tmp_path, *options, has_headers=has_headers)
    assert "testbed of .venv" in printed
    assert not [line for line in printed if "compiled" in line]


def test_daemons_outside_a_users_path_are_found(tmp_path: Path) -> None:
    daemon = next((path for path in Path("/usr/sbin").iterdir() if path.is_file()), None)
    assert daemon is not None
    script = f"source {REPOSITORY}/ci/environment; need {daemon.name} a-package; need not-there another"
    assert run_with_programs(tmp_path, "-c", script).stderr == "missing: not-there (Debian package another)\n"
