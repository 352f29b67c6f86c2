"""Workload `churn` under restarts, and rejections of other workloads in scenarios with restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import testbed
from protocols.mpi.comm import Comm
from testbed import Cluster, Scenario
from testbed.errors import UnsupportedError
from testbed.registry import WORKLOADS, offered
from testbed.runtime.nodes.node_run import ProgramError
from testbed.spec.fault_models import Churn, Crash, Fault, Impair, Reset, Restart
from testbed.spec.scenario import RandomFaults
from testbed.workloads.form import Node
from testbed.workloads.history import HistoryDevice
from testbed.workloads.lookup import choose

RESTARTS = (
    Restart(on="n2", at="50ms"),
    Reset(on="n3", at="100ms"),
    Crash(on="n1", at="80ms", for_="40ms"),
    Impair(on="n4", at="30ms", for_="100ms", loss="20%"),
    Crash(on="n4", at="180ms"),
)


def run_churn(*faults: Fault, protocol: str = "emp", **options: Any) -> testbed.RunResult:
    return testbed.run(
        Cluster.star(4, delay="50us"), "churn", mode="sim", protocol=protocol, scenario=Scenario(faults=faults),
        settings={"time": "200ms", "settle": "50ms"}, **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("protocol", "firmware"), [("emp", {}), ("am2", {}), ("openmx", {"tick": 100_000, "resends": 100})]
)
def test_restarted_nodes_communicate_again_and_all_checks_pass(protocol: str, firmware: dict[str, int]) -> None:
    result = run_churn(*RESTARTS, protocol=protocol, firmware=firmware)
    rows = {row["node"]: row for row in result.rows}
    assert {name: row["lives"] for name, row in rows.items()} == {"n1": 2, "n2": 2, "n3": 2}
    assert all(row["received"] > 10 and row["sent"] > 10 and row["from_lives"] >= 3 for row in rows.values())
    assert rows["n2"]["from_lives"] > 3, "no message from another node's second incarnation"
    assert {row["clock_ns"] // 1_000_000 for row in rows.values()} == {250}, (
        "restarted nodes do not end at the same time as the others"
    )
    assert result.checks is not None
    assert result.checks.passed


def test_without_faults_every_message_is_received() -> None:
    rows = testbed.run(
        Cluster.star(3, loss="5%"), "churn", mode="sim", settings={"time": "100ms", "settle": "500ms"}
    ).rows
    assert sum(row["sent"] for row in rows) == sum(row["received"] for row in rows) > 100
    assert not any(row[key] for row in rows for key in ("returned", "unanswered", "taken_back", "broken"))


@pytest.mark.parametrize(("offset", "message"), [(8, "arrived twice, or after message"), (30, "byte 6 differs")])
def test_a_corrupted_or_duplicate_message_fails_the_run(
    offset: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive = HistoryDevice.receive

    def corrupting_receive(device: HistoryDevice, source: int, context: int, tag: int, buffer: Any) -> Any:
        def corrupt(_: object) -> None:
            if offset > 24 or buffer[11] == 7:
                buffer[offset : offset + 4] = bytes(4)

        completion = receive(device, source, context, tag, buffer)
        completion.add_callback(corrupt)
        return completion

    monkeypatch.setattr(HistoryDevice, "receive", corrupting_receive)
    with pytest.raises(ProgramError, match=message):
        run_churn()


RESTART_FAULTS = [
    Restart(on="n2", at="1ms"), Reset(on="n2", at="1ms"), Crash(on="n2", at="1ms", for_="1ms"), Churn(mean="1ms", at=0),
]  # fmt: skip


@pytest.mark.parametrize("fault", RESTART_FAULTS, ids=lambda fault: fault.kind)
def test_random_is_rejected_in_scenarios_with_restarts_and_churn_is_proposed(fault: Fault, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=rf"{fault.kind}: workload random does not support .* workload churn"):
        testbed.run(Cluster.star(3), "random", mode="sim", scenario=Scenario(faults=[fault]), output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_random_faults_that_may_restart_nodes_are_rejected_for_other_workloads() -> None:
    random_faults = Scenario(random=RandomFaults(kinds=["pause", "reset", "crash"], rate=1.0))
    with pytest.raises(UnsupportedError, match="random: crash, reset: workload sort does not support"):
        testbed.run(Cluster.star(3), "sort", mode="sim", scenario=random_faults)
    harmless = Scenario(faults=[Impair(on="n1", at=0, loss="5%"), Crash(on="n3", at="5s")])
    assert testbed.run(Cluster.star(3), "random", mode="sim", scenario=harmless, settings={"messages": 20}).rows


def test_each_builtin_workload_declares_whether_it_supports_restarts() -> None:
    restartable = {
        name: choose(name).supports_restarts
        for name, entry in offered(WORKLOADS).items()
        if entry.module.startswith("testbed.")
    }
    assert {name for name, supports_restarts in restartable.items() if supports_restarts} == {"am-random", "churn"}


async def sleep_and_return_starts(_comm: Comm, node: Node) -> int:
    await node.sleep(10_000_000)
    return node.starts


async def without_restarts(comm: Comm, node: Node) -> int:
    return await sleep_and_return_starts(comm, node)


without_restarts.supports_restarts = False  # type: ignore[attr-defined]  # the documented form


def test_a_function_is_only_rejected_if_it_declares_that_it_does_not_support_restarts() -> None:
    scenario = Scenario(faults=[Restart(on="n2", at="1ms")])
    assert testbed.run(Cluster.star(2), sleep_and_return_starts, mode="sim", scenario=scenario).results["n2"] == 2
    with pytest.raises(UnsupportedError, match="workload without_restarts does not support"):
        testbed.run(Cluster.star(2), without_restarts, mode="sim", scenario=scenario)


async def spawn_task(comm: Comm, node: Node, *, log: list[tuple[int, int]]) -> None:
    starts = node.starts

    async def log_forever() -> None:
        while True:
            log.append((comm.rank, starts))
            await node.sleep(1_000_000)

    node.spawn(log_forever(), "logger")
    await node.sleep(10_000_000)


def test_a_restart_ends_the_tasks_that_a_program_has_spawned() -> None:
    log: list[tuple[int, int]] = []

    async def program(comm: Comm, node: Node) -> None:
        await spawn_task(comm, node, log=log)

    testbed.run(Cluster.star(2), program, mode="sim", scenario=Scenario(faults=[Restart(on="n2", at="5500us")]))
    first = [index for index, entry in enumerate(log) if entry == (1, 1)]
    assert len(first) == 6
    assert log.index((1, 2)) > max(first)
