"""Myrinet for an ordinary user, whose sockets hold little: it is the window that keeps frames from being lost."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

from testbed.runtime.nodes.places import Program
from tests.live.crossbar_runs import described, flood, is_lossless, ran, reported, take
from tests.live.ordinary_user import as_user, finish

pytestmark = [pytest.mark.requires("root", "userns"), pytest.mark.usefixtures("machine")]

import_module("testbed.controller.runs.live_execution")  # before a child loses the right to read it


def test_two_senders_that_flood_a_narrow_output_lose_nothing(home: Path) -> None:
    def story() -> None:
        count = 1000
        with described("n2 s1:2", "n3 s1:3", "n1 s1:1", rate="2mbit").up() as cluster:
            programs: dict[str, Program] = {f"n{number}": partial(flood, count=count, size=100) for number in (2, 3)}
            outcome = ran(cluster, {**programs, "n1": partial(take, count=2 * count)})
            assert outcome.results["n1"] == [True] * 2
            assert is_lossless(cluster, outcome)
            links = reported(cluster)["links"]
            assert all(links[f"n{number}:eth0--s1:{number}"]["forward"]["stops"] for number in (2, 3))

    finish(as_user(home, story))
