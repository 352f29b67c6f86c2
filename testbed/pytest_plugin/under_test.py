"""Fixture ``cluster``: one interface to a simulated cluster and to a live one.

::

    def test_everything_arrives_although_frames_are_lost(cluster):
        with cluster.inject("n1", loss="30%"):
            result = cluster.run(exchange, count=100)
        assert result.results["n2"] == 100
"""

from __future__ import annotations

import ipaddress
import itertools
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Unpack, cast

from testbed.cluster.faults.injections import select_directions
from testbed.cluster.records.state import Store
from testbed.controller.assertions.sequential import reachability_test, until_sure
from testbed.controller.assertions.shares import required_probes
from testbed.controller.cluster_check import baseline, verdict
from testbed.controller.runs.run_options import TIMEOUT
from testbed.controller.runs.runner import run
from testbed.errors import NotFoundError, UnsupportedError, did_you_mean
from testbed.pytest_plugin import prompt
from testbed.pytest_plugin.marker import MarkerError, Mode
from testbed.registry import DEFAULT_PROTOCOL
from testbed.spec.elements import Impairments
from testbed.spec.layout import Layout, Node
from testbed.spec.resolver import resolve
from testbed.spec.scenario import Scenario
from testbed.spec.units import parse_probability

if TYPE_CHECKING:
    from testbed.cluster.api import Cluster
    from testbed.cluster.running_cluster import RunningCluster, RunningNode
    from testbed.controller.runs.execution import Companion
    from testbed.controller.runs.runner import RunResult
    from testbed.controller.runs.spread_execution import SpreadCluster
    from testbed.controller.verdict.verdicts import Verdict
    from testbed.spec.elements import ImpairmentKeys
    from testbed.workloads.lookup import Form


_CLUSTER_FILES: Final = ("state.json", "events.jsonl", "processes.log")


class Injected(AbstractContextManager[None]):
    """Impairments that are in force until `lift` is called, by the test or at the end of a ``with`` block, or until the end
    of the test."""

    def __init__(self, lift: Callable[[], None]) -> None:
        self._callbacks = ExitStack()
        self._callbacks.callback(lift)

    def lift(self) -> None:
        """Lift the impairments. A second call does nothing."""
        self._callbacks.close()

    def __exit__(self, *_: object) -> None:
        self.lift()


@dataclass(frozen=True, slots=True, eq=False)
class Overlay:
    """Impairments of a target. target, direction: as for `RunningCluster.inject`."""

    target: str
    impairments: Impairments
    direction: str = ""


def apply_overlays(description: Cluster, overlays: Iterable[Overlay], seed: int | None = None) -> Cluster:
    """Return the description with overlays and a seed. Later overlays override earlier ones. seed: None: the description's.

    Raises NotFoundError for an unknown link, DescriptionError for contradictory impairments.
    """
    layout = resolve(description)
    numbers = {link.name: number for number, link in enumerate(layout.links)}
    links = list(description.links)
    for overlay in overlays:
        for name, direction in select_directions(layout, overlay.target, overlay.direction):
            link = links[numbers[name]]
            before: Impairments | None = getattr(link, direction)
            combined = overlay.impairments if before is None else overlay.impairments.over(before)
            links[numbers[name]] = link.model_copy(update={direction: combined})
    fields = {name: getattr(description, name) for name in type(description).model_fields}
    return type(description)(**fields | {"links": links} | ({} if seed is None else {"seed": seed}))


@dataclass(eq=False, repr=False)
class ClusterUnderTest:
    """A cluster for one test. description: the cluster as the marker describes it. folder: directory whose files become
    artefacts if the test fails. protocol, scenario: defaults of `run`. layout: the resolved description. nodes: nodes by
    name, with NICs and addresses."""

    mode: ClassVar[Mode]

    description: Cluster
    folder: Path
    protocol: str = DEFAULT_PROTOCOL
    scenario: object = None
    captures: bool = field(default=False, kw_only=True)
    """Whether simulations write all frames to captures."""
    layout: Layout = field(init=False)
    nodes: Mapping[str, Node] = field(init=False)

    def __post_init__(self) -> None:
        self.layout = resolve(self.description)
        self.nodes = {node.name: node for node in self.layout.nodes}
        self._runs = 0
        self.verdicts: list[Verdict] = []
        """Verdicts of all runs so far."""

    def __repr__(self) -> str:
        return f"<cluster {self.name} of {len(self.nodes)} nodes, {self.mode}>"

    @property
    def name(self) -> str:
        """Name of the cluster, as for ``testbed status --name``; in live mode each test has its own."""
        return self.description.name

    @property
    def live(self) -> RunningCluster:
        """The cluster in namespaces. Raises UnsupportedError in sim."""
        raise UnsupportedError("a simulated cluster has no namespaces: use mode='live' in the test's marker")

    if not TYPE_CHECKING:  # for mypy a class with __getattr__ has every attribute

        def __getattr__(self, name: str) -> object:
            from testbed.cluster.running_cluster import RunningCluster

            __tracebackhide__ = True
            hint = f"; a cluster in namespaces has it as 'cluster.live.{name}'" if hasattr(RunningCluster, name) else ""
            raise AttributeError(f"the fixture's cluster has no attribute {name!r}{hint}", name=name, obj=self)

    def __getitem__(self, node: str) -> RunningNode:
        """Return a node in its namespace, to run programs: ``cluster["n1"].run(["ping", "-c1", "n2"])``."""
        return self.live[node]

    def run(
        self,
        workload: Form,
        *,
        protocol: str = "",
        seed: int | None = None,
        repeat: int = 1,
        timeout: float = TIMEOUT,
        patience: float | None = None,
        history: bool = False,
        check: bool | None = None,
        **settings: object,
    ) -> RunResult:
        """Run a workload on all nodes and wait for its end::

            async def hello(comm, node, *, text="hello"): ...

            cluster.run(hello, text="good morning").results["n2"]
            cluster.run("pingpong", count=100, protocol="tcp").rows

        workload: as for `testbed.run`: a name, a class, an ``async def``. protocol: default: the test's. settings: settings
        of the workload; a setting that is called like a parameter of this method can only be given to the workload's class.
        The other arguments, the result and the errors are those of `testbed.run`. The run's folder becomes an artefact if
        the test fails. Raises AssertionError with the report if a check of the history fails.
        """
        __tracebackhide__ = True
        self._runs += 1
        result = run(
            self._run_target(),
            self._form(workload),
            protocol=protocol or self.protocol,
            mode=self.mode,
            settings=settings,
            seed=seed,
            repeat=repeat,
            output=self.folder / "runs" / str(self._runs),
            timeout=timeout,
            patience=patience,
            history=history,
            check=check,
            capture=self.captures,
            scenario=self.scenario if isinstance(self.scenario, Scenario | Path) else None,
            companions=_companions(self.scenario),
        )
        self.verdicts.append(result.verdict)
        failed_reports = [
            repetition.checks.to_text()
            for repetition in result.repetitions
            if repetition.checks is not None and repetition.checks.failed
        ]
        if failed_reports:
            raise AssertionError("\n".join(failed_reports))
        return result

    def assert_reachable(self, source: str, destination: str, *, loss: float | str = 0.0) -> None:
        """Ping until an answer arrives, and fail once loss cannot explain the missing answers. destination: a node or an
        address. loss: share of lost round trips to a reachable node. Raises AssertionError, NotFoundError for an unknown
        node, and UnsupportedError in sim."""
        __tracebackhide__ = True
        try:
            until_sure(reachability_test(loss), (self._answers(source, destination) for _ in itertools.count()))
        except AssertionError as error:
            raise AssertionError(f"{source} to {destination}: {error}") from None

    def assert_unreachable(self, source: str, destination: str, *, loss: float | str = 0.0) -> None:
        """Ping as often as needed to distinguish an unreachable node from loss, and fail on the first answer. Parameters and
        errors are those of `assert_reachable`."""
        __tracebackhide__ = True
        probes = required_probes(parse_probability(loss))
        for number in range(1, probes + 1):
            if self._answers(source, destination):
                raise AssertionError(f"{source} to {destination}: probe {number:,} was answered, expected no answer")

    def _answers(self, source: str, destination: str) -> bool:
        """Whether a ping is answered within a second. destination: a node or an address. Raises NotFoundError."""
        node = self[source]
        if destination not in self.nodes:  # a misspelt name must not pass for an unreachable node
            try:
                ipaddress.ip_address(destination)
            except ValueError:
                suggestion = did_you_mean(destination, self.nodes)
                raise NotFoundError(
                    f"no node is called {destination!r}{suggestion}: expected a node or an address"
                ) from None
        return node.run(["ping", "-n", "-c1", "-W1", destination], check=False).returncode == 0

    def _run_target(self) -> Cluster | RunningCluster | SpreadCluster:
        """Return the cluster for the next run."""
        raise NotImplementedError

    def _form(self, workload: Form) -> Form:
        """Return a workload in the form that a run supports."""
        return workload

    def network_verdict(self) -> Verdict:
        """Return the verdict on the network of a live cluster since the start of the test."""
        raise NotImplementedError

    def write_files(self, folder: Path) -> None:
        """Write the state files of a live cluster to the folder of a failed test."""
        raise NotImplementedError

    def commands(self) -> list[str]:
        """Return commands to inspect a live cluster from another terminal."""
        raise NotImplementedError

    def inject(self, target: str, *, direction: str = "", **impairments: Unpack[ImpairmentKeys]) -> Injected:
        """Impair links until the end of a ``with`` block, or until the end of the test. target, direction: as for
        `RunningCluster.inject`. In sim, runs that start meanwhile have the impairments."""
        raise NotImplementedError


@dataclass(eq=False, repr=False)
class SimulatedCluster(ClusterUnderTest):
    """A simulated cluster: each run is a new simulation of the description with the current overlays."""

    mode = "sim"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._overlays: list[Overlay] = []

    def _run_target(self) -> Cluster:
        return apply_overlays(self.description, self._overlays)

    def inject(self, target: str, *, direction: str = "", **impairments: Unpack[ImpairmentKeys]) -> Injected:
        overlay = Overlay(target, Impairments(**impairments), direction)
        apply_overlays(
            self.description, [*self._overlays, overlay]
        )  # so that errors are raised here, not by the next run
        self._overlays.append(overlay)
        return Injected(lambda: self._overlays.remove(overlay))


@dataclass(eq=False, repr=False)
class LiveCluster(ClusterUnderTest):
    """A cluster of namespaces, for the duration of a test. running: the cluster. directory: directory of its state.
    baseline: its counters at the start of the test."""

    mode = "live"

    running: RunningCluster = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.directory = Store().directory(self.running.name)
        self.baseline = baseline(self.running)

    @property
    def name(self) -> str:
        return self.running.name

    @property
    def live(self) -> RunningCluster:
        return self.running

    def network_verdict(self) -> Verdict:
        return verdict(self.name, self.baseline)

    def write_files(self, folder: Path) -> None:
        for name in _CLUSTER_FILES:
            if (self.directory / name).is_file():
                shutil.copyfile(self.directory / name, folder / name)

    def commands(self) -> list[str]:
        return [*prompt.commands_for(self.name, self.nodes), f"testbed down --name {self.name}"]

    def _run_target(self) -> RunningCluster:
        return self.running

    def inject(self, target: str, *, direction: str = "", **impairments: Unpack[ImpairmentKeys]) -> Injected:
        return Injected(self.running.inject(target, direction=direction, **impairments).lift)


def _companions(scenario: object) -> tuple[Companion, ...]:
    """Return the value of `run`'s parameter 'companions': a scenario that is neither a `Scenario` nor a path. Raises
    MarkerError if it is no companion."""
    if scenario is None or isinstance(scenario, Scenario | Path):
        return ()
    if not (hasattr(scenario, "simulated") and hasattr(scenario, "live")):
        raise MarkerError(
            f"scenario: found {scenario!r}, expected a Scenario, a TOML file, or a companion as of `testbed.run`"
        )
    return (cast("Companion", scenario),)
