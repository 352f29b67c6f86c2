"""Scripts for mpi4py, unchanged and with the import of `testbed.mpi`."""

from __future__ import annotations

import shutil
from pathlib import Path

SCRIPTS = Path(__file__).parent / "mpi_scripts"
MPI4PY_IMPORT = "from mpi4py import MPI\n"
TESTBED_IMPORT = "from testbed.mpi import MPI\n"


def with_testbed_import(name: str, folder: Path) -> str:
    """Copy a script of `mpi_scripts` and its module into the folder, with the import of `testbed.mpi`; return its path."""
    for file in SCRIPTS.glob("*.py"):
        shutil.copy(file, folder)
    text = (folder / name).read_text()
    assert text.count(MPI4PY_IMPORT) == 1
    (folder / name).write_text(text.replace(MPI4PY_IMPORT, TESTBED_IMPORT))
    return str(folder / name)


POOL = """
import atexit, sys

def start(comm):
    if comm.rank == 0:
        atexit.register(lambda: (print('release'), comm.send(None, 1)))
    else:
        comm.recv(source=0)
        print('released')
        sys.exit(0)
"""
"""A module like schwimmbad's pool: it registers a function that releases the workers."""


USAGE_ERROR = (
    "import argparse",
    "print('begins')",
    "parser = argparse.ArgumentParser()",
    "parser.add_argument('--n', required=comm.rank == 1)",
    "parser.parse_args()",
    "comm.Barrier()",
)
"""Lines of a script that lacks an argument on rank 1."""


def write_script(folder: Path, *lines: str) -> str:
    """Write a script of these lines after the import; return its path."""
    path = folder / "script.py"
    path.write_text(TESTBED_IMPORT + "\n".join(["comm = MPI.COMM_WORLD", *lines]) + "\n")
    return str(path)
