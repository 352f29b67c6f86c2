"""Cluster of a test that is spread over machines: ``@pytest.mark.cluster("fat-tree-4", machines="lab.toml")``.

The workers of a file's machines are started with the first test that names it, and end with pytest.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Unpack, cast

import pytest

from testbed.cluster.access.node_programs import CommandError
from testbed.cluster.faults.fault_injection import impairing
from testbed.controller.runs.spread_execution import SpreadCluster
from testbed.controller.spread_check import looked_back
from testbed.controller.verdict.verdicts import Verdict
from testbed.errors import UnsupportedError
from testbed.machines import spread
from testbed.machines.node_placement import Constraints
from testbed.machines.remote_workers import WorkerLostError, call_each, workers
from testbed.machines.spread_faults import heal, inject, spread_state
from testbed.pytest_plugin.marker import Mode
from testbed.pytest_plugin.under_test import ClusterUnderTest
from testbed.spec.elements import Impairments
from testbed.spec.machines import load
from testbed.spec.resolver import resolve

if TYPE_CHECKING:
    from testbed.cluster.api import Cluster
    from testbed.cluster.running_cluster import RunningNode
    from testbed.machines.spread import Workers
    from testbed.spec.elements import ImpairmentKeys
    from testbed.spec.layout import Asked
    from testbed.workloads.lookup import Form

_WORKERS: pytest.StashKey[dict[Path, tuple[ExitStack, Workers]]] = pytest.StashKey()


def workers_of(config: pytest.Config, file: Path) -> Workers:
    """Return the workers of a file's machines, which end with pytest; they are started if there are none, or one of them was
    lost. Raises as `remote_workers.workers`."""
    known = config.stash.setdefault(_WORKERS, {})
    if file in known:
        stack, running = known[file]
        try:
            call_each(running, "clock")
        except WorkerLostError:
            known.pop(file)
            stack.close()
        else:
            return running
    stack = ExitStack()
    config.add_cleanup(stack.close)
    running = stack.enter_context(workers(load(file).machines))
    known[file] = stack, running
    return running


def spread_for_test(
    description: Cluster, running: Workers, name: str, origin: str, datapath: Asked, *, keep: bool
) -> None:
    """Spread a cluster over machines. keep: it stays if pytest dies."""
    layout = resolve(description)
    plan = spread.plan_spread(running, layout, name, Constraints())
    spread.up(running, plan, name, origin, datapath, lasting=keep)


def file_and_name(workload: Form) -> str:
    """Return the text that names a workload by its file, from which the machines take it. Raises UnsupportedError for one
    that is not at the top of a file."""
    if isinstance(workload, str):
        return workload
    file = inspect.getsourcefile(workload) if inspect.isroutine(workload) or inspect.isclass(workload) else None
    name = getattr(workload, "__name__", type(workload).__name__)
    if file is None or getattr(workload, "__qualname__", "") != name:
        raise UnsupportedError(
            f"{name}: on machines a workload is a name, or a function or class at the top of its file"
        )
    return f"{Path(file).absolute()}:{name}"


@dataclass(frozen=True, slots=True)
class SpreadNode:
    """A node of a cluster that is spread over machines."""

    name: str
    cluster: str
    running: Workers

    def run(self, command: Sequence[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program in the node and wait for its end, as `RunningNode.run` does, without input."""
        code, stdout, stderr = spread.execute(self.running, self.cluster, self.name, command)
        if check and code:
            raise CommandError(self.name, command, code, stdout, stderr)
        return subprocess.CompletedProcess(list(command), code, stdout, stderr)


@dataclass(eq=False, repr=False)
class SpreadUnderTest(ClusterUnderTest):
    """A cluster on several machines, for the duration of the test. file: the machines'."""

    mode: ClassVar[Mode] = "live"

    running: Workers = field(kw_only=True)
    spread_name: str = field(kw_only=True)
    file: Path = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._begun = time.monotonic_ns()

    @property
    def name(self) -> str:
        return self.spread_name

    def __getitem__(self, node: str) -> RunningNode:
        return cast("RunningNode", SpreadNode(node, self.name, self.running))

    def _place(self) -> SpreadCluster:
        return SpreadCluster(self.name, self.running)

    def _form(self, workload: Form) -> Form:
        return file_and_name(workload)

    @contextmanager
    def inject(self, target: str, *, direction: str = "", **impairments: Unpack[ImpairmentKeys]) -> Iterator[None]:
        keys = Impairments(**impairments).explicit()
        rules = keys.pop("rules", ())
        done = inject(
            self.running,
            self.name,
            partial(impairing, target=target, keys=keys, rules=rules, direction=direction),
        )
        try:
            yield
        finally:
            heal(self.running, self.name, [done.injection.number])

    def looked_back(self) -> Verdict:
        """Return the verdict on the test until now: the processes of the testbed on all machines, and silences between
        these."""
        return looked_back(self.running, self.name, self._begun)

    def keep(self, folder: Path) -> None:
        """Write which machine has which nodes, and the machines' events, into the folder of a failed test."""
        state = spread_state(self.running, self.name)
        placed = {machine: [node.name for node in part.nodes] for machine, part in state.parts.items()}
        (folder / "machines.json").write_text(json.dumps(placed, indent=2))
        found: Mapping[str, Any] = call_each(
            state.workers, "events", name=dict.fromkeys(state.workers, self.name), since=dict.fromkeys(state.workers, 0)
        )
        lines = [json.dumps({"on": machine, **event}) for machine, events in found.items() for event in events]
        (folder / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))

    def commands(self) -> list[str]:
        """Commands to look at the cluster from another terminal."""
        node = next(iter(self.nodes))
        return [
            f"testbed machines status {self.file} {self.name}",
            f"testbed machines shell {self.file} {self.name} {node}",
        ]
