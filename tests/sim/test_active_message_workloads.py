"""Workloads on AM-II's endpoints, on small Myrinet networks with a hardware profile, reproduce the results of the paper
on the Berkeley NOW."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import testbed
from testbed.errors import DescriptionError
from testbed.runtime.nodes.node_run import ProgramError
from testbed.spec.model import Defaults, Description, Link, Node, Switch

Rows = Sequence[Mapping[str, Any]]

MTU = 8500


def one_switch(nodes: int) -> Description:
    """Return a star of at most eight nodes."""
    return Description(
        name="one-switch",
        nodes=[Node(name=f"n{number}") for number in range(1, nodes + 1)],
        switches=[Switch(name="s1", kind="myrinet")],
        links=[Link(ends=[f"n{number}", f"s1:{number}"]) for number in range(1, nodes + 1)],
        defaults=Defaults(mtu=MTU),
    )


def two_switches(nodes: int, rate: str) -> Description:
    """Return two switches with half of the nodes each, and one cable of that rate between them."""
    half_count = nodes // 2
    return Description(
        name="two-switches",
        nodes=[Node(name=f"n{number}") for number in range(1, nodes + 1)],
        switches=[Switch(name="s1", kind="myrinet"), Switch(name="s2", kind="myrinet")],
        links=[
            *(Link(ends=[f"n{number}", f"s{1 + (number > half_count)}:{(number - 1) % half_count + 1}"])
              for number in range(1, nodes + 1)),
            Link(ends=["s1:8", "s2:8"], rate=rate),
        ],
        defaults=Defaults(mtu=MTU),
    )  # fmt: skip


def rows(
    cluster: Description | str, workload: str, firmware: Mapping[str, object] | None = None, **settings: object
) -> Rows:
    return testbed.run(
        cluster, workload, protocol="am2", mode="sim", profile="now-1998", firmware=firmware, settings=settings
    ).rows


def gap() -> int:
    measured = rows("now-1998-pair", "am-logp", count=5, burst=50, rounds=1)
    return int(measured[1]["g_ns"])


def test_clients_of_one_endpoint_share_its_rate_and_each_adds_a_gap_to_the_round_trip() -> None:
    by_clients = {row["clients"]: row for row in rows(one_switch(8), "am-contention", clients="1,3,7", time="8ms")}
    assert by_clients[3]["requests_per_s"] == pytest.approx(by_clients[1]["requests_per_s"], rel=0.05)
    assert by_clients[3]["slowest_per_s"] == pytest.approx(by_clients[3]["requests_per_s"] / 3, rel=0.05)
    slope = (by_clients[7]["round_trip_ns"] - by_clients[3]["round_trip_ns"]) / 4
    assert slope == pytest.approx(gap(), rel=0.1)


def test_virtual_networks_that_fit_into_the_frames_share_the_peak_rate() -> None:
    first, four_networks = rows(one_switch(5), "am-networks", threads="one", networks="1,4", time="8ms")
    assert four_networks["requests_per_s"] == pytest.approx(first["requests_per_s"], rel=0.05)
    assert four_networks["slowest_per_s"] == pytest.approx(four_networks["fastest_per_s"], rel=0.05)


def test_with_more_networks_than_frames_a_thread_for_each_is_faster_than_one_thread() -> None:
    firmware = {"frames": 3, "stay": 10_000_000}
    first, four_threads = rows(one_switch(5), "am-networks", firmware, networks="4", time="40ms")
    assert (first["threads"], four_threads["threads"]) == ("one", "each")
    assert first["faults"]
    assert four_threads["faults"]
    assert four_threads["requests_per_s"] > 3 * first["requests_per_s"]
    assert four_threads["slowest_per_s"] > 0


def test_a_bisection_shares_the_cable_between_the_switches_and_neighbors_do_not() -> None:
    cluster = two_switches(12, "320mbit")
    no_waiting = {"attempt": 0}  # turns of a node's two endpoints would hide the latency of another switch
    by_pattern = {row["pattern"]: row for row in rows(cluster, "am-permutations", no_waiting, count=12, trips=16)}
    assert [row["senders"] for row in by_pattern.values()] == [12, 12, 12]
    assert by_pattern["neighbor"]["mean_bit_s"] > by_pattern["cshift"]["slowest_bit_s"] > 0
    share = 320_000_000 / 6  # of the cable: six nodes send in each direction
    assert share / 2 < by_pattern["bisection"]["mean_bit_s"] < share
    assert by_pattern["neighbor"]["mean_bit_s"] > 2 * share
    assert by_pattern["neighbor"]["round_trip_ns"] < by_pattern["bisection"]["round_trip_ns"]


def test_bulk_messages_of_every_size_arrive_intact() -> None:
    measured = rows("now-1998-pair", "am-bulk", sizes="1,1000,8192,20000", count=10)
    rates = [row["bandwidth_bit_s"] for row in measured]
    assert [row["size_bytes"] for row in measured] == [1, 1000, 8192, 20000]
    assert rates == sorted(rates)


def test_clients_of_bulk_messages_share_the_bandwidth_of_the_endpoint() -> None:
    first, four_clients = rows(one_switch(5), "am-bulk-contention", clients="1,4", time="20ms")
    assert four_clients["aggregate_bit_s"] == pytest.approx(first["aggregate_bit_s"], rel=0.2)
    assert four_clients["slowest_bit_s"] == pytest.approx(four_clients["aggregate_bit_s"] / 4, rel=0.1)
    assert first["fairness"] == 1


def test_packets_that_backpressure_holds_in_the_nic_are_not_resent() -> None:
    """Four messages of eight packets, each 0.7 ms on the wire: the last packet is sent after ten time-outs. With long
    time-outs, only refused packets are resent, and those to a peer that is not known yet."""
    cluster = Description(
        name="slow",
        nodes=[Node(name="n1"), Node(name="n2")],
        switches=[Switch(name="s1", kind="myrinet")],
        links=[Link(ends=["n1", "s1:1"], rate="100mbit"), Link(ends=["n2", "s1:2"], rate="100mbit")],
        defaults=Defaults(mtu=MTU),
    )

    def resent(timeout: int) -> int:
        firmware = {"timeout": timeout, "watch": 60_000_000_000}  # mapping packets would wait behind the data
        settings = {"sizes": "65536", "count": 4}
        run = testbed.run(cluster, "am-bulk", protocol="am2", mode="sim", firmware=firmware, settings=settings)
        return run.counters["n1"]["packets_resent"]

    assert resent(2_000_000) == resent(150_000_000)


def test_consistent_dma_is_faster_for_small_transfers_and_streaming_dma_for_large_ones() -> None:
    def rates(profile: str) -> list[float]:
        settings = {"sizes": "512,8192", "count": 20}
        run = testbed.run("now-1998-pair", "am-bulk", protocol="am2", mode="sim", profile=profile, settings=settings)
        return [row["bandwidth_bit_s"] for row in run.rows]

    streaming, consistent = rates("now-1998"), rates("now-1998-consistent")
    assert streaming[0] < consistent[0]
    assert streaming[1] > consistent[1]


def test_clients_of_more_endpoints_than_frames_send_in_bursts_with_a_stable_average() -> None:
    """Two of the frames serve the server's endpoints, each of which stays for 2 to 4 ms; the third one serves barriers."""
    firmware = {"frames": 3, "stay": 2_000_000}
    by_clients = {
        (row["networks"], row["interval_ns"]): row
        for row in rows(
            one_switch(6), "am-bursts", firmware, networks="2,5", intervals="1ms,20ms", time="80ms", switch="1us"
        )
    }
    assert by_clients[2, 1_000_000]["busy_share"] == 1
    bursts, smooth = by_clients[5, 1_000_000], by_clients[5, 20_000_000]
    assert bursts["busy_share"] < 0.9
    assert by_clients[2, 1_000_000]["deviation_share"] < bursts["deviation_share"] / 3
    assert bursts["burst_per_s"] * bursts["busy_share"] == pytest.approx(bursts["mean_per_s"])
    assert smooth["mean_per_s"] == pytest.approx(bursts["mean_per_s"])
    assert smooth["deviation_per_s"] < bursts["deviation_per_s"] / 2


def test_logp_on_an_ideal_ethernet_measures_no_latency() -> None:
    result = testbed.run(
        Description.star(2), "am-logp", protocol="am2", mode="sim", settings={"count": 5, "rounds": 1}
    ).rows
    assert result[0]["p50_ns"] == 0  # links and hosts without costs


def test_impossible_settings_are_rejected() -> None:
    with pytest.raises(DescriptionError, match="clients: each 1 or more"):
        rows("now-1998-pair", "am-contention", clients="0")
    with pytest.raises(ProgramError, match="7 clients and a server need 8 nodes, got 2"):
        rows("now-1998-pair", "am-contention", clients="7")
    with pytest.raises(DescriptionError, match="size: 1 or more"):
        rows("now-1998-pair", "am-bulk-contention", size="0")
    with pytest.raises(DescriptionError, match="time must be a multiple of each, at least twice"):
        rows("now-1998-pair", "am-bursts", intervals="3ms", time="10ms")
