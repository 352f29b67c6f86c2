"""Node processes: start-up time and memory, errors and kills, output, and what they leave behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from testbed import Cluster, RunningCluster
from testbed.cluster.records.state import Store
from testbed.controller.runs.agents import agents
from testbed.controller.verdict.verdicts import Grade
from testbed.errors import KernelError, NotFoundError
from testbed.kernel import processes
from testbed.runtime import event_log
from testbed.runtime.nodes.node_run import NodeDiedError, ProgramError, StuckError
from testbed.runtime.nodes.run_orders import ProgramNode
from tests.live.echo_programs import TIMEOUT, idle, ping, pong, wait_forever
from tests.live.echo_protocol import ETHERTYPE, EchoEndpoint, plug
from tests.live.machine_state import eventually
from tests.live.node_sockets import accepts_gso

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]


def test_two_programs_communicate_in_their_nodes() -> None:
    with Cluster.star(2).up() as cluster, agents(cluster, plug, ETHERTYPE, {"n1": ping, "n2": pong}) as run:
        outcome = run.wait(TIMEOUT)
    assert outcome.results == {"n1": [n.to_bytes(4, "big")[::-1] for n in range(20)], "n2": "n2 in n2"}
    assert [finding.grade for finding in outcome.verdict.findings if finding.what == "NIC lost"] == [Grade.TRUSTED] * 2
    assert {name: report.counted["sent"] for name, report in outcome.reports.items()} == {"n1": 20, "n2": 20}
    assert all(report.received >= 20 and report.cpu > 0 for report in outcome.reports.values())


@pytest.mark.parametrize("protocol", ["echo", "emp"])
def test_a_hundred_processes_start_within_the_limits_of_time_and_memory(
    protocol: str, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    """Forked memory stays shared until it is written, so a small process is the parent instead of the test run. Its modules
    are compiled to bytecode beforehand, as in an installed testbed: compiling fragments the parent's memory, which the
    nodes would then write."""
    command = [sys.executable, "-m", "tests.live.hundred_node_processes", protocol]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONPYCACHEPREFIX": str(tmp_path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([sys.executable, "-c", "import tests.live.hundred_node_processes"], env=environment, check=True)
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    document = json.loads(done.stdout)
    sizes = sorted(document["sizes"])
    record_property("note", f"100 node processes, {protocol}: {document['took']:.2f} s, {sizes[50] / 1e6:.1f} MB each")
    assert document["pids"] == 100
    assert document["results"] == {f"n{number + 1}": number for number in range(100)}
    assert document["took"] < 10, "ten times the duration on a quiet machine"
    assert sizes[-1] < 4_000_000, "about 3 MB are expected: pages that the NIC's modules write are copied"


def test_a_killed_process_is_reported_at_once_by_name() -> None:
    with Cluster.star(3).up() as cluster:
        with agents(cluster, plug, ETHERTYPE, {"n1": wait_forever, "n2": wait_forever, "n3": idle}) as run:
            os.kill(run.pids["n2"], signal.SIGKILL)
            start = time.monotonic()
            with pytest.raises(NodeDiedError, match=r"n2: its process was ended by signal 9"):
                run.wait(TIMEOUT)
            assert time.monotonic() - start < TIMEOUT / 2
        events = [
            event for event in event_log.read(Store().directory(cluster.name)) if event["event"] == "node process died"
        ]
        assert [(event["node"], event["code"]) for event in events if event["node"] == "n2"] == [("n2", -9)]


def test_a_killed_process_is_reported_if_both_notifications_are_pending() -> None:
    """The closed channel and the parent's message are both pending when they are read."""
    with (
        Cluster.star(3).up() as cluster,
        agents(cluster, plug, ETHERTYPE, {"n1": wait_forever, "n2": wait_forever, "n3": idle}) as run,
    ):
        os.kill(run.pids["n2"], signal.SIGKILL)
        deadline = time.monotonic() + TIMEOUT
        while not any(
            event["event"] == "node process died" for event in event_log.read(Store().directory(cluster.name))
        ):
            assert time.monotonic() < deadline
        time.sleep(0.05)  # the event is logged before the parent's message; a shorter wait only makes the test weaker
        with pytest.raises(NodeDiedError, match=r"n2: its process was ended by signal 9"):
            run.wait(TIMEOUT)


def deaths(cluster: RunningCluster) -> list[str]:
    """Return the nodes whose processes have died according to the events."""
    events = event_log.read(Store().directory(cluster.name))
    return [event["node"] for event in events if event["event"] == "node process died"]


def test_an_exception_in_a_program_is_not_reported_as_a_death() -> None:
    async def fail(_endpoint: EchoEndpoint, _node: ProgramNode) -> None:
        raise ValueError("injected")

    with Cluster.star(2).up() as cluster:
        with agents(cluster, plug, ETHERTYPE, {"n1": wait_forever, "n2": fail}) as run:
            eventually(lambda: processes.is_ending(run.pids["n2"]), "n2's process ends")
            with pytest.raises(ProgramError, match="injected"):
                run.wait(TIMEOUT)
        assert deaths(cluster) == []


def test_a_process_ended_with_its_run_is_not_reported_as_a_death() -> None:
    programs = {f"n{number}": idle for number in range(1, 9)} | {"n1": wait_forever}
    with Cluster.star(8).up() as cluster:
        for _ in range(5):
            with agents(cluster, plug, ETHERTYPE, programs) as run, pytest.raises(StuckError):
                run.wait(0.1)
        assert deaths(cluster) == []


def test_a_run_continues_without_a_node_that_it_killed_itself() -> None:
    with Cluster.star(3).up() as cluster:
        with agents(cluster, plug, ETHERTYPE, {"n1": ping, "n2": pong, "n3": wait_forever}) as run:
            run.kill("n3")
            outcome = run.wait(TIMEOUT, without=["n3"])
        assert outcome.results.keys() == {"n1", "n2"}


def test_an_exception_in_a_program_is_reported_with_node_and_line() -> None:
    async def fail(_endpoint: EchoEndpoint, node: ProgramNode) -> None:
        await node.loop.sleep(1_000)
        raise ValueError("injected")

    with (
        Cluster.star(2).up() as cluster,
        agents(cluster, plug, ETHERTYPE, {"n1": fail, "n2": wait_forever}) as run,
        pytest.raises(ProgramError, match=r"(?s)n1: Traceback.*test_node_processes.*injected"),
    ):
        run.wait(TIMEOUT)


def test_a_stuck_run_reports_what_each_node_waits_for() -> None:
    async def spin(_endpoint: EchoEndpoint, _node: ProgramNode) -> None:
        while True:
            pass

    async def block_signals(endpoint: EchoEndpoint, _node: ProgramNode) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        await endpoint.receive(bytearray(8))

    programs = {"n1": wait_forever, "n2": spin, "n3": block_signals, "n4": idle}
    with (
        Cluster.star(4).up() as cluster,
        agents(cluster, plug, ETHERTYPE, programs) as run,
        pytest.raises(StuckError) as stuck,
    ):
        run.wait(1.0)
    waiting = stuck.value.waiting
    assert waiting["n1"][0].startswith("the program waits for")
    assert waiting["n1"][1:] == ["NIC: 1 buffers wait for a message", "host: a message"]
    assert waiting["n2"][0].startswith("the program runs, at")
    assert waiting["n2"][0].endswith("in spin")
    assert waiting["n3"] == ["it does not answer; its process's state is S (sleeping)"]
    assert waiting["n4"] == ["the program has ended"]
    assert "n2: the program runs" in str(stuck.value)


def test_a_result_too_large_to_send_is_an_error() -> None:
    async def return_large(_endpoint: EchoEndpoint, _node: ProgramNode) -> bytes:
        return bytes(1 << 20)

    with (
        Cluster.star(2).up() as cluster,
        agents(cluster, plug, ETHERTYPE, {"n1": return_large}) as run,
        pytest.raises(ProgramError, match="is too long; at most"),
    ):
        run.wait(TIMEOUT)


def test_output_of_programs_is_stored_by_node(tmp_path: Path) -> None:
    async def print_output(_endpoint: EchoEndpoint, node: ProgramNode) -> None:
        print(f"this is {node.name}")  # noqa: T201  under test
        os.system("echo child output; echo child errors >&2")

    with (
        Cluster.star(2).up() as cluster,
        agents(cluster, plug, ETHERTYPE, {"n1": print_output, "n2": print_output}, logs=tmp_path / "logs") as run,
    ):
        run.wait(TIMEOUT)
        assert run.log("n1").splitlines() == ["this is n1", "child output", "child errors"]
    assert (tmp_path / "logs" / "n2.log").read_text().startswith("this is n2")


def test_programs_see_their_nodes_names_and_devices() -> None:
    async def query_environment(_endpoint: EchoEndpoint, _node: ProgramNode) -> tuple[str, str, list[str], str]:
        devices = sorted(os.listdir("/sys/class/net"))
        return socket.gethostname(), socket.gethostbyname("n1"), devices, os.getcwd()

    with Cluster.star(2).up() as cluster, agents(cluster, plug, ETHERTYPE, {"n2": query_environment}) as run:
        environment = run.wait(TIMEOUT).results["n2"]
        assert environment == ("n2", cluster["n1"].address, [cluster["n2"].layout.nics[0].name, "lo"], os.getcwd())


def test_killing_the_parent_of_the_node_processes_ends_all_and_is_reported() -> None:
    def report(cluster: RunningCluster) -> list[tuple[object, ...]]:
        events = [
            event for event in event_log.read(Store().directory(cluster.name)) if event["event"] == "node parent died"
        ]
        return [(event["nodes"], event["pid"], event["code"]) for event in events]

    with Cluster.star(3).up() as cluster:
        with agents(cluster, plug, ETHERTYPE, {"n1": wait_forever, "n2": wait_forever}) as run:
            parent = int(Path(f"/proc/{run.pids['n1']}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(parent, signal.SIGKILL)
            for _ in range(2):
                with pytest.raises(NodeDiedError, match="the parent of all node processes"):
                    run.wait(TIMEOUT)
                assert report(cluster) == [(["n1", "n2"], parent, -9)]
        with agents(cluster, plug, ETHERTYPE, {"n1": idle}) as run:
            run.wait(TIMEOUT)
        assert len(report(cluster)) == 1, "a regular end is not reported"


def test_offloads_are_disabled_during_a_run_and_restored_however_it_ends() -> None:
    with Cluster.star(3).up() as cluster:
        with agents(cluster, plug, ETHERTYPE, {"n1": wait_forever, "n2": wait_forever}) as run:
            assert [accepts_gso(cluster, node) for node in ("n1", "n2", "n3")] == [False, False, True]
            run.kill("n1")
        assert [accepts_gso(cluster, node) for node in ("n1", "n2", "n3")] == [True, True, True]


def test_an_unknown_node_and_a_missing_nic_are_errors() -> None:
    with Cluster.star(2).up() as cluster:
        with pytest.raises(NotFoundError, match="n9"), agents(cluster, plug, ETHERTYPE, {"n9": idle}):
            pass
        cluster["n2"].run(["ip", "link", "del", cluster["n2"].layout.nics[0].name])
        with pytest.raises((ProgramError, KernelError), match="n2"), agents(cluster, plug, ETHERTYPE, {"n2": idle}):
            pass


def test_repeated_and_concurrent_runs_on_two_clusters() -> None:
    programs = {"n1": partial(ping, times=3), "n2": partial(pong, times=3)}
    with Cluster.star(2).up() as first_cluster, Cluster.star(2).up() as second_cluster:
        for _ in range(3):
            with (
                agents(first_cluster, plug, ETHERTYPE, programs) as first,
                agents(second_cluster, plug, ETHERTYPE, programs) as second,
            ):
                assert len(first.wait(TIMEOUT).results) == len(second.wait(TIMEOUT).results) == 2
