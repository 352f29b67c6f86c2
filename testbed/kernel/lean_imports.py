"""Importing some modules of a package without all that its ``__init__`` imports.

pyroute2's imports all of pyroute2, which takes longer than bringing a small cluster up; we need the classes of five
messages. Whoever asks the package for anything else, now or later, gets the whole one.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Final

_PUBLIC: Final = ("__all__", "__version__")
"""Of the names that Python asks modules for, those that a package's author gives."""


class _Lean(ModuleType):
    """A package that has not been initialised, and is when somebody asks for what no submodule is."""

    def __getattr__(self, name: str) -> object:
        spec = self.__spec__
        if spec is None or spec.loader is None or (name.startswith("__") and name not in _PUBLIC):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if importlib.util.find_spec(f"{self.__name__}.{name}") is not None:
            return importlib.import_module(f"{self.__name__}.{name}")
        ModuleType.__setattr__(self, "__class__", ModuleType)
        spec.loader.exec_module(self)
        return getattr(self, name)


def import_leanly(package: str) -> None:
    """Let its modules be imported without it, unless it has been imported already. Nothing where there is none."""
    if package in sys.modules:
        return
    spec = importlib.util.find_spec(package)
    if spec is not None:
        module = importlib.util.module_from_spec(spec)
        module.__class__ = _Lean
        sys.modules[package] = module
