"""Workload `imb` follows IMB's definitions of times, bandwidths, and numbers of ranks and of calls."""

from __future__ import annotations

from typing import Any

import pytest

import testbed
from testbed import Cluster
from testbed.errors import DescriptionError

DELAY = 20_000  # ns of a link; a message crosses two of them


def rows(nodes: int, **settings: object) -> list[dict[str, Any]]:
    cluster = Cluster.star(nodes, delay="20us")
    result = testbed.run(cluster, "imb", protocol="am2", mode="sim", settings=settings)
    return [dict(row) for row in result.rows]


def test_transfer_times_are_one_way_and_bandwidth_counts_all_messages() -> None:
    by_benchmark = {
        row["benchmark"]: row
        for row in rows(2, benchmarks="pingpong,PingPing,Sendrecv,Exchange", sizes="64", count=100)
    }
    for name, message_count in (("PingPong", 1), ("PingPing", 1), ("Sendrecv", 2), ("Exchange", 4)):
        row = by_benchmark[name]
        assert row["min_ns"] <= row["avg_ns"] <= row["max_ns"]
        assert row["max_ns"] == pytest.approx(2 * DELAY, rel=0.05)
        assert row["bandwidth_bit_s"] == pytest.approx(8e9 * message_count * 64 / row["max_ns"], rel=0.01)


def test_collective_calls_are_measured_for_powers_of_two_and_all_ranks() -> None:
    measured = rows(5, benchmarks="Barrier,Allreduce,PingPong", sizes=(0, 256), count=4)
    assert [(row["benchmark"], row["ranks"], row["size_bytes"]) for row in measured] == [
        ("Barrier", 2, 0), ("Allreduce", 2, 256), ("PingPong", 2, 0), ("PingPong", 2, 256), ("Barrier", 4, 0),
        ("Allreduce", 4, 256), ("Barrier", 5, 0), ("Allreduce", 5, 256),
    ]  # fmt: skip
    barriers = {row["ranks"]: row["avg_ns"] for row in measured if row["benchmark"] == "Barrier"}
    rounds = {ranks: time / (2 * DELAY) for ranks, time in barriers.items()}
    assert rounds == {2: pytest.approx(1, rel=0.1), 4: pytest.approx(2, rel=0.1), 5: pytest.approx(3, rel=0.1)}, (
        "a barrier does not take log2 of the ranks"
    )


def test_long_messages_are_repeated_less_often() -> None:
    counts = {
        row["size_bytes"]: row["count"] for row in rows(2, benchmarks="Bcast", sizes=(1, 1024), overall=4096, count=9)
    }
    assert counts == {1: 9, 1024: 4}


def test_an_unknown_benchmark_is_rejected() -> None:
    with pytest.raises(DescriptionError, match="names of benchmarks: PingPong, PingPing"):
        rows(2, benchmarks="PongPing")


def test_the_vector_variants_take_as_long_as_the_regular_calls() -> None:
    names = ("Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv", "Alltoall", "Alltoallv")
    by_benchmark = {row["benchmark"]: row for row in rows(2, benchmarks=",".join(names), sizes="512", count=6)}
    assert set(by_benchmark) == set(names)
    for name in names[::2]:
        assert by_benchmark[f"{name}v"]["avg_ns"] == pytest.approx(by_benchmark[name]["avg_ns"], rel=0.1)
