"""Runs with checked histories: correct ones pass, mutants of a protocol fail, and failed checks are in the result."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import testbed
from protocols.mpi.comm import Comm
from testbed import Cluster, Grade, Scenario, TestbedError
from testbed.controller.checkers.disturbances import CUT, Disturbance
from testbed.controller.checkers.runs import recheck
from testbed.errors import NotFoundError
from testbed.fates.rules import RuleSet
from testbed.observe.recorded import read_run
from testbed.pytest_plugin.under_test import SimulatedCluster
from testbed.sim.simulation import Simulation
from testbed.spec.fault_models import Pause
from testbed.workloads.form import Node
from tests.unit.controller.histories import HistoryBuilder
from tests.unit.protocols.emp_mutants import MUTANTS
from tests.unit.protocols.mutants import Mutant

EMP_MUTANTS = {mutant.name: mutant for mutant in MUTANTS}


async def receive_last_first(comm: Comm, node: Node) -> None:  # noqa: ARG001
    """Receive many messages after one that was sent last."""
    if comm.rank == 0:
        requests = [await comm.Isend(bytes(64), 1, tag=1) for _ in range(40)]
        requests.append(await comm.Isend(b"now", 1, tag=2))
        for send in requests:
            await send.Wait()
    elif comm.rank == 1:
        await comm.Recv(bytearray(3), 0, tag=2)
        for _ in range(40):
            await comm.Recv(bytearray(64), 0, tag=1)


def failed_checks(folder: Path, seed: int, workload: Any, **settings: object) -> set[str]:
    """Return the failed checks of a run with 10 % loss, whether or not the run fails."""
    try:
        testbed.run(
            Cluster.star(4, loss="10%"), workload, mode="sim", seed=seed, output=folder, settings=settings, timeout=20,
            check=True,
        )  # fmt: skip
    except TestbedError:
        assert json.loads((folder / "result.json").read_text())["status"] == "failed"
    result = json.loads((folder / "result.json").read_text())
    return set(result["checks"][0]["failed"])


TRAFFIC = {"messages": 30, "outstanding": 4, "largest": 8000}


@pytest.mark.requires("interpreted")
@pytest.mark.parametrize(
    ("mutant", "workload", "settings", "expected"),
    [
        (EMP_MUTANTS["acknowledged once"], "random", TRAFFIC, "progress"),
        (EMP_MUTANTS["acknowledged up to"], "random", TRAFFIC, "errors"),
        (EMP_MUTANTS["never parked"], receive_last_first, {}, "progress"),
    ],
    ids=lambda choice: str(choice) if isinstance(choice, Mutant) else "",
)
def test_a_mutant_of_the_protocol_fails_a_check(
    mutant: Mutant, workload: Any, settings: Mapping[str, object], expected: str, tmp_path: Path
) -> None:
    assert failed_checks(tmp_path / "correct", 1, workload, **settings) == set()
    with pytest.MonkeyPatch.context() as patch:
        mutant.apply(patch)
        failed = {
            check for seed in range(4) for check in failed_checks(tmp_path / str(seed), seed, workload, **settings)
        }
    assert expected in failed


def falsify_histories(
    patch: pytest.MonkeyPatch, change_event: Callable[[dict[str, Any], int], list[dict[str, Any]]]
) -> None:
    """Falsify every history: `change_event(event, number)` returns the events to record instead."""
    from testbed.workloads.history import HistoryDevice

    original = HistoryDevice.__init__
    count = [0]

    def falsifying_init(device: HistoryDevice, inner_device: Any, clock: Any, record: Any) -> None:
        def record_falsified(event: dict[str, Any]) -> None:
            count[0] += 1
            for changed_event in change_event(event, count[0]):
                record(changed_event)

        original(device, inner_device, clock, record_falsified)

    patch.setattr(HistoryDevice, "__init__", falsifying_init)


def test_a_correct_run_passes_all_checks(tmp_path: Path) -> None:
    result = testbed.run(
        Cluster.star(4, loss="5%", duplicate="5%", reorder="5%", delay="20us"), "random", mode="sim", seed=3,
        output=tmp_path / "run",
    )  # fmt: skip
    assert result.checks is not None
    assert result.checks.passed
    assert result.checks.checks["nothing lost"].checked == result.checks.checks["order"].checked > 4 * 100
    assert result.verdict.grade is Grade.TRUSTED
    assert not any("check" in row for row in result.rows)
    document = json.loads((tmp_path / "run" / "result.json").read_text())
    assert document["checks"] == [{"passed": True, "failed": [], "ambiguous": 0}]


def test_histories_are_only_checked_on_request(tmp_path: Path) -> None:
    result = testbed.run(Cluster.star(2), "pingpong", mode="sim", settings={"count": 3}, output=tmp_path / "run")
    assert result.checks is None
    assert not (tmp_path / "run" / "history").exists()
    assert testbed.run(Cluster.star(2), "random", mode="sim", check=False).checks is None


def test_a_history_of_a_run_that_was_not_checked_is_judged_by_what_is_known(tmp_path: Path) -> None:
    """A program that ended with a pending receive may have missed the notification of a message."""

    async def wait(_comm: Comm, node: Node) -> None:
        await node.sleep(1)

    testbed.run(Cluster.star(2), wait, mode="sim", history=True, output=tmp_path / "run")
    history = HistoryBuilder(2)
    history.begin_receive(1)
    history.complete_send(0, history.begin_send(0, 1))
    for name, events in history.events.items():
        (tmp_path / "run" / "history" / f"{name}.jsonl").write_text(
            "".join(json.dumps(event) + "\n" for event in events)
        )
    (report,) = recheck(read_run(tmp_path / "run"))
    assert report.passed
    scenario = Scenario(name="storm", faults=[Pause(on="n1", at="1ms", for_="1ms")])
    testbed.run(
        Cluster.star(2), wait, mode="sim", history=True, check=False, scenario=scenario, output=tmp_path / "disturbed"
    )
    with pytest.raises(NotFoundError, match="so the times of the scenario's faults are unknown"):
        recheck(read_run(tmp_path / "disturbed"))


def test_a_failed_check_fails_the_verdict_and_is_in_the_rows(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        falsify_histories(
            patch,
            lambda event, number: (
                [event | {"digest": "00"}] if event["what"] == "received" and number > 50 else [event]
            ),
        )
        result = testbed.run(
            Cluster.star(3), "random", mode="sim", repeat=2, settings={"messages": 20}, output=tmp_path / "run"
        )
    assert result.verdict.grade is Grade.FAILED
    assert [finding.what for finding in result.verdict.findings] == ["content", "content"]
    rows = [row for row in result.rows if "check" in row]
    assert [(row["repeat"], row["check"]) for row in rows] == [(1, "content"), (2, "content")]
    rechecked = recheck(read_run(tmp_path / "run"))
    assert [report.to_json() for report in rechecked] == [
        repetition.checks.to_json() for repetition in result.repetitions if repetition.checks
    ]


def test_a_failed_check_fails_the_pytest_test_that_made_the_run(tmp_path: Path) -> None:
    cluster = SimulatedCluster(Cluster.star(2), tmp_path)
    assert cluster.run("random", messages=5).checks is not None
    with pytest.MonkeyPatch.context() as patch:
        falsify_histories(patch, lambda event, _: [] if "receive" in event["what"] and event["n"] == 3 else [event])
        with pytest.raises(AssertionError, match=r"nothing lost: \d of \d+ messages FAILED"):
            cluster.run("random", messages=20)


class CutFirstSecond:
    """Companion that cuts n1's link for the first second."""

    def simulated(self, simulation: Simulation, rules: RuleSet) -> None:  # noqa: ARG002
        link = simulation.layout.links[0].name
        simulation.cut(link)
        timer = simulation.loop.timer(lambda _: simulation.restore(link))
        timer.set(1_000_000_000)

    def live(self, cluster: object, run: object) -> Any:
        raise NotImplementedError

    def disturbances(self) -> list[Disturbance]:
        return [Disturbance(CUT, 0, 1_000_000_000, frozenset({"n1"}))]


async def send_one_message(comm: Comm, node: Node) -> None:  # noqa: ARG001
    if comm.rank == 0:
        await comm.Send(b"hello", 1)
    else:
        await comm.Recv(bytearray(5), 0)


def test_the_recovery_from_a_companions_disturbance_is_checked() -> None:
    result = testbed.run(Cluster.star(2), send_one_message, mode="sim", companions=[CutFirstSecond()])
    assert result.checks is not None
    assert result.checks.passed
    assert result.checks.checks["recovery"].checked == 1
    assert 0 < result.checks.figures["longest recovery, seconds"] < 1


@pytest.mark.parametrize("protocol", ["emp", "am2"])
def test_a_message_that_is_never_received_is_a_note_of_the_verdict(tmp_path: Path, protocol: str) -> None:
    async def program(comm: Comm, node: Node) -> None:
        if comm.rank == 0:
            await comm.Isend(b"wanted", 1, 1)
            await comm.Isend(b"unwanted", 1, 2)
        else:
            await comm.Recv(bytearray(6), 0, 1)
        await node.sleep(10_000_000)

    result = testbed.run(Cluster.star(2), program, protocol=protocol, mode="sim", check=True, output=tmp_path / "run")
    (note,) = [note for note in result.verdict.notes if "no receive was posted" in note]
    assert note.startswith("no receive was posted for message 2 of n1 to n2 (context 0, tag 2, 8 bytes; ")
    assert result.verdict.grade is testbed.Grade.TRUSTED
