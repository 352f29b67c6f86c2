"""300 nodes over three machines, with TESTBED_LONG=1: every protocol under loss, and runs that lose a machine, the network
between two machines, or their controller. The tests of spread faults and outages have three nodes.
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
from tests.live.test_spread_faults import RESENT
from tests.live.testbed_command import TESTBED

pytestmark = [pytest.mark.requires("root", "ip", "ssh", "sshd"), pytest.mark.timeout(1_200)]

LONG = bool(os.environ.get("TESTBED_LONG"))
NODES = 300
STAR = f'name = "many"\ndefaults = {{ mtu = 1400 }}\ngenerate = {{ shape = "star", nodes = {NODES} }}\n'
LAYOUT = resolve(Description.from_toml(STAR))
NAME = "many"
TIMEOUT = 900.0  # s of a run
SECOND = 1_000_000_000
FIRMWARE = {
    "am2": {"timeout": SECOND, "longest_timeout": 30 * SECOND},
    "ssam": {"connections": NODES, "give_up": 0},
    "via": {"slots": 16_384},
}
"""Settings of NICs. Hundreds of programs on few processors are late by seconds, after which AM-II and SSAM would give a peer
up, and AM-II's copies of frames would be more than their receiver can read; the first node has more peers than SSAM's and
VIA's defaults allow."""

ROUNDS = """
from pathlib import Path

async def rank(comm, node):
    more = True
    while more:
        more = await comm.allreduce(int(comm.rank == 0 and not Path({over!r}).exists()))
        if comm.rank == 0:
            Path({begun!r}).touch()
        await node.sleep(20_000_000)
"""
"""Collective calls of all ranks, until a file is there; after the first one another file is."""


@pytest.fixture(scope="module")
def machines(_sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("lab")) as running_lab:
        (running_lab.folder / "many.toml").write_text(STAR)
        yield running_lab


@contextmanager
def cluster(machines: Lab) -> Iterator[spread.Workers]:
    """Workers on the machines, and a cluster that ends with them: a hundred nodes or so are on each."""
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


def rounds(folder: Path) -> tuple[Path, Path, Path]:
    """Write the program of `ROUNDS`. Returns its file, that which says that it has begun, and that which ends it."""
    begun, over, program = folder / "begun", folder / "over", folder / "rounds.py"
    program.write_text(ROUNDS.format(begun=str(begun), over=str(over)))
    return program, begun, over


def disturbed(running: spread.Workers, folder: Path, disturb: Callable[[], object]) -> RunResult:
    """Run `ROUNDS`, and disturb it in its midst; it is over once that is done."""
    program, begun, over = rounds(folder)

    def act() -> None:
        eventually(begun.exists, "all ranks have made a round", 300)
        disturb()
        over.touch()

    with ThreadPoolExecutor(1) as beside:
        acting = beside.submit(act)
        try:
            return run(SpreadCluster(NAME, running), str(program), protocol="emp", check=True, output=folder / "run",
                       timeout=TIMEOUT)  # fmt: skip
        finally:
            acting.result()


if LONG:

    @pytest.mark.parametrize("protocol", [*RESENT])
    def test_every_message_arrives_once_whatever_the_links_lose(machines: Lab, tmp_path: Path, protocol: str) -> None:
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
        assert sum(counts[RESENT[protocol]] for counts in result.counters.values()) > 0
        assert_nothing_left(machines, *NAMES)

    def test_a_machine_that_is_killed_ends_the_run_and_nothing_is_left(machines: Lab, tmp_path: Path) -> None:
        with pytest.raises(InvalidRunError) as caught, cluster(machines) as running:
            disturbed(running, tmp_path, lambda: machines.kill("b"))
        try:
            lost = [finding for finding in caught.value.verdict.findings if finding.what == LOST]
            assert [finding.link for finding in lost] == ["machine b"]
            assert_nothing_left(machines, "a", "c")
        finally:
            machines.start("b")

    def test_machines_cut_off_from_each_other_for_5_s_lose_nothing(machines: Lab, tmp_path: Path) -> None:
        def cut() -> None:
            with machines.cluster.inject(machines.nodes["b"], rules=[f"drop ip.src == {machines.address('a')}"]):
                time.sleep(5)  # the fault's duration

        with cluster(machines) as running:
            result = disturbed(running, tmp_path, cut)
        assert result.checks is not None
        assert result.checks.passed, result.checks
        silences = {finding.link: finding for finding in result.verdict.findings if finding.what == UNREACHABLE}
        assert {*silences} == {"machine a", "machine b"}
        assert all((finding.measured or 0) >= 4.9 * SECOND for finding in silences.values())
        assert_nothing_left(machines, *NAMES)

    def test_a_controller_that_is_killed_leaves_nothing(machines: Lab, tmp_path: Path) -> None:
        program, begun, _ = rounds(tmp_path)
        command = ("machines", "run", "lab.toml", "many.toml", str(program), "--protocol", "emp")
        with machines.at_desk(TESTBED, *command) as controller:
            eventually(begun.exists, "all ranks have made a round", 300)
            controller.kill()
        assert_nothing_left(machines, *NAMES)
        assert machines.testbed("machines", "gc", "lab.toml").returncode == 0
        assert machines.testbed("machines", "gc", "lab.toml").stdout == "nothing to collect\n"
