"""Shared NICs of an ordinary user, inside a user namespace."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import testbed
from testbed import Cluster, share_nics
from testbed.cluster.records.state import Store
from tests.live.ordinary_user import as_user, wait_for_success

pytestmark = [pytest.mark.requires("root", "userns"), pytest.mark.usefixtures("machine"), pytest.mark.timeout(180)]

for _module in (
    "testbed.controller.shared_nics",
    "testbed.controller.attached_nic",
    "testbed.runtime.shared.standing_agent",
):
    import_module(_module)  # before the child drops its privileges


@pytest.mark.usefixtures("registered")
def test_runs_and_scripts_can_use_shared_nics_without_root(home: Path) -> None:
    def body() -> None:
        result = testbed.run(Cluster.star(2), "random", nics="shared", settings={"messages": 30})
        assert sum(row["received"] for row in result.results.values()) == 2 * 30
        with Cluster.star(2).up() as cluster, share_nics(cluster, functions=2):
            output = cluster["n1"].run(["cat", "/proc/net/unix"]).stdout  # of its network namespace
            assert f"@testbed/nic/{cluster['n1'].layout.nics[0].name}/agent" in output
        assert Store().names() == []

    wait_for_success(as_user(home, body))
