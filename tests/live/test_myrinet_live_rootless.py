"""Myrinet for an ordinary user with small socket buffers: the window prevents losses."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

from testbed.runtime.nodes.run_orders import Program
from tests.live.crossbar_runs import crossbar_cluster, flood, is_lossless, receive_in_order, relay_report, run_programs
from tests.live.ordinary_user import as_user, wait_for_success

pytestmark = [pytest.mark.requires("root", "userns"), pytest.mark.usefixtures("machine")]

import_module("testbed.controller.runs.live_execution")  # the unprivileged child cannot read the source


def test_two_senders_to_a_slow_output_lose_no_frame(home: Path) -> None:
    def body() -> None:
        count = 1000
        with crossbar_cluster("n2 s1:2", "n3 s1:3", "n1 s1:1", rate="2mbit").up() as cluster:
            programs: dict[str, Program] = {f"n{number}": partial(flood, count=count, size=100) for number in (2, 3)}
            outcome = run_programs(
                cluster, {**programs, "n1": partial(receive_in_order, count=2 * count, senders=list(programs))}
            )
            assert outcome.results["n1"] == [True] * 2
            assert is_lossless(cluster, outcome)
            links = relay_report(cluster)["links"]
            assert all(links[f"n{number}:eth0--s1:{number}"]["forward"]["stops"] for number in (2, 3))

    wait_for_success(as_user(home, body))
