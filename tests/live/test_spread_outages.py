"""Machines lost during a run: one is killed, one is disconnected from all others, one from another machine only.

TESTBED_LONG=1 also waits until a disconnected worker has ended its part.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from testbed.cluster.services.machine_watch import UNREACHABLE
from testbed.controller.checkers.runs import recheck
from testbed.controller.runs import spread_execution
from testbed.controller.runs.runner import RunResult, run
from testbed.controller.runs.spread_execution import SpreadCluster
from testbed.controller.verdict.machine_outages import LOST, MachineLostError
from testbed.controller.verdict.outages import InvalidRunError
from testbed.controller.verdict.verdicts import Grade
from testbed.errors import NotFoundError
from testbed.machines import spread
from testbed.machines.node_placement import Constraints
from testbed.observe.recorded import read_run
from testbed.spec.model import Description
from testbed.spec.resolver import resolve
from tests.live.machine_state import eventually
from tests.live.machines_lab import Lab, lab

pytestmark = [pytest.mark.requires("root", "ip", "ssh", "sshd")]

LONG = bool(os.environ.get("TESTBED_LONG"))
LAYOUT = resolve(
    Description.from_toml('name = "star"\ndefaults = { mtu = 1400 }\ngenerate = { shape = "star", nodes = 3 }\n')
)
PINS = Constraints({"n1": "a", "s1": "a", "n2": "b", "n3": "b"})
NAME = "lost"
SECOND = 1_000_000_000

PING_PONG = """
from pathlib import Path

async def rank(comm, node):
    is_running = comm.rank < 2
    while is_running:
        if comm.rank == 0:
            is_running = not Path({stop!r}).exists()
            await comm.send(is_running, 1)
            await comm.recv(source=1)
            Path({started!r}).touch()
            await node.sleep(20_000_000)
        else:
            is_running = await comm.recv(source=0)
            await comm.send(is_running, 0)
"""
"""Messages between machines a and b until the file `stop` exists; the first ones create the file `started`."""


@pytest.fixture(scope="module")
def machines(_sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("lab"), names=("a", "b")) as running_lab:
        yield running_lab


@contextmanager
def cluster(machines: Lab) -> Iterator[spread.Workers]:
    """Start workers and bring up a cluster that ends with them: n1 and the switch on machine a, n2 and n3 on b."""
    with machines.workers("lab.toml") as running, spread.brought_up(running, LAYOUT, NAME, PINS, "here"):
        yield running


def run_with_fault(running: spread.Workers, folder: Path, inject_fault: Callable[[], object]) -> RunResult:
    """Run `PING_PONG` and inject a fault while it is running; stop it afterwards."""
    started, stop, program = folder / "started", folder / "stop", folder / "ping_pong.py"
    program.write_text(PING_PONG.format(started=str(started), stop=str(stop)))

    def inject_and_stop() -> None:
        eventually(started.exists, "messages are exchanged", 30)
        inject_fault()
        stop.touch()

    with ThreadPoolExecutor(1) as executor:
        fault = executor.submit(inject_and_stop)
        try:
            return run(SpreadCluster(NAME, running), str(program), protocol="emp", history=True, check=True,
                       output=folder / "run", timeout=60)  # fmt: skip
        finally:
            fault.result()


def assert_nothing_left(machines: Lab, machine: str) -> None:
    eventually(lambda: machines.programs(machine) == [], f"no process is left on machine {machine}", 30)
    assert machines.namespaces(machine) == []


def test_a_run_survives_a_5_s_interruption_between_machines_and_its_verdict_reports_it(
    machines: Lab, tmp_path: Path
) -> None:
    """The controller can reach both workers meanwhile."""

    def cut() -> None:
        with machines.cluster.inject(machines.nodes["b"], rules=[f"drop ip.src == {machines.address('a')}"]):
            time.sleep(5)  # the fault's duration

    with cluster(machines) as running:
        result = run_with_fault(running, tmp_path, cut)
    assert result.verdict.grade is Grade.INVALID
    assert result.checks is not None
    assert result.checks.passed, result.checks
    silences = {finding.link: finding for finding in result.verdict.findings if finding.what == UNREACHABLE}
    assert {*silences} == {"machine a", "machine b"}
    for finding in silences.values():
        assert finding.measured is not None
        assert finding.measured >= 4.9 * SECOND
        assert re.search(r" did not answer machine [ab] from \d+\.\d\d s to \d+\.\d\d s after", finding.reason)
    for machine in "ab":
        assert_nothing_left(machines, machine)


def test_a_killed_machine_makes_the_run_invalid_without_failed_checks(machines: Lab, tmp_path: Path) -> None:
    with pytest.raises(InvalidRunError) as caught, cluster(machines) as running:
        run_with_fault(running, tmp_path, lambda: machines.kill("b"))
    try:
        assert isinstance(caught.value.__cause__, MachineLostError)
        (finding,) = (finding for finding in caught.value.verdict.findings if finding.what == LOST)
        assert finding.link == "machine b"
        assert finding.reason.startswith("machine b: the connection to its worker has ended: ")
        assert finding.reason.endswith(" s after the repetition began; the files of its programs are lost")
        assert caught.value.verdict.grade is Grade.INVALID
        recorded = read_run(tmp_path / "run")
        assert (recorded.result["verdict"]["grade"], {*recorded.result["lost"]}) == ("invalid", {"b"})
        assert "checks" not in recorded.result
        with pytest.raises(NotFoundError, match="lacks histories: machine b: the connection to its worker has ended"):
            recheck(recorded)
        assert_nothing_left(machines, "a")
    finally:
        machines.start("b")


def test_a_machine_lost_when_all_programs_have_ended_leaves_checked_histories(
    machines: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = spread_execution.measured_underlays

    def measure_without_b(workers: spread.Workers, parts: Any, *, must_answer: bool) -> list[spread.Underlay]:
        if not must_answer:
            machines.kill("b")
            workers["b"].call("clock")  # the measurement itself may be on machine a
        return measure(workers, parts, must_answer=must_answer)

    monkeypatch.setattr(spread_execution, "measured_underlays", measure_without_b)
    try:
        with pytest.raises(InvalidRunError) as caught, cluster(machines) as running:
            run_with_fault(running, tmp_path, lambda: None)
        (finding,) = (finding for finding in caught.value.verdict.findings if finding.what == LOST)
        assert finding.reason.endswith(" s after the repetition began; when all programs had ended")
        recorded = read_run(tmp_path / "run")
        assert recorded.result["verdict"]["grade"] == "invalid"
        (report,) = recheck(recorded)
        assert report.passed
        assert_nothing_left(machines, "a")
    finally:
        machines.start("b")


def test_a_disconnected_machine_ends_the_run_and_its_own_part(machines: Lab, tmp_path: Path) -> None:
    with ExitStack() as cut:
        with pytest.raises(InvalidRunError) as caught, cluster(machines) as running:
            run_with_fault(running, tmp_path, lambda: cut.enter_context(machines.cluster.cut(machines.nodes["b"])))
        findings = {finding.what: finding for finding in caught.value.verdict.findings}
        assert {*findings} == {LOST, UNREACHABLE}
        assert findings[LOST].link == findings[UNREACHABLE].link == "machine b"
        assert f"machine b ({machines.address('b')}) did not answer machine a from " in findings[UNREACHABLE].reason
        assert_nothing_left(machines, "a")
        if LONG:  # takes the worker's silence time-out of 5 s
            assert_nothing_left(machines, "b")
