"""Mappers without a description map the network between real interfaces, and again when a cable is cut; also as daemons of
their hosts."""

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


def test_mappers_find_a_ring_and_the_rest_of_it_when_a_cable_is_cut(tmp_path: Path) -> None:
    ring = [f"s{number}:2 s{number % 4 + 1}:3" for number in range(1, 5)]
    with crossbar_cluster(*ring, *(f"n{number} s{number}:{number + 3}" for number in range(1, 5))).up() as cluster:
        layout = cluster.state.layout
        programs: dict[str, Program] = {node.name: partial(publish_routes, folder=tmp_path) for node in layout.nodes}
        with agents(cluster, plug, ETHERTYPE, programs) as run:
            eventually(
                lambda: routes_are_complete(layout, tmp_path), "everybody has right routes to everybody", TIMEOUT
            )
            with cluster.cut(CUT):
                eventually(
                    lambda: routes_are_complete(layout, tmp_path, CUT),
                    "everybody has routes without the cable",
                    TIMEOUT,
                )
                (tmp_path / "stop").touch()
                outcome = run.wait(TIMEOUT)
    assert [result for result in outcome.results.values() if result] == [{"hosts": 3, "switches": 4}]


def test_daemons_with_privileged_endpoints_map_the_network_and_messages_go_by_their_routes() -> None:
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
