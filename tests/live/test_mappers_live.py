"""Mappers on real interfaces: they map the network without a description, again after a cut, and as host daemons."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import testbed
from testbed import Cluster
from testbed.controller.runs.agents import agents
from testbed.runtime.nodes.run_orders import Program
from tests.live.crossbar_runs import crossbar_cluster
from tests.live.machine_state import eventually
from tests.live.mapper_agents import plug, publish_routes, routes_are_complete
from tests.live.source_routed_protocol import ETHERTYPE
from tests.sim.mapped_hosts import Daemons

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

TIMEOUT = 20.0  # s
CUT = "s1:2--s2:3"


def test_mappers_find_routes_in_a_ring_and_new_ones_after_a_cut(tmp_path: Path) -> None:
    ring = [f"s{number}:2 s{number % 4 + 1}:3" for number in range(1, 5)]
    with crossbar_cluster(*ring, *(f"n{number} s{number}:{number + 3}" for number in range(1, 5))).up() as cluster:
        layout = cluster.state.layout
        programs: dict[str, Program] = {node.name: partial(publish_routes, folder=tmp_path) for node in layout.nodes}
        with agents(cluster, plug, ETHERTYPE, programs) as run:
            eventually(
                lambda: routes_are_complete(layout, tmp_path), "all NICs have valid routes to all others", TIMEOUT
            )
            with cluster.cut(CUT):
                eventually(
                    lambda: routes_are_complete(layout, tmp_path, CUT),
                    "all NICs have routes without the cut cable",
                    TIMEOUT,
                )
                (tmp_path / "stop").touch()
                outcome = run.wait(TIMEOUT)
    assert [result for result in outcome.results.values() if result] == [{"hosts": 3, "switches": 4}]


def test_mapper_daemons_map_the_network_and_messages_follow_their_routes() -> None:
    result = testbed.run(
        Cluster.ring(4, kind="myrinet"),
        Daemons,
        protocol="am2",
        firmware={"mapper": "daemon"},
        settings={"over": "20s"},
    )
    for rank, report in enumerate(result.results[f"n{number}"] for number in range(1, 5)):
        assert report["replies"] == [other for other in range(4) if other != rank]
        assert {int(route) for route in report["routes"]} == set(report["replies"])
