"""Temporary directories named after their process, so that those of killed processes can be found and removed."""

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
    """An empty temporary directory, removed at the end of the block. purpose: a word in its name, which also identifies
    the owner."""
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{purpose}-{identity()}-") as path:
        yield Path(path)


def collect() -> Iterator[tuple[Path, Identity]]:
    """Remove this user's temporary directories whose process has ended; yield each with its owner.

    Directories from another boot or pid namespace stay: it is unknown here whether their owner is alive.
    """
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*:*:*:*-*")):
        owner = _owner(path)
        if owner is not None and owner.here and not owner.alive:
            with contextlib.suppress(FileNotFoundError):  # another process has just removed it
                shutil.rmtree(path)
            yield path, owner


def _owner(path: Path) -> Identity | None:
    """The owner of a directory; None unless it is this user's and was made by `directory`."""
    with contextlib.suppress(OSError, ValueError):
        found = os.lstat(path)
        if found.st_uid == os.geteuid() and path.is_dir() and not path.is_symlink():
            # The boot id contains hyphens, the random suffix does not.
            named = path.name.removeprefix(_PREFIX).partition("-")[2].rpartition("-")[0]
            return Identity.parse(named)
    return None
