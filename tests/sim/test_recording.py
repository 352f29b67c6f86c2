"""Files that a simulation records, which are equal for equal seeds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import testbed
from protocols.core.profile import IDEAL, Profile
from testbed.fates.headers import standard_fields
from testbed.fates.records import Record, Replay
from testbed.fates.rules import RuleSet
from testbed.nic.immediate import ImmediateNic
from testbed.nic.priced import PricedNic
from testbed.sim.recorder import CAPTURE, FATES, TRACE
from testbed.sim.sim_direction import SimDirection
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation
from testbed.spec.model import Description
from tests.sim.echo_and_flood import EchoEndpoint, EchoPlug
from tests.sim.recorded_run import record
from tests.sim.scapy_captures import read_capture

FILES = (CAPTURE, FATES, TRACE)


def record_in_subprocess(program_name: str, folder: Path, seed: int, hash_seed: str) -> list[bytes]:
    """Record a run in another process; return the contents of its files."""
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    subprocess.run(
        [sys.executable, "-m", "tests.sim.recorded_run", program_name, folder, str(seed)],
        env=environment,
        check=True,
        timeout=100,
    )
    return [(folder / name).read_bytes() for name in FILES]


async def send(endpoint: EchoEndpoint, node: SimNode, peer: int, count: int, interval: int) -> None:
    for _ in range(count):
        endpoint.request(peer, bytes(100))
        await node.sleep(interval)


@pytest.mark.parametrize("program_name", ["tiny", "emp"])
def test_recordings_are_equal_in_all_processes_for_equal_seeds_and_differ_otherwise(
    tmp_path: Path, program_name: str
) -> None:
    record(tmp_path / "here", 5, program_name)
    expected = [(tmp_path / "here" / name).read_bytes() for name in FILES]
    first_process = record_in_subprocess(program_name, tmp_path / "there", 5, "1")
    second_process = record_in_subprocess(program_name, tmp_path / "elsewhere", 5, "4242")
    other_seed = record_in_subprocess(program_name, tmp_path / "other", 6, "1")
    assert expected == first_process == second_process
    assert len(expected[0]) > 100_000
    assert all(first != second for first, second in zip(expected, other_seed, strict=True))


def test_the_capture_has_each_frame_at_its_sender_and_at_its_receiver(tmp_path: Path) -> None:
    plug = EchoPlug()
    with Simulation(Description.star(2, delay="5us"), plug, folder=tmp_path) as simulation:
        simulation.spawn("n1", send, 1, 1, 1)
        simulation.run_until(30_000)
    request = plug.endpoints[1].firmware.frames[0][1]
    reply = plug.endpoints[0].firmware.frames[0][1]
    assert read_capture(tmp_path / CAPTURE) == [
        ("n1:eth0", 0, request, ""),
        ("n2:eth0", 10_000, request, ""),
        ("n2:eth0", 10_000, reply, ""),
        ("n1:eth0", 20_000, reply, ""),
    ]


def test_a_fate_is_recorded_at_the_interface_where_the_frame_is_lost(tmp_path: Path) -> None:
    rules = RuleSet(standard_fields())
    with Simulation(Description.star(2, delay="5us"), EchoPlug(), folder=tmp_path, rules=rules) as simulation:
        rules.add(0, "drop eth.type == 0x88b6 and nth(1)")
        simulation.spawn("n1", send, 1, 4, 1_000)
        simulation.run_until(3_500)
        simulation.cut(simulation.layout.links[1].name)
        simulation.run_until(100_000)
    comments = [(name, time, comment) for name, time, _, comment in read_capture(tmp_path / CAPTURE) if comment]
    # Each direction counts separately: the first frame that reaches it is lost.
    (fate,) = [Record.from_line(line) for line in (tmp_path / FATES).read_text().splitlines()]
    description = fate.describe()
    assert description.startswith("dropped by rule 'drop eth.type == 0x88b6 and nth(1)', frame 1 of flow 0x88b6 ")
    assert comments == [
        ("n1:eth0", 0, description),
        ("s1:2", 6_000, "the cable is out"),
        ("s1:2", 7_000, "the cable is out"),
        ("s1:2", 8_000, "the cable is out"),
    ]
    trace = [json.loads(line) for line in (tmp_path / TRACE).read_text().splitlines()]
    assert [line["time"] for line in trace if line["what"] == "loses a frame"] == [6_000, 7_000, 8_000]
    assert [line["descriptor"] for line in trace if line["what"] == "posts"] == [0, 1, 2, 3]


def test_a_replay_of_logged_fates_repeats_them(tmp_path: Path) -> None:
    cluster = Description.back_to_back(loss="20%", seed=3)
    with Simulation(cluster, EchoPlug(), folder=tmp_path) as simulation:
        simulation.spawn("n1", send, 1, 200, 1_000)
        simulation.run()
    log = [Record.from_line(line) for line in (tmp_path / FATES).read_text().splitlines()]
    assert len(log) > 20
    replay_log: list[Record] = []
    rules = RuleSet(standard_fields())
    rules.add(0, Replay(log))
    with Simulation(Description.back_to_back(), EchoPlug(), rules=rules, log=replay_log.append) as simulation:
        simulation.spawn("n1", send, 1, 200, 1_000)
        simulation.run()
    assert [(record.flow, record.n, record.fate) for record in replay_log] == [
        (record.flow, record.n, record.fate) for record in log
    ]


@pytest.mark.parametrize(("profile", "nic"), [(IDEAL, ImmediateNic), (Profile(send=1), PricedNic)])
def test_the_recorder_does_not_replace_directions_and_nics(
    tmp_path: Path, profile: Profile, nic: type[ImmediateNic]
) -> None:
    with Simulation(Description.star(2), EchoPlug(), profile=profile, folder=tmp_path) as simulation:
        assert {type(link_direction) for link_direction in simulation.network.link_directions.values()} == {
            SimDirection
        }
        assert {type(node.nic) for node in simulation.nodes.values()} == {nic}


def test_a_frame_dropped_by_a_full_queue_is_captured_with_the_reason(tmp_path: Path) -> None:
    cluster = Description.back_to_back(rate="1mbit", queue_frames=1)
    with Simulation(cluster, EchoPlug(), folder=tmp_path) as simulation:
        simulation.spawn("n1", send, 1, 4, 1)
        simulation.run_until(10_000_000)
    comments = [(name, time, comment) for name, time, _, comment in read_capture(tmp_path / CAPTURE) if comment]
    assert comments == [("n1:eth0", 2, "queue full"), ("n1:eth0", 3, "queue full")]
    trace = [json.loads(line) for line in (tmp_path / TRACE).read_text().splitlines()]
    assert [(line["time"], line["why"]) for line in trace if line["what"] == "loses a frame"] == [
        (2, "queue full"),
        (3, "queue full"),
    ]


def test_without_a_folder_directions_and_nics_are_not_wrapped() -> None:
    with Simulation(Description.back_to_back(), EchoPlug()) as simulation:
        kinds = {type(wrapper).__name__ for wrapper in simulation.network.link_directions.values()}
        kinds |= {type(node.nic).__name__ for node in simulation.nodes.values()}
        assert kinds == {"SimDirection", "ImmediateNic"}


@pytest.mark.parametrize(
    ("protocol", "profile"),
    [("openmx", "openmx-2009"), ("via", "lam-via-2000"), ("ssam", "sparcstation-20"), ("emp", "emp-2001")],
)
def test_a_recorded_run_takes_the_times_of_an_unrecorded_one(tmp_path: Path, protocol: str, profile: str) -> None:
    """The work of the hosts' cores has costs."""
    kind = {"kind": "atm"} if protocol == "ssam" else {}
    rows = [
        testbed.run(
            Description.star(2, delay="1us", **kind), "pingpong", protocol=protocol, profile=profile, mode="sim",
            settings={"sizes": (4, 4_096), "count": 5}, output=tmp_path / str(capture), capture=capture,
        ).rows
        for capture in (False, True)
    ]  # fmt: skip
    assert rows[0] == rows[1]
