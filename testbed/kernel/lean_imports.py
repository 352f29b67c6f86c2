"""Import of some modules of a package without running its ``__init__``.

pyroute2's imports all of pyroute2, which takes longer than bringing a small cluster up; we need the classes of five
messages. Access to any other attribute of the package runs its ``__init__`` after all.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Final

_PUBLIC: Final = ("__all__", "__version__")
"""Dunder names that a package's author defines; Python asks modules for others by itself."""


class _Lean(ModuleType):
    """A package that is not initialised until an attribute that is no submodule is read."""

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
    """Let a package's modules be imported without its ``__init__``, unless that has run already or there is no such
    package."""
    if package in sys.modules:
        return
    spec = importlib.util.find_spec(package)
    if spec is not None:
        module = importlib.util.module_from_spec(spec)
        module.__class__ = _Lean
        sys.modules[package] = module
