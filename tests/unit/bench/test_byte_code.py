"""Byte code is compiled before a benchmark, in any environment."""

import os
import sys
from pathlib import Path

import pytest

from benchmarks.harness.session import PACKAGES, compile_modules


def test_byte_code_is_written_for_all_modules_and_by_child_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "module.py").write_text("VALUE = 1\n")
    compile_modules(tmp_path)
    assert all(list((tmp_path / package / "__pycache__").glob("module.*.pyc")) for package in PACKAGES)
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ
    assert sys.dont_write_bytecode is False
