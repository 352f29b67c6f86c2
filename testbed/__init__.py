"""Virtual clusters of Linux network namespaces for testing cluster communication.

::

    from testbed import Cluster

    with Cluster.star(4).up() as cluster:
        print(cluster["n1"].run(["ping", "-c1", "n2"]).stdout)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testbed.cluster.api import Cluster
    from testbed.cluster.programs import CommandError, CommandTimeoutError
    from testbed.cluster.running import Fault, RunningCluster, RunningNode
    from testbed.controller.attaching import attach
    from testbed.controller.checking import baseline, check, verdict
    from testbed.controller.nics import share_nics
    from testbed.controller.replaying import replay
    from testbed.controller.reproducing import reproduce
    from testbed.controller.running import RunResult, run
    from testbed.controller.verdicts import Grade, Verdict
    from testbed.errors import TestbedError
    from testbed.spec.scenario import Scenario

_HOMES = {
    "Cluster": "testbed.cluster.api",
    "CommandError": "testbed.cluster.programs",
    "CommandTimeoutError": "testbed.cluster.programs",
    "Fault": "testbed.cluster.running",
    "Grade": "testbed.controller.verdicts",
    "RunResult": "testbed.controller.running",
    "RunningCluster": "testbed.cluster.running",
    "RunningNode": "testbed.cluster.running",
    "Scenario": "testbed.spec.scenario",
    "TestbedError": "testbed.errors",
    "Verdict": "testbed.controller.verdicts",
    "attach": "testbed.controller.attaching",
    "baseline": "testbed.controller.checking",
    "check": "testbed.controller.checking",
    "replay": "testbed.controller.replaying",
    "reproduce": "testbed.controller.reproducing",
    "run": "testbed.controller.running",
    "share_nics": "testbed.controller.nics",
    "verdict": "testbed.controller.checking",
}

__all__ = [
    "Cluster",
    "CommandError",
    "CommandTimeoutError",
    "Fault",
    "Grade",
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
    "run",
    "share_nics",
    "verdict",
]


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for: the command must not pay for what it does not use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'testbed' has no attribute {name!r}")
    import importlib

    value: object = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
