"""``from testbed import Cluster``: describe a cluster in Python or load its file, and bring it up."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.cluster.bringing_up import bring_up
from testbed.cluster.lifecycle import Progress, silent
from testbed.cluster.running import RunningCluster
from testbed.cluster.state import Store
from testbed.spec.model import Description
from testbed.spec.resolving import resolve

if TYPE_CHECKING:
    from testbed.kernel.datapaths import Asked

_numbers = itertools.count(1)


def _program() -> str:
    """Where a cluster made in Python comes from: the program that makes it."""
    return f"python:{os.path.abspath(sys.argv[0])}" if sys.argv and sys.argv[0] else "python"


class Cluster(Description):
    """A description that can be brought up::

    with Cluster.star(4).up() as cluster:
        cluster["n1"].run(["ping", "-c1", "n2"])
    """

    def up(
        self,
        name: str | None = None,
        *,
        keep: bool = False,
        origin: str = "",
        datapath: Asked = "auto",
        fates: str | Path = "",
        progress: Progress = silent,
    ) -> RunningCluster:
        """Bring the cluster up.

        It ends with ``down()``, with the ``with`` block, or with this process, however that dies. With `keep` it stays
        until it is taken down, as if the command had brought it up, and is converged when it is up already.

        name: by default the description's own; unless it is kept, made unique by this process's number, so that tests in
        parallel do not meet. origin: with `keep`, what tells this cluster from another of the same name, usually its
        file; this program's path if not said. datapath: who shall carry impaired links; the ladder decides if not said.
        fates: a file to which the relay appends every fate that is not a pass; `inject` can replay it. Unless a datapath is
        asked for, the relay then carries all that is impaired. Raises TestbedError: UnsupportedError before anything is
        touched, ConflictError for a name in use, KernelError after a failure that has been rolled back.
        """
        if name is None:
            name = self.name if keep else f"{self.name[:40]}-{os.getpid()}-{next(_numbers)}"
        store = Store()
        outcome = bring_up(
            store,
            resolve(self),
            name=name,
            origin=origin or _program(),
            lasting=keep,
            progress=progress,
            asked="relay" if fates and datapath == "auto" else datapath,
            log=str(Path(fates).absolute()) if fates else "",
        )
        return RunningCluster(store, outcome.state)
