"""Several ranks per node in namespaces: processes that share the node's NIC."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import testbed
from testbed.controller.runs.run_options import Mode
from testbed.controller.verdict.verdicts import Grade
from testbed.errors import UnsupportedError
from testbed.spec.model import Description
from testbed.spec.scenario import Scenario
from testbed.workloads.form import Comm, Node
from tests.live.busy_cores import SHORT_TIMESLICES, measure, poll, run_next_to_busy_rank

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

MIXED = """
name = "mixed"
[[node]]
name = "a"
cores = 1
ranks = [0, 0]
[[node]]
name = "b"
[[link]]
ends = ["a", "b"]
loss = "1%"
"""


async def greet_and_return_affinity(comm: Comm, node: Node) -> tuple[int, list[int]]:
    """Send the own rank to all others; return the sum of the received ranks and the process's allowed CPUs."""
    for rank in range(comm.size):
        if rank != comm.rank:
            await comm.isend(comm.rank, rank, 1)
    total = sum([await comm.recv(source=rank, tag=1) for rank in range(comm.size) if rank != comm.rank])
    await node.barrier()
    return total, sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize("protocol", ["emp", "am2", "via"])
def test_ranks_of_one_node_share_its_nic_and_a_single_rank_has_an_inline_nic(protocol: str, tmp_path: Path) -> None:
    result = testbed.run(
        Description.from_toml(MIXED), greet_and_return_affinity, protocol=protocol, output=tmp_path / "run", timeout=60
    )
    assert {name: total for name, (total, _) in result.results.items()} == {"a.0": 3, "a.1": 2, "b": 1}
    machine = sorted(os.sched_getaffinity(0))
    assert result.results["a.0"][1] == result.results["a.1"][1] == machine[:1]
    assert result.results["b"][1] == machine
    assert [entry["name"] for entry in json.loads((tmp_path / "run" / "run.json").read_text())["ranks"]] == [
        "a.0", "a.1", "b",
    ]  # fmt: skip
    agents = sorted(path.name for path in (tmp_path / "run" / "logs").glob("*.nic.log"))
    assert agents == ["a.nic.log"]


def test_a_pause_of_a_node_with_two_ranks_loses_no_message() -> None:
    paused = Scenario.from_toml('[[fault]]\nkind = "pause"\non = "a"\nfrom = "50ms"\nto = "150ms"\n')
    result = testbed.run(
        Description.from_toml(MIXED), "random", settings={"messages": 100}, check=True, scenario=paused, timeout=60
    )
    assert result.checks is not None
    assert result.verdict.grade in (Grade.TRUSTED, Grade.DEGRADED)


def test_a_node_with_more_cores_than_the_machine_is_not_pinned_and_noted() -> None:
    description = MIXED.replace("cores = 1", f"cores = {len(os.sched_getaffinity(0)) + 1}")
    result = testbed.run(Description.from_toml(description), greet_and_return_affinity, timeout=60)
    assert result.results["a.0"][1] == sorted(os.sched_getaffinity(0))
    assert any("a: not enough free processors for the configured cores" in note for note in result.verdict.notes)


def test_nodes_have_separate_cores_while_the_machine_has_enough() -> None:
    machine = sorted(os.sched_getaffinity(0))
    description = {number: MIXED.replace('name = "b"', f'name = "b"\ncores = {number}') for number in (1, len(machine))}
    result = testbed.run(Description.from_toml(description[1]), greet_and_return_affinity, timeout=60)
    assert result.results["a.0"][1] == machine[:1]
    assert result.results["b"][1] == machine[1:2]
    result = testbed.run(Description.from_toml(description[len(machine)]), greet_and_return_affinity, timeout=60)
    assert result.results["b"][1] == machine
    assert any("b: not enough free processors for the configured cores" in note for note in result.verdict.notes)


@pytest.mark.parametrize("ranks", ["ranks = [0, 1]", ""])
def test_a_nodes_default_number_of_cores_is_its_profiles(ranks: str) -> None:
    description = MIXED.replace("cores = 1\nranks = [0, 0]", f'profile = "lam-via-2000"\n{ranks}')
    result = testbed.run(
        Description.from_toml(description), greet_and_return_affinity, protocol="via", ranks_per_node=2, timeout=60
    )
    machine = sorted(os.sched_getaffinity(0))
    if len(machine) > 1:
        assert [result.results[name][1] for name in ("a.0", "a.1")] == [machine[:1], machine[1:2]]
    else:
        assert any("not enough free processors" in note for note in result.verdict.notes)


def test_unsupported_ranks_and_profiles_of_a_mode_are_rejected() -> None:
    mixed = Description.from_toml(MIXED)
    with pytest.raises(UnsupportedError, match="kernel protocols have none"):
        testbed.run(mixed, greet_and_return_affinity, protocol="tcp")
    with pytest.raises(UnsupportedError, match="in live, NICs and hosts have no modelled cost"):
        testbed.run(mixed, greet_and_return_affinity, profiles={"b": "emp-2001"})


def test_a_dilated_run_has_a_profile_for_each_node() -> None:
    pair = Description.star(2)
    result = testbed.run(
        pair, "pingpong", mode="dilated", profile="emp-2001", profiles={"n2": "emp-2002"}, dilate=200,
        settings={"count": 5}, timeout=60,
    )  # fmt: skip
    assert "receiving processor" in result.usage["n2"]
    assert "receiving processor" not in result.usage["n1"]
    assert result.usage["n1"]["core"]["library_ns"] > 0


BUSY = """
name = "busy"
[defaults.link]
rate = "1gbit"
delay = "2us"
minimum_frame = "60"
overhead = 24
[[node]]
name = "a"
cores = {cores}
ranks = {ranks}
[[node]]
name = "b"
[[link]]
ends = ["a", "b"]
"""
KERNEL = {
    "name": "kernel", "hosted": True, "post": 500, "notice": 300,
    "work": {"trap": {"fixed": 700}, "interrupt": {"fixed": 5_000}, "softirq": {"fixed": 2_000}, "agent": {"fixed": 1_000}},
}  # fmt: skip


async def exchange_next_to_a_computation(comm: Comm, node: Node) -> int:
    """Ranks 0 and 2 exchange ten messages and return the elapsed time; rank 1 computes for 30 ms."""
    if comm.rank == 1:
        await node.compute(30_000_000)
        return 0
    peer = {0: 2, 2: 0}[comm.rank]
    start = node.now()
    for _ in range(10):
        await comm.Sendrecv(b"x", peer, 1, bytearray(1), peer, 1)
    return node.now() - start


def test_ranks_of_a_dilated_node_contend_for_its_cores_as_in_the_simulation() -> None:
    durations = {}
    for mode in ("sim", "dilated"):
        for cores, ranks in ((1, [0, 0]), (2, [0, 1])):
            result = testbed.run(
                Description.from_toml(BUSY.format(cores=cores, ranks=ranks)), exchange_next_to_a_computation, mode=mode,
                protocol="via", profile=KERNEL, dilate=100 if mode == "dilated" else None, timeout=60,
            )  # fmt: skip
            durations[mode, cores] = result.results["a.0"]
            used = result.usage["a"]
            assert list(result.results) == list(result.counters) == ["a.0", "a.1", "b"]
            computes = used["core" if cores == 1 else "core 1"]
            assert computes["compute_ns"] == 30_000_000
            assert used["core" if cores == 1 else "core 0"]["trap_ns"] > 0
    for mode in ("sim", "dilated"):
        assert durations[mode, 1] > 10_000_000 > durations[mode, 2]


def test_a_native_workload_runs_with_two_ranks_per_node() -> None:
    for mode in ("live", "dilated"):
        result = testbed.run(
            Description.star(2, delay="20us"), "am-random", protocol="am2", mode=mode, ranks_per_node=2,
            settings={"requests": 30}, dilate=20 if mode == "dilated" else None, timeout=60,
        )  # fmt: skip
        assert list(result.results) == ["n1.0", "n1.1", "n2.0", "n2.1"]
        assert result.checks is not None


def test_comb_and_pingpong_are_slower_next_to_a_busy_program_on_their_core() -> None:
    times = measure("dilated", 20)
    polled = run_next_to_busy_rank(poll, 2, "dilated", 20).usage["a"]
    assert polled["core 0"]["poll_ns"] > 4_000_000
    assert "poll_ns" not in polled["core 1"]
    timeslice = SHORT_TIMESLICES["timeslice"]
    assert times["pingpong"][1] > timeslice > times["pingpong"][2]  # only on the same core are timeslices waited for
    assert times["comb"][1] > times["comb"][2] + 500_000


@pytest.mark.parametrize("mode", ["live", "dilated"])
def test_ranks_on_a_source_routed_network_exchange_messages(mode: Mode) -> None:
    result = testbed.run(
        "now-1998-pair", greet_and_return_affinity, protocol="am2", mode=mode, ranks_per_node=2, timeout=60,
        dilate=10 if mode == "dilated" else None,
    )  # fmt: skip
    assert {name: total for name, (total, _) in result.results.items()} == {"n1.0": 6, "n1.1": 5, "n2.0": 4, "n2.1": 3}
    assert all(counts["mapper_tables_installed"] for counts in result.counters.values())
