"""The Python API, ``from testbed import Cluster``: describe a cluster in Python or load its file, and bring it up."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

from testbed.cluster.records.state import Store
from testbed.cluster.running_cluster import RunningCluster
from testbed.cluster.startup import bring_up
from testbed.cluster.transitions import Progress, no_progress
from testbed.spec.layout import ConfiguredDatapath
from testbed.spec.model import Description
from testbed.spec.resolver import resolve

_numbers = itertools.count(1)


def _default_origin() -> str:
    """Return the origin of a cluster made in Python: the running program."""
    return f"python:{os.path.abspath(sys.argv[0])}" if sys.argv and sys.argv[0] else "python"


class Cluster(Description):
    """A description that can be brought up.

    ::

        with Cluster.star(4).up() as cluster:
            cluster["n1"].run(["ping", "-c1", "n2"])
    """

    def up(
        self,
        name: str | None = None,
        *,
        keep: bool = False,
        origin: str = "",
        datapath: ConfiguredDatapath = "auto",
        fates: str | Path = "",
        progress: Progress = no_progress,
    ) -> RunningCluster:
        """Bring the cluster up.

        The cluster ends with ``down()``, with the ``with`` block, or with this process, even if the process is killed.
        With `keep`, it stays until it is taken down, like a cluster from the command line, and a running cluster of that
        name and origin is converged.

        name: default: the description's name; without `keep`, the process id and a counter are appended so that
        parallel tests do not collide. origin: with `keep`, distinguishes this cluster from others of the same name,
        usually its file; default: this program's path. datapath: datapath of impaired links; by default, the best
        datapath available. fates: a file to which the relay appends every fate that is not a pass, for replay by
        `inject`; unless a datapath is requested, the relay then forwards all impaired links. progress: called with the
        numbers of operations done and in total; only as root.

        Raises TestbedError: UnsupportedError before anything changes, ConflictError for a name in use, KernelError
        after a failure that was rolled back.
        """
        if name is None:
            name = self.name if keep else f"{self.name[:40]}-{os.getpid()}-{next(_numbers)}"
        store = Store()
        result = bring_up(
            store,
            resolve(self),
            name=name,
            origin=origin or _default_origin(),
            lasting=keep,
            progress=progress,
            asked="relay" if fates and datapath == "auto" else datapath,
            log=str(Path(fates).absolute()) if fates else "",
        )
        return RunningCluster(store, result.state)
