"""Open-MX's NICs shared by host processes: a misbehaving or killed process affects only its partners, which are notified."""

from __future__ import annotations

import random
import time
from functools import partial
from typing import Final

import pytest

from protocols.openmx.codec import ETHERTYPE
from protocols.openmx.endpoint_memory import COMMAND_SIZE, Op
from protocols.openmx.host import Library
from protocols.openmx.mx_names import Status
from protocols.openmx.mx_requests import Request
from protocols.openmx.partners import Partner
from protocols.openmx.settings import Settings
from protocols.openmx.split_driver import split_driver
from testbed import Cluster
from testbed.runtime.shared.attachment import Attachment, HostDriver
from tests.live.machine_state import eventually
from tests.live.shared_nic_processes import Nodes, Program, nodes, wait_for_results
from tests.unit.protocols.openmx_commands import OPS, command

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

DRIVER: Final = split_driver(Settings(entries=256))
SIZES: Final = (40, 3_000, 50_000)
"""Bytes of a small message, of one in fragments, and of one that is pulled."""
DURATION: Final = 1.5  # seconds


def exchange(peer: int, rounds: int) -> Program:
    """Exchange checked messages with a peer. rounds: 0 means until the connection is lost; the result is then the status."""

    async def program(library: Library, driver: HostDriver, nic: Attachment) -> int | str:
        endpoint, number = library.open_endpoint(0), 0
        to = endpoint.partner(peer, 0)
        lost, receives = list[Status](), list[Request]()

        def on_lost(_: Partner, status: Status) -> None:
            lost.append(status)
            endpoint.cancel(receives[-1])  # a receive from any source would wait for another peer's message

        endpoint.on_lost = on_lost
        buffer, data = nic.heap.allocate(max(SIZES)), nic.heap.allocate(max(SIZES))
        while not rounds or number < rounds:
            if lost:
                return lost[0].name
            size = SIZES[number % len(SIZES)]
            receives.append(endpoint.irecv(buffer[:size], number))
            data[:size] = bytes([number % 251]) * size
            send = endpoint.isend([data[:size]], to, number)
            await send
            await receives[-1]
            if receives[-1].result().status is not Status.SUCCESS:
                while not lost:  # a refused pull fails its receive before the notice of the dead process arrives
                    await driver.loop.sleep(1_000_000)
                return lost[0].name
            assert bytes(buffer[:size]) == bytes([number % 251]) * size
            number += 1
        while not send.is_settled and not lost:  # the peer may still need retransmissions
            await endpoint.wait(endpoint.irecv(bytearray(1), 1 << 60), 10_000_000)
        return number

    return program


def connect_and_wait(peer: int) -> Program:
    """Connect to a peer and wait for a message; return the status with which the connection ended."""

    async def program(library: Library, driver: HostDriver, _nic: Attachment) -> str:
        endpoint, statuses = library.open_endpoint(0), list[Status]()
        endpoint.on_lost = lambda _, status: statuses.append(status)
        await endpoint.connect(peer, 0)
        endpoint.irecv(bytearray(8), 1)
        while not statuses:
            await driver.loop.sleep(1_000_000)
        return statuses[0].name

    return program


async def write_garbage(library: Library, _driver: HostDriver, nic: Attachment) -> int:
    """Write random commands, receive ring flags and bytes, and ring doorbells for valid and invalid slots."""
    rng, until, doorbells = random.Random(5), time.monotonic() + DURATION, 0
    endpoint = library.open_endpoint(0)
    commands, ring = library.commands._memory, endpoint._ring_memory  # type: ignore[attr-defined]  # SharedCommands
    while time.monotonic() < until:
        slot = rng.randrange(64)
        if rng.randrange(2):
            commands[slot * COMMAND_SIZE : (slot + 1) * COMMAND_SIZE] = rng.randbytes(COMMAND_SIZE)
        else:
            op, peer = rng.choice([operation for operation in OPS if operation != Op.CLOSE]), rng.randrange(4)
            slot = library.commands.write(
                command(op, peer=peer, number=rng.randrange(4), length=rng.choice([1, 3_000, 50_000]))
            )
        ring[rng.randrange(256)] = rng.randrange(2)
        nic._doorbells.put(slot if rng.randrange(4) else rng.getrandbits(64))
        nic.completions.take(64)
        doorbells += 1
    return doorbells


def _has_invalid(running: Nodes, name: str) -> bool:
    return bool(running.report(name)["counted"]["invalid"] > 100)


def _has_no_region(running: Nodes, name: str) -> bool:
    return running.regions(name) == 0


def test_a_process_that_writes_arbitrary_bytes_and_doorbells_affects_no_other() -> None:
    with Cluster.star(2).up() as cluster, nodes(cluster, 2, DRIVER, ETHERTYPE) as running:
        misbehaving = [running.host(name, write_garbage, 1) for name in ("n1", "n2")]
        clients = [running.host("n1", exchange(2, 200), 0), running.host("n2", exchange(0, 200), 0)]
        for name in ("n1", "n2"):  # while the process runs: a new host's counters start from 0
            eventually(partial(_has_invalid, running, name), "invalid commands are counted")
        assert wait_for_results(clients) == [200, 200]
        assert all(doorbells > 200 for doorbells in wait_for_results(misbehaving))


def test_a_process_that_writes_arbitrary_bytes_affects_no_other_of_its_node() -> None:
    """Commands of one process name the others of its node, whose endpoints' rings the driver writes."""
    with Cluster.star(1).up() as cluster, nodes(cluster, 3, DRIVER, ETHERTYPE, siblings=True) as running:
        misbehaving = running.host("n1", write_garbage, 1)
        clients = [running.host("n1", exchange(2, 200), 0), running.host("n1", exchange(0, 200), 2)]
        eventually(partial(_has_invalid, running, "n1"), "invalid commands are counted")
        assert wait_for_results(clients) == [200, 200]
        assert misbehaving.result() > 200


def test_a_partner_on_the_node_of_a_killed_process_is_notified_and_its_slot_can_be_reused() -> None:
    """Messages up to 4 KiB are events, longer ones are copied once; neither are frames."""
    with Cluster.star(1).up() as cluster, nodes(cluster, 3, DRIVER, ETHERTYPE, siblings=True) as running:
        victim, partner = running.host("n1", exchange(0, 0), 1), running.host("n1", exchange(1, 0), 0)
        eventually(lambda: running.report("n1")["counted"]["shared_pull"] > 20, "messages are exchanged")
        connects = running.report("n1")["counted"]["shared_connect"]
        listener = running.host("n1", connect_and_wait(1), 2)
        answered = connects + 2  # its request and the answer
        eventually(lambda: running.report("n1")["counted"]["shared_connect"] >= answered, "the listener is connected")
        victim.kill()
        assert partner.result() == "ENDPOINT_CLOSED"
        assert listener.result() == "ENDPOINT_CLOSED"
        eventually(partial(_has_no_region, running, "n1"), "the agent unmaps the regions")
        again = [running.host("n1", exchange(1, 20), 0), running.host("n1", exchange(0, 20), 1)]
        assert wait_for_results(again) == [20, 20]
        counts = running.report("n1")["counted"]
        assert min(counts["shared_small"], counts["shared_mediumsq_frag"], counts["shared_notify"]) >= 14
        kinds = ("send_tiny", "send_small", "send_mediumsq_frag", "send_rndv", "send_pull_req", "send_liback")
        assert not [kind for kind in kinds if counts[kind]]


def test_partners_of_a_killed_process_are_notified_and_its_slot_can_be_reused() -> None:
    """One partner exchanges messages with it, another has only connected."""
    with Cluster.star(3).up() as cluster, nodes(cluster, 2, DRIVER, ETHERTYPE) as running:
        victim, partner = running.host("n2", exchange(1, 0), 1), running.host("n1", exchange(3, 0), 1)
        others = [running.host("n1", exchange(2, 200), 0), running.host("n2", exchange(0, 200), 0)]
        eventually(lambda: running.report("n1")["counted"]["recv_messages"] > 20, "messages are exchanged")
        listener = running.host("n3", connect_and_wait(3), 1)
        eventually(lambda: running.report("n3")["counted"]["recv_messages"] > 0, "the listener is connected")
        victim.kill()
        assert partner.result() == "ENDPOINT_CLOSED"
        assert listener.result() == "ENDPOINT_CLOSED"
        assert wait_for_results(others) == [200, 200]
        for name in ("n1", "n2"):
            eventually(partial(_has_no_region, running, name), "the agent unmaps the regions")
        again = [running.host("n1", exchange(3, 20), 1), running.host("n2", exchange(1, 20), 1)]
        assert wait_for_results(again) == [20, 20]


def test_an_idle_passive_peer_is_notified_of_a_killed_partner() -> None:
    async def wait(library: Library, driver: HostDriver, _nic: Attachment) -> str:
        endpoint, statuses = library.open_endpoint(0), list[Status]()
        endpoint.on_lost = lambda _, status: statuses.append(status)
        while not statuses:
            await driver.loop.sleep(1_000_000)
        return statuses[0].name

    with Cluster.star(2).up() as cluster, nodes(cluster, 1, DRIVER, ETHERTYPE) as running:
        waiting, victim = running.host("n1", wait), running.host("n2", connect_and_wait(0))
        eventually(lambda: running.report("n1")["counted"]["send_connect"] > 0, "the connection is established")
        victim.kill()
        assert waiting.result() == "ENDPOINT_CLOSED"
