"""Virtual clusters of Linux network namespaces for testing cluster communication.

::

    from testbed import Cluster

    with Cluster.star(4).up() as cluster:
        print(cluster["n1"].run(["ping", "-c1", "n2"]).stdout)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testbed.cluster.access.node_programs import CommandError, CommandTimeoutError
    from testbed.cluster.api import Cluster
    from testbed.cluster.running_cluster import Fault, RunningCluster, RunningNode
    from testbed.controller.attached_nic import attach
    from testbed.controller.cluster_check import baseline, check, verdict
    from testbed.controller.papers.reproduction import reproduce, reproduce_all
    from testbed.controller.replay.replays import replay
    from testbed.controller.runs.run_options import RunOptions
    from testbed.controller.runs.runner import RunResult, run
    from testbed.controller.shared_nics import share_nics
    from testbed.controller.verdict.verdicts import Grade, Verdict
    from testbed.errors import TestbedError
    from testbed.spec.scenario import Scenario

_HOMES = {
    "Cluster": "testbed.cluster.api",
    "CommandError": "testbed.cluster.access.node_programs",
    "CommandTimeoutError": "testbed.cluster.access.node_programs",
    "Fault": "testbed.cluster.running_cluster",
    "Grade": "testbed.controller.verdict.verdicts",
    "RunOptions": "testbed.controller.runs.run_options",
    "RunResult": "testbed.controller.runs.runner",
    "RunningCluster": "testbed.cluster.running_cluster",
    "RunningNode": "testbed.cluster.running_cluster",
    "Scenario": "testbed.spec.scenario",
    "TestbedError": "testbed.errors",
    "Verdict": "testbed.controller.verdict.verdicts",
    "attach": "testbed.controller.attached_nic",
    "baseline": "testbed.controller.cluster_check",
    "check": "testbed.controller.cluster_check",
    "replay": "testbed.controller.replay.replays",
    "reproduce": "testbed.controller.papers.reproduction",
    "reproduce_all": "testbed.controller.papers.reproduction",
    "run": "testbed.controller.runs.runner",
    "share_nics": "testbed.controller.shared_nics",
    "verdict": "testbed.controller.cluster_check",
}

__all__ = [
    "Cluster",
    "CommandError",
    "CommandTimeoutError",
    "Fault",
    "Grade",
    "RunOptions",
    "RunResult",
    "RunningCluster",
    "RunningNode",
    "Scenario",
    "TestbedError",
    "Verdict",
    "attach",
    "baseline",
    "check",
    "replay",
    "reproduce",
    "reproduce_all",
    "run",
    "share_nics",
    "verdict",
]


def __getattr__(name: str) -> object:
    """Import a public name on first access, so that commands do not pay for modules they do not use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'testbed' has no attribute {name!r}")

    value: object = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
