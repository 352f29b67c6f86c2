"""Scripts: programs in mpi4py's names that every rank runs from their first line, as mpiexec has them run.

A file is one if it imports `testbed.mpi`. Each rank has the script's own names for itself; modules that it imports are
shared by all ranks in the simulation, which is one process.
"""

from __future__ import annotations

import ast
import shlex
import sys
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

from testbed.errors import TestbedError
from testbed.workloads.form import Comm, Node

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_FACE = "testbed.mpi"


class ScriptError(TestbedError):
    """A script has ended itself, with a code that says that something went wrong."""


def is_script(path: Path) -> bool:
    """Whether it imports mpi4py's face. A file that cannot be parsed is none: who imports it finds out."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    return any(_FACE in _imported(node) for node in ast.walk(tree))


def script(path: Path) -> Callable[..., Coroutine[object, object, None]]:
    """A workload that runs the script. args: the script's arguments, as in a shell."""
    place = path.absolute()
    code = compile(place.read_bytes(), str(place), "exec")

    async def rank(comm: Comm, node: Node, *, args: str = "") -> None:
        from testbed.mpi.programs import Program

        main = ModuleType("__main__")
        main.__file__ = str(place)
        if (beside := str(place.parent)) not in sys.path:
            sys.path.insert(0, beside)
        arguments = [str(place), *shlex.split(args)]
        await Program(partial(_execute, code, main), comm, node.now, node.name, main, arguments).carry()

    return rank


def _execute(code: CodeType, main: ModuleType) -> None:
    try:
        exec(code, main.__dict__)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise ScriptError(f"the script has ended itself: {end.code}") from end


def _imported(node: ast.AST) -> tuple[str, ...]:
    """The modules that a statement imports."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    else:
        names = []
    return tuple(".".join(name.split(".")[:2]) for name in names)
