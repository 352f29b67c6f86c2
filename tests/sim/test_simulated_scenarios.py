"""Every kind of fault in the simulation: its exact time, its counted effect, and its complete end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jsonschema
import pytest
from click.testing import CliRunner, Result

import testbed
from protocols.core.profile import Profile
from protocols.emp import host as emp
from protocols.mpi.mpi_errors import MPIError
from testbed import Cluster, RunningCluster, RunResult, Scenario
from testbed.cli.documents import schema_of
from testbed.cli.main import testbed as command
from testbed.controller.runs import run_target
from testbed.controller.scenarios.active import ActiveFault
from testbed.controller.scenarios.player import ScenarioPlayer
from testbed.controller.scenarios.simulated import SimulatedInjector
from testbed.controller.scenarios.timeline import Occurrence
from testbed.errors import DescriptionError, UnsupportedError
from testbed.fates.rules import RuleSet
from testbed.fields import known_fields
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation
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
    Traffic,
)
from testbed.spec.model import Description
from testbed.spec.resolver import resolve
from testbed.spec.scenario import RandomFaults
from testbed.workloads.form import Comm, Node

MILLISECOND, SECOND = 1_000_000, 1_000_000_000
STAR = Cluster.star(4, delay="100us")


async def talk(comm: Comm, node: Node, *, rounds: int = 100) -> list[int]:
    """Play ping-pong between n1 and n2, a round every 10 ms at most; the others wait for a second. Returns when each
    round began."""
    start_times = []
    if comm.rank > 1:
        await node.sleep(SECOND)
        return start_times
    for number in range(rounds):
        start_times.append(node.now())
        if comm.rank == 0:
            await comm.send(number, 1, 7)
            assert await comm.recv(source=1, tag=8) == number
        else:
            assert await comm.recv(source=0, tag=7) == number
            await comm.send(number, 0, 8)
        await node.sleep(10 * MILLISECOND)
    return start_times


async def sleep(_comm: Comm, node: Node, *, seconds: float = 1.0) -> tuple[int, int]:
    start_time = node.now()
    await node.sleep(round(seconds * SECOND))
    return start_time, node.now()


async def compute(_comm: Comm, node: Node) -> int:
    await node.compute(100 * MILLISECOND)
    return node.now()


class ScenarioRun:
    """Run with a scenario. begins, ends: the events of each fault's begin and end, in their order."""

    def __init__(self, folder: Path, workload: Any, *faults: Fault, **options: Any) -> None:
        scenario = options.pop("scenario", None) or Scenario(name="storm", faults=faults)
        cluster = options.pop("cluster", STAR)
        self.result: RunResult = testbed.run(
            cluster, workload, mode="sim", scenario=scenario, output=folder / "run", **{"timeout": 20.0, **options}
        )
        self.events = [json.loads(line) for line in (folder / "run" / "events.jsonl").read_text().splitlines()]
        self.begins = [event for event in self.events if event["event"] == "fault begins"]
        self.ends = [event for event in self.events if event["event"] == "fault ends"]

    @property
    def counters(self) -> Mapping[str, int]:
        (end,) = self.ends
        counters: Mapping[str, int] = end["counted"]
        return counters

    @property
    def warnings(self) -> list[str]:
        return [note for note in self.result.verdict.notes if "a simulation" not in note]


# On links


def test_a_loss_applies_only_during_its_span(tmp_path: Path) -> None:
    outcome = ScenarioRun(tmp_path, talk, Impair(on="n1", from_="200ms", to="400ms", loss="30%"))
    assert [(event["begun"], event["at"]) for event in outcome.begins] == [(200 * MILLISECOND, 200 * MILLISECOND)]
    assert outcome.ends[0]["at"] == 400 * MILLISECOND
    fates = [json.loads(line) for line in (tmp_path / "run" / "fates.jsonl").read_text().splitlines()]
    assert len(fates) == outcome.counters["loss"] > 0
    assert outcome.counters["frames"] > outcome.counters["loss"]
    assert outcome.warnings == []
    assert "loss" in (tmp_path / "run" / "scenario.toml").read_text()


def test_a_later_impairment_of_a_direction_overrides_an_earlier_one_until_its_end(tmp_path: Path) -> None:
    """A round trip takes 400 us, with 1 ms on one of its four directions 1.3 ms, with 5 ms 5.3 ms."""

    async def measure(comm: Comm, node: Node) -> list[int]:
        round_trips = []
        for number in range(40):
            start_time = node.now()
            if comm.rank == 0:
                send = await comm.Isend(b"", 1, number)
                await comm.Recv(bytearray(0), 1, number)
            else:
                await comm.Recv(bytearray(0), 0, number)
                send = await comm.Isend(b"", 0, number)
            round_trips.append(node.now() - start_time)
            await send.Wait()
            await node.sleep(20 * MILLISECOND - node.now() % (20 * MILLISECOND))
        return round_trips

    outcome = ScenarioRun(
        tmp_path,
        measure,
        Impair(on="n1", direction="out", from_="190ms", to="590ms", delay="1ms"),
        Impair(on="n1--s1", direction="n1-s1", from_="390ms", to="490ms", delay="5ms"),
        cluster=Cluster.star(2, delay="100us"),
    )
    round_trips = outcome.result.results["n1"]
    assert set(round_trips[:10] + round_trips[30:]) == {400_000}
    assert set(round_trips[10:20] + round_trips[25:30]) == {1_300_000}
    assert set(round_trips[20:25]) == {5_300_000}


def test_a_rule_counts_from_its_beginning(tmp_path: Path) -> None:
    outcome = ScenarioRun(
        tmp_path, talk, Rule(on="n2", direction="in", rules="drop emp.type == 1 and first(2)", at="300ms")
    )
    assert outcome.counters == {"decided": 2}
    assert outcome.ends[0]["with_the_run"]
    start_times = outcome.result.results["n1"]
    delayed_numbers = [
        number for number in range(1, 100) if start_times[number] - start_times[number - 1] > 25 * MILLISECOND
    ]
    assert delayed_numbers
    assert all(start_times[number] > 300 * MILLISECOND for number in delayed_numbers)


def test_an_unplugged_cable_loses_all_frames_until_it_is_plugged_in_again(tmp_path: Path) -> None:
    outcome = ScenarioRun(tmp_path, talk, Flap(on="n2", at="200ms", for_="150ms"))
    start_times = outcome.result.results["n1"]
    assert not any(212 * MILLISECOND < time < 350 * MILLISECOND for time in start_times)
    assert any(time > 350 * MILLISECOND for time in start_times)
    assert outcome.counters["lost"] > 0


def test_a_link_is_up_after_the_last_of_two_overlapping_faults(tmp_path: Path) -> None:
    outcome = ScenarioRun(
        tmp_path, talk, Down(on="n2", from_="200ms", to="400ms"), Down(on="all", from_="300ms", to="500ms")
    )
    start_times = outcome.result.results["n1"]
    assert not any(212 * MILLISECOND < time < 500 * MILLISECOND for time in start_times)
    assert len(start_times) == 100


def test_periodic_faults_repeat_until_their_end(tmp_path: Path) -> None:
    outcome = ScenarioRun(tmp_path, talk, Flap(on="n2", from_="100ms", every="200ms", for_="20ms", to="600ms"))
    assert [event["at"] // MILLISECOND for event in outcome.begins] == [100, 300, 500]
    assert [event["at"] // MILLISECOND for event in outcome.ends] == [120, 320, 520]


@pytest.mark.parametrize(
    "partition",
    [
        Partition(groups=[["n1", "n3"], ["n2"]], from_="200ms", to="300ms"),
        Partition(shape="isolated", node="n2", from_="200ms", to="300ms"),
        Partition(groups=[["n1"], ["n2"]], one_way=True, from_="200ms", to="300ms"),
    ],
)
def test_no_frame_passes_between_the_groups_of_a_partition(tmp_path: Path, partition: Partition) -> None:
    outcome = ScenarioRun(tmp_path, talk, partition)
    start_times = outcome.result.results["n1"]
    assert not any(212 * MILLISECOND < time < 300 * MILLISECOND for time in start_times)
    assert outcome.counters["decided"] > 0
    assert len(start_times) == 100


def test_frames_pass_within_a_group_of_a_partition(tmp_path: Path) -> None:
    outcome = ScenarioRun(tmp_path, talk, Partition(shape="halves", from_="200ms", to="300ms"))
    assert outcome.counters == {"decided": 0}
    assert outcome.warnings == [
        "fault[1] (partition halves) had no effect from 200ms to 300ms: decided: 0",
    ]


# On nodes


def test_a_crash_ends_a_program_and_the_run_continues_without_it(tmp_path: Path) -> None:
    outcome = ScenarioRun(tmp_path, sleep, Crash(on="n3", at="400ms"))
    assert set(outcome.result.results) == {"n1", "n2", "n4"}
    assert outcome.counters == {"processes": 1}


def test_a_crashed_program_restarts_from_the_beginning(tmp_path: Path) -> None:
    outcome = ScenarioRun(tmp_path, sleep, Crash(on=["n2", "n3"], at="400ms", for_="200ms"))
    assert outcome.result.results["n1"] == (0, SECOND)
    assert outcome.result.results["n3"] == (600 * MILLISECOND, 1_600 * MILLISECOND)
    assert outcome.result.results["n2"] == outcome.result.results["n3"]
    assert outcome.counters == {"processes": 2}


def test_the_run_waits_for_restarted_nodes(tmp_path: Path) -> None:
    outcome = ScenarioRun(tmp_path, sleep, Crash(on="n3", at="900ms", for_="5s"))
    assert outcome.result.results["n3"] == (5_900 * MILLISECOND, 6_900 * MILLISECOND)


@pytest.mark.parametrize("fault", [Restart(on="n3", at="400ms"), Reset(on="n3", at="400ms")])
def test_a_restarted_or_reset_program_begins_at_once(tmp_path: Path, fault: Fault) -> None:
    outcome = ScenarioRun(tmp_path, sleep, fault)
    assert outcome.result.results["n3"] == (400 * MILLISECOND, 1_400 * MILLISECOND)
    assert [event["at"] for event in outcome.ends] == [400 * MILLISECOND]


def test_a_message_to_a_crashed_node_is_returned_and_a_later_one_arrives(tmp_path: Path) -> None:
    """The sender knew the old incarnation, which may have received the message."""

    async def serve(comm: Comm, node: Node) -> list[object]:
        if comm.rank:
            word = await comm.recv(source=0, tag=1)
            if node.starts == 1:
                await node.sleep(1_000 * MILLISECOND)
            return [word]
        await comm.send("hello", 1, 1)
        await node.sleep(150 * MILLISECOND)  # until the crash
        with pytest.raises(MPIError, match="node 1 has restarted"):
            await comm.send("anybody there?", 1, 1)
        await comm.send("and now?", 1, 1)
        return []

    outcome = ScenarioRun(
        tmp_path, serve, Crash(on="n2", at="100ms", for_="200ms"), cluster=Cluster.star(2, delay="100us")
    )
    assert outcome.result.results["n2"] == ["and now?"]


def test_a_paused_node_loses_no_messages(tmp_path: Path) -> None:
    outcome = ScenarioRun(tmp_path, talk, Pause(on="n2", at="200ms", for_="100ms"))
    assert outcome.counters["nodes"] == 1
    assert outcome.counters["held"] > 0
    start_times = outcome.result.results["n1"]
    assert not any(212 * MILLISECOND < time < 300 * MILLISECOND for time in start_times)
    assert len(start_times) == 100


def test_a_node_that_is_paused_twice_continues_after_both(tmp_path: Path) -> None:
    pauses = Pause(on="n2", from_="200ms", to="400ms"), Pause(on="all", from_="300ms", to="600ms")
    start_times = ScenarioRun(tmp_path, talk, *pauses).result.results["n1"]
    assert not any(212 * MILLISECOND < time < 600 * MILLISECOND for time in start_times)


@pytest.mark.parametrize(
    ("ranks", "pauses"),
    [
        (1, [Pause(on="n1", at=0, to="50ms"), Pause(on="n1", at="20ms", to="80ms")]),
        (2, [Pause(on="n1", at=0, to="80ms")]),
    ],
)
def test_a_core_is_paused_once_for_overlapping_pauses_and_several_ranks(
    tmp_path: Path, ranks: int, pauses: list[Pause]
) -> None:
    async def compute_later(comm: Comm, node: Node) -> int:
        await node.sleep(30 * MILLISECOND)
        if comm.rank == 0:
            await node.compute(100 * MILLISECOND)
        return node.now()

    outcome = ScenarioRun(tmp_path, compute_later, *pauses, ranks_per_node=ranks)
    assert max(outcome.result.results.values()) == 180 * MILLISECOND


def test_a_node_that_crashes_while_it_is_paused_restarts(tmp_path: Path) -> None:
    outcome = ScenarioRun(
        tmp_path, sleep, Pause(on="n3", from_="200ms", to="800ms"), Crash(on="n3", at="300ms", for_="100ms")
    )
    assert outcome.result.results["n3"] == (400 * MILLISECOND, 1_400 * MILLISECOND)


def test_a_busy_processor_delays_computation(tmp_path: Path) -> None:
    """100 ms of work behind a load of 50 %, all of which is reserved at the beginning of the fault."""
    outcome = ScenarioRun(tmp_path, compute, Cpu(on="n1", share="50%", at=0, for_="50ms"))
    assert outcome.result.results["n2"] == 100 * MILLISECOND
    assert outcome.result.results["n1"] >= 100 * MILLISECOND
    assert outcome.counters == {"busy_ns": 25 * MILLISECOND}


@pytest.mark.parametrize(("share", "busy"), [("50%", 25), ("150%", 75), ("900%", 100)])
def test_a_load_is_a_share_of_a_processor_not_of_each(tmp_path: Path, share: str, busy: int) -> None:
    outcome = ScenarioRun(
        tmp_path, compute, Cpu(on="n1", share=share, at=0, for_="50ms"), profile=Profile("p", cores=2, receive=10)
    )
    assert outcome.counters == {"busy_ns": busy * MILLISECOND}


def test_churn_restarts_nodes_until_its_end(tmp_path: Path) -> None:
    outcome = ScenarioRun(tmp_path, sleep, Churn(on=["n2", "n3"], mean="100ms", from_="100ms", to="900ms", seed=4))
    assert outcome.begins
    assert {event["what"] for event in outcome.begins} == {"restart on n2", "restart on n3"}
    last = {event["what"][-2:]: event["at"] for event in outcome.begins}
    for name, time in last.items():
        assert outcome.result.results[name] == (time, time + SECOND)
    assert outcome.result.results["n1"] == (0, SECOND)


# Contention


def test_traffic_takes_its_share_of_a_link_and_never_reaches_a_firmware(tmp_path: Path) -> None:
    """10 Mbit/s of 12,112 bits each for 0.1 s: 83 frames, the first at once."""
    slow_cluster = Cluster.star(4, delay="100us", rate="12mbit")
    outcome = ScenarioRun(
        tmp_path,
        talk,
        Traffic(senders="n3", receiver="n2", rate="10mbit", at="200ms", for_="100ms"),
        cluster=slow_cluster,
    )
    assert outcome.counters == {"frames": 83}
    assert outcome.result.counters["n2"].get("frames_malformed", 0) == 0
    undisturbed = testbed.run(slow_cluster, talk, mode="sim").results["n1"]
    assert outcome.result.results["n1"] != undisturbed
    assert outcome.result.results["n1"][:15] == undisturbed[:15]


def test_traffic_to_a_crashed_node_does_not_switch_on_its_nic() -> None:
    rules = RuleSet(known_fields())
    with Simulation(resolve(Description.star(3)), emp.plug(), rules=rules) as simulation:

        async def wait(_endpoint: emp.Endpoint, node: SimNode) -> None:
            await node.sleep(SECOND)

        for name in simulation.nodes:
            simulation.spawn(name, wait)
        injector, nic = SimulatedInjector(simulation, rules, {}), simulation.nodes["n2"].nic
        injector.begin(Occurrence("fault[1]", Crash(on="n2", at=0), 0, None))
        injector.begin(Occurrence("fault[2]", Traffic(senders="n3", receiver="n2", rate="1mbit", at=0), 0, None))
        frame = bytes.fromhex(simulation.layout.nodes[1].nics[0].mac.replace(":", "")) + bytes(54)
        simulation.network.outgoing(simulation.hosts["n1"].end).enter(simulation.now(), frame)
        simulation.run_until(MILLISECOND)
        assert nic.received == 0


def test_in_an_incast_every_other_node_sends(tmp_path: Path) -> None:
    outcome = ScenarioRun(tmp_path, talk, Incast(receiver="n1", rate="10mbit", at="200ms", for_="100ms"))
    assert outcome.counters == {"frames": 3 * 83}


# Slow NIC processors, which need a profile with costs


def test_a_slow_nic_processor_without_costs_has_no_effect_and_is_a_note(tmp_path: Path) -> None:
    outcome = ScenarioRun(tmp_path, talk, Slow(on="n1", factor=2.0, at="100ms"))
    assert outcome.counters == {"busy_ns": 0, "longer_ns": 0}
    (warning,) = outcome.warnings
    assert "had no effect" in warning
    assert "the profile 'ideal' has no costs" in warning
    assert "--profile" in warning


def test_a_slow_nic_processor_takes_a_multiple_of_its_time() -> None:
    profile = Profile("priced", receive=10_000, send=20_000)
    layout = resolve(Description.star(2))

    async def ping(endpoint: emp.Endpoint, node: SimNode) -> list[int]:
        times_taken = []
        for number in range(20):
            await node.sleep(10 * MILLISECOND - node.now() % (10 * MILLISECOND))
            start_time = node.now()
            if node.number:
                await endpoint.receive(0, number, bytearray(4))
                await endpoint.send(0, number, b"pong")
            else:
                await endpoint.send(1, number, b"ping")
                await endpoint.receive(1, number, bytearray(4))
            times_taken.append(node.now() - start_time)
        return times_taken

    rules = RuleSet(known_fields())
    with Simulation(layout, emp.plug(), profile=profile, rules=rules) as simulation:
        events: list[dict[str, Any]] = []
        scenario = Scenario(faults=[Slow(on="n2", factor=10.0, from_="55ms", to="105ms")])
        playing = ScenarioPlayer(scenario, record_event=lambda event, **facts: events.append({"event": event, **facts}))
        playing.simulated(simulation, rules)
        tasks = {name: simulation.spawn(name, ping) for name in simulation.nodes}
        simulation.run(timeout=SECOND)
        playing.close()
    times_taken = tasks["n1"].result()
    assert min(times_taken[5:9]) > 2 * max(times_taken[:5])
    assert max(times_taken[11:]) <= max(times_taken[:5])
    counters = events[-1]["counted"]
    assert counters["longer_ns"] == round(0.9 * counters["busy_ns"]) > 0
    assert playing.notes == []


def test_of_overlapping_slow_faults_the_later_applies_until_its_end() -> None:
    rules = RuleSet(known_fields())
    with Simulation(
        resolve(Description.star(2)), emp.plug(), profile=Profile("p", receive=10), rules=rules
    ) as simulation:
        injector = SimulatedInjector(simulation, rules, {})
        times_taken = []

        def begin(factor: float) -> ActiveFault:
            fault = injector.begin(Occurrence("fault[1]", Slow(on="n1", factor=factor, at=0), 0, None))
            times_taken.append(time_to_receive(simulation))
            return fault

        first, second = begin(3.0), begin(2.0)
        for fault in (second, first):
            fault.lift(False)
            times_taken.append(time_to_receive(simulation))
    assert times_taken == [30, 20, 30, 10]


def time_to_receive(simulation: Simulation) -> int:
    """Let a frame arrive at node n1; return the nanoseconds of its NIC's processor that it takes."""
    nic = simulation.nodes["n1"].nic
    before = nic.processor_time
    nic.receive(simulation.now(), bytes(60))
    simulation.run_until(simulation.now() + MILLISECOND)
    return nic.processor_time - before


def test_a_nic_that_restarts_stays_slow_until_the_fault_ends() -> None:
    rules, profile = RuleSet(known_fields()), Profile("p", receive=10)
    with Simulation(resolve(Description.star(2)), emp.plug(), profile=profile, rules=rules) as simulation:
        injector = SimulatedInjector(simulation, rules, {})
        times_taken = []

        def restart_and_receive() -> None:
            simulation.restart("n1")
            times_taken.append(time_to_receive(simulation))

        slow = injector.begin(Occurrence("fault[1]", Slow(on="n1", factor=3.0, at=0), 0, None))
        restart_and_receive()
        slow.lift(False)
        restart_and_receive()
    assert times_taken == [30, 10]


# Runs


def test_a_scenario_that_outlasts_the_run_is_a_warning(tmp_path: Path) -> None:
    faults = Pause(on="n1", at="100ms", for_="10ms"), Crash(on="n1", at="5s"), Crash(on="n2", at="7s")
    outcome = ScenarioRun(tmp_path, sleep, *faults)
    assert outcome.warnings == [
        "storm is longer than the run, which ended after 1s: 2 faults have not begun, first fault[2] at 5s (crash on n1)"
    ]


def test_faults_that_repeat_beyond_the_runs_end_cause_no_warning(tmp_path: Path) -> None:
    random_faults = RandomFaults(kinds=["pause"], rate=20.0, longest="20ms")
    scenario = Scenario(random=random_faults, faults=[Flap(on="n2", at="100ms", every="100ms", for_="30ms")])
    assert not any("is longer than the run" in note for note in ScenarioRun(tmp_path, talk, scenario=scenario).warnings)


def test_a_fault_of_a_program_that_has_ended_is_a_warning(tmp_path: Path) -> None:
    async def end_early(comm: Comm, node: Node) -> int:
        await node.sleep(SECOND if comm.rank else MILLISECOND)
        return node.now()

    outcome = ScenarioRun(tmp_path, end_early, Crash(on="n1", at="500ms"))
    assert outcome.result.results["n1"] == MILLISECOND
    assert outcome.warnings == ["fault[1] (crash on n1) had no effect from 500ms to 1s: no program was running there"]


def test_random_faults_are_equal_for_equal_seeds(tmp_path: Path) -> None:
    random_faults = RandomFaults(kinds=["impair", "flap", "pause", "partition"], rate=20.0, longest="50ms")

    def storm(name: str, seed: int) -> list[dict[str, object]]:
        (tmp_path / name).mkdir()
        outcome = ScenarioRun(tmp_path / name, talk, scenario=Scenario(random=random_faults), seed=seed)
        return [{key: event[key] for key in event if key not in ("time", "clock")} for event in outcome.ends]

    first = storm("first", 1)
    assert len(first) > 5
    assert first == storm("again", 1)
    assert first != storm("another", 2)


def test_the_scenario_runs_in_each_repetition(tmp_path: Path) -> None:
    outcome = ScenarioRun(tmp_path, talk, Flap(on="n2", at="200ms", for_="100ms"), repeat=3)
    assert [event["at"] for event in outcome.ends] == [300 * MILLISECOND] * 3
    assert all(event["had_effect"] for event in outcome.ends)


def test_a_run_that_fails_under_a_scenario_lists_the_active_faults(tmp_path: Path) -> None:
    async def fail(_comm: Comm, node: Node) -> None:
        await node.sleep(SECOND)
        raise ValueError("enough")

    with pytest.raises(testbed.TestbedError, match="enough"):
        ScenarioRun(tmp_path, fail, Down(on="n1", at="500ms"))
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    (end,) = [event for event in events if event["event"] == "fault ends"]
    assert (end["at"], end["with_the_run"]) == (SECOND, True)


def test_checkers_know_the_faults_of_a_run(tmp_path: Path) -> None:
    outcome = ScenarioRun(
        tmp_path, talk, Flap(on="n2", at="200ms", for_="100ms"), Pause(on="n1", at="400ms", for_="10ms")
    )
    document = json.loads((tmp_path / "run" / "checks.json").read_text())["circumstances"]["disturbances"]
    assert [
        (entry["kind"], entry["begin_ns"] // MILLISECOND, entry["end_ns"] // MILLISECOND, entry["nodes"])
        for entry in document
    ] == [
        ("cut", 200, 300, []),
        ("pause", 400, 410, ["n1"]),
    ]
    assert outcome.result.verdict.grade is testbed.Grade.TRUSTED


# The command


def test_the_command_lists_the_timeline_and_the_errors(tmp_path: Path) -> None:
    file = tmp_path / "storm.toml"
    file.write_text(Scenario(faults=[Flap(on="n3", from_="1s", to="2s"), Crash(on="n1", at="1500ms")]).to_toml())
    run = CliRunner().invoke
    lines = run(command, ["scenario", "check", str(file), "star-3"]).output.splitlines()
    assert [line.split(maxsplit=2) for line in lines] == [
        ["1s", "begins", "fault[1]: down: n3"],
        ["1.5s", "begins", "fault[2]: crash on n1"],
        ["2s", "ends", "fault[1]: down: n3"],
    ]
    document = json.loads(run(command, ["scenario", "check", str(file), "star-3", "--json"]).output)
    jsonschema.validate(document, schema_of("scenario-check"))
    assert [moment["at"] for moment in document["moments"]] == [SECOND, 1_500 * MILLISECOND, 2 * SECOND]
    rejection = run(command, ["scenario", "check", str(file), "star-2"])
    assert isinstance(rejection.exception, DescriptionError)
    assert "no link, node or switch 'n3'" in str(rejection.exception)


def check_scenario(file: Path, fault: Fault | None, *options: str) -> Result:
    """Check a scenario of one fault, or none, on two nodes."""
    file.write_text(Scenario(faults=[fault] if fault is not None else []).to_toml())
    return CliRunner().invoke(command, ["scenario", "check", str(file), "star-2", *options])


def test_the_command_warns_of_faults_after_the_time_limit(tmp_path: Path) -> None:
    crash = Crash(on="n1", at="90s")
    late = check_scenario(tmp_path / "late.toml", crash)
    assert late.exit_code == 0
    assert late.stderr == (
        "warning: not reached within the time limit of 60s: fault[1]: raise --seconds here and --timeout of the run\n"
    )
    assert check_scenario(tmp_path / "late.toml", crash, "--seconds", "120").stderr == ""


def test_the_command_says_that_a_timeline_is_empty(tmp_path: Path) -> None:
    assert check_scenario(tmp_path / "empty.toml", None).stdout == "no fault begins within 60s\n"


def test_the_command_checks_scenarios_of_dilated_runs(tmp_path: Path) -> None:
    crash = Crash(on="n1", at="100ms")
    dilated = check_scenario(tmp_path / "slow.toml", crash, "--mode", "dilated")
    assert dilated.exit_code == 0, dilated.output
    assert dilated.stderr == ""
    late = check_scenario(tmp_path / "slow.toml", crash, "--mode", "dilated", "--dilate", "1000")
    assert "not reached within the time limit of 60ms of model time: fault[1]" in late.stderr
    assert "--dilate needs --mode dilated" in check_scenario(tmp_path / "slow.toml", crash, "--dilate", "9").stderr


def test_the_command_checks_the_datapath_of_a_running_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Rule(on="n1", at=0, rules=["drop nth(3)"])
    assert check_scenario(tmp_path / "rule.toml", rule).exit_code == 0
    find = run_target.find_target

    def find_running(cluster: str, mode: str, seed: int | None) -> run_target.RunTarget:
        running = SimpleNamespace(state=SimpleNamespace(asked="netem"))
        return replace(find(cluster, mode, seed), running=cast(RunningCluster, running))

    monkeypatch.setattr(run_target, "find_target", find_running)
    rejection = check_scenario(tmp_path / "rule.toml", rule)
    assert isinstance(rejection.exception, UnsupportedError), rejection.output


def test_the_command_runs_a_workload_under_a_scenario(tmp_path: Path) -> None:
    file = tmp_path / "storm.toml"
    file.write_text(Scenario(faults=[Impair(on="all", at=0, loss="5%")]).to_toml())
    arguments = ["run", "star-2", "pingpong", "--mode", "sim", "--set", "count=50", "--json"]
    result = CliRunner().invoke(command, [*arguments, "--scenario", str(file), "--output", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    assert Scenario.load(tmp_path / "run" / "scenario.toml").faults == Scenario.load(file).faults
    assert '"event": "fault begins"' in (tmp_path / "run" / "events.jsonl").read_text()
