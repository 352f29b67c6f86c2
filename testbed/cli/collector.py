"""Control of Python's garbage collector during commands that allocate many objects and leave no reference cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

PROCESS: Final = object()
"""Context object of a command that is the only one in its process, whose end frees all memory."""


@contextmanager
def collector_off() -> Iterator[None]:
    """Context manager: switch the collector off; on exit switch it on, unless the process ends."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on and not _process_ends():
            gc.enable()


@contextmanager
def imports_frozen() -> Iterator[None]:
    """Context manager: exclude existing objects, mostly imported modules, from collection. Previously frozen objects stay
    frozen."""
    frozen = gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen and not _process_ends():
            gc.unfreeze()


def _process_ends() -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and context.obj is PROCESS
