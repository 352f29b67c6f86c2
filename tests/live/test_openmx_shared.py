"""Open-MX's NICs shared by host processes: one that misbehaves, or is killed, disturbs no other but its
partners, which are notified."""

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
WHILE: Final = 1.5  # s


def talk(peer: int, rounds: int) -> Program:
    """Exchange messages with a peer in rounds; each is checked. rounds: 0: without end, until the connection
    is lost: then its result is the status."""

    async def program(library: Library, _driver: HostDriver, nic: Attachment) -> int | str:
        endpoint, number = library.open_endpoint(0), 0
        to = endpoint.partner(peer, 0)
        lost, receives = list[Status](), list[Request]()

        def note(_: Partner, status: Status) -> None:
            lost.append(status)
            endpoint.cancel(receives[-1])  # it names no peer, and would wait for another's message

        endpoint.on_lost = note
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
                return lost[0].name
            assert bytes(buffer[:size]) == bytes([number % 251]) * size
            number += 1
        while not send.is_settled and not lost:  # its peer may still need it
            await endpoint.wait(endpoint.irecv(bytearray(1), 1 << 60), 10_000_000)
        return number

    return program


def listen(peer: int) -> Program:
    """Connect to a peer, and wait for a message without sending any; return why the connection has ended."""

    async def program(library: Library, driver: HostDriver, _nic: Attachment) -> str:
        endpoint, statuses = library.open_endpoint(0), list[Status]()
        endpoint.on_lost = lambda _, status: statuses.append(status)
        await endpoint.connect(peer, 0)
        endpoint.irecv(bytearray(8), 1)
        while not statuses:
            await driver.loop.sleep(1_000_000)
        return statuses[0].name

    return program


async def scribble(library: Library, _driver: HostDriver, nic: Attachment) -> int:
    """Write commands, flags of the receive ring and bytes at random, and ring for them and for others'."""
    chance, until, rung = random.Random(5), time.monotonic() + WHILE, 0
    endpoint = library.open_endpoint(0)
    commands, ring = library.commands._memory, endpoint._ring_memory  # type: ignore[attr-defined]  # SharedCommands
    while time.monotonic() < until:
        slot = chance.randrange(64)
        if chance.randrange(2):
            commands[slot * COMMAND_SIZE : (slot + 1) * COMMAND_SIZE] = chance.randbytes(COMMAND_SIZE)
        else:
            op, peer = chance.choice([operation for operation in OPS if operation != Op.CLOSE]), chance.randrange(4)
            slot = library.commands.write(
                command(op, peer=peer, number=chance.randrange(4), length=chance.choice([1, 3_000, 50_000]))
            )
        ring[chance.randrange(256)] = chance.randrange(2)
        nic._doorbells.put(slot if chance.randrange(4) else chance.getrandbits(64))
        nic.completions.take(64)
        rung += 1
    return rung


def _has_invalid(running: Nodes, name: str) -> bool:
    return bool(running.report(name)["counted"]["invalid"] > 100)


def _has_no_region(running: Nodes, name: str) -> bool:
    return running.regions(name) == 0


def test_a_process_that_writes_arbitrary_bytes_and_doorbells_affects_no_other() -> None:
    with Cluster.star(2).up() as cluster, nodes(cluster, 2, DRIVER, ETHERTYPE) as running:
        vandals = [running.host(name, scribble, 1) for name in ("n1", "n2")]
        good = [running.host("n1", talk(2, 200), 0), running.host("n2", talk(0, 200), 0)]
        for name in ("n1", "n2"):  # while the process is there: another host's counters begin anew
            eventually(partial(_has_invalid, running, name), "it writes")
        assert wait_for_results(good) == [200, 200]
        assert all(rung > 200 for rung in wait_for_results(vandals))


def test_partners_of_a_killed_process_are_notified_others_continue_and_another_takes_its_place() -> None:
    """One exchanges messages with it, another has only connected and waits."""
    with Cluster.star(3).up() as cluster, nodes(cluster, 2, DRIVER, ETHERTYPE) as running:
        victim, widow = running.host("n2", talk(1, 0), 1), running.host("n1", talk(3, 0), 1)
        listener = running.host("n3", listen(3), 1)
        others = [running.host("n1", talk(2, 200), 0), running.host("n2", talk(0, 200), 0)]
        eventually(lambda: running.report("n1")["counted"]["recv_messages"] > 20, "they talk")
        victim.kill()
        assert widow.result() == "ENDPOINT_CLOSED"
        assert listener.result() == "ENDPOINT_CLOSED"
        assert wait_for_results(others) == [200, 200]
        for name in ("n1", "n2"):
            eventually(partial(_has_no_region, running, name), "the agent has noticed that the hosts have ended")
        again = [running.host("n1", talk(3, 20), 1), running.host("n2", talk(1, 20), 1)]
        assert wait_for_results(again) == [20, 20]


def test_a_peer_that_was_asked_for_a_connection_and_only_waits_is_notified_too() -> None:
    async def wait(library: Library, driver: HostDriver, _nic: Attachment) -> str:
        endpoint, statuses = library.open_endpoint(0), list[Status]()
        endpoint.on_lost = lambda _, status: statuses.append(status)
        while not statuses:
            await driver.loop.sleep(1_000_000)
        return statuses[0].name

    with Cluster.star(2).up() as cluster, nodes(cluster, 1, DRIVER, ETHERTYPE) as running:
        waiting, victim = running.host("n1", wait), running.host("n2", listen(0))
        eventually(lambda: running.report("n1")["counted"]["send_connect"] > 0, "they connect")
        victim.kill()
        assert waiting.result() == "ENDPOINT_CLOSED"
