"""Two clusters with shared NICs and equal nodes, addresses and functions on one machine do not affect each other."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from testbed import Cluster, RunningCluster, share_nics
from testbed.cluster.records.state import Store
from testbed.controller.shared_nics import NicSharing
from tests.live.machine_state import eventually
from tests.live.reattaching_hosts import HostRecord, ReattachingHost, finish_all, reattaching_pairs, wait_for_progress

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

TIMEOUT = 30.0  # s
PAIRS = {("n1", 0): ("n2", 0), ("n1", 1): ("n2", 1)}
NO_ERRORS = {host: ([], [], []) for host in [("n1", 0), ("n1", 1), ("n2", 0), ("n2", 1)]}


def errors_by_host(
    records: dict[tuple[str, int], HostRecord],
) -> dict[tuple[str, int], tuple[list[str], list[str], list[str]]]:
    return {host: (record.gone, record.failures, record.wrong) for host, record in records.items()}


def regions(sharing: NicSharing) -> set[tuple[str, str]]:
    """Return (device, inode) of all memory that the agents share with their hosts."""
    mapped = set()
    for pid in sharing.agent_pids().values():
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if "memfd:nic" in line:
                mapped.add((line.split()[3], line.split()[4]))
    return mapped


def wait_for_progress_in_both(
    first: dict[tuple[str, int], ReattachingHost], second: dict[tuple[str, int], ReattachingHost]
) -> None:
    """Wait until the hosts of both clusters have made progress."""
    for hosts in (first, second):
        wait_for_progress(hosts)


def addresses(cluster: RunningCluster) -> list[str]:
    return [nic.mac for node in cluster.state.layout.nodes for nic in node.nics]


def test_killed_agents_and_a_down_of_one_cluster_do_not_affect_the_other() -> None:
    first, second = Cluster.star(2).up("one", keep=True), Cluster.star(2).up("other", keep=True)
    try:
        assert addresses(first) == addresses(second)
        with share_nics(second, functions=2) as other_sharing, reattaching_pairs(second, PAIRS, 2) as undisturbed:
            with share_nics(first, functions=2) as sharing, reattaching_pairs(first, PAIRS, 2) as disturbed:
                wait_for_progress_in_both(disturbed, undisturbed)
                assert len(regions(sharing)) == len(regions(other_sharing)) == 4
                assert not regions(sharing) & regions(other_sharing)
                assert not set(sharing.agent_pids().values()) & set(other_sharing.agent_pids().values())
                agents = other_sharing.agent_pids()
                for node in ("n1", "n2"):
                    pid = sharing.agent_pids()[node]
                    os.kill(pid, signal.SIGKILL)
                    eventually(
                        lambda n=node, p=pid: sharing.agent_pids().get(n, p) != p, "the agent has restarted", TIMEOUT
                    )  # type: ignore[misc]
                    wait_for_progress_in_both(disturbed, undisturbed)
                assert other_sharing.agent_pids() == agents
                for gone, report, wrong in errors_by_host(finish_all(disturbed)).values():
                    assert (len(gone), wrong) == (1, [])
                    assert report
            with share_nics(first, functions=2), reattaching_pairs(first, PAIRS, 2) as ended:
                first.down()
                assert Store().names() == ["other"]
                for host in ended.values():
                    host.close()  # ended with its node
                wait_for_progress(undisturbed)
            assert other_sharing.agent_pids() == agents
            assert errors_by_host(finish_all(undisturbed)) == NO_ERRORS
    finally:
        for cluster in (first, second):
            if Store().read(cluster.name) is not None:
                cluster.down()
