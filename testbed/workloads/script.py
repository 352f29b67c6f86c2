"""Scripts: programs with mpi4py's names, which every rank runs from the first line, as under mpiexec.

A file is a script if it imports `testbed.mpi`. Each rank has its own ``__main__`` module for the script. In the simulation,
which is one process, all ranks share the modules that the script imports.
"""

from __future__ import annotations

import ast
import shlex
import sys
import traceback
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

from testbed.engine.tracebacks import program_traceback
from testbed.errors import DescriptionError, Problem, ScriptError, TestbedError
from testbed.workloads.form import Comm, Node

_MPI_PACKAGE = "testbed.mpi"
MPI_LINE: Final = f"from {_MPI_PACKAGE} import MPI"
"""The line that makes a Python file a script."""


def is_script(path: Path) -> bool:
    """Whether a file imports `testbed.mpi`. False for a file that cannot be parsed: importing it reports the error. Raises
    TestbedError for a script that imports mpi4py, and for anything other than a regular file, such as a device."""
    if path.exists() and not path.is_file():
        kind = "a directory" if path.is_dir() else "not a regular file"
        raise TestbedError(f"{path} is {kind}: a workload is a Python file, FILE or FILE:NAME")
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    lines: dict[str, int] = {}  # by imported module
    for node in ast.walk(tree):
        for name in _imported_modules(node):
            lines.setdefault(name, getattr(node, "lineno", 0))
    line = min((line for name, line in lines.items() if name.split(".")[0] == "mpi4py"), default=0)
    if _MPI_PACKAGE not in lines and line:
        raise TestbedError(
            f"{path} imports mpi4py, which cannot run on the nodes: change line {line} to '{MPI_LINE}', and leave the rest "
            "as it is"
        )
    return _MPI_PACKAGE in lines


def make_script(path: Path) -> Callable[..., Coroutine[object, object, None]]:
    """Make a workload that runs a script. Its setting `args` has the script's arguments, as in a shell. Raises TestbedError
    for a script that cannot be compiled."""
    absolute = path.absolute()
    try:
        code = compile(absolute.read_bytes(), str(absolute), "exec", dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise import_failure(path, error) from error

    async def rank(comm: Comm, node: Node, *, args: str = "") -> None:
        from testbed.mpi.mpi_programs import Program

        main = ModuleType("__main__")
        main.__file__ = str(absolute)
        if (directory := str(absolute.parent)) not in sys.path:
            sys.path.insert(0, directory)
        try:
            arguments = [str(absolute), *shlex.split(args)]
        except ValueError as error:
            problem = Problem("args", args, f"arguments as in a shell ({error})")
            raise DescriptionError(f"the settings of {path}", [problem]) from error
        await Program(partial(_execute, code, main), comm, node.now, node.name, main, arguments).drive()
        comm.lost_sends.finish()  # like MPI_Finalize, which mpi4py calls at the end of a program

    return rank


def import_failure(path: Path, error: BaseException) -> TestbedError:
    """Make the error for a workload's file that raised `error` when it was compiled or imported."""
    if isinstance(error, SystemExit):
        return TestbedError(
            f"{path} exits when it is imported (code {error.code}): a script, which may exit, needs the line '{MPI_LINE}'; "
            "a workload is a subclass of Workload or an async function"
        )
    if isinstance(error, SyntaxError):
        report = "".join(traceback.format_exception_only(error)).strip()
    else:
        report = program_traceback(error)
    return TestbedError(f"{path} cannot be imported:\n{report}")


def _execute(code: CodeType, main: ModuleType) -> None:
    from testbed.mpi.exit_functions import exit_functions_called

    try:
        with exit_functions_called():
            exec(code, main.__dict__)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise ScriptError(f"the script has exited: {end.code}") from end


def _imported_modules(node: ast.AST) -> tuple[str, ...]:
    """Return the names of the modules that a statement imports, with two components at most."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    else:
        names = []
    return tuple(".".join(name.split(".")[:2]) for name in names)
