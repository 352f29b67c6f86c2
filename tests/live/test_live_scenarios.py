"""Scenarios in namespaces: each fault has its effect and is removed however the run ends."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import testbed
from testbed import Cluster, RunningCluster, Scenario
from testbed.cluster.records.status import status
from testbed.controller.scenarios import live
from testbed.errors import DescriptionError, TestbedError, UnsupportedError
from testbed.spec.fault_models import (
    Cpu,
    Crash,
    Down,
    Fault,
    Flap,
    Impair,
    Incast,
    Partition,
    Pause,
    Reset,
    Restart,
    Rule,
    Slow,
)
from testbed.workloads.form import Comm, Node
from tests.live.machine_state import eventually
from tests.sim.test_program_restarts import check_number_of_starts, check_restart_at_barrier

pytestmark = [pytest.mark.alone, pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

MILLISECOND, SECOND = 1_000_000, 1_000_000_000
MAX_LATENESS = 0.5  # seconds that a busy machine may be late


async def timed_rounds(comm: Comm, node: Node, *, seconds: float = 1.0) -> list[float]:
    """Exchange ping-pongs between n1 and n2 every 10 ms while the others wait; return the rounds' start times in seconds
    since the first."""
    started: list[float] = []
    first = node.now()
    is_running = True
    while comm.rank < 2 and is_running:
        started.append((node.now() - first) / SECOND)
        if comm.rank == 0:
            is_running = started[-1] < seconds
            await comm.send(is_running, 1, 7)
            await comm.recv(source=1, tag=8)
        else:
            is_running = await comm.recv(source=0, tag=7)
            await comm.send(None, 0, 8)
        await node.sleep(10 * MILLISECOND)
    if comm.rank > 1:
        await node.sleep(round(seconds * SECOND))
    return started


async def sleep(_comm: Comm, node: Node, *, seconds: float = 1.0) -> int:
    start = node.now()
    await node.sleep(round(seconds * SECOND))
    return start


def events_of(folder: Path, event: str) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [record for record in records if record["event"] == event]


def run_scenario(folder: Path, cluster: Any, workload: Any, *faults: Fault, **options: Any) -> testbed.RunResult:
    return testbed.run(cluster, workload, scenario=Scenario(name="storm", faults=faults), output=folder / "run",
                       timeout=40, **options)  # fmt: skip


def fault_counters(folder: Path) -> dict[str, Mapping[str, int]]:
    """Return each fault's counters; each fault must have had an effect."""
    events = events_of(folder / "run", "fault ends")
    assert [event["fault"] for event in events if not event["had_effect"]] == []
    return {event["fault"]: event["counted"] for event in events}


def test_a_link_fault_at_time_0_is_in_force_before_the_first_frame(tmp_path: Path) -> None:
    async def send_once(comm: Comm, _node: Node) -> None:
        if comm.rank == 0:
            await comm.Send(b"first", 1)
        else:
            await comm.Recv(bytearray(5), 0)

    rule = Rule(on="n1", rules="drop emp.type == 1 and nth(1)", at="0s")
    run_scenario(tmp_path, Cluster.star(2), send_once, rule)
    assert [event["in_force"] for event in events_of(tmp_path / "run", "fault begins")] == [0]
    assert fault_counters(tmp_path) == {"fault[1]": {"decided": 1}}


def test_impairments_of_links_and_nodes_are_applied_at_the_scheduled_times(tmp_path: Path) -> None:
    with Cluster.star(3).up() as cluster:
        run_scenario(
            tmp_path, cluster, timed_rounds,
            Impair(on="n1", from_="200ms", to="700ms", loss="30%", delay="1ms"),
            Rule(on="n2", rules="drop emp.type == 1 and first(2)", at="800ms", for_="400ms"),
            Flap(on="n2", at="1300ms", for_="200ms"),
            Pause(on="n1", at="1800ms", for_="200ms"),
            Cpu(on="n3", share="20%", at="300ms", for_="500ms"),
            Incast(receiver="n3", rate="1mbit", at="300ms", for_="300ms"),
            settings={"seconds": 2.5},
        )  # fmt: skip
        assert cluster.state.injected == ()
        assert all(link.up for link in status(cluster.state).links)
        assert not any(node.programs for node in status(cluster.state).nodes)
    counted = fault_counters(tmp_path)
    assert counted["fault[1]"]["frames"] > counted["fault[1]"]["loss"] > 0
    assert counted["fault[2]"] == {"decided": 2} or counted["fault[2]"] == {"decided": 4}  # counted per direction
    assert counted["fault[3]"] == {"links down": 1}
    assert counted["fault[4]"] == {"nodes": 1}
    for fault in events_of(tmp_path / "run", "fault begins"):
        assert 0 <= fault["begun"] / SECOND - fault["at"] / SECOND < MAX_LATENESS


def test_links_with_faults_switch_datapaths_only_before_and_after_the_run(tmp_path: Path) -> None:
    """A change of datapath loses frames in flight, which are no configured losses."""
    faults = (
        Impair(on="n1", from_="300ms", to="400ms", loss="30%"),
        Impair(on="n1", from_="500ms", to="600ms", delay="1ms"),
        Partition(shape="isolated", node="n1", from_="800ms", to="900ms"),
    )
    with Cluster.star(2).up() as cluster:
        result = run_scenario(tmp_path, cluster, timed_rounds, *faults, settings={"seconds": 1.2})
        assert cluster.state.datapaths == {}
        assert cluster.state.injected == ()
    fault_counters(tmp_path)
    start, end = [event["clock"] for name in ("repetition begins", "repetition ends")
                   for event in events_of(tmp_path / "run", name)]  # fmt: skip
    replugged = [event["clock"] for event in events_of(tmp_path / "run", "replugged")]
    assert replugged
    assert not [when for when in replugged if start < when < end]
    assert not [finding for finding in result.verdict.findings if finding.what == "replugged" and finding.measured]
    assert not [note for note in result.verdict.notes if "in the span" in note or "never matched" in note]


def test_no_frame_passes_between_the_groups_until_the_partition_is_lifted(tmp_path: Path) -> None:
    partition = Partition(shape="isolated", node="n2", from_="300ms", to="900ms")
    result = run_scenario(tmp_path, Cluster.star(3), timed_rounds, partition, settings={"seconds": 1.5})
    (begins,) = events_of(tmp_path / "run", "fault begins")
    (end,) = events_of(tmp_path / "run", "fault ends")
    rounds = result.results["n1"]
    longest_gap = max(after - before for before, after in itertools.pairwise(rounds))
    assert longest_gap >= (end["at"] - begins["in_force"]) / SECOND - 0.05
    assert fault_counters(tmp_path)["fault[1]"]["decided"] > 0


def test_frames_lost_at_an_end_taken_down_by_a_scenario_count_as_configured(tmp_path: Path) -> None:
    """The link goes down while the relay holds delayed frames."""
    delayed = Cluster.star(2, delay="50ms")
    traffic = {"messages": 400, "outstanding": 50, "largest": 1000, "over": "1s"}
    findings = run_scenario(
        tmp_path, delayed, "random", Flap(on="n2", at="400ms", for_="300ms"), settings=traffic
    ).verdict.findings
    lost = [finding.measured for finding in findings if finding.what == "relay at an end taken down"]
    assert sum(count or 0 for count in lost) > 0
    assert [finding for finding in findings if finding.what in ("relay at a down end", "NIC down")] == []


def test_a_crashed_program_ends_and_a_restarted_one_starts_again(tmp_path: Path) -> None:
    faults = (
        Crash(on="n1", at="300ms"),
        Crash(on="n2", at="300ms", for_="300ms"),
        Restart(on="n3", at="500ms"),
        Reset(on="n4", at="600ms"),
    )
    result = run_scenario(tmp_path, Cluster.star(5), sleep, *faults)
    assert set(result.results) == {"n2", "n3", "n4", "n5"}
    start_offsets = {name: (started - result.results["n5"]) / SECOND for name, started in result.results.items()}
    assert 0.55 < start_offsets["n2"] < 0.6 + MAX_LATENESS
    assert 0.45 < start_offsets["n3"] < 0.5 + MAX_LATENESS
    assert 0.55 < start_offsets["n4"] < 0.6 + MAX_LATENESS
    assert fault_counters(tmp_path) == {f"fault[{number}]": {"processes": 1} for number in range(1, 5)}
    died = [event["node"] for event in events_of(tmp_path / "run", "node process died")]
    assert sorted(died) == ["n1", "n2", "n3", "n4"]


def test_a_new_incarnation_receives_retransmissions_to_the_previous_one(tmp_path: Path) -> None:
    async def send_to_n2(comm: Comm, node: Node) -> object:
        if comm.rank:
            return await comm.recv(source=0, tag=1)
        await node.sleep(400 * MILLISECOND)
        return await comm.send("hello", 1, 1)

    result = run_scenario(tmp_path, Cluster.star(2), send_to_n2, Crash(on="n2", at="200ms", for_="500ms"))
    assert result.results["n2"] == "hello"


def test_a_program_has_its_number_of_starts() -> None:
    check_number_of_starts("live")


def test_a_restarted_rank_at_a_barrier_ends_the_run_with_an_error_of_one_line() -> None:
    check_restart_at_barrier("live")


def test_the_run_waits_for_restarted_nodes(tmp_path: Path) -> None:
    result = run_scenario(
        tmp_path, Cluster.star(2), sleep, Crash(on="n2", at="200ms", for_="1s"), settings={"seconds": 0.4}
    )
    assert result.results["n2"] - result.results["n1"] > SECOND


def test_faults_affect_kernel_sockets(tmp_path: Path) -> None:
    result = run_scenario(
        tmp_path, Cluster.star(2), timed_rounds, Impair(on="n1", from_="200ms", to="600ms", loss="10%"), protocol="tcp"
    )
    assert fault_counters(tmp_path)["fault[1]"]["frames"] > 0
    assert result.results["n1"][-1] >= 1.0


def test_faults_without_effect_and_faults_that_never_start_are_noted(tmp_path: Path) -> None:
    faults = Rule(on="n1", rules="drop udp and ip.src == 1.2.3.4", at="100ms", for_="200ms"), Crash(on="n1", at="30s")
    notes = run_scenario(tmp_path, Cluster.star(2), timed_rounds, *faults).verdict.notes
    assert any(
        note.startswith("fault[1] (rule 'drop udp and ip.src == 1.2.3.4' on n1) had no effect from 100ms")
        for note in notes
    )
    assert any("1 fault has not begun, first fault[2] at 30s (crash on n1)" in note for note in notes)


# Removal of faults at the end of a run


def assert_clean(cluster: RunningCluster) -> None:
    assert cluster.state.injected == ()
    assert all(link.up for link in status(cluster.state).links)
    assert not any(node.programs for node in status(cluster.state).nodes)


LASTING_FAULTS = (
    Impair(on="all", at="100ms", loss="50%"),
    Down(on="n3", at="200ms"),
    Pause(on="n2", at="300ms", for_="3600s"),
    Cpu(on="n3", share="10%", at="300ms"),
)


def test_an_exception_in_a_program_ends_all_faults(tmp_path: Path) -> None:
    async def fail(comm: Comm, node: Node) -> None:
        await node.sleep((800 if comm.rank == 0 else 30_000) * MILLISECOND)
        raise ValueError("injected")

    with Cluster.star(3).up() as cluster:
        with pytest.raises(TestbedError, match="injected"):
            run_scenario(tmp_path, cluster, fail, *LASTING_FAULTS)
        assert_clean(cluster)
    assert all(event["with_the_run"] for event in events_of(tmp_path / "run", "fault ends"))
    assert len(events_of(tmp_path / "run", "fault ends")) == len(LASTING_FAULTS)


def test_an_interrupted_run_ends_all_faults(tmp_path: Path) -> None:
    with Cluster.star(3).up() as cluster:
        timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            run_scenario(tmp_path, cluster, sleep, *LASTING_FAULTS, settings={"seconds": 30.0})
        timer.join()
        assert_clean(cluster)


def test_faults_left_by_a_killed_run_end_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_GRACE", 0.5)
    faults = (
        Impair(on="all", at="100ms", for_="1s", loss="50%"),
        Down(on="n3", at="200ms", for_="1s"),
        Cpu(on="n3", share="10%", at="200ms", for_="1s"),
    )
    with Cluster.star(3).up() as cluster:
        child = os.fork()
        if not child:
            run_scenario(tmp_path, cluster, sleep, *faults, settings={"seconds": 30.0})
            os._exit(1)
        eventually(lambda: len(cluster.state.injected) == 4, "all faults are in force")
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        eventually(lambda: len(cluster.state.injected) == 1, "all faults but the hold have ended")
        assert all(link.up for link in status(cluster.state).links)


def test_a_fault_that_cannot_be_applied_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    """Each fault is valid, but not their combination."""
    faults = Impair(on="n1", at="100ms", delay="1ms", reorder="5%"), Impair(on="n1", at="300ms", delay="0s")
    with Cluster.star(2).up() as cluster:
        with pytest.raises(DescriptionError):
            run_scenario(tmp_path, cluster, timed_rounds, *faults, settings={"seconds": 5.0})
        assert_clean(cluster)


def test_features_that_namespaces_lack_are_rejected_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="only a cost model can slow a NIC"):
        run_scenario(tmp_path, Cluster.star(2), timed_rounds, Slow(on="n1", factor=3.0, at="1s"))
    with pytest.raises(UnsupportedError, match="cannot restore connections of the kernel"):
        run_scenario(tmp_path, Cluster.star(2), timed_rounds, Restart(on="n1", at="1s"), protocol="tcp")
    with pytest.raises(DescriptionError, match="no node 'n7'"):
        run_scenario(tmp_path, Cluster.star(2), timed_rounds, Crash(on="n7", at="1s"))
    assert not (tmp_path / "run").exists()
