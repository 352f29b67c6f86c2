"""mpi4py's scripts, unchanged and with the changed import of `testbed.mpi`."""

from __future__ import annotations

import shutil
from pathlib import Path

SCRIPTS = Path(__file__).parent / "mpi_scripts"
THEIRS = "from mpi4py import MPI\n"
OURS = "from testbed.mpi import MPI\n"


def with_our_import(name: str, folder: Path) -> str:
    """Copy a script of `mpi_scripts` and its module into the folder, with our import."""
    for file in SCRIPTS.glob("*.py"):
        shutil.copy(file, folder)
    text = (folder / name).read_text()
    assert text.count(THEIRS) == 1
    (folder / name).write_text(text.replace(THEIRS, OURS))
    return str(folder / name)


def write_script(folder: Path, *lines: str) -> str:
    """A script of these lines, behind the import."""
    path = folder / "script.py"
    path.write_text(OURS + "\n".join(["comm = MPI.COMM_WORLD", *lines]) + "\n")
    return str(path)
