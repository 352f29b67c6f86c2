"""Ownership marks on kernel objects and temporary directories, readable even if the cluster's state is lost.

The mark of a namespace is the alias of its loopback interface::

    netns-testbed 1 CLUSTER KEY lasting|held BOOT:PIDNS:PID:START

KEY is the node's name, or "." for the wire namespace. A *lasting* cluster stays until it is taken down; its owner is
the process that made it, which may have ended. A *held* cluster belongs to a process and ends with it.

Temporary directories are named after their process, so that those of killed processes can be found and removed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.cluster.plan import namespace_names
from testbed.kernel.processes import Identity, identity
from testbed.lazy_dataclass import dataclass

_SIGNATURE = "netns-testbed 1"
_WIRE = "."


@dataclass(frozen=True, slots=True)
class Mark:
    """A parsed mark."""

    cluster: str
    key: str
    lasting: bool
    owner: Identity

    def __str__(self) -> str:
        kind = "lasting" if self.lasting else "held"
        return f"{_SIGNATURE} {self.cluster} {self.key or _WIRE} {kind} {self.owner}"

    @classmethod
    def parse(cls, alias: str) -> Mark | None:
        """Parse the output of str(); None for an alias that is not a mark."""
        if not alias.startswith(f"{_SIGNATURE} "):
            return None
        try:
            cluster, key, kind, owner = alias.removeprefix(_SIGNATURE).split()
            return cls(cluster, namespace_names.WIRE if key == _WIRE else key, kind == "lasting", Identity.parse(owner))
        except ValueError:
            return None


_PREFIX = "testbed-"


@contextmanager
def temporary_directory(purpose: str) -> Iterator[Path]:
    """Make an empty temporary directory, removed at the end of the block. purpose: a word in its name, which also contains
    the owner's identity."""
    import tempfile  # imports compression modules: 5 ms that `up` need not wait for

    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{purpose}-{identity()}-") as path:
        yield Path(path)


def collect_temporary() -> Iterator[tuple[Path, Identity]]:
    """Remove this user's temporary directories whose process has ended; yield each with its owner.

    Directories from another boot or pid namespace stay, since it cannot be determined whether their owner is alive.
    """
    import shutil
    import tempfile

    for path in sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*:*:*:*-*")):
        owner = _owner(path)
        if owner is not None and owner.is_local and not owner.is_alive:
            with contextlib.suppress(FileNotFoundError):  # another process has just removed it
                shutil.rmtree(path)
            yield path, owner


def _owner(path: Path) -> Identity | None:
    """Return the owner of a directory; None unless it is this user's and was made by `temporary_directory`."""
    with contextlib.suppress(OSError, ValueError):
        if os.lstat(path).st_uid == os.geteuid() and path.is_dir() and not path.is_symlink():
            # The boot id contains hyphens, the random suffix does not.
            owner = path.name.removeprefix(_PREFIX).partition("-")[2].rpartition("-")[0]
            return Identity.parse(owner)
    return None
