"""Functions that a script registers with `atexit`: its rank calls them when it ends, as a process of mpiexec does.

The functions can call MPI: the master of a pool releases its workers so. All ranks of a simulation are one process, and
share the modules that they import. So the process, and no rank, keeps the functions that a module registers while it is
imported, and those of Python's standard library, such as `weakref.finalize`.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Final, TypeVar

from greenlet import getcurrent, greenlet

F = TypeVar("F", bound=Callable[..., object])

_process_register: Final = atexit.register
_process_unregister: Final = atexit.unregister
_registered: Final[dict[greenlet, list[partial[object]]]] = {}


@contextmanager
def exit_functions_called() -> Iterator[None]:
    """Context manager: when the block ends by itself or by SystemExit, call the functions that its greenlet has
    registered, the last first. Raises the exceptions of these functions."""
    atexit.register, atexit.unregister = _register, _unregister
    program = getcurrent()
    functions = _registered[program] = []
    try:
        yield
    except SystemExit:
        _call(functions)
        raise
    else:
        _call(functions)
    finally:
        del _registered[program]


def _call(functions: list[partial[object]]) -> None:
    while functions:
        functions.pop()()


def _register(function: F, /, *arguments: Any, **keywords: Any) -> F:
    functions = _registered.get(getcurrent())
    if functions is None or _is_shared_by_ranks(sys._getframe(1)):
        _process_register(function, *arguments, **keywords)
        return function
    functions.append(partial(function, *arguments, **keywords))
    return function


def _unregister(function: Callable[..., object], /) -> None:
    functions = _registered.get(getcurrent(), [])
    functions[:] = [registered for registered in functions if registered.func != function]
    _process_unregister(function)


def _is_shared_by_ranks(caller: FrameType) -> bool:
    """Whether all ranks share what the caller registers."""
    module = str(caller.f_globals.get("__name__", ""))
    is_imported = caller.f_code.co_name == "<module>" and module != "__main__"
    return is_imported or module.partition(".")[0] in sys.stdlib_module_names
