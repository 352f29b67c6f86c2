"""The mapper as a daemon of each host, which uses the network and its NIC's routes through a privileged endpoint, as in
the paper."""

from __future__ import annotations

import pytest

import testbed
from testbed import Cluster
from tests.sim.mapped_hosts import Daemons

NAMES = ("n1", "n2", "n3", "n4")


@pytest.mark.parametrize("profile", ["ideal", "now-1998"])
def test_mapper_daemons_install_the_same_routes_as_mappers_in_the_firmware(profile: str) -> None:
    cluster = Cluster.ring(4, kind="myrinet", seed=3)
    by_daemons, by_firmware = (
        testbed.run(
            cluster,
            Daemons,
            protocol="am2",
            mode="sim",
            profile=profile,
            firmware={"mapper": mapper},
            settings={"daemon": mapper == "daemon"},
        )
        for mapper in ("daemon", "firmware")
    )
    for rank, name in enumerate(NAMES):
        result, default_result = by_daemons.results[name], by_firmware.results[name]
        assert result["replies"] == default_result["replies"] == [peer for peer in range(4) if peer != rank]
        assert result["routes"] == default_result["routes"]
        assert len(result["routes"]) == 3
        assert result["leads"] == (rank == 0)
        assert by_firmware.counters[name]["mapper_probes_sent"] > 0
        assert "mapper_probes_sent" not in by_daemons.counters[name], "the firmware has a mapper, too"


def test_without_a_mapper_messages_fail_for_want_of_routes() -> None:
    with pytest.raises(testbed.TestbedError, match="no map of the network has arrived yet"):
        testbed.run(
            Cluster.ring(4, kind="myrinet"), "am-random", protocol="am2", mode="sim", firmware={"mapper": "daemon"},
            settings={"requests": 1}, timeout=5,
        )  # fmt: skip
