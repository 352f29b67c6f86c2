"""Links that netem impairs: selection of netem, changes in place, and complete removal."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from testbed import Cluster, RunningCluster
from testbed.cluster.plan.veth_wiring import stage_ends
from testbed.controller.cluster_check import check
from testbed.controller.verdict.verdicts import Grade
from testbed.kernel import namespaces, netem, qdiscs, rtnl_dump
from testbed.kernel.qdiscs import Qdisc
from testbed.spec.layout import Impairment
from testbed.spec.model import Description

pytestmark = [pytest.mark.requires("vm", "root", "ping", "netem"), pytest.mark.usefixtures("machine")]

MS = 10**6
SLOW = float(os.environ.get("TESTBED_SLOW", "1"))
SLACK = 40 * SLOW  # tolerance of the shortest of some round trips, in milliseconds


def shortest_round_trip(cluster: RunningCluster) -> float:
    """Return the shortest round trip of a series, in milliseconds."""
    ping = ["ping", "-n", "-q", "-c15", "-i0.1", f"-W{60 * SLOW:.0f}", "n2"]
    match = re.search(r"= ([0-9.]+)/", cluster["n1"].run(ping).stdout)
    assert match is not None
    return float(match[1])


@contextmanager
def stage_of(cluster: RunningCluster) -> Iterator[tuple[Mapping[int, Qdisc], list[int]]]:
    """Yield the root qdiscs of the wire namespace, and the indexes of the first link's stage ends, 0 for a missing one."""
    layout = cluster.state.layout
    opened = namespaces.open_path(cluster.state.namespaces[""])
    try:
        interfaces = rtnl_dump.by_name(rtnl_dump.interfaces(opened.route))
        ends = [
            interfaces[name].index if name in interfaces else 0 for name in stage_ends(layout, layout.links[0].name)
        ]
        yield qdiscs.qdiscs(opened.route), ends
    finally:
        opened.close()


@pytest.mark.parametrize("kind", ["back_to_back", "star"])
def test_a_link_is_impaired_changed_in_place_and_healed(kind: str) -> None:
    description: Description = Cluster.back_to_back() if kind == "back_to_back" else Cluster.star(2)
    assert isinstance(description, Cluster)
    with description.up() as cluster:
        unimpaired_trip = shortest_round_trip(cluster)
        link = cluster.state.layout.links[0].name
        cluster.inject(link, delay="30ms")
        assert cluster.state.datapaths == {link: "netem"}
        assert 60 <= shortest_round_trip(cluster) <= 60 + unimpaired_trip + SLACK
        with stage_of(cluster) as (actual, (a, b)):
            assert netem.decode(actual[a].options).latency == netem.decode(actual[b].options).latency == 30 * MS
            frames = actual[a].frames
            assert frames >= 15
        fault = cluster.inject(link, delay="70ms", direction="n1-" + cluster.state.layout.links[0].b.owner)
        assert 100 <= shortest_round_trip(cluster) <= 100 + unimpaired_trip + SLACK
        with stage_of(cluster) as (actual, ends):
            assert ends == [a, b]
            assert sorted(netem.decode(actual[end].options).latency for end in ends) == [30 * MS, 70 * MS]
            assert actual[a].frames >= frames + 15  # changed in place
        fault.lift()
        assert 60 <= shortest_round_trip(cluster) <= 60 + unimpaired_trip + SLACK
        cluster.heal()
        assert cluster.state.datapaths == {}
        with stage_of(cluster) as (actual, _):
            assert actual == {}
        cluster["n1"].run(["ping", "-n", "-q", "-c1", f"-W{60 * SLOW:.0f}", "n2"])


def test_losses_go_to_the_classifier_where_netem_takes_no_seed() -> None:
    from testbed.kernel.capabilities import probe_capabilities

    with Cluster.back_to_back().up() as cluster:
        link = cluster.state.layout.links[0].name
        cluster.inject(link, loss="100%")
        assert cluster.state.datapaths == {link: "netem" if probe_capabilities().netem_seed else "tc"}
        ping = ["ping", "-n", "-q", "-c3", "-i0.1", "-W1", "n2"]
        assert "100% packet loss" in cluster["n1"].run(ping, check=False).stdout
        cluster.inject(link, loss="0%")
        # The first requests may be lost while ARP retries: one of five has to be answered.
        cluster["n1"].run(["ping", "-n", "-q", "-c5", "-i0.5", f"-W{60 * SLOW:.0f}", "n2"])


def test_check_measures_netem_and_finds_a_deviating_delay() -> None:
    with Cluster.back_to_back().up() as cluster:
        link = cluster.state.layout.links[0].name
        cluster.inject(link, delay="300ms")
        assert cluster.state.datapaths == {link: "netem"}
        verdict = {finding.what: finding for finding in check(cluster, seconds=2).of(link, "forward")}
        assert verdict["delay min"].measured is not None
        assert 300 * MS <= verdict["delay min"].measured <= 300 * MS + SLACK * MS
        assert verdict["loss"].measured == 0
        opened = namespaces.open_path(cluster.state.namespaces[""])
        try:
            ends = stage_ends(cluster.state.layout, link)
            interfaces = rtnl_dump.by_name(rtnl_dump.interfaces(opened.route))
            opened.route.execute(
                [
                    netem.request(interfaces[end].index, netem.options_of(Impairment(delay=240 * MS), mtu=1500, seed=1))
                    for end in ends
                ]
            )
        finally:
            opened.close()
        wrong = {finding.what: finding for finding in check(cluster, seconds=2).of(link, "forward")}
        assert wrong["delay min"].grade is Grade.INVALID, "early frames are not invalid"
