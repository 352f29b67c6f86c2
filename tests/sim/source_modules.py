"""Import the sources of the product's modules, also where a compiled module of the same name is beside them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from types import ModuleType

PACKAGES = ("testbed", "protocols")


class SourceFinder(MetaPathFinder):
    """Finds the sources of the product's modules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        finders = (FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)) for folder in path or sys.path)
        return next((spec for finder in finders if (spec := finder.find_spec(fullname, target)) is not None), None)


def use_sources() -> None:
    """Import sources from now on. To be called before the first import of the product."""
    assert not sys.modules.keys() & {*PACKAGES}, "the product has been imported already"
    sys.meta_path.insert(0, SourceFinder())
