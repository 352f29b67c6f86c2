"""Runs on shared NICs: the same results as on inline NICs, the agents' counters, crashes and errors."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from protocols.emp import host as emp
from protocols.emp.codec import ETHERTYPE
from protocols.emp.split_driver import split_driver
from testbed import Cluster, Grade, run
from testbed.controller.runs.agents import Placement, agents
from testbed.controller.runs.run_options import Codec, Mode, Nics
from testbed.errors import UnsupportedError
from testbed.observe.recorded import read_run
from testbed.runtime.nodes.node_run import ProgramError, StuckError
from testbed.runtime.nodes.run_orders import ProgramNode
from tests.live.emp_exchange import SIZES, exchange_messages
from tests.live.machine_state import eventually
from tests.live.testbed_command import testbed

SHARED = Placement(split_driver=split_driver(), share_all=True)

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

TIMEOUT = 30.0  # s
NICS: tuple[Nics, ...] = ("inline", "shared")


def test_messages_of_many_frames_arrive_and_the_agents_count_them() -> None:
    with (
        Cluster.star(2).up() as cluster,
        agents(
            cluster,
            emp.plug(),
            ETHERTYPE,
            {"n1": exchange_messages, "n2": exchange_messages},
            placement=SHARED,
        ) as run_handle,
    ):
        outcome = run_handle.wait(TIMEOUT)
    assert outcome.results == {"n1": [True] * len(SIZES), "n2": [True] * len(SIZES)}
    for report in outcome.reports.values():
        assert report.counted["messages_sent"] == report.counted["messages_received"] == len(SIZES)
        assert report.received > 700
        assert report.lost == 0
        assert report.cpu > 0
    assert not outcome.invalid


def test_a_shared_nic_and_an_inline_one_exchange_messages(tmp_path: Path) -> None:
    """The first function has the node's own address and number."""
    with (
        Cluster.star(2).up() as cluster,
        agents(
            cluster,
            emp.plug(),
            ETHERTYPE,
            {"n1": exchange_messages},
            placement=SHARED,
            logs=tmp_path / "1",
        ) as shared_run,
        agents(cluster, emp.plug(), ETHERTYPE, {"n2": exchange_messages}, logs=tmp_path / "2") as inline_run,
    ):
        results: list[object] = []
        waiter = threading.Thread(target=lambda: results.append(inline_run.wait(TIMEOUT).results["n2"]))
        waiter.start()
        assert shared_run.wait(TIMEOUT).results["n1"] == [True] * len(SIZES)
        waiter.join()
        assert results == [[True] * len(SIZES)]


def test_a_crashed_node_process_restarts_on_the_same_agent(tmp_path: Path) -> None:
    async def count_and_restart(endpoint: emp.Endpoint, node: ProgramNode) -> int:
        """Endpoint 0 receives until it is killed, and again after its restart; endpoint 1 sends and repeats failures."""
        if endpoint.number == 0:
            buffer = bytearray(1)
            while buffer != b"!":
                await endpoint.receive(1, 1, buffer)
                start_file.touch()
            return 0
        failed = 0
        for message in [b"."] * 200 + [b"!"]:
            while True:
                try:
                    await endpoint.send(0, 1, message)
                    break
                except emp.EmpError:
                    failed += 1
            await node.loop.sleep(1_000_000)
        return failed

    start_file = tmp_path / "started"
    with (
        Cluster.star(2).up() as cluster,
        agents(
            cluster, emp.plug(), ETHERTYPE, {"n1": count_and_restart, "n2": count_and_restart}, placement=SHARED
        ) as run_handle,
    ):
        eventually(start_file.exists, "n1 has received a message")
        run_handle.crash("n1", restarts=True)
        run_handle.restart("n1")
        outcome = run_handle.wait(TIMEOUT)
    assert outcome.results["n1"] == 0


def test_a_waiting_program_is_reported_with_its_nics_pending_work() -> None:
    async def wait(endpoint: emp.Endpoint, _node: ProgramNode) -> None:
        await endpoint.receive(1, 5, bytearray(4))

    with (
        Cluster.star(2).up() as cluster,
        pytest.raises(StuckError, match=r"(?s)NIC: a receive from node 1, tag 5.*host: a receive from node 1, tag 5"),
        agents(cluster, emp.plug(), ETHERTYPE, {"n1": wait}, placement=SHARED) as run_handle,
    ):
        run_handle.wait(1.0)


def test_a_killed_agent_ends_the_run_with_that_error() -> None:
    async def wait(endpoint: emp.Endpoint, node: ProgramNode) -> None:
        await node.loop.sleep(100_000_000)
        (agent,) = [pid for pid in siblings() if Path(f"/proc/{pid}/comm").read_text() == "nic n1\n"]
        os.kill(agent, signal.SIGKILL)
        await endpoint.receive(1, 5, bytearray(4))

    with (
        Cluster.star(2).up() as cluster,
        pytest.raises(ProgramError, match="agent of the NIC has ended"),
        agents(cluster, emp.plug(), ETHERTYPE, {"n1": wait}, placement=SHARED) as run_handle,
    ):
        run_handle.wait(TIMEOUT)


def test_a_workload_sends_the_same_messages_on_shared_and_inline_nics(tmp_path: Path) -> None:
    with Cluster.star(3, seed=4).up() as cluster:
        settings = {"messages": 60}
        results = {
            nics: run(cluster, "random", nics=nics, settings=settings, seed=9, output=tmp_path / nics, timeout=TIMEOUT)
            for nics in NICS
        }
    for nics, result in results.items():
        assert result.verdict.grade is not Grade.INVALID, nics
        assert read_run(tmp_path / nics).parameters["nics"] == nics
    inline, shared = (
        {node: (counted["messages_sent"], counted["messages_received"]) for node, counted in result.counters.items()}
        for result in results.values()
    )
    assert inline == shared
    assert results["inline"].results == results["shared"].results


@pytest.mark.parametrize(("protocol", "mode", "codec", "message"), [
    ("tcp", "live", "generated", "NICs of protocol tcp cannot be shared"),
    ("emp", "sim", "generated", "needs --mode live, got sim"),
    ("emp", "live", "scapy", "needs --codec generated"),
])  # fmt: skip
def test_runs_that_cannot_share_nics_are_rejected(protocol: str, mode: Mode, codec: Codec, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        run(Cluster.star(2), "pingpong", protocol=protocol, mode=mode, codec=codec, nics="shared")


def test_the_run_command_can_share_nics(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = testbed(
        "run", "star-2", "pingpong", "--nics", "shared", "--json", "--set", "count=100", "--output", str(folder)
    )
    assert done.returncode in (0, 8), done.stderr  # trusted or, on a busy machine, degraded
    assert json.loads(done.stdout)["counted"][0]["n1"]["messages_sent"] > 100
    assert read_run(folder).parameters["nics"] == "shared"
    assert (folder / "logs" / "n1.nic.log").read_text() == ""


def siblings() -> list[int]:
    """Return the pids of all children of the parent process, including this one."""
    parent = os.getppid()
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
