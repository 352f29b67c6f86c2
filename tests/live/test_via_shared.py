"""VIA's NICs shared by host processes: a misbehaving or killed process affects at most its peer."""

from __future__ import annotations

import random
import time
from functools import partial
from typing import Final

import pytest

from protocols.via.codec import ETHERTYPE
from protocols.via.host import ViaNic
from protocols.via.settings import Settings
from protocols.via.split_driver import split_driver
from protocols.via.vip_descriptors import SIZE, Command, Op, Queue, doorbell
from protocols.via.vipl_names import OP_SENDRECV, AsyncError
from protocols.via.virtual_interface import Descriptor, ErrorReport
from testbed import Cluster
from testbed.runtime.shared.attachment import Attachment, HostDriver
from tests.live.machine_state import eventually
from tests.live.shared_nic_processes import Nodes, Program, nodes, wait_for_results

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

SETTINGS: Final = Settings(slots=256)
DRIVER: Final = split_driver(SETTINGS)
LENGTH: Final = 3_000
DURATION: Final = 1.5  # seconds


def exchange(peer: int, rounds: int) -> Program:
    """Exchange checked messages with a peer. Neither side is more than one message ahead, so two receives suffice.
    rounds: 0 means until the connection is lost; the result is then the error."""

    async def program(nic: ViaNic, driver: HostDriver, _nic: Attachment) -> int | str:
        errors: list[AsyncError] = []

        def record_error(report: ErrorReport) -> None:
            errors.append(report.error)

        nic.on_error = record_error
        ptag = await nic.create_ptag()
        buffer = nic.allocate(3 * LENGTH)
        memory = await nic.register(buffer, ptag)
        vi = await nic.create_vi(ptag)
        receives = [Descriptor(data=(memory.segment(index * LENGTH, LENGTH),)) for index in range(2)]
        for receive in receives:
            vi.post_receive(receive)
        await vi.connect_peer(peer, b"exchange")
        number = 0
        while not rounds or number < rounds:
            content, offset = bytes([number % 251]) * LENGTH, number % 2 * LENGTH
            buffer[2 * LENGTH :] = content
            vi.post_send(Descriptor(OP_SENDRECV, (memory.segment(2 * LENGTH, LENGTH),)))
            if (await vi.send_queue.wait()).has_failed or (await vi.receive_queue.wait()).has_failed:
                while not errors:
                    await driver.loop.sleep(1_000_000)
                return errors[0].name
            assert bytes(buffer[offset : offset + LENGTH]) == content
            vi.post_receive(receives[number % 2])
            number += 1
        return number

    return program


async def write_garbage(host: ViaNic, _driver: HostDriver, nic: Attachment) -> int:
    """Write random commands, descriptors and bytes, and ring valid and invalid doorbells."""
    rng, until, doorbells = random.Random(5), time.monotonic() + DURATION, 0
    slots = host._slots
    while time.monotonic() < until:
        slot = rng.randrange(SETTINGS.slots)
        if rng.randrange(2):
            slots.memory[slot * SIZE : (slot + 1) * SIZE] = rng.randbytes(SIZE)
        else:
            op, value, name = rng.choice(list(Op)), rng.randrange(1 << 10), rng.choice([b"", b"exchange"])
            slots.write_command(slot, Command(op, 1, rng.randrange(4), 1, 0, LENGTH, value, name))
        queue = rng.choice([Queue.COMMAND, Queue.SEND, Queue.RECEIVE])
        nic._doorbells.put(rng.choice([doorbell(queue, rng.randrange(3), slot), rng.getrandbits(64)]))
        nic.completions.take(64)
        doorbells += 1
    return doorbells


def _has_invalid(running: Nodes, name: str) -> bool:
    return bool(running.report(name)["counted"]["invalid"] > 100)


def test_a_process_that_writes_arbitrary_bytes_and_doorbells_affects_no_other() -> None:
    with Cluster.star(2).up() as cluster, nodes(cluster, 2, DRIVER, ETHERTYPE) as running:
        misbehaving = [running.host(name, write_garbage, 1) for name in ("n1", "n2")]
        clients = [running.host("n1", exchange(2, 300), 0), running.host("n2", exchange(0, 300), 0)]
        for name in ("n1", "n2"):  # while the process runs: a new host's counters start from 0
            eventually(partial(_has_invalid, running, name), "invalid doorbells are counted")
        assert wait_for_results(clients) == [300, 300]
        assert all(doorbells > 500 for doorbells in wait_for_results(misbehaving))


def test_the_peer_of_a_killed_process_is_notified_and_its_slot_can_be_reused() -> None:
    with Cluster.star(2).up() as cluster, nodes(cluster, 2, DRIVER, ETHERTYPE) as running:
        victim, partner = running.host("n2", exchange(1, 0), 1), running.host("n1", exchange(3, 0), 1)
        others = [running.host("n1", exchange(2, 300), 0), running.host("n2", exchange(0, 300), 0)]
        eventually(lambda: running.report("n1")["counted"]["messages_received"] > 20, "messages are exchanged")
        victim.kill()
        assert partner.result() == "CONN_LOST"
        assert wait_for_results(others) == [300, 300]
        eventually(lambda: running.regions("n2") == 0, "the agent unmaps the dead host's region")
        again = [running.host("n1", exchange(3, 20), 1), running.host("n2", exchange(1, 20), 1)]
        assert wait_for_results(again) == [20, 20]
