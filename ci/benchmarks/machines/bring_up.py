"""Bring-up of one cluster over three machines and on one of them, in turn, and the control messages of each phase."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from benchmarks.cluster.large_clusters import explicit_description
from benchmarks.harness.contenders import ContenderError
from benchmarks.harness.namespace_teardown import Observer
from benchmarks.harness.rows import Row
from local_machines import Lab
from testbed.cluster.faults.fault_injection import compose_impairment
from testbed.controller.runs.runner import run
from testbed.controller.runs.spread_execution import SpreadCluster
from testbed.machines import spread
from testbed.machines.node_placement import Constraints
from testbed.machines.remote_workers import call_each
from testbed.machines.spread_faults import heal, inject
from testbed.spec.layout import Layout
from testbed.spec.model import Description
from testbed.spec.resolver import resolve

FILES: Final = {"three machines": "lab.toml", "one machine": "one.toml"}
THREE, ONE = FILES
CONNECTION, PLACEMENT, MAKING, BRING_UP = "connection set-up", "placement", "making", "bring-up"
MESSAGES = "messages per node, {}"
PHASES = ("up", "status", "inject", "run", "heal", "down")
_NAME = "bench"
_RUN_TIMEOUT = 600.0  # s
_SETTINGS: Final = {"pattern": "shift", "size": 1000, "count": 3}


def shapes(nodes: int) -> dict[str, Layout]:
    """Return the clusters by name: a star, most of whose links cross between machines, and three switches in a row with a
    third of the nodes each."""
    return {
        "star": resolve(Description.star(nodes)),
        "three racks": resolve(Description.from_toml(explicit_description(nodes, 3))),
    }


def measure(
    machines: Lab, nodes: int, repeat: int, observer: Observer, progress: Callable[[str], None]
) -> Iterator[Row]:
    """Measure `repeat` rounds of every shape and contender after a warm-up; rows in seconds. Connection set-up
    includes the start of the workers' interpreters, with their imports."""
    samples: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for turn in range(repeat + 1):
        for shape, layout in shapes(nodes).items():
            for contender, file in FILES.items():
                progress(f"{shape} of {nodes}, {contender}: {f'{turn} of {repeat}' if turn else 'warm-up'}")
                for measured, seconds in _bring_up_times(machines, file, layout, observer):
                    if turn:
                        samples[shape, contender, measured].append(seconds)
    settings = {"repeat": repeat, "interleaved": [*FILES], BRING_UP: f"{PLACEMENT} and {MAKING}, without {CONNECTION}"}
    for (shape, contender, measured), values in samples.items():
        yield Row(shape, contender, measured, nodes, "s", tuple(values), settings)


def _bring_up_times(machines: Lab, file: str, layout: Layout, observer: Observer) -> Iterator[tuple[str, float]]:
    start = time.monotonic()
    with machines.workers(file) as running:
        call_each(running, "clock")  # wait until the workers' interpreters have started
        connected = time.monotonic()
        plan = spread.plan_spread(running, layout, _NAME, Constraints())
        placed = time.monotonic()
        spread.up(running, plan, _NAME, "benchmark", "auto")
        brought_up = time.monotonic()
        _check_namespaces(machines, plan)
        with _wait_until_destroyed(machines, running, observer):
            spread.down(running, _NAME)
    yield CONNECTION, connected - start
    yield PLACEMENT, placed - connected
    yield MAKING, brought_up - placed
    yield BRING_UP, brought_up - connected


def _check_namespaces(machines: Lab, plan: spread.SpreadPlan) -> None:
    for machine, part in plan.parts.items():
        count = len(machines.namespaces(machine))
        if count != len(part.nodes) + 1:  # including the namespace of the links
            raise ContenderError(f"machine {machine} has {count} namespaces for {len(part.nodes)} nodes")


@contextmanager
def _wait_until_destroyed(machines: Lab, running: spread.Workers, observer: Observer) -> Iterator[None]:
    """Wait at the end until the kernel has destroyed the namespaces that the machines had at the beginning."""
    observer.watch(
        [str(machines.netns_folder(name) / namespace) for name in running for namespace in machines.namespaces(name)]
    )
    yield
    observer.wait()


def messages(machines: Lab, nodes: int, observer: Observer, progress: Callable[[str], None]) -> Iterator[Row]:
    """Count requests and replies between the controller and all machines, without keepalives, per node in each of PHASES."""
    layout = shapes(nodes)["star"]
    with machines.workers(FILES[THREE]) as running:

        def bring_up() -> None:
            plan = spread.plan_spread(running, layout, _NAME, Constraints())
            spread.up(running, plan, _NAME, "benchmark", "auto")

        lossy = partial(compose_impairment, target="all", keys={"loss": 0.01})
        phases: dict[str, Callable[[], object]] = {
            "up": bring_up,
            "status": lambda: spread.status(running, _NAME),
            "inject": lambda: inject(running, _NAME, lossy),
            "run": lambda: run(
                SpreadCluster(_NAME, running), "permutation", settings=_SETTINGS, check=True, timeout=_RUN_TIMEOUT
            ),
            "heal": lambda: heal(running, _NAME),
        }
        for phase, act in phases.items():
            progress(f"messages of {nodes} nodes: {phase}")
            yield _count(running, nodes, phase, act)
        with _wait_until_destroyed(machines, running, observer):
            yield _count(running, nodes, "down", lambda: spread.down(running, _NAME))


def _count(running: spread.Workers, nodes: int, phase: str, act: Callable[[], object]) -> Row:
    before = _message_count(running)
    act()
    share = (_message_count(running) - before) / nodes
    return Row("messages", THREE, MESSAGES.format(phase), nodes, "1", (share,), {"shape": "star", "run": _SETTINGS})


def _message_count(running: spread.Workers) -> int:
    return sum(worker.messages for worker in running.values())
