"""The compiled build: compiler options of classes, and whether the imported modules are compiled.

docs/internals/compiled.md has the rules for compiled modules.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.machinery import SOURCE_SUFFIXES
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, TypeVar

Class = TypeVar("Class", bound=type)

COMPILED: Final = "compiled"
INTERPRETED: Final = "interpreted"

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**_: object) -> Callable[[Class], Class]:
        """Class decorator with mypyc's options, for example ``allow_interpreted_subclasses=True``."""
        return lambda decorated: decorated


@cache
def build() -> str:
    """Return COMPILED if the modules that run per frame and per event are compiled, else INTERPRETED."""
    spec = find_spec("protocols.core.timers")
    origin = "" if spec is None else spec.origin or ""
    return INTERPRETED if origin.endswith(tuple(SOURCE_SUFFIXES)) else COMPILED
