"""Modules written in C, compiled here, so that tests need no compiled build."""

from __future__ import annotations

import importlib.util
import subprocess
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType

_ROOT = Path(__file__).parents[2]
_STRICT = ["-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror"]


@cache
def native_module(name: str) -> ModuleType:
    """Compile and import a module, such as ``testbed.kernel.native_frames``."""
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/{name.rpartition('.')[2]}.abi3.so"
        headers = sysconfig.get_path("include")
        options = ["-O2", "-shared", "-fPIC", "-DPy_LIMITED_API=0x030B0000", f"-I{headers}", *_STRICT]
        source = _ROOT / f"{name.replace('.', '/')}.c"
        subprocess.run(["cc", *options, str(source), "-o", library], check=True)
        spec = importlib.util.spec_from_file_location(name, library)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
