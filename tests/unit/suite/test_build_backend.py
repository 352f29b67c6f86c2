"""The build backend compiles only C files that have changed (ci/build_backend.py)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
MODULE = """
#include <Python.h>
static struct PyModuleDef definition = {{PyModuleDef_HEAD_INIT, "{name}"}};
PyMODINIT_FUNC PyInit_{name}(void) {{ return PyModule_Create(&definition); }}
"""
BUILD = """
import sys
sys.path.insert(0, "{ci}")
from build_backend import CompileChanged
from setuptools import Distribution, Extension
modules = [Extension(name, [name + ".c"]) for name in ("first", "second")]
command = CompileChanged(Distribution({{"name": "pair", "ext_modules": modules}}))
command.inplace = True
command.ensure_finalized()
command.run()
"""


def build_in(folder: Path) -> list[str]:
    """Build the modules in a folder; return the output lines about compilation."""
    command = [sys.executable, "-c", BUILD.format(ci=REPOSITORY / "ci")]
    completed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return [line for line in completed.stdout.splitlines() if line.startswith("compiling")]


@pytest.mark.requires("compiler", "python-headers")
def test_only_a_changed_module_is_compiled_again(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / f"{name}.c").write_text(MODULE.format(name=name))
    (tmp_path / "build" / "compiled").mkdir(parents=True)
    assert build_in(tmp_path) == ["compiling 1 of 1 C files"] * 2
    assert build_in(tmp_path) == []
    first, second = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("*.so"))]

    (tmp_path / "second.c").write_text(MODULE.format(name="second") + "\n/* changed */\n")
    later = time.time() + 2  # setuptools compares whole seconds
    os.utime(tmp_path / "second.c", (later, later))
    assert build_in(tmp_path) == ["compiling 1 of 1 C files"]
    rebuilt_first, rebuilt_second = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("*.so"))]
    assert rebuilt_first == first
    assert rebuilt_second > second
