"""Applications in an ordinary user's cluster: the same programs, without root."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from testbed import Cluster
from tests.live.applications import test_http, test_iperf3, test_redis
from tests.live.ordinary_user import NOBODY, as_user, wait_for_success

pytestmark = [
    pytest.mark.requires("root", "userns", "curl", "iperf3", "redis-server", "redis-benchmark"),
    pytest.mark.usefixtures("machine"),
]

# Modules that the child uses are imported before it drops its privileges and cannot read them.
for _module in (
    "testbed.cluster.plan.link_decisions",
    "testbed.cluster.services.supervisor",
    "testbed.kernel.capabilities",
    "testbed.kernel.loss_classifier",
    "testbed.kernel.netlink_messages",
    "testbed.kernel.qdiscs",
    "testbed.spec.elements",
    "testbed.fates.expressions",
):
    import_module(_module)

SCENARIOS = {
    "iperf3": lambda cluster, _: test_iperf3.test_iperf3_measures_bottleneck_delay_and_loss(cluster),
    "http": test_http.test_request_duration_follows_round_trips_and_retransmissions,
    "redis": test_redis.test_latency_limits_single_requests_but_not_pipelined_ones,
}


@pytest.mark.parametrize("application", SCENARIOS)
def test_applications_see_the_same_network_without_root(home: Path, tmp_path: Path, application: str) -> None:
    scenario: Callable[..., None] = SCENARIOS[application]

    def report() -> None:
        with Cluster.star(2).up() as cluster:
            scenario(cluster, tmp_path)

    assert tmp_path.stat().st_mode & 0o007 == 0o007, f"a directory in which user {NOBODY} can write"
    wait_for_success(as_user(home, report))
