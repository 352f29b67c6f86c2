"""All implementations of the frame path; the native one is compiled here, so that tests need no compiled build."""

from __future__ import annotations

import importlib.util
import subprocess
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType

from testbed.kernel import interpreted_frames

_SOURCE = Path(interpreted_frames.__file__).with_name("native_frames.c")
_STRICT = ["-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror"]


@cache
def native_frames() -> ModuleType:
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/native_frames.abi3.so"
        headers = sysconfig.get_path("include")
        options = ["-O2", "-shared", "-fPIC", "-DPy_LIMITED_API=0x030B0000", f"-I{headers}", *_STRICT]
        subprocess.run(["cc", *options, str(_SOURCE), "-o", library], check=True)
        spec = importlib.util.spec_from_file_location("testbed.kernel.native_frames", library)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def frame_paths() -> list[ModuleType]:
    return [interpreted_frames, _looking_frames(), native_frames()]


def _looking_frames() -> ModuleType:
    """Return the interpreted frame path of a process that polls often."""
    looking = ModuleType("looking_frames")
    looking.FrameCalls = interpreted_frames.LookingFrameCalls  # type: ignore[attr-defined]
    looking.Arena = interpreted_frames.Arena  # type: ignore[attr-defined]
    return looking
