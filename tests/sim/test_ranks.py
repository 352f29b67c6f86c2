"""Several ranks on a node, each with a function of the node's NIC, in the simulation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import testbed
from protocols.core.host_work import COPY, TRAP
from protocols.core.profile import Profile
from protocols.emp.profile import EMP_2001, EMP_2002
from protocols.openmx.driver_endpoint import LOOKUP
from protocols.openmx.endpoint import EVENT, REQUEST
from protocols.openmx.profile import LINE_OWN, LINE_SHARED, LINES, WORK
from testbed.controller.verdict.verdicts import Grade
from testbed.engine.server import transfer_time
from testbed.errors import DescriptionError, NotFoundError, UnsupportedError
from testbed.sim.recorder import CAPTURE
from testbed.spec.model import Description
from testbed.spec.scenario import Scenario
from testbed.workloads.form import Comm, Node
from tests.sim.scapy_captures import read_capture

PROTOCOLS = pytest.mark.parametrize("protocol", ["emp", "am2", "via"])
LOSSY = Description.star(3, loss="2%", delay="5us")
CORES = """
name = "pair"
[[node]]
name = "a"
cores = 2
ranks = [1, 0]
[[node]]
name = "b"
[[link]]
ends = ["a", "b"]
delay = "5us"
"""
CELLS = """
name = "cells"
[[node]]
name = "a"
[[node]]
name = "b"
[[switch]]
name = "s"
kind = "atm"
[[link]]
ends = ["a", "s"]
[[link]]
ends = ["b", "s"]
"""


async def exchange_names(comm: Comm, node: Node) -> list[str]:
    """Send this rank's name to every other rank; return the received names by rank."""
    requests = [await comm.isend(node.name, rank, 1) for rank in range(comm.size) if rank != comm.rank]
    names = [await comm.recv(source=rank, tag=1) if rank != comm.rank else node.name for rank in range(comm.size)]
    for request in requests:
        await request.wait()
    return names


@PROTOCOLS
def test_ranks_are_numbered_node_by_node_and_exchange_messages(protocol: str) -> None:
    result = testbed.run(LOSSY, exchange_names, protocol=protocol, mode="sim", ranks_per_node=2, seed=3)
    names = ["n1.0", "n1.1", "n2.0", "n2.1", "n3.0", "n3.1"]
    assert list(result.results) == names
    assert all(received_names == names for received_names in result.results.values())


@PROTOCOLS
@pytest.mark.parametrize("profile", ["ideal", "the paper's"])
def test_messages_between_ranks_pass_the_checks_under_loss(protocol: str, profile: str) -> None:
    profile_name = {
        "ideal": "ideal",
        "the paper's": {"emp": "emp-2001", "am2": "now-1998", "via": "lam-via-2000"}[protocol],
    }[profile]
    result = testbed.run(
        LOSSY, "random", protocol=protocol, mode="sim", ranks_per_node=3, check=True, profile=profile_name,
        settings={"messages": 60}, seed=11,
    )  # fmt: skip
    assert result.verdict.grade is Grade.TRUSTED
    assert result.checks is not None
    assert len(result.results) == 9


def test_a_message_between_ranks_of_one_node_is_not_sent_on_its_link(tmp_path: Path) -> None:
    async def send_from_first_to_second(comm: Comm, node: Node) -> None:  # noqa: ARG001
        if comm.rank == 0:
            await comm.send("hello", 1)
        elif comm.rank == 1:
            assert await comm.recv(source=0) == "hello"

    testbed.run(LOSSY, send_from_first_to_second, mode="sim", ranks_per_node=2, capture=True, output=tmp_path / "run")
    assert not read_capture(tmp_path / "run" / CAPTURE)


def test_a_nodes_only_rank_has_the_nodes_name(tmp_path: Path) -> None:
    result = testbed.run(
        Description.from_toml(CORES), exchange_names, mode="sim", history=True, output=tmp_path / "run"
    )
    assert list(result.results) == ["a.0", "a.1", "b"]
    request = json.loads((tmp_path / "run" / "run.json").read_text())
    assert request["ranks"] == [
        {"rank": 0, "name": "a.0", "node": "a", "core": 1},
        {"rank": 1, "name": "a.1", "node": "a", "core": 0},
        {"rank": 2, "name": "b", "node": "b", "core": 0},
    ]
    assert sorted(path.stem for path in (tmp_path / "run" / "history").iterdir()) == ["a.0", "a.1", "b"]


async def pingpong_next_to_busy_rank(comm: Comm, node: Node) -> int:
    """Ranks 0 and 2 exchange ten messages and return the time that it took; rank 1 computes for 100 ms."""
    if comm.rank == 1:
        await node.compute(100_000_000)
        return 0
    peer = {0: 2, 2: 0}[comm.rank]
    start_time = node.now()
    for _ in range(10):
        await comm.Sendrecv(b"x", peer, 1, bytearray(1), peer, 1)
    return node.now() - start_time


def test_a_busy_rank_delays_only_programs_of_its_own_core() -> None:
    durations = {}
    for cores in ("cores = 1\nranks = [0, 0]", "cores = 2\nranks = [0, 1]"):
        pair = Description.from_toml(CORES.replace("cores = 2\nranks = [1, 0]", cores))
        result = testbed.run(pair, pingpong_next_to_busy_rank, mode="sim", profile="emp-2001")
        durations[cores] = result.results["a.0"]
        usage = result.usage["a"]
    assert durations["cores = 2\nranks = [0, 1]"] < 1_000_000
    assert durations["cores = 1\nranks = [0, 0]"] > EMP_2001.timeslice
    assert usage["core 1"]["compute_ns"] == usage["core 1"]["busy_ns"] == 100_000_000
    assert usage["core 0"]["library_ns"] == usage["core 0"]["busy_ns"]


async def poll_for_message(comm: Comm, node: Node) -> None:
    if comm.rank == 0:
        await node.sleep(1_000_000)
        await comm.send("late", 1)
    elif comm.rank == 1:
        request = await comm.irecv(source=0)
        while not (await request.test())[0]:
            pass


def test_a_polling_program_is_charged_to_its_own_core() -> None:
    result = testbed.run(Description.star(2), poll_for_message, mode="sim", profile="emp-2001")
    polling, sleeping = result.usage["n2"]["core"], result.usage["n1"]["core"]
    assert polling["poll_ns"] > 900_000
    assert polling["share"] > 0.9
    assert "poll_ns" not in sleeping


def test_a_node_may_have_its_own_profile(tmp_path: Path) -> None:
    description = Description.from_toml(CORES.replace('name = "b"', 'name = "b"\nprofile = "slow.toml"'))
    (tmp_path / "slow.toml").write_text('like = "emp-2001"\npost = "50us"\n')
    (tmp_path / "pair.toml").write_text(CORES.replace('name = "b"', 'name = "b"\nprofile = "slow.toml"'))
    result = testbed.run(
        tmp_path / "pair.toml", "random", mode="sim", profile="emp-2001", output=tmp_path / "run",
        settings={"messages": 20},
    )  # fmt: skip
    assert description.nodes[1].profile == "slow.toml"
    assert result.usage["b"]["core"]["library_ns"] > 20 * 50_000
    assert result.usage["a"]["core 0"]["library_ns"] < 20 * 50_000
    request = json.loads((tmp_path / "run" / "run.json").read_text())
    assert request["profile"]["name"] == "emp-2001"
    assert request["profiles"]["b"]["post"] == 50_000
    assert list(request["profiles"]) == ["b"]


def test_a_profile_of_a_node_in_the_run_overrides_the_description() -> None:
    description = Description.from_toml(CORES.replace('name = "b"', 'name = "b"\nprofile = "emp-2001"'))
    result = testbed.run(description, exchange_names, mode="sim", profiles={"b": EMP_2002})
    assert "receiving processor" in result.usage["b"]
    assert "processor" not in result.usage["a"]


def test_invalid_placements_and_profiles_are_rejected() -> None:
    with pytest.raises(NotFoundError, match="there is no such node"):
        testbed.run(LOSSY, exchange_names, mode="sim", profiles={"n9": "emp-2001"})
    wrong = Description.from_toml(CORES.replace('name = "b"', 'name = "b"\nprofile = "emp-2000"'))
    with pytest.raises(NotFoundError, match=r"profile of node b: unknown profile 'emp-2000' — did you mean 'emp-200"):
        testbed.run(wrong, exchange_names, mode="sim")
    with pytest.raises(DescriptionError, match="ranks_per_node: found 65, expected 1 to 64"):
        testbed.run(LOSSY, exchange_names, mode="sim", ranks_per_node=65)
    with pytest.raises(UnsupportedError, match="cells"):
        testbed.run(Description.from_toml(CELLS), exchange_names, protocol="ssam", mode="sim", ranks_per_node=2)
    with pytest.raises(DescriptionError, match=r"node\[1\] \(a\).*core 2.*0 to 1"):
        Description.from_toml(CORES.replace("[1, 0]", "[1, 2]"))
    with pytest.raises(DescriptionError, match="core 1 twice"):
        Description.from_toml(CORES.replace("cores = 2", "cores = 4\ncaches = [[0, 1], [1, 2]]"))


@pytest.mark.parametrize("profile", ["ideal", "now-1998"])
def test_ranks_on_a_source_routed_network_exchange_messages(profile: str) -> None:
    result = testbed.run("now-1998-pair", exchange_names, protocol="am2", mode="sim", ranks_per_node=3, profile=profile)
    names = ["n1.0", "n1.1", "n1.2", "n2.0", "n2.1", "n2.2"]
    assert all(received_names == names for received_names in result.results.values())
    assert [counts["mapper_answers_sent"] > 0 for counts in result.counters.values()] == [False] * 3 + [True] + [
        False
    ] * 2
    assert all(counts["mapper_tables_installed"] > 0 for counts in result.counters.values())


def test_a_native_workload_runs_with_several_ranks_per_node() -> None:
    result = testbed.run(
        LOSSY, "am-random", protocol="am2", mode="sim", ranks_per_node=2, settings={"requests": 50}, seed=5
    )
    assert list(result.results) == ["n1.0", "n1.1", "n2.0", "n2.1", "n3.0", "n3.1"]
    assert result.checks is not None
    assert result.verdict.grade is Grade.TRUSTED


def test_a_restart_of_a_node_restarts_all_its_ranks() -> None:
    crash = Scenario.from_toml('[[fault]]\nkind = "restart"\non = "n2"\nfrom = "100ms"\nto = "150ms"\n')
    result = testbed.run(
        LOSSY, "churn", mode="sim", ranks_per_node=2, scenario=crash, check=True, seed=4, settings={"time": "300ms"}
    )
    assert result.verdict.grade is Grade.TRUSTED
    assert sorted(result.results) == ["n1.0", "n1.1", "n2.0", "n2.1", "n3.0", "n3.1"]


def test_ranks_of_a_source_routed_network_are_mapped_again_after_a_restart() -> None:
    crash = Scenario.from_toml('[[fault]]\nkind = "restart"\non = "n1"\nfrom = "300ms"\nto = "350ms"\n')
    result = testbed.run(
        "now-1998-pair", "churn", protocol="am2", mode="sim", ranks_per_node=2, scenario=crash, check=True, seed=4,
        settings={"time": "800ms"},
    )  # fmt: skip
    assert result.verdict.grade is Grade.TRUSTED
    assert sorted(result.results) == ["n1.0", "n1.1", "n2.0", "n2.1"]
    assert all(counts["messages_delivered"] > 100 for counts in result.counters.values())


async def send_long(comm: Comm, node: Node, *, receiver: int) -> int:
    """Send 4 MB from rank 0. Returns the nanoseconds that it takes; 0 at other ranks."""
    data, buffer = bytes(range(250)) * 16_000, bytearray(4_000_000)
    began = 0
    for _ in range(2):  # the first message connects
        await comm.Barrier()
        began = node.now()
        if comm.rank == 0:
            await comm.Ssend(data, receiver, 1)
        elif comm.rank == receiver:
            await comm.Recv(buffer, 0, 1)
            assert buffer == data
    return node.now() - began if comm.rank == 0 else 0


async def ping_neighbour(comm: Comm, node: Node, *, size: int) -> float:
    """Exchange four messages with the other rank of the node. Returns the nanoseconds of a round trip."""
    neighbour, data = comm.rank ^ 1, bytes(range(256)) * 16
    buffer, began = bytearray(len(data)), 0
    for turn in range(5):
        if turn == 1:  # the first message connects
            began = node.now()
        if comm.rank % 2:
            await comm.Recv(buffer, neighbour, 1)
            await comm.Send(data[:size], neighbour, 1)
        else:
            await comm.Send(data[:size], neighbour, 1)
            await comm.Recv(buffer, neighbour, 1)
        assert buffer[:size] == data[:size]
    return (node.now() - began) / 4


@pytest.mark.parametrize("profile", ["ideal", "openmx-2009", pytest.param(EMP_2001, id="emp-2001")])
@pytest.mark.parametrize(
    ("size", "counter"), [(4, "shared_tiny"), (100, "shared_small"), (4_096, "shared_mediumsq_frag")]
)
def test_open_mx_puts_no_message_within_a_node_into_a_frame(
    tmp_path: Path, profile: str | Profile, size: int, counter: str
) -> None:
    """The links lose every frame. The capture has those that a NIC sends and receives. EMP's profile is that of a NIC whose
    firmware runs on a processor of its own."""
    cluster = Description.star(2, delay="1us", loss="100%")
    result = testbed.run(
        cluster, ping_neighbour, protocol="openmx", mode="sim", ranks_per_node=2, profile=profile, settings={"size": size},
        output=tmp_path, capture=True,
    )  # fmt: skip
    for counts in result.counters.values():
        assert counts[counter] == 5 * (3 if size == 4_096 else 1)
        assert (counts["shared_connect"], counts["resent"], counts["unexp_eventq_full"]) == (1, 0, 0)
        assert not [name for name in counts if name.startswith("send_") and counts[name]]
    assert read_capture(tmp_path / CAPTURE) == []


def test_the_sending_core_of_open_mx_writes_a_message_for_its_neighbour_without_driver_and_interrupt() -> None:
    """A round trip of 4 bytes: for each message a request, a trap, a look-up of the endpoint, a copy, and an event."""
    result = testbed.run(
        Description.star(1), ping_neighbour, protocol="openmx", mode="sim", ranks_per_node=2, profile="openmx-2009",
        settings={"size": 4},
    )  # fmt: skip
    used = result.usage["n1"]
    for core in ("core 0", "core 1"):
        assert used[core]["copy_ns"] == 2 * 5 * transfer_time(4, WORK[COPY].rate)  # into the ring, and out of it
        assert not {"driver_ns", "interrupt_ns", "softirq_ns"} & {cause for cause in used[core] if used[core][cause]}
    message = sum(WORK[kind].fixed for kind in (REQUEST, TRAP, LOOKUP, EVENT)) + 2 * transfer_time(4, WORK[COPY].rate)
    lines = LINES * (
        LINE_OWN + LINE_SHARED
    )  # the endpoint's state, which no other core writes, and the neighbour's event
    assert result.results["n1.0"] == pytest.approx(2 * (message + lines), abs=10)


def test_open_mx_copies_a_long_message_within_a_node_once_and_puts_no_data_into_frames() -> None:
    cluster = Description.star(2, rate="10gbit", delay="1us")

    def run(receiver: int) -> testbed.RunResult:
        return testbed.run(
            cluster, send_long, protocol="openmx", mode="sim", ranks_per_node=2, profile="openmx-2009",
            settings={"receiver": receiver},
        )  # fmt: skip

    within, between = run(1), run(2)
    assert within.counters["n1.1"]["shared_pull"] == 2
    assert within.counters["n1.0"]["send_pull_reply"] == 0
    copy = 4_000_000 * 8 * 1_000_000_000 // WORK[COPY].rate
    assert copy < within.results["n1.0"] < 1.02 * copy + 20_000
    assert between.counters["n2.0"]["shared_pull"] == 0
    assert between.counters["n1.0"]["send_pull_reply"] > 2 * 2_600
