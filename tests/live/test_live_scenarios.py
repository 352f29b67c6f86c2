"""Scenarios in namespaces: each fault has its effect, and is removed when the run has ended in any way."""

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
from tests.sim.test_starts_again import ends_at_the_barrier, knows_how_often_it_was_started

pytestmark = [pytest.mark.alone, pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

MILLISECOND, SECOND = 1_000_000, 1_000_000_000
LATE = 0.5  # s: tolerated lateness on a busy machine


async def talk(comm: Comm, node: Node, *, seconds: float = 1.0) -> list[float]:
    """Play ping-pong between n1 and n2, a round every 10 ms; the others wait. Returns when each round began, in seconds
    since the first."""
    started: list[float] = []
    first = node.now()
    goes_on = True
    while comm.rank < 2 and goes_on:
        started.append((node.now() - first) / SECOND)
        if comm.rank == 0:
            goes_on = started[-1] < seconds
            await comm.send(goes_on, 1, 7)
            await comm.recv(source=1, tag=8)
        else:
            goes_on = await comm.recv(source=0, tag=7)
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


def play(folder: Path, cluster: Any, workload: Any, *faults: Fault, **options: Any) -> testbed.RunResult:
    return testbed.run(cluster, workload, scenario=Scenario(name="storm", faults=faults), output=folder / "run",
                       timeout=40, **options)  # fmt: skip


def ends(folder: Path) -> dict[str, Mapping[str, int]]:
    """Return each fault's counters; each fault must have had an effect."""
    events = events_of(folder / "run", "fault ends")
    assert [event["fault"] for event in events if not event["had_effect"]] == []
    return {event["fault"]: event["counted"] for event in events}


def test_a_link_fault_at_time_0_is_in_force_before_the_first_frame(tmp_path: Path) -> None:
    async def say_once(comm: Comm, _node: Node) -> None:
        if comm.rank == 0:
            await comm.Send(b"first", 1)
        else:
            await comm.Recv(bytearray(5), 0)

    rule = Rule(on="n1", rules="drop emp.type == 1 and nth(1)", at="0s")
    play(tmp_path, Cluster.star(2), say_once, rule)
    assert [event["in_force"] for event in events_of(tmp_path / "run", "fault begins")] == [0]
    assert ends(tmp_path) == {"fault[1]": {"decided": 1}}


def test_impairments_of_links_and_nodes_are_applied_at_the_scheduled_times(tmp_path: Path) -> None:
    with Cluster.star(3).up() as cluster:
        play(
            tmp_path, cluster, talk,
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
    counted = ends(tmp_path)
    assert counted["fault[1]"]["frames"] > counted["fault[1]"]["loss"] > 0
    assert counted["fault[2]"] == {"decided": 2} or counted["fault[2]"] == {"decided": 4}  # each direction for itself
    assert counted["fault[3]"] == {"links down": 1}
    assert counted["fault[4]"] == {"nodes": 1}
    for begins in events_of(tmp_path / "run", "fault begins"):
        assert 0 <= begins["begun"] / SECOND - begins["at"] / SECOND < LATE


def test_links_with_faults_switch_datapaths_only_before_and_after_the_run(tmp_path: Path) -> None:
    """A change of datapath loses the frames in flight, which no scenario asks for and the verdict would report."""
    faults = (
        Impair(on="n1", from_="300ms", to="400ms", loss="30%"),
        Impair(on="n1", from_="500ms", to="600ms", delay="1ms"),
        Partition(shape="isolated", node="n1", from_="800ms", to="900ms"),
    )
    with Cluster.star(2).up() as cluster:
        result = play(tmp_path, cluster, talk, *faults, settings={"seconds": 1.2})
        assert cluster.state.datapaths == {}
        assert cluster.state.injected == ()
    ends(tmp_path)
    start, over = [event["clock"] for name in ("repetition begins", "repetition ends")
                   for event in events_of(tmp_path / "run", name)]  # fmt: skip
    replugged = [event["clock"] for event in events_of(tmp_path / "run", "replugged")]
    assert replugged
    assert not [when for when in replugged if start < when < over]
    assert not [finding for finding in result.verdict.findings if finding.what == "replugged" and finding.measured]
    assert not [note for note in result.verdict.notes if "in the span" in note or "never matched" in note]


def test_no_frame_passes_between_the_groups_until_the_partition_is_lifted(tmp_path: Path) -> None:
    partition = Partition(shape="isolated", node="n2", from_="300ms", to="900ms")
    result = play(tmp_path, Cluster.star(3), talk, partition, settings={"seconds": 1.5})
    (begins,) = events_of(tmp_path / "run", "fault begins")
    (end,) = events_of(tmp_path / "run", "fault ends")
    rounds = result.results["n1"]
    silent = max(after - before for before, after in itertools.pairwise(rounds))
    assert silent >= (end["at"] - begins["in_force"]) / SECOND - 0.05
    assert ends(tmp_path)["fault[1]"]["decided"] > 0


def test_losses_at_an_end_that_a_scenario_takes_down_are_configured_losses(tmp_path: Path) -> None:
    """Frames that the relay has delayed come due while the cable is out."""
    lagging = Cluster.star(2, delay="50ms")
    traffic = {"messages": 400, "outstanding": 50, "largest": 1000, "over": "1s"}
    findings = play(
        tmp_path, lagging, "random", Flap(on="n2", at="400ms", for_="300ms"), settings=traffic
    ).verdict.findings
    lost = [finding.measured for finding in findings if finding.what == "relay at an end taken down"]
    assert sum(count or 0 for count in lost) > 0
    assert [finding for finding in findings if finding.what in ("relay at a down end", "NIC down")] == []


def test_a_crashed_program_has_ended_and_a_restarted_one_begins_anew(tmp_path: Path) -> None:
    faults = (
        Crash(on="n1", at="300ms"),
        Crash(on="n2", at="300ms", for_="300ms"),
        Restart(on="n3", at="500ms"),
        Reset(on="n4", at="600ms"),
    )
    result = play(tmp_path, Cluster.star(5), sleep, *faults)
    assert set(result.results) == {"n2", "n3", "n4", "n5"}
    since = {name: (started - result.results["n5"]) / SECOND for name, started in result.results.items()}
    assert 0.55 < since["n2"] < 0.6 + LATE
    assert 0.45 < since["n3"] < 0.5 + LATE
    assert 0.55 < since["n4"] < 0.6 + LATE
    assert ends(tmp_path) == {f"fault[{number}]": {"processes": 1} for number in range(1, 5)}
    died = [event["node"] for event in events_of(tmp_path / "run", "node process died")]
    assert sorted(died) == ["n1", "n2", "n3", "n4"]


def test_a_new_incarnation_receives_retransmissions_to_the_previous_one(tmp_path: Path) -> None:
    async def tell(comm: Comm, node: Node) -> object:
        if comm.rank:
            return await comm.recv(source=0, tag=1)
        await node.sleep(400 * MILLISECOND)
        return await comm.send("anybody there?", 1, 1)

    result = play(tmp_path, Cluster.star(2), tell, Crash(on="n2", at="200ms", for_="500ms"))
    assert result.results["n2"] == "anybody there?"


def test_a_program_knows_how_often_it_was_started() -> None:
    knows_how_often_it_was_started("live")


def test_a_restarted_rank_at_a_barrier_ends_the_run_with_an_error_of_one_line() -> None:
    ends_at_the_barrier("live")


def test_the_run_waits_for_restarted_nodes(tmp_path: Path) -> None:
    result = play(tmp_path, Cluster.star(2), sleep, Crash(on="n2", at="200ms", for_="1s"), settings={"seconds": 0.4})
    assert result.results["n2"] - result.results["n1"] > SECOND


def test_kernel_sockets_meet_the_same_faults(tmp_path: Path) -> None:
    result = play(
        tmp_path, Cluster.star(2), talk, Impair(on="n1", from_="200ms", to="600ms", loss="10%"), protocol="tcp"
    )
    assert ends(tmp_path)["fault[1]"]["frames"] > 0
    assert result.results["n1"][-1] >= 1.0


def test_faults_without_effect_and_faults_that_never_begin_are_warnings(tmp_path: Path) -> None:
    faults = Rule(on="n1", rules="drop udp and ip.src == 1.2.3.4", at="100ms", for_="200ms"), Crash(on="n1", at="30s")
    notes = play(tmp_path, Cluster.star(2), talk, *faults).verdict.notes
    assert any(
        note.startswith("fault[1] (rule 'drop udp and ip.src == 1.2.3.4' on n1) had no effect from 100ms")
        for note in notes
    )
    assert any("1 fault has not begun, first fault[2] at 30s (crash on n1)" in note for note in notes)


# However the run ends


def is_clean(cluster: RunningCluster) -> None:
    assert cluster.state.injected == ()
    assert all(link.up for link in status(cluster.state).links)
    assert not any(node.programs for node in status(cluster.state).nodes)


STORM = (
    Impair(on="all", at="100ms", loss="50%"),
    Down(on="n3", at="200ms"),
    Pause(on="n2", at="300ms", for_="3600s"),
    Cpu(on="n3", share="10%", at="300ms"),
)


def test_a_program_that_raises_leaves_nothing_in_force(tmp_path: Path) -> None:
    async def fail(comm: Comm, node: Node) -> None:
        await node.sleep((800 if comm.rank == 0 else 30_000) * MILLISECOND)
        raise ValueError("enough")

    with Cluster.star(3).up() as cluster:
        with pytest.raises(TestbedError, match="enough"):
            play(tmp_path, cluster, fail, *STORM)
        is_clean(cluster)
    assert all(event["with_the_run"] for event in events_of(tmp_path / "run", "fault ends"))
    assert len(events_of(tmp_path / "run", "fault ends")) == len(STORM)


def test_a_run_that_is_interrupted_leaves_nothing_in_force(tmp_path: Path) -> None:
    with Cluster.star(3).up() as cluster:
        timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            play(tmp_path, cluster, sleep, *STORM, settings={"seconds": 30.0})
        timer.join()
        is_clean(cluster)


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
            play(tmp_path, cluster, sleep, *faults, settings={"seconds": 30.0})
            os._exit(1)
        eventually(lambda: len(cluster.state.injected) == 4, "all is in force")
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        eventually(lambda: len(cluster.state.injected) == 1, "all but the hold has ended by itself")
        assert all(link.up for link in status(cluster.state).links)


def test_a_fault_that_cannot_be_applied_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    """Each is sound by itself; together they are not."""
    faults = Impair(on="n1", at="100ms", delay="1ms", reorder="5%"), Impair(on="n1", at="300ms", delay="0s")
    with Cluster.star(2).up() as cluster:
        with pytest.raises(DescriptionError):
            play(tmp_path, cluster, talk, *faults, settings={"seconds": 5.0})
        is_clean(cluster)


def test_features_that_namespaces_lack_are_rejected_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="only a cost model can slow a NIC"):
        play(tmp_path, Cluster.star(2), talk, Slow(on="n1", factor=3.0, at="1s"))
    with pytest.raises(UnsupportedError, match="cannot restore connections of the kernel"):
        play(tmp_path, Cluster.star(2), talk, Restart(on="n1", at="1s"), protocol="tcp")
    with pytest.raises(DescriptionError, match="no node 'n7'"):
        play(tmp_path, Cluster.star(2), talk, Crash(on="n7", at="1s"))
    assert not (tmp_path / "run").exists()
