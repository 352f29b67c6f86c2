"""Import of submodules of a package without running its ``__init__``.

pyroute2's ``__init__`` imports all of pyroute2, which takes longer than bringing up a small cluster, although only the
classes of four messages are needed. The ``__init__`` runs when an attribute that is not a submodule is read.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Final

_PUBLIC: Final = ("__all__", "__version__")
"""Dunder names whose look-up runs the ``__init__``. Others do not run it, since Python's import system looks them up."""


class _UninitializedPackage(ModuleType):
    """A package whose ``__init__`` runs when an attribute that is not a submodule is read."""

    def __getattr__(self, name: str) -> object:
        spec = self.__spec__
        if spec is None or spec.loader is None or (name.startswith("__") and name not in _PUBLIC):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if importlib.util.find_spec(f"{self.__name__}.{name}") is not None:
            return importlib.import_module(f"{self.__name__}.{name}")
        ModuleType.__setattr__(self, "__class__", ModuleType)
        try:
            spec.loader.exec_module(self)
        except BaseException:
            self.__class__ = _UninitializedPackage  # the next look-up tries again
            raise
        return getattr(self, name)


def defer_init(package: str) -> None:
    """Defer a package's ``__init__``, so that submodules can be imported without it. Does nothing if the package is already
    imported or does not exist."""
    if package in sys.modules:
        return
    spec = importlib.util.find_spec(package)
    if spec is not None:
        module = importlib.util.module_from_spec(spec)
        module.__class__ = _UninitializedPackage
        sys.modules[package] = module
