"""Directories that are there for as long as a block of a process, and how to tell those whose process was killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.kernel.processes import Identity, identity

_PREFIX = "testbed-"


@contextmanager
def directory(purpose: str) -> Iterator[Path]:
    """An empty one of our own, gone at the end. purpose: a word of its name, which says who owns it, too."""
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{purpose}-{identity()}-") as path:
        yield Path(path)


def collect() -> Iterator[tuple[Path, Identity]]:
    """Remove those of this user whose process has ended; which they were, and whose. What was made in another boot or
    another pid namespace stays: of that nothing can be told from here."""
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*:*:*:*-*")):
        owner = _owner(path)
        if owner is not None and owner.here and not owner.alive:
            with contextlib.suppress(FileNotFoundError):  # somebody else has just removed it
                shutil.rmtree(path)
            yield path, owner


def _owner(path: Path) -> Identity | None:
    """None for what is not ours, or not made by `directory`."""
    with contextlib.suppress(OSError, ValueError):
        found = os.lstat(path)
        if found.st_uid == os.geteuid() and path.is_dir() and not path.is_symlink():
            # The boot has hyphens of its own, and what makes the name unlike any other has none.
            named = path.name.removeprefix(_PREFIX).partition("-")[2].rpartition("-")[0]
            return Identity.parse(named)
    return None
