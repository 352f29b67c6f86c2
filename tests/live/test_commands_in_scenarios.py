"""Scenarios in runs of commands: faults of links, nodes and the commands' processes, removed at the end."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from testbed import Cluster, CommandError, CommandTimeoutError, RunningCluster, Scenario
from testbed.cluster.records.status import status
from testbed.controller.runs.command_runs import CommandsResult, run_commands
from testbed.errors import DescriptionError, UnsupportedError
from testbed.spec.fault_models import (
    Churn,
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
from testbed.spec.scenario import RandomFaults
from tests.live.testbed_command import testbed as command

pytestmark = [pytest.mark.alone, pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

PRINT_TIMES = "for i in $(seq 30); do date +%s.%N; sleep 0.05; done"
PING_N1 = "ping -q -i 0.02 -w 2 n1 >/dev/null; true"


def run_scenario(
    folder: Path, commands: list[tuple[str, str]], *faults: Fault, cluster: Any = None, **options: Any
) -> CommandsResult:
    scenario = Scenario(name="storm", faults=faults)
    return run_commands(cluster or Cluster.star(3), commands, scenario=scenario, output=folder / "run", **options)


def events(folder: Path, event: str) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (folder / "run" / "events.jsonl").read_text().splitlines()]
    return [record for record in records if record["event"] == event]


def rows(folder: Path) -> dict[str, Mapping[str, Any]]:
    return {row["node"]: row for row in map(json.loads, (folder / "run" / "rows.jsonl").read_text().splitlines())}


def fault_counters(folder: Path) -> dict[str, Mapping[str, int]]:
    """Return each fault's counters; each fault must have had an effect."""
    ended = events(folder, "fault ends")
    assert [event["fault"] for event in ended if not event["had_effect"]] == []
    return {event["fault"]: event["counted"] for event in ended}


def assert_clean(cluster: RunningCluster) -> None:
    assert cluster.state.injected == ()
    assert all(link.up for link in status(cluster.state).links)
    assert not any(node.programs for node in status(cluster.state).nodes)


def printed_times(folder: Path, node: str) -> list[float]:
    return [float(line) for line in (folder / "run" / "logs" / f"{node}.log").read_text().split()]


def test_a_link_fault_at_time_0_is_in_force_before_the_first_command(tmp_path: Path) -> None:
    done = run_scenario(tmp_path, [("n1", "ping -q -c 1 -W 0.1 n2; true")], Impair(on="n1", loss="100%", at="0s"))
    assert "100% packet loss" in (tmp_path / "run" / "logs" / "n1.log").read_text()
    assert [event["in_force"] for event in events(tmp_path, "fault begins")] == [0]
    assert done.commands[0].code == 0
    assert fault_counters(tmp_path)


def test_impairments_of_links_and_nodes_are_applied_and_removed_afterwards(tmp_path: Path) -> None:
    with Cluster.star(3).up() as cluster:
        result = run_scenario(
            tmp_path, [("n1", PRINT_TIMES), ("n2", PING_N1)],
            Impair(on="n1", from_="100ms", to="700ms", loss="50%"),
            Rule(on="n2", rules="drop ip and first(3)", at="100ms", for_="600ms"),
            Partition(groups=[["n1"], ["n2"]], at="800ms", for_="200ms"),
            Flap(on="n2", at="1100ms", for_="100ms"),
            Pause(on="n2", at="1300ms", for_="100ms"),
            Cpu(on="n3", share="20%", at="300ms", for_="300ms"),
            Incast(receiver="n3", rate="1mbit", at="300ms", for_="300ms"),
            cluster=cluster,
        )  # fmt: skip
        assert_clean(cluster)
    counted = fault_counters(tmp_path)
    assert counted["fault[1]"]["loss"] > 0
    assert counted["fault[2]"]["decided"] >= 3
    assert counted["fault[4]"] == {"links down": 1}
    assert counted["fault[5]"] == {"nodes": 1}
    assert (tmp_path / "run" / "scenario.toml").exists()
    assert not [note for note in result.verdict.notes if "loss 50%" in note]


def test_a_paused_node_is_paused_for_the_given_time(tmp_path: Path) -> None:
    run_scenario(tmp_path, [("n1", PRINT_TIMES)], Pause(on="n1", at="300ms", for_="600ms"))
    times = printed_times(tmp_path, "n1")
    assert max(after - before for before, after in itertools.pairwise(times)) > 0.5
    assert fault_counters(tmp_path) == {"fault[1]": {"nodes": 1}}


def test_a_crash_ends_all_processes_of_a_node_and_is_not_a_failure(tmp_path: Path) -> None:
    start = time.monotonic()
    with Cluster.star(3).up() as cluster:
        run_scenario(
            tmp_path,
            [("n1", PRINT_TIMES), ("n2", "sleep 600 & sleep 600")],
            Crash(on="n2", at="200ms"),
            cluster=cluster,
        )
        assert_clean(cluster)
    assert time.monotonic() - start < 60
    assert (rows(tmp_path)["n2"]["code"], rows(tmp_path)["n2"]["crashed"]) == (-signal.SIGKILL, 1)
    assert rows(tmp_path)["n1"]["code"] == 0
    assert "crashed" not in rows(tmp_path)["n1"]


def test_a_restarted_command_starts_again_and_the_run_waits_for_it(tmp_path: Path) -> None:
    commands = [
        ("n1", "echo started; sleep 1.6; echo ended"),
        ("n2", "echo started; sleep 1; echo ended"),
        ("n3", "true"),
    ]
    run_scenario(tmp_path, commands, Restart(on="n1", at="200ms"), Crash(on="n2", at="200ms", for_="800ms"))
    for node in ("n1", "n2"):
        assert (tmp_path / "run" / "logs" / f"{node}.log").read_text().split() == ["started", "started", "ended"]
        assert (rows(tmp_path)[node]["code"], rows(tmp_path)[node]["crashed"]) == (0, 1)
    assert rows(tmp_path)["n2"]["took_ns"] > 1_900_000_000


def test_churn_and_random_faults_repeat_with_the_same_seed(tmp_path: Path) -> None:
    random_faults = RandomFaults(kinds=["impair", "flap", "pause", "crash", "cpu"], rate=6.0, longest="200ms", to="1s")
    scenario = Scenario(name="storm", faults=[Churn(on="n3", mean="300ms", at=0, to="1s")], random=random_faults)
    log = []
    for number in range(2):
        folder = tmp_path / f"{number}"
        run_commands(Cluster.star(3), [("n3", "sleep 1.5")], scenario=scenario, seed=5, output=folder / "run")
        log.append([(event["fault"], event["what"], event["at"]) for event in events(folder, "fault begins")])
    assert log[0] == log[1]
    assert len(log[0]) > 3


def test_a_fault_on_a_node_whose_commands_have_ended_is_noted(tmp_path: Path) -> None:
    notes = run_scenario(
        tmp_path, [("n1", "true"), ("n2", "sleep 1.5")], Pause(on="n1", at="500ms", for_="100ms")
    ).verdict.notes
    assert any(
        "fault[1] (pause on n1) had no effect" in note and "no program was running there" in note for note in notes
    )


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            Reset(on="n1", at="1s"),
            r"fault\[1\]: reset: this fault acts on a NIC's firmware, which commands do not have",
        ),
        (Slow(on="n1", factor=2.0, at="1s"), r"fault\[1\]: slow: this fault acts on a NIC's firmware"),
    ],
)
def test_faults_of_firmware_are_rejected_for_commands_before_the_start(
    tmp_path: Path, fault: Fault, message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        run_scenario(tmp_path, [("n1", "true")], fault)
    scenario = Scenario(name="random", random=RandomFaults(kinds=["pause", "reset"], rate=1.0))
    with pytest.raises(UnsupportedError, match="random: reset: this fault acts on a NIC's firmware"):
        run_commands(Cluster.star(2), [("n1", "true")], scenario=scenario, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_faults_on_unknown_nodes_are_rejected_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(DescriptionError, match="no node 'n7'"):
        run_scenario(tmp_path, [("n1", "true")], Crash(on="n7", at="1s"))
    assert not (tmp_path / "run").exists()


LASTING_FAULTS = (
    Impair(on="all", at="100ms", loss="50%"),
    Down(on="n3", at="100ms"),
    Pause(on="n2", at="100ms", for_="3600s"),
    Cpu(on="n3", share="10%", at="100ms"),
)


def test_a_failed_command_ends_all_faults(tmp_path: Path) -> None:
    with Cluster.star(3).up() as cluster:
        with pytest.raises(CommandError, match="exit 3 ended with code 3"):
            run_scenario(tmp_path, [("n1", "sleep 1; exit 3"), ("n2", "sleep 600")], *LASTING_FAULTS, cluster=cluster)
        assert_clean(cluster)
    assert len(events(tmp_path, "fault ends")) == len(LASTING_FAULTS)
    assert rows(tmp_path)["n1"]["code"] == 3


def test_a_timeout_lists_the_commands_that_were_still_running(tmp_path: Path) -> None:
    with Cluster.star(3).up() as cluster:
        with pytest.raises(
            CommandTimeoutError, match=r"commands did not end within 1 s and were killed: n1: sleep 5, n2: sleep 600"
        ):
            run_scenario(
                tmp_path, [("n1", "sleep 5"), ("n2", "sleep 600")], Crash(on="n1", at="200ms", for_="600s"),
                *LASTING_FAULTS[2:],
                cluster=cluster, timeout=1.0,
            )  # fmt: skip
        assert_clean(cluster)


def test_an_interruption_ends_all_faults(tmp_path: Path) -> None:
    with Cluster.star(3).up() as cluster:
        timer = threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            run_scenario(tmp_path, [("n1", "sleep 600"), ("n2", "sleep 600")], *LASTING_FAULTS, cluster=cluster)
        timer.join()
        assert_clean(cluster)


def test_the_command_accepts_a_scenario_with_commands(tmp_path: Path) -> None:
    (tmp_path / "storm.toml").write_text('[[fault]]\nkind = "restart"\non = "n1"\nat = "200ms"\n')
    run = command(
        "run",
        "star-4",
        "--on",
        "n1",
        "echo started; sleep 0.5",
        "--scenario",
        "storm.toml",
        "--output",
        "out",
        cwd=tmp_path,
    )
    assert run.returncode in (0, 8), run.stderr
    assert run.stdout.count("  started") == 2
