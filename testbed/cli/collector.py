"""Control of Python's garbage collector during commands that allocate many objects and leave no reference cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

PROCESS: Final = object()
"""click's context object of a command that is the only one of its process: the end of the process frees all memory."""

MAX_FROZEN_AT_START: Final = 1_000
"""Maximum number of objects that Python itself freezes when it starts: 375 in 3.12, none in other versions."""


@contextmanager
def collector_off() -> Iterator[None]:
    """Context manager: switch the collector off; on exit switch it on again, unless the process is about to end."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on and not _process_ends():
            gc.enable()


@contextmanager
def imports_frozen() -> Iterator[None]:
    """Context manager: exclude existing objects, mostly imported modules, from collection. Objects that a caller has frozen
    stay frozen on exit."""
    is_frozen = gc.get_freeze_count() > MAX_FROZEN_AT_START
    gc.freeze()
    try:
        yield
    finally:
        if not is_frozen and not _process_ends():
            gc.unfreeze()


def _process_ends() -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and context.obj is PROCESS
