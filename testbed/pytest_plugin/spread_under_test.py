"""Cluster of a test on several machines: ``@pytest.mark.cluster("fat-tree-4", machines="lab.toml")``.

The workers on the machines are started for the first test that names the machines file, and end with pytest.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Unpack, cast

import pytest

from testbed.cluster.access.node_programs import CommandError
from testbed.cluster.faults.fault_injection import compose_impairment
from testbed.controller.runs.spread_execution import SpreadCluster
from testbed.controller.spread_check import spread_verdict
from testbed.controller.verdict.verdicts import Verdict
from testbed.errors import UnsupportedError
from testbed.machines import spread
from testbed.machines.node_placement import Constraints
from testbed.machines.remote_workers import WorkerLostError, call_each, workers
from testbed.machines.spread_faults import heal, inject, spread_state
from testbed.pytest_plugin.marker import Mode
from testbed.pytest_plugin.under_test import ClusterUnderTest, Injected
from testbed.spec.elements import Impairments
from testbed.spec.machines import load
from testbed.spec.resolver import resolve

if TYPE_CHECKING:
    from testbed.cluster.api import Cluster
    from testbed.cluster.running_cluster import RunningNode
    from testbed.machines.spread import Workers
    from testbed.spec.elements import ImpairmentKeys
    from testbed.spec.layout import ConfiguredDatapath
    from testbed.workloads.lookup import Form

_WORKERS: pytest.StashKey[dict[Path, tuple[ExitStack, Workers]]] = pytest.StashKey()


def workers_of(config: pytest.Config, file: Path) -> Workers:
    """Return the workers on the machines of a file. They are started if there are none, or if one was lost, and end with
    pytest. Raises the errors of `remote_workers.workers`."""
    workers_by_file = config.stash.setdefault(_WORKERS, {})
    if file in workers_by_file:
        stack, running = workers_by_file[file]
        try:
            call_each(running, "clock")
        except WorkerLostError:
            del workers_by_file[file]
            stack.close()
        else:
            return running
    stack = ExitStack()
    config.add_cleanup(stack.close)
    running = stack.enter_context(workers(load(file).machines))
    workers_by_file[file] = stack, running
    return running


def spread_for_test(
    description: Cluster, running: Workers, name: str, origin: str, datapath: ConfiguredDatapath, *, keep: bool
) -> None:
    """Bring a cluster up on machines. keep: whether it stays up if pytest dies."""
    layout = resolve(description)
    plan = spread.plan_spread(running, layout, name, Constraints())
    spread.up(running, plan, name, origin, datapath, lasting=keep)


def workload_reference(workload: Form) -> str:
    """Return the text by which machines load a workload: its name, or "FILE:NAME" for a function or class. Raises
    UnsupportedError for a function or class that is not at the top level of a file."""
    if isinstance(workload, str):
        return workload
    file = inspect.getsourcefile(workload) if inspect.isroutine(workload) or inspect.isclass(workload) else None
    name = getattr(workload, "__name__", type(workload).__name__)
    if file is None or getattr(workload, "__qualname__", "") != name:
        raise UnsupportedError(
            f"workload {name}: on several machines it must be a name, or a function or class at the top level of a file"
        )
    return f"{Path(file).absolute()}:{name}"


@dataclass(frozen=True, slots=True)
class SpreadNode:
    """A node of a cluster on several machines."""

    name: str
    cluster: str
    running: Workers

    def run(self, command: Sequence[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program in the node without input, and wait for its end. check: whether an exit code other than 0 raises
        CommandError."""
        code, stdout, stderr = spread.execute(self.running, self.cluster, self.name, command)
        if check and code:
            raise CommandError(self.name, command, code, stdout, stderr)
        return subprocess.CompletedProcess(list(command), code, stdout, stderr)


@dataclass(eq=False, repr=False)
class SpreadUnderTest(ClusterUnderTest):
    """A cluster on several machines, for the duration of a test. running: workers by machine. spread_name: name of the
    cluster on the machines. file: the machines file."""

    mode: ClassVar[Mode] = "live"

    running: Workers = field(kw_only=True)
    spread_name: str = field(kw_only=True)
    file: Path = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._started = time.monotonic_ns()

    @property
    def name(self) -> str:
        return self.spread_name

    def __getitem__(self, node: str) -> RunningNode:
        return cast("RunningNode", SpreadNode(node, self.name, self.running))

    def _run_target(self) -> SpreadCluster:
        return SpreadCluster(self.name, self.running)

    def _form(self, workload: Form) -> Form:
        return workload_reference(workload)

    def inject(self, target: str, *, direction: str = "", **impairments: Unpack[ImpairmentKeys]) -> Injected:
        keys = Impairments(**impairments).explicit()
        rules = keys.pop("rules", ())
        injected = inject(
            self.running,
            self.name,
            partial(compose_impairment, target=target, keys=keys, rules=rules, direction=direction),
        )

        def lift() -> None:
            heal(self.running, self.name, [injected.injection.number])

        return Injected(lift)

    def network_verdict(self) -> Verdict:
        """Return the verdict on the network since the start of the test: on testbed's processes on all machines, and on
        pauses of the traffic between machines."""
        return spread_verdict(self.running, self.name, self._started)

    def write_files(self, folder: Path) -> None:
        """Write the nodes of each machine, and the events of all machines, to the folder of a failed test."""
        state = spread_state(self.running, self.name)
        placement = {machine: [node.name for node in part.nodes] for machine, part in state.parts.items()}
        (folder / "machines.json").write_text(json.dumps(placement, indent=2))
        events_by_machine: Mapping[str, Any] = call_each(
            state.workers, "events", name=dict.fromkeys(state.workers, self.name), since=dict.fromkeys(state.workers, 0)
        )
        lines = [
            json.dumps({"on": machine, **event}) for machine, events in events_by_machine.items() for event in events
        ]
        (folder / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))

    def commands(self) -> list[str]:
        """Return commands to inspect the cluster from another terminal."""
        node = next(iter(self.nodes))
        return [
            f"testbed machines status {self.file} {self.name}",
            f"testbed machines shell {self.file} {self.name} {node}",
        ]
