"""What the fixture ``cluster`` gives: one face for a simulated cluster and for one of namespaces.

::

    def test_everything_arrives_though_frames_are_lost(cluster):
        with cluster.inject("n1", loss="30%"):
            result = cluster.run(exchange, count=100)
        assert result.results["n2"] == 100
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Unpack, cast

from testbed.cluster.state import Store
from testbed.controller.checking import baseline
from testbed.controller.running import TIMEOUT, run
from testbed.errors import UnsupportedError
from testbed.pytest_plugin.asking import MarkerError, Mode
from testbed.pytest_plugin.laying import Overlay, laid_over
from testbed.spec.elements import Impairments
from testbed.spec.layout import Layout, Node
from testbed.spec.resolving import resolve
from testbed.spec.scenario import Scenario

if TYPE_CHECKING:
    from testbed.cluster.api import Cluster
    from testbed.cluster.running import RunningCluster, RunningNode
    from testbed.controller.executing import Beside
    from testbed.controller.running import RunResult
    from testbed.spec.elements import ImpairmentKeys
    from testbed.workloads.finding import Form


@dataclass(eq=False, repr=False)
class ClusterUnderTest:
    """A cluster for one test. nodes: by name, with their NICs and addresses. folder: what is put there is among the
    artefacts when the test fails. protocol, scenario: what `run` takes if it is not told."""

    mode: ClassVar[Mode]

    description: Cluster
    folder: Path
    protocol: str = "emp"
    scenario: object = None
    captures: bool = field(default=False, kw_only=True)
    """Whether the simulation writes every frame."""
    layout: Layout = field(init=False)
    nodes: Mapping[str, Node] = field(init=False)

    def __post_init__(self) -> None:
        self.layout = resolve(self.description)
        self.nodes = {node.name: node for node in self.layout.nodes}
        self._runs = 0

    def __repr__(self) -> str:
        return f"<cluster {self.name} of {len(self.nodes)} nodes, {self.mode}>"

    @property
    def name(self) -> str:
        """The cluster's name: in live mode this test's own, for ``testbed status --name``."""
        return self.description.name

    @property
    def live(self) -> RunningCluster:
        """The cluster in its namespaces. UnsupportedError in simulation."""
        raise UnsupportedError("a simulated cluster has no namespaces: mark the test with mode='live'")

    def __getitem__(self, node: str) -> RunningNode:
        """The node in its namespace, for programs of the machine: ``cluster["n1"].run(["ping", "-c1", "n2"])``."""
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

        workload: what `testbed.run` takes: a name, a class, an ``async def``. protocol: the test's if not said. settings:
        the workload's, by name; one that is called like a parameter of this method is given to its class instead. The
        others, what it returns and what it raises are those of `testbed.run`. Its folder is among the test's artefacts.
        A check of its history that fails, fails the test: AssertionError says what was found.
        """
        __tracebackhide__ = True
        self._runs += 1
        result = run(
            self._place(),
            workload,
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
            beside=_beside(self.scenario),
        )
        broken = [one.checks.in_words() for one in result.repetitions if one.checks is not None and one.checks.failed]
        if broken:
            raise AssertionError("\n".join(broken))
        return result

    def _place(self) -> Cluster | RunningCluster:
        """What a run takes place on."""
        raise NotImplementedError

    @contextmanager
    def inject(self, target: str, *, direction: str = "", **impairments: Unpack[ImpairmentKeys]) -> Iterator[None]:
        """Impair links within the block; target and direction as for `RunningCluster.inject`. In simulation it counts for
        the runs that begin in the block."""
        raise NotImplementedError


@dataclass(eq=False, repr=False)
class SimulatedCluster(ClusterUnderTest):
    """Every run is a simulation of its own, of the description as it is then."""

    mode = "sim"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._overlays: list[Overlay] = []

    def _place(self) -> Cluster:
        return laid_over(self.description, self._overlays)

    @contextmanager
    def inject(self, target: str, *, direction: str = "", **impairments: Unpack[ImpairmentKeys]) -> Iterator[None]:
        overlay = Overlay(target, Impairments(**impairments), direction)
        laid_over(self.description, [*self._overlays, overlay])  # what cannot be is said here, not at the next run
        self._overlays.append(overlay)
        try:
            yield
        finally:
            self._overlays.remove(overlay)


@dataclass(eq=False, repr=False)
class LiveCluster(ClusterUnderTest):
    """Namespaces, from the beginning of the test to its end. directory: where the cluster's state is. begun: an account of
    the network at the test's beginning."""

    mode = "live"

    running: RunningCluster = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.directory = Store().directory(self.running.name)
        self.begun = baseline(self.running)

    @property
    def name(self) -> str:
        return self.running.name

    @property
    def live(self) -> RunningCluster:
        return self.running

    def _place(self) -> RunningCluster:
        return self.running

    @contextmanager
    def inject(self, target: str, *, direction: str = "", **impairments: Unpack[ImpairmentKeys]) -> Iterator[None]:
        with self.running.inject(target, direction=direction, **impairments):
            yield


def _beside(scenario: object) -> tuple[Beside, ...]:
    """What happens beside the programs. Raises MarkerError for what cannot happen there."""
    if scenario is None or isinstance(scenario, Scenario | Path):
        return ()
    if not (hasattr(scenario, "simulated") and hasattr(scenario, "live")):
        raise MarkerError(
            f"scenario: found {scenario!r}, expected a Scenario, a TOML file, or what `testbed.run` takes as 'beside'"
        )
    return (cast("Beside", scenario),)
