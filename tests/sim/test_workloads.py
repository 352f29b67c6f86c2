"""Every workload in the simulation: verified data, expected rows, and equal rows for an equal seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import testbed
from testbed import Cluster, Grade
from testbed.controller.runs.runner import RunResult
from testbed.errors import DescriptionError
from testbed.runtime.nodes.node_run import ProgramError
from testbed.workloads.form import Comm, Native, Node
from testbed.workloads.permutation import partners
from testbed.workloads.quantiles import fairness, quantiles
from tests.sim.small_workloads import SMALL

DELAY = 20_000  # ns, one way through a link; a message crosses two
RATE = 10**9  # bit/s
RESENT = {"emp": "collections_resent", "am2": "packets_resent", "via": "frames_resent", "openmx": "resent"}
"""The counter of retransmissions of each protocol."""
QUICK = {"openmx": {"tick": 100_000, "pull_timeout": 5_000_000}}
"""Firmware settings with which recovery does not take half a second."""


def simulate(name: str, *, protocol: str = "emp", loss: float = 0.0, nodes: int = 5, **settings: object) -> RunResult:
    cluster = Cluster.star(nodes, delay="20us", rate="1gbit", loss=loss, seed=3)
    return testbed.run(
        cluster, name, protocol=protocol, mode="sim", settings={**SMALL[name], **settings}, firmware=QUICK.get(protocol)
    )


def test_every_builtin_workload_has_a_small_run() -> None:
    from testbed.registry import WORKLOADS, offered

    builtin_workloads = {
        name: entry.load() for name, entry in offered(WORKLOADS).items() if entry.module.startswith("testbed.")
    }
    native_workloads = {name for name, workload in builtin_workloads.items() if issubclass(workload, Native)}
    assert builtin_workloads.keys() - native_workloads == set(SMALL)


@pytest.mark.parametrize("protocol", RESENT)
@pytest.mark.parametrize("name", SMALL)
def test_results_are_reproducible_and_the_workload_survives_loss(name: str, protocol: str) -> None:
    first, repeated = simulate(name, protocol=protocol), simulate(name, protocol=protocol)
    lossy = simulate(name, protocol=protocol, loss=0.02)
    assert first.rows
    assert first.rows == repeated.rows
    assert first.counters == repeated.counters
    assert first.verdict.grade is Grade.TRUSTED
    assert [set(row) for row in lossy.rows] == [set(row) for row in first.rows] or name in ("random", "logp")
    assert any(counters[RESENT[protocol]] for counters in lossy.counters.values())


@pytest.mark.parametrize("protocol", ["emp", "am2"])
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("nodes", [2, 3])
def test_the_workload_runs_on_few_nodes(name: str, nodes: int, protocol: str) -> None:
    assert simulate(name, protocol=protocol, nodes=nodes).rows


def test_pingpong_measures_the_delay_of_the_links_and_the_time_on_the_wire() -> None:
    empty_row = simulate("pingpong").rows[0]
    # Two links' delay, and two times the shortest frame's time on the wire with its overhead: at most 84 bytes.
    assert 2 * DELAY < empty_row["p50_ns"] <= 2 * DELAY + 2 * 84 * 8
    assert empty_row["min_ns"] == empty_row["p999_ns"]


def test_bandwidth_is_the_links_rate_and_twice_that_in_both_directions() -> None:
    rows = {(row["pattern"], row["size_bytes"]): row for row in simulate("bandwidth").rows}
    one_way, both_ways = (rows[pattern, 65536]["bandwidth_bit_s"] for pattern in ("one-way", "bidirectional"))
    assert 0.85 * RATE < one_way < RATE
    assert 1.7 * RATE < both_ways < 2 * RATE


def test_contention_is_fair_and_fills_the_servers_link() -> None:
    rows = simulate("contention").rows
    assert [row["clients"] for row in rows] == [1, 2, 4]
    assert all(row["fairness"] > 0.99 for row in rows)
    assert all(0.8 * RATE < row["aggregate_bit_s"] < RATE for row in rows)


def test_random_traffic_counts_every_message_on_both_sides() -> None:
    result = simulate("random", messages=50, loss=0.05)
    assert sum(counters["sent"] for counters in result.results.values()) == 5 * 50
    assert sum(counters["received"] for counters in result.results.values()) == 5 * 50


def test_random_traffic_can_be_spread_over_a_time() -> None:
    rows = simulate("random", messages=20, over=100_000_000).rows
    assert all(95_000_000 <= row["took_ns"] < 120_000_000 for row in rows)


def test_logp_without_hardware_costs_measures_latency_alone() -> None:
    (parameters,) = [row for row in simulate("logp").rows if row["measure"] == "parameters"]
    assert [parameters[key] for key in ("o_s_ns", "o_r_ns", "g_ns")] == [0, 0, 0]
    assert 2 * DELAY < parameters["L_ns"] < 2 * DELAY + 4_000
    assert 8 <= parameters["G_ns"] < 9  # 8 ns for a byte at 1 Gbit/s, and the frames' headers


def test_comb_measures_full_availability_while_the_nic_transfers_messages() -> None:
    rows = simulate("comb").rows
    assert [row["work_ns"] for row in rows] == [0, 5_000_000, 10_000_000]
    assert rows[-1]["availability"] > 0.99
    assert rows[0]["availability"] == 0


def test_a_service_answers_the_offered_load() -> None:
    (row,) = simulate("service", rate=2000, requests=400).rows
    assert row["count"] == 400
    assert 0.8 * 2000 < row["answered_per_s"] < 1.2 * 2000
    (late_row,) = simulate("service", rate=2000, requests=400, work=1_000_000).rows
    assert late_row["p50_ns"] > 10 * row["p50_ns"]  # the server manages half of what is offered: the queue grows


@pytest.mark.parametrize("pattern", ["shift", "neighbour", "bisection"])
@pytest.mark.parametrize("size", [2, 3, 4, 7, 8])
def test_the_partners_of_a_permutation_agree(pattern: str, size: int) -> None:
    pairs = [partners(pattern, rank, size) for rank in range(size)]
    assert sorted(destination for destination, _ in pairs) == list(range(size))
    assert all(pairs[destination][1] == rank for rank, (destination, _) in enumerate(pairs))


def test_quantiles_are_values_of_the_sample() -> None:
    assert quantiles(range(1, 1001)) == {"min_ns": 1, "p50_ns": 500, "p90_ns": 900, "p99_ns": 990, "p999_ns": 999}
    assert quantiles([7]) == dict.fromkeys(("min_ns", "p50_ns", "p90_ns", "p99_ns", "p999_ns"), 7)
    assert quantiles([]) == {}
    assert (fairness([1, 1, 1]), fairness([1, 0, 0, 0]), fairness([0, 0])) == (1, 0.25, 1)


def test_a_changed_message_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Comm.Isend

    async def changing(self: Comm, buf: Any, dest: int, tag: int = 0) -> Any:
        data = bytearray(buf or b"")
        if len(data) == 1024:
            data[700] ^= 1
        return await original(self, data, dest, tag)

    monkeypatch.setattr(Comm, "Isend", changing)
    with pytest.raises(ProgramError, match="byte 700 differs"):
        simulate("pingpong")


def test_impossible_settings_are_reported_before_anything_starts() -> None:
    with pytest.raises(DescriptionError, match="count and peer"):
        simulate("pingpong", count=0)
    with pytest.raises(DescriptionError, match="at least 2 for workload pingpong"):
        simulate("pingpong", nodes=1)


def test_an_external_protocol_and_workload_run_like_builtin_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package that `testbed protocol new` writes, and the entry points that its installation would write."""
    from testbed.fields import known_fields

    monkeypatch.syspath_prepend(Path(__file__).with_name("outside"))
    known_fields.cache_clear()
    try:
        cluster = Cluster.star(4, delay="20us", loss="5%", seed=1)
        greeting = testbed.run(cluster, "postcard-greeting", protocol="postcard", mode="sim", settings={"size": "1KiB"})
        assert greeting.results == {"n1": 0, "n2": 1024, "n3": 1024, "n4": 1024}
        result = testbed.run(
            cluster, "random", protocol="postcard", mode="sim", settings={"largest": 10_000, "messages": 50}
        )
        assert sum(node_result["received"] for node_result in result.results.values()) == 4 * 50
        assert sum(counters["resent"] for counters in result.counters.values()) > 10
        assert "postcard.kind" in known_fields()
    finally:
        known_fields.cache_clear()


async def sum_of_ranks(comm: Comm, node: Node, *, start: int = 0) -> int | None:
    print(f"{node.name} is rank {comm.rank}")  # noqa: T201
    gathered = await node.gather(comm.rank)
    await node.barrier()
    return await node.share(start + sum(gathered) if gathered else 0)


def test_a_function_is_a_workload_and_its_output_is_in_its_nodes_log(tmp_path: Path) -> None:
    result = testbed.run(
        Cluster.star(3), sum_of_ranks, mode="sim", settings={"start": "10"}, repeat=2, output=tmp_path / "run"
    )
    assert result.results == {"n1": 13, "n2": 13, "n3": 13}
    assert len(result.repetitions) == 2
    assert result.folder == tmp_path / "run"
    for repetition in ("repeat-1", "repeat-2"):
        for rank, node in enumerate(("n1", "n2", "n3")):
            assert (tmp_path / "run" / repetition / "logs" / f"{node}.log").read_text() == f"{node} is rank {rank}\n"
