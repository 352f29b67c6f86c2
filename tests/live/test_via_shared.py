"""VIA's NICs shared by host processes: one that misbehaves, or is killed, disturbs at most its peer."""

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
WHILE: Final = 1.5  # s


def talk(peer: int, rounds: int) -> Program:
    """Exchange messages with a peer in rounds; each is checked. Neither is more than one ahead, so that
    two receives suffice. rounds: 0: without end, until the connection is lost: then its result is the error."""

    async def program(nic: ViaNic, driver: HostDriver, _nic: Attachment) -> int | str:
        errors: list[AsyncError] = []

        def note(report: ErrorReport) -> None:
            errors.append(report.error)

        nic.on_error = note
        ptag = await nic.create_ptag()
        buffer = nic.allocate(3 * LENGTH)
        memory = await nic.register(buffer, ptag)
        vi = await nic.create_vi(ptag)
        receives = [Descriptor(data=(memory.segment(place * LENGTH, LENGTH),)) for place in range(2)]
        for receive in receives:
            vi.post_receive(receive)
        await vi.connect_peer(peer, b"talk")
        number = 0
        while not rounds or number < rounds:
            content, place = bytes([number % 251]) * LENGTH, number % 2 * LENGTH
            buffer[2 * LENGTH :] = content
            vi.post_send(Descriptor(OP_SENDRECV, (memory.segment(2 * LENGTH, LENGTH),)))
            if (await vi.send_queue.wait()).has_failed or (await vi.receive_queue.wait()).has_failed:
                while not errors:
                    await driver.loop.sleep(1_000_000)
                return errors[0].name
            assert bytes(buffer[place : place + LENGTH]) == content
            vi.post_receive(receives[number % 2])
            number += 1
        return number

    return program


async def scribble(host: ViaNic, _driver: HostDriver, nic: Attachment) -> int:
    """Write commands, descriptors and bytes at random, and ring for them and for others'."""
    chance, until, rung = random.Random(5), time.monotonic() + WHILE, 0
    slots = host._slots
    while time.monotonic() < until:
        slot = chance.randrange(SETTINGS.slots)
        if chance.randrange(2):
            slots.memory[slot * SIZE : (slot + 1) * SIZE] = chance.randbytes(SIZE)
        else:
            op, value, name = chance.choice(list(Op)), chance.randrange(1 << 10), chance.choice([b"", b"talk"])
            slots.write_command(slot, Command(op, 1, chance.randrange(4), 1, 0, LENGTH, value, name))
        queue = chance.choice([Queue.COMMAND, Queue.SEND, Queue.RECEIVE])
        nic._doorbells.put(chance.choice([doorbell(queue, chance.randrange(3), slot), chance.getrandbits(64)]))
        nic.completions.take(64)
        rung += 1
    return rung


def _has_invalid(running: Nodes, name: str) -> bool:
    return bool(running.report(name)["counted"]["invalid"] > 100)


def test_a_process_that_writes_arbitrary_bytes_and_doorbells_affects_no_other() -> None:
    with Cluster.star(2).up() as cluster, nodes(cluster, 2, DRIVER, ETHERTYPE) as running:
        vandals = [running.host(name, scribble, 1) for name in ("n1", "n2")]
        good = [running.host("n1", talk(2, 300), 0), running.host("n2", talk(0, 300), 0)]
        for name in ("n1", "n2"):  # while the process is there: another host's counters begin anew
            eventually(partial(_has_invalid, running, name), "it writes")
        assert wait_for_results(good) == [300, 300]
        assert all(rung > 500 for rung in wait_for_results(vandals))


def test_the_peer_of_a_killed_process_is_notified_others_continue_and_another_takes_its_place() -> None:
    with Cluster.star(2).up() as cluster, nodes(cluster, 2, DRIVER, ETHERTYPE) as running:
        victim, widow = running.host("n2", talk(1, 0), 1), running.host("n1", talk(3, 0), 1)
        others = [running.host("n1", talk(2, 300), 0), running.host("n2", talk(0, 300), 0)]
        eventually(lambda: running.report("n1")["counted"]["messages_received"] > 20, "they talk")
        victim.kill()
        assert widow.result() == "CONN_LOST"
        assert wait_for_results(others) == [300, 300]
        eventually(lambda: running.regions("n2") == 0, "the agent keeps a dead host's region")
        again = [running.host("n1", talk(3, 20), 1), running.host("n2", talk(1, 20), 1)]
        assert wait_for_results(again) == [20, 20]
