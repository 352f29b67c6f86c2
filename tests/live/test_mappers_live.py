"""Mappers that were given no description find the network between real interfaces, and find it again when a cable is cut."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from testbed.controller.runs.agents import agents
from testbed.runtime.nodes.places import Program
from tests.live.crossbar_runs import crossbar_cluster
from tests.live.machine_state import eventually
from tests.live.mapper_agents import plug, publish_routes, routes_are_complete
from tests.live.source_routed_protocol import ETHERTYPE

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

PATIENCE = 20.0  # s
CUT = "s1:2--s2:3"


def test_mappers_find_a_ring_and_the_rest_of_it_when_a_cable_is_cut(tmp_path: Path) -> None:
    ring = [f"s{number}:2 s{number % 4 + 1}:3" for number in range(1, 5)]
    with crossbar_cluster(*ring, *(f"n{number} s{number}:{number + 3}" for number in range(1, 5))).up() as cluster:
        layout = cluster.state.layout
        programs: dict[str, Program] = {node.name: partial(publish_routes, folder=tmp_path) for node in layout.nodes}
        with agents(cluster, plug, ETHERTYPE, programs) as run:
            eventually(
                lambda: routes_are_complete(layout, tmp_path), "everybody has right routes to everybody", PATIENCE
            )
            with cluster.cut(CUT):
                eventually(
                    lambda: routes_are_complete(layout, tmp_path, CUT),
                    "everybody has routes without the cable",
                    PATIENCE,
                )
                (tmp_path / "stop").touch()
                outcome = run.wait(PATIENCE)
    assert [found for found in outcome.results.values() if found] == [{"hosts": 3, "switches": 4}]
