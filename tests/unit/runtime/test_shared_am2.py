"""Host processes that share AM-II's NICs, with few frames for many endpoints, on a network that loses frames: every request
comes to its end, also where a host process dies in between, and nothing is left behind."""

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
TIMEOUT = 5_000
"""Milliseconds in which all must have ended."""


def small(chance: random.Random) -> Settings:
    return Settings(
        frames=chance.randrange(2, 8), stay=3 * MILLISECOND, channels=chance.choice([2, 8, 32]),
        medium=512, packet=1024, sequences=1 << 16,
    )  # fmt: skip


def populated(chance: random.Random, *, lost: int) -> Cluster:
    """Three host processes on node 0, two on node 1, with all the endpoints."""
    cluster = Cluster(chance, small(chance), lost=lost)
    for node, place in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 3)):
        cluster.begin(node, place)
    for number in range(ENDPOINTS):
        cluster.hosts[number % 5].talker()
    for host in cluster.hosts:
        host.ring(ENDPOINTS)
    return cluster


def requests(cluster: Cluster, count: int) -> list[int]:
    """Return the serial numbers of `count` requests between random endpoints."""
    begin = len(cluster.courses)
    for serial in range(begin, begin + count):
        cluster.draw(serial)
    return list(range(begin, begin + count))


def send(cluster: Cluster, serials: list[int]) -> None:
    """Send the requests in order, except those of dead hosts."""
    waiting = serials[:]
    for _ in range(200_000):
        if not waiting:
            return
        serial = cluster.chance.choice(waiting[:6])
        course = cluster.courses[serial]
        if not course.source.alive:
            waiting.remove(serial)
            del cluster.courses[serial]
        elif course.source.ask(serial, course):
            waiting.remove(serial)
        cluster.turn()
    raise AssertionError(f"{len(waiting)} requests cannot be sent: {complaints(cluster)}")


def complaints(cluster: Cluster) -> list[str]:
    return [one for node in (0, 1) for one in cluster.nic(node).firmware.pending_work()] + [
        f"host {host.place} of node {host.node}: {one}" for host in cluster.hosts for one in host.am.pending_work()
    ]


def settle(cluster: Cluster) -> None:
    """Run until neither hosts nor NICs have work left."""
    quiet = 0
    for _ in range(TIMEOUT):
        cluster.all_turn()
        firmware = [cluster.nic(node).firmware for node in (0, 1)]
        quiet = quiet + 1 if cluster.is_quiet and not any(one.pending_work() for one in firmware) else 0
        if quiet > 20:
            return
    raise AssertionError(f"it does not end: {complaints(cluster)}")


def is_clean(cluster: Cluster) -> None:
    """Check that all libraries end and leave nothing behind."""
    for host in cluster.hosts:
        host.am.terminate()
    settle(cluster)
    for host in cluster.hosts:
        assert host.heap.free == host.free, f"host {host.place} of node {host.node}"
        assert len(host.heap) == 0
    for node in (0, 1):
        counted = cluster.nic(node).firmware.counter_values()
        assert counted["invalid"] == counted["malformed"] == counted["strangers"] == 0
    for host in cluster.hosts.copy():
        cluster.detach(host)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_request_among_hosts_that_share_nics_is_handled_once_and_replied_to(seed: int) -> None:
    chance = random.Random(seed)
    cluster = populated(chance, lost=chance.choice([0, 0, 20]))
    send(cluster, requests(cluster, REQUESTS))
    settle(cluster)
    for serial, course in cluster.courses.items():
        assert course.handled == 1, f"request {serial}: {course.returned}, {complaints(cluster)}"
        assert course.replied == bool(serial % 3), f"the reply to {serial}"
        assert course.returned is None
    for host in cluster.hosts:
        assert host.am.pending_work() == []
    assert sum(cluster.nic(node).firmware.counter_values()["unloaded"] for node in (0, 1)) > 0
    is_clean(cluster)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_host_that_dies_does_not_disturb_others(seed: int) -> None:
    chance = random.Random(~seed)
    cluster = populated(chance, lost=chance.choice([0, 0, 20]))
    serials = requests(cluster, REQUESTS)
    before = chance.randrange(REQUESTS)
    send(cluster, serials[:before])
    dead = chance.choice(cluster.hosts)
    dies(cluster, dead)
    send(cluster, serials[before:])
    settle(cluster)
    for serial, course in cluster.courses.items():
        is_over(cluster, dead, serial, course)
    for host in cluster.hosts:
        assert host.am.pending_work() == []  # all credits are there, of what the dead will not reply to, too
    assert poison(dead) == len(dead.attached.region.heap)
    is_clean(cluster)


def dies(cluster: Cluster, dead: Host) -> None:
    """Detach a host and overwrite its memory, so that a later write to it or read from it shows."""
    cluster.detach(dead)
    region = dead.attached.region
    for memory in (region.descriptors, region.heap):
        memory[:] = b"\xee" * len(memory)


def poison(dead: Host) -> int:
    """Bytes of its heap that are as they were."""
    region = dead.attached.region
    assert bytes(region.descriptors) == b"\xee" * len(region.descriptors)
    return bytes(region.heap).count(0xEE)


def is_over(cluster: Cluster, dead: Host, serial: int, course: RequestFate) -> None:
    assert course.handled <= 1
    assert course.replied <= 1
    if course.sink is not dead and course.source is not dead:
        assert course.handled == 1, f"request {serial}: {course.returned}"
        assert course.replied == bool(serial % 3), f"the reply to {serial}"
        assert course.returned is None
    elif course.sink is dead and course.source is not dead:
        node, endpoint = course.origin.name
        had = Delivery(node, 1, endpoint, course.number) in cluster.delivered
        assert course.replied or had or course.returned is not None, f"request {serial} has come to no end"
        if course.handled:
            assert course.returned in (None, Status.UNREACHABLE)
        elif not had:
            assert course.returned in (Status.BAD_ENDPOINT, Status.UNREACHABLE)
