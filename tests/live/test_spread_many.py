"""300 nodes over three machines, with TESTBED_LONG=1: every protocol under loss, and runs that lose a machine, the network
between two machines, or the controller. `test_spread_faults` and `test_spread_outages` use three nodes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from testbed.cluster.faults.fault_injection import compose_impairment
from testbed.cluster.services.machine_watch import UNREACHABLE
from testbed.controller.runs.runner import RunResult, run
from testbed.controller.runs.spread_execution import SpreadCluster
from testbed.controller.verdict.machine_outages import LOST
from testbed.controller.verdict.outages import InvalidRunError
from testbed.machines import spread
from testbed.machines.node_placement import Constraints
from testbed.machines.spread_faults import inject
from testbed.spec.model import Description
from testbed.spec.resolver import resolve
from tests.live.machine_state import eventually
from tests.live.machines_lab import NAMES, Lab, lab
from tests.live.test_spread_faults import RETRANSMISSION_COUNTERS
from tests.live.testbed_command import TESTBED

pytestmark = [pytest.mark.requires("root", "ip", "ssh", "sshd"), pytest.mark.timeout(1_200)]

LONG = bool(os.environ.get("TESTBED_LONG"))
NODES = 300
STAR = f'name = "many"\ndefaults = {{ mtu = 1400 }}\ngenerate = {{ shape = "star", nodes = {NODES} }}\n'
LAYOUT = resolve(Description.from_toml(STAR))
NAME = "many"
TIMEOUT = 900.0  # seconds for a run
SECOND = 1_000_000_000
FIRMWARE = {
    "am2": {"timeout": SECOND, "longest_timeout": 30 * SECOND},
    "ssam": {"connections": NODES, "give_up": 0},
    "via": {"slots": 16_384},
}
"""Firmware settings. Hundreds of programs on few cores are late by seconds: AM-II and SSAM would give up peers, and AM-II
would retransmit more than receivers can read. The first node has more peers than SSAM's and VIA's defaults allow."""

ROUNDS = """
from pathlib import Path

async def rank(comm, node):
    is_running = True
    while is_running:
        is_running = await comm.allreduce(int(comm.rank == 0 and not Path({stop!r}).exists()))
        if comm.rank == 0:
            Path({started!r}).touch()
        await node.sleep(20_000_000)
"""
"""Collective calls of all ranks until the file `stop` exists; the first one creates the file `started`."""


@pytest.fixture(scope="module")
def machines(_sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("lab")) as running_lab:
        (running_lab.folder / "many.toml").write_text(STAR)
        yield running_lab


@contextmanager
def cluster(machines: Lab) -> Iterator[spread.Workers]:
    """Start workers and bring up a cluster that ends with them, with about 100 nodes per machine."""
    with machines.workers("lab.toml") as running, spread.brought_up(running, LAYOUT, NAME, Constraints(), "here"):
        nodes = [sum(node["exists"] for node in part["nodes"]) for part in spread.status(running, NAME).values()]
        assert sum(nodes) == NODES
        assert len(nodes) == len(NAMES)
        assert min(nodes) > NODES // 4
        yield running


def assert_nothing_left(machines: Lab, *names: str) -> None:
    for name in names:
        eventually(lambda name=name: machines.programs(name) == [], f"no process is left on machine {name}", 60)  # type: ignore[misc]
        eventually(lambda name=name: machines.namespaces(name) == [], f"no namespace is left on machine {name}", 60)  # type: ignore[misc]


def write_program(folder: Path) -> tuple[Path, Path, Path]:
    """Write the program `ROUNDS`; return the paths of the program and of its files `started` and `stop`."""
    started, stop, program = folder / "started", folder / "stop", folder / "rounds.py"
    program.write_text(ROUNDS.format(started=str(started), stop=str(stop)))
    return program, started, stop


def run_with_fault(running: spread.Workers, folder: Path, inject_fault: Callable[[], object]) -> RunResult:
    """Run `ROUNDS` and inject a fault while it is running; stop it afterwards."""
    program, started, stop = write_program(folder)

    def inject_and_stop() -> None:
        eventually(started.exists, "all ranks have completed a round", 300)
        inject_fault()
        stop.touch()

    with ThreadPoolExecutor(1) as executor:
        fault = executor.submit(inject_and_stop)
        try:
            return run(SpreadCluster(NAME, running), str(program), protocol="emp", check=True, output=folder / "run",
                       timeout=TIMEOUT)  # fmt: skip
        finally:
            fault.result()


if LONG:

    @pytest.mark.parametrize("protocol", [*RETRANSMISSION_COUNTERS])
    def test_every_message_arrives_once_over_300_lossy_links(machines: Lab, tmp_path: Path, protocol: str) -> None:
        with cluster(machines) as running:
            inject(
                running, NAME, partial(compose_impairment, target="all", keys={"loss": 0.01}, rules=(), direction="")
            )
            result = run(SpreadCluster(NAME, running), "permutation", protocol=protocol, seed=3, check=True,
                         settings={"pattern": "shift", "size": 1000, "count": 10}, output=tmp_path / "run",
                         timeout=TIMEOUT, firmware=FIRMWARE.get(protocol))  # fmt: skip
        assert result.checks is not None
        assert result.checks.passed, result.checks
        assert len(result.results) == NODES
        assert sum(counts[RETRANSMISSION_COUNTERS[protocol]] for counts in result.counters.values()) > 0
        assert_nothing_left(machines, *NAMES)

    def test_a_killed_machine_ends_the_run_of_300_nodes_and_leaves_nothing(machines: Lab, tmp_path: Path) -> None:
        with pytest.raises(InvalidRunError) as caught, cluster(machines) as running:
            run_with_fault(running, tmp_path, lambda: machines.kill("b"))
        try:
            lost = [finding for finding in caught.value.verdict.findings if finding.what == LOST]
            assert [finding.link for finding in lost] == ["machine b"]
            assert_nothing_left(machines, "a", "c")
        finally:
            machines.start("b")

    def test_a_5_s_interruption_between_two_machines_loses_no_message(machines: Lab, tmp_path: Path) -> None:
        def cut() -> None:
            with machines.cluster.inject(machines.nodes["b"], rules=[f"drop ip.src == {machines.address('a')}"]):
                time.sleep(5)  # the fault's duration

        with cluster(machines) as running:
            result = run_with_fault(running, tmp_path, cut)
        assert result.checks is not None
        assert result.checks.passed, result.checks
        silences = {finding.link: finding for finding in result.verdict.findings if finding.what == UNREACHABLE}
        assert {*silences} == {"machine a", "machine b"}
        assert all((finding.measured or 0) >= 4.9 * SECOND for finding in silences.values())
        assert_nothing_left(machines, *NAMES)

    def test_a_killed_controller_of_300_nodes_leaves_nothing(machines: Lab, tmp_path: Path) -> None:
        program, started, _ = write_program(tmp_path)
        command = ("machines", "run", "lab.toml", "many.toml", str(program), "--protocol", "emp")
        with machines.at_desk(TESTBED, *command) as controller:
            eventually(started.exists, "all ranks have completed a round", 300)
            controller.kill()
        assert_nothing_left(machines, *NAMES)
        assert machines.testbed("machines", "gc", "lab.toml").returncode == 0
        assert machines.testbed("machines", "gc", "lab.toml").stdout == "nothing to collect\n"
