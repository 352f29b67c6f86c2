"""Host processes that share AM-II NICs, with fewer frames than endpoints, on a lossy network: every request ends, also if a
host process dies meanwhile, and no memory leaks."""

from __future__ import annotations

import os
import random

import pytest

from protocols.active_messages.am_errors import Status
from protocols.am2.receiver import Delivery
from protocols.am2.settings import MILLISECOND, Settings
from tests.unit.runtime.am2_shared_cluster import Cluster, Host, RequestFate

LONG = bool(os.environ.get("TESTBED_LONG"))
FIRST = random.SystemRandom().randrange(2**40) if LONG else 0
SEEDS = range(FIRST, FIRST + (500 if LONG else 24))
ENDPOINTS = 12
REQUESTS = 150
MAX_ROUNDS = 5_000
"""Maximum number of rounds until all requests have ended."""


def random_settings(rng: random.Random) -> Settings:
    return Settings(
        frames=rng.randrange(2, 8), stay=3 * MILLISECOND, channels=rng.choice([2, 8, 32]),
        medium=512, packet=1024, sequences=1 << 16,
    )  # fmt: skip


def make_cluster(rng: random.Random, *, loss: int) -> Cluster:
    """Return a cluster of three host processes on node 0 and two on node 1, with ENDPOINTS endpoints."""
    cluster = Cluster(rng, random_settings(rng), loss=loss)
    for node, slot in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 3)):
        cluster.add_host(node, slot)
    for number in range(ENDPOINTS):
        cluster.hosts[number % 5].add_endpoint()
    for host in cluster.hosts:
        host.take_doorbells(ENDPOINTS)
    return cluster


def requests(cluster: Cluster, count: int) -> list[int]:
    """Return the serial numbers of `count` requests between random endpoints."""
    first_serial = len(cluster.fates)
    for serial in range(first_serial, first_serial + count):
        cluster.add_request(serial)
    return list(range(first_serial, first_serial + count))


def send(cluster: Cluster, serials: list[int]) -> None:
    """Send the requests in order, except those of dead hosts."""
    pending = serials[:]
    for _ in range(200_000):
        if not pending:
            return
        serial = cluster.rng.choice(pending[:6])
        fate = cluster.fates[serial]
        if not fate.source.alive:
            pending.remove(serial)
            del cluster.fates[serial]
        elif fate.source.try_send(serial, fate):
            pending.remove(serial)
        cluster.step()
    raise AssertionError(f"{len(pending)} requests cannot be sent: {all_pending_work(cluster)}")


def all_pending_work(cluster: Cluster) -> list[str]:
    return [sentence for node in (0, 1) for sentence in cluster.nic(node).firmware.pending_work()] + [
        f"host {host.slot} of node {host.node}: {sentence}"
        for host in cluster.hosts
        for sentence in host.am.pending_work()
    ]


def settle(cluster: Cluster) -> None:
    """Run until neither hosts nor NICs have work left."""
    quiet_rounds = 0
    for _ in range(MAX_ROUNDS):
        cluster.step_all()
        firmware = [cluster.nic(node).firmware for node in (0, 1)]
        quiet_rounds = (
            quiet_rounds + 1
            if cluster.is_quiet and not any(nic_firmware.pending_work() for nic_firmware in firmware)
            else 0
        )
        if quiet_rounds > 20:
            return
    raise AssertionError(f"the cluster does not become idle: {all_pending_work(cluster)}")


def check_clean(cluster: Cluster) -> None:
    """Terminate all libraries, and check that they leave no memory pinned."""
    for host in cluster.hosts:
        host.am.terminate()
    settle(cluster)
    for host in cluster.hosts:
        assert host.heap.free == host.initial_free, f"host {host.slot} of node {host.node}"
        assert len(host.heap) == 0
    for node in (0, 1):
        counters = cluster.nic(node).firmware.counter_values()
        assert counters["invalid"] == counters["malformed"] == counters["strangers"] == 0
    for host in cluster.hosts.copy():
        cluster.detach(host)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_request_among_hosts_that_share_nics_is_handled_once_and_replied_to(seed: int) -> None:
    rng = random.Random(seed)
    cluster = make_cluster(rng, loss=rng.choice([0, 0, 20]))
    send(cluster, requests(cluster, REQUESTS))
    settle(cluster)
    for serial, fate in cluster.fates.items():
        assert fate.handled == 1, f"request {serial}: {fate.returned}, {all_pending_work(cluster)}"
        assert fate.replied == bool(serial % 3), f"the reply to {serial}"
        assert fate.returned is None
    for host in cluster.hosts:
        assert host.am.pending_work() == []
    assert sum(cluster.nic(node).firmware.counter_values()["unloaded"] for node in (0, 1)) > 0
    check_clean(cluster)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_host_that_dies_does_not_disturb_others(seed: int) -> None:
    rng = random.Random(~seed)
    cluster = make_cluster(rng, loss=rng.choice([0, 0, 20]))
    serials = requests(cluster, REQUESTS)
    before = rng.randrange(REQUESTS)
    send(cluster, serials[:before])
    dead_host = rng.choice(cluster.hosts)
    kill_host(cluster, dead_host)
    send(cluster, serials[before:])
    settle(cluster)
    for serial, fate in cluster.fates.items():
        check_outcome(cluster, dead_host, serial, fate)
    for host in cluster.hosts:
        assert host.am.pending_work() == []  # all credits are returned, also for requests to the dead host
    assert poisoned_bytes(dead_host) == len(dead_host.attached.region.heap)
    check_clean(cluster)


def kill_host(cluster: Cluster, dead_host: Host) -> None:
    """Detach a host and fill its memory with 0xEE, so that later accesses show."""
    cluster.detach(dead_host)
    region = dead_host.attached.region
    for memory in (region.descriptors, region.heap):
        memory[:] = b"\xee" * len(memory)


def poisoned_bytes(dead_host: Host) -> int:
    """Return the number of bytes of the heap that `kill_host` wrote and that are unchanged."""
    region = dead_host.attached.region
    assert bytes(region.descriptors) == b"\xee" * len(region.descriptors)
    return bytes(region.heap).count(0xEE)


def check_outcome(cluster: Cluster, dead_host: Host, serial: int, fate: RequestFate) -> None:
    assert fate.handled <= 1
    assert fate.replied <= 1
    if fate.sink is not dead_host and fate.source is not dead_host:
        assert fate.handled == 1, f"request {serial}: {fate.returned}"
        assert fate.replied == bool(serial % 3), f"the reply to {serial}"
        assert fate.returned is None
    elif fate.sink is dead_host and fate.source is not dead_host:
        node, endpoint = fate.origin.name
        was_delivered = Delivery(node, 1, endpoint, fate.number) in cluster.delivered
        assert fate.replied or was_delivered or fate.returned is not None, f"request {serial} has no end"
        if fate.handled:
            assert fate.returned in (None, Status.UNREACHABLE)
        elif not was_delivered:
            assert fate.returned in (Status.BAD_ENDPOINT, Status.UNREACHABLE)
