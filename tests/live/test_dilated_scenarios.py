"""Scenarios in dilated time: faults at equal model times have the simulation's effects within the measured lateness."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import testbed
from protocols.emp.profile import EMP_2001
from protocols.mpi.mpi_errors import MPIError
from testbed import Cluster, RunResult, Scenario, TestbedError
from testbed.controller.conformance.parity import received_messages
from testbed.spec.fault_models import Cpu, Crash, Fault, Impair, Incast, Pause, Restart, Rule, Slow
from testbed.workloads.form import Comm, Node

pytestmark = [
    pytest.mark.alone,
    pytest.mark.requires("root"),
    pytest.mark.usefixtures("machine"),
    pytest.mark.timeout(180),
]

US, MS = 1_000, 1_000_000
DILATE = 300
WIRE = Cluster.star(2, rate="1gbit", delay="200ns", overhead=24, minimum_frame=60)


async def timed_rounds(comm: Comm, node: Node, *, count: int = 100) -> list[tuple[int, int]]:
    """Return (start, duration) of each ping-pong round; a round starts every 200 us.

    Receives are posted first, since a message that comes before its receive waits for a retransmission.
    """
    rounds = []
    arrival = await comm.Irecv(bytearray(4), 1 - comm.rank)
    await comm.Barrier()
    for number in range(count):
        if comm.rank == 0:
            await node.sleep(200 * US - node.now() % (200 * US))
            start = node.now()
            await comm.Send(bytes(4), 1)
        await arrival.Wait()
        if comm.rank == 0:
            rounds.append((start, node.now() - start))
        if number + 1 < count:
            arrival = await comm.Irecv(bytearray(4), 1 - comm.rank)
        if comm.rank == 1:
            await comm.Send(bytes(4), 0)
    return rounds


class BothModes(NamedTuple):
    """Results of one scenario in both modes. faults: name -> (start, end) in the dilated run."""

    simulated: RunResult
    dilated: RunResult
    faults: dict[str, tuple[int, int]]
    folders: tuple[Path, Path]

    @property
    def lateness(self) -> int:
        """99th percentile of a round trip's lateness in model ns: two NICs, four directions in the relay."""
        nics = max(nic.p99 for nic in self.dilated.repetitions[0].lateness.values())
        relayed = [
            finding.measured or 0.0 for finding in self.dilated.verdict.findings if finding.what == "relay lateness p99"
        ]
        return 2 * nics + round(4 * max(relayed, default=0) / DILATE)


def run_in_both_modes(
    folder: Path, workload: Any, *faults: Fault, cluster: Any = WIRE, factor: int = DILATE, **options: Any
) -> BothModes:
    options = {"profile": EMP_2001, "timeout": 90, **options}
    scenario, folders, results = Scenario(name="storm", faults=faults), (folder / "sim", folder / "dilated"), []
    for mode, output, dilate in zip(("sim", "dilated"), folders, (None, factor), strict=True):
        results.append(
            testbed.run(cluster, workload, mode=mode, dilate=dilate, scenario=scenario, output=output, **options)
        )
    records = [json.loads(line) for line in (folders[1] / "events.jsonl").read_text().splitlines()]
    started = {record["fault"]: record["in_force"] for record in records if record["event"] == "fault begins"}
    ended = {record["fault"]: record["at"] for record in records if record["event"] == "fault ends"}
    requested = {record["fault"]: record["at"] for record in records if record["event"] == "fault begins"}
    assert all(started[name] >= requested[name] for name in started)  # no fault starts early
    assert not [record for record in records if record["event"] == "fault ends" and not record["had_effect"]]
    return BothModes(results[0], results[1], {name: (started[name], ended[name]) for name in started}, folders)


def median_duration(rounds: Sequence[Sequence[int]], is_selected: Callable[[int, int], bool]) -> float:
    """Return the median duration of the rounds for which `is_selected(start, end)` is true."""
    selected = [duration for start, duration in rounds if is_selected(start, start + duration)]
    assert len(selected) >= 5, rounds
    return statistics.median(selected)


def test_link_and_nic_faults_have_the_simulations_duration_and_effect(tmp_path: Path) -> None:
    done = run_in_both_modes(
        tmp_path, timed_rounds,
        Impair(on="n1", delay="50us", from_="3ms", to="6ms"),
        Slow(on="n2", factor=4, from_="9ms", to="12ms"), settings={"count": 65},
    )  # fmt: skip
    exact, slow = done.simulated.results["n1"], done.dilated.results["n1"]
    assert len(exact) == len(slow) == 65
    windows = {name: done.faults[f"fault[{number}]"] for number, name in ((1, "delay"), (2, "slow"))}
    requested = {"delay": (3 * MS, 6 * MS), "slow": (9 * MS, 12 * MS)}
    baseline = median_duration(exact, lambda start, _: start < 2 * MS)
    for name in windows:
        expected = median_duration(
            exact, lambda start, ended, n=name: requested[n][0] <= start and ended <= requested[n][1]
        )  # type: ignore[misc]
        measured = median_duration(slow, lambda start, ended, n=name: windows[n][0] <= start and ended <= windows[n][1])  # type: ignore[misc]
        assert expected > 1.5 * baseline
        assert -20 <= measured - expected <= 20 + done.lateness, name
    # Rounds before and between the faults are unaffected.
    for undisturbed in (
        lambda start, _: start < 2 * MS,
        lambda start, _: windows["delay"][1] + MS // 2 < start < 8 * MS,
    ):
        assert -20 <= median_duration(slow, undisturbed) - baseline <= 20 + done.lateness


def test_a_pause_has_the_simulations_duration(tmp_path: Path) -> None:
    done = run_in_both_modes(tmp_path, timed_rounds, Pause(on="n2", at="5ms", for_="3ms"), settings={"count": 50})
    start, ended = done.faults["fault[1]"]
    exact, slow = (max(duration for _, duration in result.results["n1"]) for result in (done.simulated, done.dilated))
    assert 2.5 * MS < exact < 3.5 * MS
    interval = 200 * US + round(statistics.median(duration for _, duration in done.simulated.results["n1"]))
    assert ended - start - interval <= slow <= max(ended, 8 * MS) - 5 * MS + interval + done.lateness
    assert sum(duration > MS for _, duration in done.dilated.results["n1"]) == 1


def test_a_loaded_core_has_the_simulations_speed(tmp_path: Path) -> None:
    async def compute(_comm: Comm, node: Node) -> int:
        for _ in range(20):
            await node.compute(500 * US)
        return node.now()

    done = run_in_both_modes(tmp_path, compute, Cpu(on="n1", share="50%", at="1ms"), factor=100)
    exact, slow = done.simulated.results, done.dilated.results
    assert exact["n1"] > 1.4 * exact["n2"]
    assert slow["n2"] == exact["n2"]
    # A late fault may start in another step of the program or have one load period less.
    assert abs(slow["n1"] - exact["n1"]) <= 5 * MS


def test_histories_under_faults_equal_those_of_the_simulation(tmp_path: Path) -> None:
    # On a busy machine a pause or an incast may start late, and has no effect if it should have ended by then; hence the
    # long duration.
    done = run_in_both_modes(
        tmp_path, "random",
        Impair(on="n1", loss="10%", at="0s"),
        Rule(on="n2", rules="drop emp.type == 1 and first(3)", at="0s"),
        Pause(on="n3", at="300us", for_="17ms"),
        Incast(receiver="n1", rate="100mbit", at="200us", for_="17ms"),
        cluster=Cluster.star(3, rate="1gbit", delay="5us", seed=4), settings={"messages": 20}, check=True, factor=30,
    )  # fmt: skip
    assert done.simulated.results == done.dilated.results
    for node in ("n1", "n2", "n3"):
        simulated, dilated = (received_messages(folder, node) for folder in done.folders)
        assert simulated == dilated
        assert sum(map(len, simulated.values())) >= 20


def test_a_crashed_node_restarts_with_a_new_incarnation_and_the_measured_lateness(tmp_path: Path) -> None:
    async def send_until_reply(comm: Comm, node: Node) -> tuple[int, int]:
        """n1 sends a message every 300 us until the restarted n2 replies, and then a last one."""
        start, is_last = node.now(), False
        reply = await comm.Irecv(bytearray(1), 1) if comm.rank == 0 else None
        while reply is not None:
            try:
                await comm.Send(b"L" if is_last else b"?", 1)
                if is_last:
                    return node.starts, start
                await node.sleep(300 * US)
            except MPIError:
                continue
            is_last = await reply.Test()
        message, has_replied = bytearray(1), node.starts == 1
        while message != b"L":
            await comm.Recv(message, 0)
            if not has_replied:
                await comm.Send(b"!", 0)
                has_replied = True
        return node.starts, start

    done = run_in_both_modes(tmp_path, send_until_reply, Crash(on="n2", at="1ms", for_="2ms"), check=False)
    for result in (done.simulated, done.dilated):
        assert [result.results[node][0] for node in ("n1", "n2")] == [1, 2]
    assert done.simulated.results["n2"][1] == 3 * MS
    assert done.dilated.results["n2"][1] >= 3 * MS


def test_a_restarted_node_starts_again_at_once(tmp_path: Path) -> None:
    async def sleep(_comm: Comm, node: Node) -> int:
        await node.sleep(3 * MS)
        return node.starts

    done = run_in_both_modes(tmp_path, sleep, Restart(on="n1", at="1ms"), check=False)
    assert done.simulated.results == done.dilated.results == {"n1": 2, "n2": 1}


@pytest.mark.parametrize(("fault", "message"), [
    (Impair(on="n1", at="1ms", rate="200bit"), "a rate of 200 bit/s, 300 times slower, is below 1 bit/s"),
    (Incast(receiver="n1", rate="250bit", at="1ms", for_="1ms"), "a rate of 250 bit/s, 300 times slower, is below 1 bit/s"),
])  # fmt: skip
def test_features_that_cannot_be_slowed_are_rejected_before_the_start(fault: Fault, message: str) -> None:
    with pytest.raises(TestbedError, match=f"is not supported in dilated(?s:.)*{message}"):
        testbed.run(WIRE, timed_rounds, mode="dilated", dilate=DILATE, scenario=Scenario(faults=(fault,)))


def test_a_rate_trace_is_rejected(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("1\n")
    fault = Impair(on="n1", at="1ms", rate_trace=str(trace))
    with pytest.raises(TestbedError, match="a jitter or a rate that is in a file cannot be slowed"):
        testbed.run(WIRE, timed_rounds, mode="dilated", dilate=DILATE, scenario=Scenario(faults=(fault,)))
