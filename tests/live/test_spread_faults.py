"""Faults of links within and between two machines, and of a machine, and runs under them, on a cluster that all tests share.

TESTBED_LONG=1 also runs all protocols, kills a supervisor, and runs the other commands.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest
from websockets.sync.client import connect
from websockets.typing import Origin

from testbed.cli.documents import schema_of
from testbed.cluster.faults.fault_injection import compose_cut, compose_impairment, compose_partition
from testbed.controller.runs.command_runs import run_commands
from testbed.controller.runs.machine_part import RUN
from testbed.controller.runs.run_options import Nics
from testbed.controller.runs.runner import run
from testbed.controller.runs.spread_execution import SpreadCluster
from testbed.controller.spread_check import check
from testbed.controller.verdict.verdicts import Grade
from testbed.errors import DescriptionError, NotFoundError, UnsupportedError
from testbed.kernel import namespaces
from testbed.machines import spread
from testbed.machines.node_placement import Constraints
from testbed.machines.remote_workers import call_each
from testbed.machines.spread_faults import heal, heal_cut, inject, load_link, load_processor, spread_state
from testbed.observe.decoding.capture_reader import CaptureReader
from testbed.observe.live.machine_snapshots import SpreadSampler
from testbed.observe.live.snapshot import Absent, Snapshot
from testbed.observe.machine_captures import capturing
from testbed.observe.recorded import read_run
from testbed.runtime.nodes.node_run import ProgramError, StuckError
from testbed.runtime.shared.workers import ReceiveQueues
from testbed.spec.model import Description
from testbed.spec.placement import ranks_of
from testbed.spec.resolver import resolve
from tests.live.machine_state import eventually
from tests.live.machines_lab import Lab, lab
from tests.live.testbed_command import TESTBED, assert_error

pytestmark = [pytest.mark.requires("root", "ip", "ssh", "sshd")]

STAR = 'name = "star"\ndefaults = { mtu = 1400 }\ngenerate = { shape = "star", nodes = 3 }\n'
LONG = bool(os.environ.get("TESTBED_LONG"))
LAYOUT = resolve(Description.from_toml(STAR))
DIRECT = """
name = "near"
defaults = { mtu = 1400 }
node = [{ name = "n1" }, { name = "n2" }]
link = [{ ends = ["n1", "n2"], datapath = "direct" }]
"""
NAME = "work"
PINS = Constraints({"n1": "a", "s1": "a", "n2": "b", "n3": "b"})
ICMP = b"\x01"
MEASURE_ROUND_TRIPS = "from testbed.kernel.echo import round_trips; print(round_trips({!r}, {!r}, {}, {}))"


@pytest.fixture(scope="module")
def machines(_sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("lab"), names=("a", "b")) as running_lab:
        yield running_lab


@pytest.fixture(scope="module")
def running(machines: Lab) -> Iterator[spread.Workers]:
    """Start workers and bring up the cluster: n1 and the switch on machine a, n2 and n3 on b."""
    with machines.workers("lab.toml") as workers:
        spread.up(workers, spread.plan_spread(workers, LAYOUT, NAME, PINS), NAME, "here", "auto")
        yield workers
        spread.down(workers, NAME)


@pytest.fixture(autouse=True)
def _healed(running: spread.Workers) -> Iterator[None]:
    """Heal a test's injections."""
    yield
    heal(running, NAME)


def round_trip_times(
    running: spread.Workers, source: str, destination: str, count: int = 1, timeout: float = 5
) -> list[int]:
    """Return the round-trip times between two nodes, ns."""
    address = {node.name: node.address for node in LAYOUT.nodes}
    program = MEASURE_ROUND_TRIPS.format(address[source], address[destination], count, timeout)
    code, stdout, stderr = spread.execute(running, NAME, source, [sys.executable, "-c", program])
    assert code == 0, stderr
    document: list[int] = json.loads(stdout)
    return document


def program_counts(running: spread.Workers) -> dict[str, int]:
    """Return the number of programs of each node."""
    parts = spread.status(running, NAME).values()
    return {node["name"]: len(node["programs"]) for part in parts for node in part["nodes"]}


def is_cleaned_up(machines: Lab, running: spread.Workers, machine: str, cluster: str, before: Counter[str]) -> bool:
    """Return whether a machine has neither files of a cluster nor more processes than before."""
    return cluster not in running[machine].call("clusters") and not Counter(machines.programs(machine)) - before


def impair(target: str, direction: str = "", rules: tuple[str, ...] = (), **keys: object) -> Callable[..., object]:
    return partial(compose_impairment, target=target, keys=keys, rules=rules, direction=direction)


def test_a_cluster_without_impairments_has_all_its_supervisors(running: spread.Workers) -> None:
    assert [part["missing"] for part in spread.status(running, NAME).values()] == [[], []]


def test_a_delay_on_a_link_between_machines_includes_the_underlays(running: spread.Workers) -> None:
    delay = 30_000_000
    done = inject(running, NAME, impair("n2", delay=delay))
    assert done.datapaths == {"n2:eth0--s1:2": "relay"}
    assert (
        min(round_trip_times(running, "n1", "n2", 2)) >= 2 * delay - 2_000_000
    )  # minus the error of the underlay's measurement
    assert [injection.what for injection in spread_state(running, NAME).injected] == ["delay 30ms on n2"]


def test_an_injected_delay_below_the_underlays_is_rejected_on_both_machines(running: spread.Workers) -> None:
    with pytest.raises(UnsupportedError, match=r"a delay of 1ns is less than the .* that the network to machine"):
        inject(running, NAME, impair("n2", delay=1))
    assert spread_state(running, NAME).injected == ()


def test_a_rule_applies_in_its_direction_until_it_is_healed(running: spread.Workers) -> None:
    first = inject(running, NAME, impair("n2", "out", rules=("drop icmp",))).injection.number
    second = inject(running, NAME, impair("n3", "in", rules=("drop icmp",))).injection.number
    assert second == first + 1
    assert round_trip_times(running, "n1", "n2", timeout=0.1) == []
    assert round_trip_times(running, "n1", "n3", timeout=0.1) == []
    assert [injection.number for injection in heal(running, NAME, [first])] == [first]
    assert len(round_trip_times(running, "n1", "n2")) == 1
    assert round_trip_times(running, "n1", "n3", timeout=0.1) == []
    with pytest.raises(NotFoundError, match=f"no injection {first} in force; in force are {second}"):
        heal(running, NAME, [first])


def test_a_partition_separates_nodes_on_both_machines(running: spread.Workers) -> None:
    inject(running, NAME, lambda layout, _: compose_partition(layout, [["n1", "n2"], ["n3"]]))
    assert round_trip_times(running, "n3", "n1", timeout=0.1) == []
    assert round_trip_times(running, "n2", "n3", timeout=0.1) == []
    assert len(round_trip_times(running, "n2", "n1")) == 1
    heal(running, NAME)
    assert len(round_trip_times(running, "n3", "n1")) == 1


def test_a_timed_cut_of_a_link_between_machines_heals_on_both(running: spread.Workers) -> None:
    inject(running, NAME, lambda layout, _: compose_cut(layout, "n3"), seconds=0.5)
    state = spread.status(running, NAME)
    assert all(not link["up"] for part in state.values() for link in part["links"] if link["name"].startswith("n3"))
    eventually(lambda: not spread_state(running, NAME).injected, "both machines have healed the cut")
    assert len(round_trip_times(running, "n1", "n3")) == 1


def test_one_cut_link_can_be_healed_by_name(running: spread.Workers) -> None:
    inject(running, NAME, lambda layout, _: compose_cut(layout, "n2"))
    inject(running, NAME, lambda layout, _: compose_cut(layout, "n3"))
    inject(running, NAME, impair("n2", delay=30_000_000))
    assert [injection.what for injection in heal_cut(running, NAME, "n2")] == ["down: n2"]
    assert [injection.what for injection in spread_state(running, NAME).injected] == ["down: n3", "delay 30ms on n2"]
    assert heal_cut(running, NAME, "n2") == ()
    assert len(round_trip_times(running, "n1", "n2")) == 1


def test_a_snapshot_contains_the_state_of_every_machine(running: spread.Workers) -> None:
    inject(running, NAME, impair("n2", delay=1_000_000))
    sampler = SpreadSampler(running, NAME)
    sampler.sample()
    before = frame_counts(sampler.sample())
    assert len(round_trip_times(running, "n1", "n2", 3)) == 3
    after = frame_counts(sampler.sample())
    assert {*after} == {"n1:eth0--s1:1", "n2:eth0--s1:2", "n3:eth0--s1:3"}
    assert all(
        later - earlier >= 3 for later, earlier in zip(after["n2:eth0--s1:2"], before["n2:eth0--s1:2"], strict=True)
    )


def frame_counts(snapshot: Snapshot | Absent) -> dict[str, tuple[int, int]]:
    """Return the frame counts of each link's directions in a snapshot."""
    assert isinstance(snapshot, Snapshot)
    assert [fault.what for fault in snapshot.faults] == ["delay 1ms on n2"]
    assert (snapshot.phase, snapshot.warning, snapshot.summary) == ("up", "", "3 nodes, 1 switch, 3 links on a, b")
    return {link.name: (link.forward.frames, link.backward.frames) for link in snapshot.links}


def test_loads_run_on_their_nodes_machines(running: spread.Workers) -> None:
    load_link(running, NAME, ["n1"], "n3", 1_000_000)
    load_processor(running, NAME, "n2", 0.01)

    assert program_counts(running) == {"n1": 1, "n2": 1, "n3": 1}
    assert len(heal(running, NAME)) == 2
    eventually(lambda: program_counts(running) == {"n1": 0, "n2": 0, "n3": 0}, "the loads have ended")


RETRANSMISSION_COUNTERS = {
    "emp": "frames_resent", "am2": "packets_resent", "ssam": "resent", "via": "frames_resent", "openmx": "resent",
}  # fmt: skip


IN_CI: list[tuple[str, Nics]] = [("emp", "inline"), ("emp", "shared")]
LONG_ONLY: list[tuple[str, Nics]] = [
    ("am2", "inline"), ("ssam", "inline"), ("via", "inline"), ("openmx", "inline"), ("am2", "shared"), ("via", "shared"),
]  # fmt: skip


@pytest.mark.parametrize(("protocol", "nics"), [*IN_CI, *LONG_ONLY] if LONG else IN_CI)
def test_every_message_arrives_once_over_a_lossy_link_between_machines(
    running: spread.Workers, tmp_path: Path, protocol: str, nics: Nics
) -> None:
    inject(running, NAME, impair("n2", loss=0.05))
    result = run(SpreadCluster(NAME, running), "random", protocol=protocol, seed=3, settings={"messages": 50},
                 check=True, output=tmp_path / "run", timeout=120, nics=nics)  # fmt: skip
    assert result.checks is not None
    assert result.checks.passed, result.checks
    assert sum(counts[RETRANSMISSION_COUNTERS[protocol]] for counts in result.counters.values()) > 0
    assert {*result.results} == {"n1", "n2", "n3"}
    assert {path.stem for path in (tmp_path / "run" / "history").iterdir()} == {"n1", "n2", "n3"}
    measured = {(finding.what, finding.link) for finding in result.verdict.findings}
    assert {("underlay jitter", "a - b"), ("underlay loss", "a - b"), ("clock offset", "machine a")} <= measured


def test_firmware_settings_apply_on_every_machine(running: spread.Workers) -> None:
    inject(running, NAME, impair("n2", loss=1.0))
    with pytest.raises(ProgramError, match=r"has acknowledged nothing within the time limit \(give_up\)"):
        run(SpreadCluster(NAME, running), "random", protocol="emp", firmware={"give_up": 200_000_000}, timeout=20)
    with pytest.raises(DescriptionError, match="did you mean 'give_up'"):
        run(SpreadCluster(NAME, running), "random", protocol="emp", firmware={"giveup": 1})


def test_ranks_of_nodes_on_two_machines_share_nics_with_two_receive_queues(running: spread.Workers) -> None:
    result = run(SpreadCluster(NAME, running), "random", protocol="openmx", seed=3, settings={"messages": 20}, check=True,
                 nics="shared", ranks_per_node=2, queues=2, timeout=120)  # fmt: skip
    assert result.checks is not None
    assert result.checks.passed, result.checks
    ranks = [f"n{node}.{rank}" for node in (1, 2, 3) for rank in (0, 1)]
    assert {*result.results} == {*ranks}
    assert all(result.counters[rank]["worker_taken"] for rank in ranks)


def test_features_of_one_machine_are_rejected_before_the_start(running: spread.Workers) -> None:
    cluster = SpreadCluster(NAME, running)
    with pytest.raises(
        UnsupportedError, match=r"^work is on several machines, where commands cannot run with a scenario"
    ):
        run_commands(cluster, [("n1", "true")])
    with pytest.raises(UnsupportedError, match=r"^several receive queues in mode live need shared NICs"):
        run(cluster, "random", queues=2)
    with pytest.raises(
        UnsupportedError,
        match=r"^several ranks on a node share the firmware of its NIC, and kernel protocols have none",
    ):
        run(cluster, "random", protocol="tcp", ranks_per_node=2)


def test_a_capture_of_all_machines_is_one_file_with_each_frames_fate(running: spread.Workers, tmp_path: Path) -> None:
    inject(running, NAME, impair("n2", "in", rules=("drop icmp and nth(2)",)))
    with capturing(running, NAME, "n2", tmp_path / "n2.pcapng") as captured:
        assert len(round_trip_times(running, "n1", "n2", 3, timeout=0.3)) == 2
    assert captured.complete
    reader = CaptureReader("n2.pcapng")
    frames = [frame for frame in reader.feed((tmp_path / "n2.pcapng").read_bytes()) if frame.raw[23:24] == ICMP]
    reader.end()
    assert [frame.when for frame in frames] == sorted(frame.when for frame in frames)
    counts = Counter((frame.interface.name, frame.bound, frame.comment) for frame in frames)
    switch, node = "s1:2", "n2:eth0"
    assert counts[switch, "outbound", ""] == counts[node, "inbound", ""] == 2  # two requests arrive
    assert counts[node, "outbound", ""] == 2  # their replies; machine a has only one capture point on this link
    (lost,) = {fate for _, _, fate in counts} - {""}
    assert "drop icmp and nth(2)" in lost
    assert counts[switch, "outbound", lost] == 1


SCENARIO = """
[[fault]]
kind = "impair"
on = "n2"
direction = "in"
from = "0s"
to = "1s"
loss = "30%"

[[fault]]
kind = "rule"
on = "n3"
direction = "out"
from = "100ms"
to = "1200ms"
rules = ["drop every(5)"]

[[fault]]
kind = "cpu"
on = "n1"
at = "200ms"
for = "400ms"
share = "10%"
"""


def test_each_machine_applies_its_faults_of_a_scenario(machines: Lab, running: spread.Workers, tmp_path: Path) -> None:
    (tmp_path / "faults.toml").write_text(SCENARIO)
    before = {machine: len(machines.events(machine, NAME, "inject")) for machine in running}
    result = run(SpreadCluster(NAME, running), "random", protocol="emp", seed=3, check=True, output=tmp_path / "run",
                 settings={"messages": 400, "over": "1500ms"}, scenario=tmp_path / "faults.toml", timeout=120)  # fmt: skip
    assert result.checks is not None
    assert result.checks.passed, result.checks
    injected = {
        machine: [str(event["what"]) for event in machines.events(machine, NAME, "inject")[before[machine] :]]
        for machine in running
    }
    assert {machine: [what.partition(" on ")[0] for what in faults] for machine, faults in injected.items()} == {
        "a": ["links held for faults", "rule 'drop every(5)'", "load of 10% of a processor"],
        "b": ["links held for faults", "loss 30%"],
    }  # n3's outgoing frames arrive at the switch on machine a
    events = [event for event in read_run(tmp_path / "run").events() if str(event["event"]).startswith("fault ")]
    times = {(event["fault"], event["event"]): event for event in events}
    assert len(times) == len(events) == 6
    for name, begin, end in (("fault[1]", 0, 1000), ("fault[2]", 100, 1200), ("fault[3]", 200, 600)):
        begin_event, end_event = times[name, "fault begins"], times[name, "fault ends"]
        assert begin_event["in_force"] >= begin_event["at"] == begin * 1_000_000
        assert end_event["at"] >= end * 1_000_000
        assert end_event["had_effect"], str(events)
    assert [injection.what for injection in spread_state(running, NAME).injected] == []


CHURN = """
[[fault]]
kind = "restart"
on = "n2"
at = "200ms"
for = "100ms"

[[fault]]
kind = "pause"
on = "n1"
at = "100ms"
for = "50ms"

[[fault]]
kind = "incast"
receiver = "n3"
rate = "1mbit"
from = "100ms"
to = "400ms"

[[fault]]
kind = "partition"
groups = [["n1", "n2"], ["n3"]]
from = "300ms"
to = "400ms"
"""

if LONG:

    def test_a_scenario_restarts_and_pauses_nodes_on_both_machines(running: spread.Workers, tmp_path: Path) -> None:
        (tmp_path / "churn.toml").write_text(CHURN)
        result = run(SpreadCluster(NAME, running), "churn", protocol="emp", seed=3, check=True, timeout=120,
                     output=tmp_path / "run", scenario=tmp_path / "churn.toml")  # fmt: skip
        assert result.checks is not None
        assert result.checks.passed, result.checks
        assert not [note for note in result.verdict.notes if "had no effect" in note]
        assert spread_state(running, NAME).injected == ()
        assert program_counts(running) == {"n1": 0, "n2": 0, "n3": 0}


FAILING = """
async def rank(comm, node):
    if node.name == "n2":
        raise ValueError("injected failure")
    await comm.recv(source=1)
"""


def test_a_failed_program_ends_the_run_on_all_machines(running: spread.Workers, tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    with pytest.raises(ProgramError, match=r"machine b: n2: (?s:.*)injected failure"):
        run(SpreadCluster(NAME, running), str(tmp_path / "failing.py"), protocol="emp")
    assert program_counts(running) == {"n1": 0, "n2": 0, "n3": 0}
    assert len(round_trip_times(running, "n1", "n2")) == 1


WAITING = """
async def rank(comm, node):
    if node.name == "n2":
        await comm.recv(source=0)
"""


def test_a_program_that_waits_forever_ends_the_run_as_on_one_machine(running: spread.Workers, tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    with pytest.raises(StuckError, match=r"^machine b: ") as caught:
        run(SpreadCluster(NAME, running), str(tmp_path / "waiting.py"), protocol="emp", timeout=3)
    assert "n2" in caught.value.waiting
    assert program_counts(running) == {"n1": 0, "n2": 0, "n3": 0}


UNRECEIVED = """
async def rank(comm, node):
    if node.name == "n1":
        await comm.Send(b"match", 1, 1)
        await comm.Isend(b"unmatched", 1, 2)
    elif node.name == "n2":
        await comm.Recv(bytearray(5), 0, 1)
    await comm.barrier()
"""


def test_an_unreceived_message_to_another_machine_is_noted(running: spread.Workers, tmp_path: Path) -> None:
    (tmp_path / "unreceived.py").write_text(UNRECEIVED)
    result = run(SpreadCluster(NAME, running), str(tmp_path / "unreceived.py"), protocol="emp", output=tmp_path / "run")
    assert [note for note in result.verdict.notes if "no receive" in note] == [
        "n1 sent 1 message to n2 that no receive took"
    ]


def test_the_cluster_survives_its_controller_but_the_runs_programs_end(machines: Lab, running: spread.Workers) -> None:
    requested = {"form": "random", "settings": {}, "protocol": "emp", "timeout": 60, "patience": None}
    ranks = [asdict(rank) for rank in ranks_of(LAYOUT)]
    with machines.workers("lab.toml") as others:
        number = others["a"].begin(
            RUN, name=NAME, asked=requested, seed=1, history=False, ahead=0, ranks=ranks, queues=asdict(ReceiveQueues())
        )
        assert others["a"].joint(number, 60) == ("ready", None)
        assert program_counts(running)["n1"] > 0
    eventually(lambda: not any(program_counts(running).values()), "the run's programs have ended", 30)
    assert len(round_trip_times(running, "n1", "n2")) == 1


def test_a_cluster_that_is_not_lasting_ends_with_its_controller(machines: Lab, running: spread.Workers) -> None:
    before = {machine: Counter(machines.programs(machine)) for machine in running}
    with machines.workers("lab.toml") as others:
        spread.up(others, spread.plan_spread(others, LAYOUT, "own", PINS), "own", "here", "auto", lasting=False)
        assert all("own" in names for names in call_each(running, "clusters").values())
    for machine in running:
        eventually(
            partial(is_cleaned_up, machines, running, machine, "own", before[machine]),
            "the cluster is removed from the machine",
            30,
        )
    assert len(round_trip_times(running, "n1", "n2")) == 1


def test_the_web_view_shows_all_machines_and_injects_on_the_nodes_machine(
    machines: Lab, running: spread.Workers
) -> None:
    with machines.at_desk(
        TESTBED, "machines", "top", "lab.toml", NAME, "--web", "--interval", "200ms"
    ) as view, namespaces.inside(machines.cluster[machines.nodes["desk"]].namespace):  # fmt: skip
        assert view.stdout is not None
        address = view.stdout.readline().split()[-1]
        origin = Origin("/".join(address.split("/")[:3]))
        with connect(f"{address.replace('http:', 'ws:')}socket", origin=origin, open_timeout=30) as socket:
            parts: dict[str, Any] = {}

            def await_parts(condition: Callable[[], object]) -> None:
                while not condition():
                    parts.update(json.loads(socket.recv(timeout=30)))

            await_parts(lambda: "picture" in parts and "forms" in parts)
            assert [name for name, *_ in parts["picture"]["nodes"]] == ["n1", "n2", "n3"]
            assert parts["forms"]["inject"]["words"] == f"testbed machines inject lab.toml {NAME}"
            values = {"target": "n2", "loss": "100%", "direction": "in"}
            socket.send(json.dumps({"command": "inject", "values": values, "name": "one"}))
            await_parts(lambda: [job["state"] for job in parts.get("jobs", ())] in (["done"], ["failed"]))
            assert parts["jobs"][0]["state"] == "done", parts["jobs"]
        view.send_signal(signal.SIGINT)
        assert view.wait(30) == 0
    assert [injection.what for injection in spread_state(running, NAME).injected] == ["loss 100% on n2 (in)"]
    assert round_trip_times(running, "n1", "n2", timeout=0.1) == []


RING = """
name = "loop"
defaults = { mtu = 1400 }
node = [{ name = "n1" }, { name = "n2" }, { name = "n3" }, { name = "n4" }]
switch = [{ name = "s1" }, { name = "s2" }, { name = "s3" }, { name = "s4" }]
link = [
  { ends = ["n1", "s1"] }, { ends = ["n2", "s2"] }, { ends = ["n3", "s3"] }, { ends = ["n4", "s4"] },
  { ends = ["s1", "s2"] }, { ends = ["s2", "s3"] }, { ends = ["s3", "s4"] }, { ends = ["s4", "s1"] },
]
"""


@pytest.mark.requires("ping")
def test_a_ring_over_two_machines_forwards_each_frame_once(running: spread.Workers) -> None:
    """Four of the ring's links are between machines; a circulating request would get duplicate replies."""
    layout = resolve(Description.from_toml(RING))
    pins = Constraints({f"{kind}{number}": "ab"[number % 2] for kind in "ns" for number in range(1, 5)})
    with spread.brought_up(running, layout, "loop", pins, "here"):
        for node in layout.nodes[1:]:
            command = ["ping", "-c2", "-i0.1", "-W5", node.address]
            code, stdout, _ = spread.execute(running, "loop", "n1", command)
            assert (code, "2 received, 0% packet loss" in stdout, "+" in stdout) == (0, True, False), stdout


def test_a_direct_link_between_machines_has_nothing_between_the_nodes(running: spread.Workers, tmp_path: Path) -> None:
    """The second cluster has the VXLAN ids of the first one, which must have left nothing."""
    layout = resolve(Description.from_toml(DIRECT))
    pins = Constraints({"n1": "a", "n2": "b"})
    link = layout.links[0].name
    for _ in range(2):
        with spread.brought_up(running, layout, "near", pins, "here"):
            code, stdout, _ = spread.execute(running, "near", "n1", ["ip", "-d", "-o", "link", "show", "eth0"])
            assert (code, "vxlan id" in stdout, layout.nodes[0].nics[0].mac in stdout) == (0, True, True)
            with capturing(running, "near", "n2", tmp_path / "near.pcapng") as captured:
                command = ["ping", "-c3", "-i0.1", "-W5", layout.nodes[1].address]
                code, stdout, _ = spread.execute(running, "near", "n1", command)
            assert (code, "3 received" in stdout) == (0, True), stdout
            assert captured.complete
            assert {name: count >= 3 for name, count in captured.frames.items()} == {"n1:eth0": True, "n2:eth0": True}
            snapshot = SpreadSampler(running, "near").sample()
            assert isinstance(snapshot, Snapshot)
            assert [each.state for each in snapshot.links] == ["up"]
            assert min(snapshot.links[0].forward.frames, snapshot.links[0].backward.frames) >= 3
            with pytest.raises(UnsupportedError, match="nothing between them"):
                inject(running, "near", impair(link, loss=0.1))
            checks = run(SpreadCluster("near", running), "random", seed=3, check=True, timeout=60).checks
            assert checks is not None
            assert checks.passed, checks


def test_local_commands_on_a_node_of_another_machine_name_the_alternative(
    machines: Lab, running: spread.Workers
) -> None:
    del running
    for command in (("exec", "--name", NAME, "n2", "--", "true"), ("ssh", NAME, "n2")):
        done = machines.on("a", TESTBED, *command)
        assert_error(done, 4, "node n2 is on another machine: 'testbed machines shell'")


def test_the_inject_command_works_over_machines(machines: Lab, running: spread.Workers) -> None:
    done = machines.testbed("machines", "inject", "lab.toml", NAME, "n2", "--loss", "100%", "--json")
    assert done.returncode == 0, done.stderr
    assert [link["name"] for link in json.loads(done.stdout)["links"]] == ["n2:eth0--s1:2"]
    assert round_trip_times(running, "n1", "n2", timeout=0.1) == []


def test_an_unreachable_machine_and_its_return_are_logged(
    machines: Lab, running: spread.Workers, record_property: Callable[[str, object], None]
) -> None:
    """The interruption is shorter than the workers' silence time-out, so they keep the cluster."""
    with machines.cluster.inject(machines.nodes["b"], rules=[f"drop ip.src == {machines.address('a')}"]):
        start = time.time_ns()
        eventually(
            lambda: machines.events("a", NAME, "machine unreachable") != [], "machine a has logged the event", 30
        )
        (event,) = machines.events("a", NAME, "machine unreachable")
        assert (event["machine"], event["address"]) == ("b", machines.address("b"))
        detected = event["time"]
        assert isinstance(detected, int)
        record_property("note", f"an unreachable machine is detected after {(detected - start) / 1e9:.2f} s")
        if LONG:  # needs a quiet machine
            assert detected - start < 2_000_000_000
        (sentence,) = running["a"].call("status", name=NAME)["missing"]
        assert sentence.startswith(f"machine b ({machines.address('b')}) has not answered for ")
    eventually(lambda: machines.events("a", NAME, "machine reachable") != [], "machine a has logged the event", 30)
    assert running["a"].call("status", name=NAME)["missing"] == []
    assert len(round_trip_times(running, "n1", "n2")) == 1


def run_command(machines: Lab, *arguments: str) -> dict[str, object]:
    """Run a `testbed machines` command; return its JSON document."""
    completed = machines.testbed("machines", *arguments, "--json")
    assert completed.returncode == 0, completed.stderr
    document: dict[str, object] = json.loads(completed.stdout)
    jsonschema.validate(document, schema_of(str(document["kind"])))
    return document


if LONG:

    def test_all_machines_commands_work_on_a_running_cluster(machines: Lab, running: spread.Workers) -> None:
        (machines.folder / "star.toml").write_text(STAR)
        for cluster in (NAME, "star.toml"):
            run_document = run_command(
                machines, "run", "lab.toml", cluster, "random", "--set", "messages=5", "--output", f"of-{cluster}"
            )
            (results,) = cast("list[dict[str, object]]", run_document["results"])
            assert {*results} == {"n1", "n2", "n3"}
        assert call_each(running, "clusters") == {"a": [NAME], "b": [NAME]}
        assert run_command(machines, "check", "lab.toml", NAME, "all", "--seconds", "1")["cluster"] == NAME
        top = run_command(machines, "top", "lab.toml", NAME, "--interval", "100ms")
        assert [node["name"] for node in cast("list[dict[str, object]]", top["nodes"])] == ["n1", "n2", "n3"]
        captured = run_command(machines, "capture", "lab.toml", NAME, "all", "-w", "all.pcapng", "--for", "100ms")
        assert captured["complete"]
        assert (machines.folder / "all.pcapng").stat().st_size > 0
        assert (
            run_command(machines, "partition", "lab.toml", NAME, "n1", "/", "n2,n3")["what"] == "partition n1 / n2,n3"
        )
        assert run_command(machines, "link", "lab.toml", NAME, "n2", "down", "--for", "10s")["what"] == "down: n2"
        assert len(cast("list[object]", run_command(machines, "link", "lab.toml", NAME, "n2", "up")["healed"])) == 1
        assert run_command(machines, "link", "lab.toml", NAME, "n2", "flap", "--for", "10s")["what"] == "down: n2"
        assert run_command(machines, "load", "lab.toml", NAME, "n1", "n3", "--rate", "1mbit")["number"]
        assert len(cast("list[object]", run_command(machines, "heal", "lab.toml", NAME)["healed"])) == 3


KILL = f"""
import os
from pathlib import Path
from testbed.runtime.supervision import running_supervisor
os.kill(running_supervisor(Path("/run/netns-testbed/{NAME}")).pid, 9)
"""

if LONG:

    def test_a_supervisor_restarted_by_its_relay_watches_machines(machines: Lab, running: spread.Workers) -> None:
        inject(running, NAME, impair("n1", delay=1_000_000))  # starts a relay on machine a
        assert machines.on("a", sys.executable, "-c", KILL).returncode == 0
        eventually(lambda: machines.events("a", NAME, "supervisor restarted") != [], "the supervisor has restarted", 30)
        before = len(machines.events("a", NAME, "machine unreachable"))
        with machines.cluster.inject(machines.nodes["b"], rules=[f"drop ip.src == {machines.address('a')}"]):
            eventually(
                lambda: len(machines.events("a", NAME, "machine unreachable")) > before,
                "the new supervisor has logged the event",
                30,
            )


def test_gc_removes_the_part_of_a_cluster_that_was_taken_down_on_another_machine(
    machines: Lab, running: spread.Workers
) -> None:
    only_a = {"a": running["a"]}
    assert spread.down(only_a, NAME) == ["a"]
    assert machines.namespaces("b") != []
    findings = spread.collect(running)
    assert findings == {
        "a": [],
        "b": [{"what": f"cluster {NAME}", "removed": True, "reason": "its parts on a are gone"}],
    }
    assert machines.namespaces("b") == []
    spread.up(running, spread.plan_spread(running, LAYOUT, NAME, PINS), NAME, "here", "auto")


def test_a_check_probes_links_within_and_between_machines(running: spread.Workers) -> None:
    inject(running, NAME, impair("n1", delay=10_000_000))  # within machine a
    inject(running, NAME, impair("n2", delay=20_000_000, loss=0.1))
    inject(running, NAME, lambda layout, _: compose_cut(layout, "n3"))
    verdict = check(running, NAME, seconds=1)
    measured = {(finding.link, finding.direction, finding.what): finding for finding in verdict.findings}
    error = 1e6 + sum(  # of the clock comparison between the machines, larger on a busy machine
        finding.measured or 0 for finding in verdict.findings if finding.what == "clock offset"
    )
    assert error < 9e6, "less than the shorter delay"
    for direction in ("forward", "backward"):
        for link, minimum in (("n1:eth0--s1:1", 10e6), ("n2:eth0--s1:2", 20e6)):
            delay = measured[link, direction, "delay min"].measured
            assert delay is not None
            assert minimum - error < delay < minimum + 10e6
        loss = measured["n2:eth0--s1:2", direction, "loss"]
        assert loss.asked == 0.1
        assert loss.grade is not Grade.INVALID
        assert measured["n3:eth0--s1:3", direction, "down"].measured == 0
    assert ("", "", "clock offset") not in measured
    assert ("machine a", "", "clock offset") in measured


def test_a_check_detects_losses_of_the_underlay(machines: Lab, running: spread.Workers) -> None:
    with machines.cluster.inject(machines.nodes["b"], rules=["drop udp.dport == 4789 and every(3)"]):
        verdict = check(running, NAME, "n3", seconds=0.5)
    losses = [finding for finding in verdict.findings if finding.what == "loss"]
    assert {finding.link for finding in losses} == {"n3:eth0--s1:3"}
    assert all(finding.grade is Grade.INVALID and finding.measured is not None for finding in losses)
    assert all(0.25 < (finding.measured or 0) < 0.42 for finding in losses)
    assert verdict.grade is Grade.INVALID
