"""The build backend compiles only C files that have changed, and a new literal changes one of them (ci/build_backend.py)."""

from __future__ import annotations

import ctypes
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


def link_with_literals(folder: Path, places: dict[str, list[int]], size: int) -> dict[str, int]:
    """Write C files as mypyc does, each with a function that reads literals at these places of a table; let each have names
    of its own, link them, and return the functions' results: the places that they read, as digits. size: of the table."""
    generated = folder / "build" / "compiled" / "generated"
    generated.mkdir(parents=True, exist_ok=True)
    (generated / "all.h").write_text(f"typedef struct object PyObject;\nextern PyObject *CPyStatics[{size}];\n")
    fill = f"void fill(void) {{ for (long i = 0; i < {size}; i++) CPyStatics[i] = (PyObject *)i; }}\n"
    (generated / "table.c").write_text(f'#include "all.h"\n{fill}PyObject *CPyStatics[{size}];\n')
    for name, numbers in places.items():
        reads = "".join(f"literal = CPyStatics[{number}]; sum = 10 * sum + (long)literal; " for number in numbers)
        (generated / f"{name}.c").write_text(
            f'#include "all.h"\nlong {name}(void) {{ long sum = 0; PyObject *literal; {reads}return sum; }}\n'
        )
    script = f"import sys; sys.path.insert(0, {str(REPOSITORY / 'ci')!r}); from build_backend import separate_literals"
    subprocess.run([sys.executable, "-c", f"{script}; separate_literals()"], cwd=folder, check=True)
    library = folder / f"of_{size}.so"
    compiled = sorted((folder / "build" / "compiled" / "c").glob("*.c"))
    subprocess.run(["cc", "-Wall", "-Werror", "-shared", "-fPIC", *map(str, compiled), "-o", str(library)], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.fill()
    return {name: getattr(loaded, name)() for name in places}


@pytest.mark.requires("compiler", "python-headers")
def test_a_new_literal_changes_the_file_that_has_it_and_the_table(tmp_path: Path) -> None:
    assert link_with_literals(tmp_path, {"first": [1, 3, 1], "second": [2, 3]}, 4) == {"first": 131, "second": 23}
    folder = tmp_path / "build" / "compiled" / "c"
    before = {path.name: path.read_text() for path in folder.iterdir()}
    assert link_with_literals(tmp_path, {"first": [1, 4, 2], "second": [3, 4]}, 5) == {"first": 142, "second": 34}
    changed = {path.name for path in folder.iterdir() if path.read_text() != before[path.name]}
    assert changed == {"first.c", "table.c"}
