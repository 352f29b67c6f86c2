"""Shared NICs: an agent for each node, attached host processes, and isolation from dying or misbehaving ones."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from protocols.emp import host as emp
from protocols.emp.codec import ETHERTYPE
from protocols.emp.descriptors import SIZE
from protocols.emp.settings import Settings
from protocols.emp.split_driver import split_driver
from testbed import Cluster
from testbed.runtime.shared import attach_protocol
from testbed.runtime.shared.attachment import Attachment, HostDriver
from testbed.runtime.shared.rings import ProtocolViolationError
from tests.live.shared_nic_processes import HEAP, Nodes, Program, nodes

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

TIMEOUT = 20.0  # s
SIZES = [0, 1, 1_400, 4_096, 100_000, 1 << 20]


def content(size: int, number: int) -> bytes:
    return random.Random(size + number).randbytes(size)


def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)  # between two samples


async def everybody(endpoint: emp.Endpoint, _driver: HostDriver, _nic: Attachment) -> list[bool]:
    """Messages of all sizes with every other host process."""
    own, right = endpoint.number, []
    others = [number for number in range(endpoint.size) if number != own]
    for size in SIZES:
        buffers = {peer: bytearray(size) for peer in others}
        arrivals = [endpoint.post_receive(peer, 7, buffer) for peer, buffer in buffers.items()]
        sends = [endpoint.post_send(peer, 7, content(size, own)) for peer in others]
        for completion in (*arrivals, *sends):
            await completion
        right += [buffer == content(size, peer) for peer, buffer in buffers.items()]
    return [*right, endpoint.pinned == 0]


def ring_trips(number: int) -> Callable[[emp.Endpoint, HostDriver, Attachment], object]:
    """Return a program that makes `number` round trips between endpoints 0 and 2; endpoint 2 answers."""

    async def trips(endpoint: emp.Endpoint, _driver: HostDriver, _nic: Attachment) -> int:
        peer, buffer = 2 - endpoint.number, bytearray(4)
        for trip in range(number):
            if endpoint.number == 0:
                answer = endpoint.post_receive(peer, 1, buffer)
                await endpoint.send(peer, 1, trip.to_bytes(4, "big"))
                await answer
            else:
                await endpoint.receive(peer, 1, buffer)
                await endpoint.send(peer, 1, bytes(buffer))
            assert int.from_bytes(buffer, "big") == trip
        return number

    return trips


def test_host_processes_of_two_nodes_exchange_messages_with_all_others() -> None:
    """Two for each node: those of one node have no wire between them."""
    with Cluster.star(2).up() as cluster, nodes(cluster) as running:
        hosts = [running.host(name, everybody, function) for name in ("n1", "n2") for function in (0, 1)]
        for host in hosts:
            right = host.result()
            assert len(right) == 3 * len(SIZES) + 1
            assert all(right), right


def test_buffers_in_the_heap_are_used_where_they_are() -> None:
    async def talk(endpoint: emp.Endpoint, _driver: HostDriver, nic: Attachment) -> int:
        size, peer = 200_000, 2 - endpoint.number
        sent, arrived = nic.heap.allocate(size), nic.heap.allocate(size)
        sent[:] = content(size, endpoint.number)
        free = nic.heap.free
        arrival = endpoint.post_receive(peer, 1, arrived)
        sending = endpoint.post_send(peer, 1, sent)
        taken = free - nic.heap.free
        await arrival
        await sending
        assert arrived == content(size, peer)
        return taken

    with Cluster.star(2).up() as cluster, nodes(cluster) as running:
        hosts = [running.host(name, talk, 0) for name in ("n1", "n2")]
        for host in hosts:
            assert host.result() <= 8192  # the lists of pages


def test_more_than_the_heap_has_room_for_is_refused_and_leaves_nothing_behind() -> None:
    async def much(endpoint: emp.Endpoint, _driver: HostDriver, nic: Attachment) -> tuple[int, int]:
        free, descriptors = nic.heap.free, endpoint.free_descriptors
        with pytest.raises(emp.DescriptorsExhaustedError, match="pinned memory"):
            endpoint.post_send(1, 1, bytes(HEAP + 1))
        return free - nic.heap.free, descriptors - endpoint.free_descriptors

    with Cluster.star(2).up() as cluster, nodes(cluster) as running:
        assert running.host("n1", much).result() == (0, 0)


def test_a_function_has_one_host_process_at_a_time() -> None:
    async def stay(endpoint: emp.Endpoint, _driver: HostDriver, nic: Attachment) -> str:
        with pytest.raises(Exception, match="function 0 of this NIC has a host process"):
            Attachment(device, ETHERTYPE, split_driver(), 0)
        with pytest.raises(Exception, match="functions 0 to 0"):
            Attachment(device, ETHERTYPE, split_driver(), 1)
        with pytest.raises(Exception, match="all 1 functions"):
            Attachment(device, ETHERTYPE, split_driver())
        with pytest.raises(Exception, match="EtherType 0x"):
            Attachment(device, ETHERTYPE + 1, split_driver())
        with pytest.raises(Exception, match="no agent shares"):
            Attachment("lo", ETHERTYPE, split_driver())
        return nic.report()["counted"].keys() >= {"frames_sent"} and endpoint.number == 0

    with Cluster.star(2).up() as cluster, nodes(cluster, 1) as running:
        device = running.device("n1")
        assert running.host("n1", stay).result()


LARGE = 7 << 20  # bytes, many times what a firmware sends at once


async def die_in_mid_send(endpoint: emp.Endpoint, _driver: HostDriver, nic: Attachment) -> None:
    """A large message from number 1 to 3, and death when some of it has been sent."""
    endpoint.post_send(3, 5, nic.heap.allocate(LARGE))
    while nic.report()["counted"]["frames_sent"] < 50:
        pass
    os.kill(os.getpid(), signal.SIGKILL)


async def wait_for_it(endpoint: emp.Endpoint, _driver: HostDriver, nic: Attachment) -> str:
    """Return the error that endpoint 3 receives."""
    try:
        await endpoint.receive(1, 5, nic.heap.allocate(LARGE))
    except emp.EmpError as error:
        return str(error)
    return ""


def test_a_host_killed_during_a_send_affects_no_other_and_its_peer_is_notified() -> None:
    with Cluster.star(2).up() as cluster, nodes(cluster) as running:
        idle = running.descriptors("n1")
        others = [running.host(name, ring_trips(300), 0) for name in ("n1", "n2")]
        receiver = running.host("n2", wait_for_it, 1)
        running.host("n1", die_in_mid_send, 1)
        assert "node 1 has restarted" in receiver.result()
        assert [other.result() for other in others] == [300, 300]
        for other in others:
            other.close()
        eventually(lambda: running.regions("n1") == 0, "the agent keeps a dead host's region")
        eventually(lambda: running.descriptors("n1") == idle, "the agent keeps a dead host's descriptors")


def test_sends_to_a_dead_host_fail_and_its_successor_begins_anew() -> None:
    async def receive(endpoint: emp.Endpoint, _driver: HostDriver, _nic: Attachment) -> bytes:
        buffer = bytearray(5)
        await endpoint.receive(2, 1, buffer)
        return bytes(buffer)

    async def wait(endpoint: emp.Endpoint, driver: HostDriver, _nic: Attachment) -> None:
        await endpoint.receive(2, 1, bytearray(5))  # so that both have heard of each other
        await driver.loop.sleep(10**12)

    async def send(endpoint: emp.Endpoint, _driver: HostDriver, _nic: Attachment) -> list[str]:
        await endpoint.send(0, 1, b"first")
        log = []
        while True:
            try:
                await endpoint.send(0, 1, b"again")
            except emp.EmpError as error:
                log.append(str(error))
                continue
            return log

    with Cluster.star(2).up() as cluster, nodes(cluster) as running:
        first = running.host("n1", wait, 0)
        sender = running.host("n2", send, 0)
        time.sleep(0.1)  # the second message is on its way by then, or is not: either will do
        first.kill()
        eventually(lambda: running.regions("n1") == 0, "the agent has not noticed")
        assert running.host("n1", receive, 0).result() == b"again"
        reported = sender.result()
        assert reported
        assert all("has restarted" in entry for entry in reported)


def test_a_peer_is_notified_of_a_hosts_death_although_half_of_all_frames_are_lost() -> None:
    """The receiver waits only for the rest of a message whose sender is dead."""

    async def send(endpoint: emp.Endpoint, _driver: HostDriver, _nic: Attachment) -> None:
        await endpoint.send(2, 1, content(4 << 20, 0))

    async def receive(endpoint: emp.Endpoint, _driver: HostDriver, _nic: Attachment) -> str:
        try:
            await endpoint.receive(0, 1, bytearray(4 << 20))
        except emp.EmpError as error:
            return str(error)
        return "all of it has come"

    with Cluster.star(2).up() as cluster, nodes(cluster) as running:
        with cluster.inject("n1", loss="50%"):
            receiver = running.host("n2", receive, 0)
            sender = running.host("n1", send, 0)
            eventually(lambda: received_frames(running, "n2") > 20, "some of it comes")
            sender.kill()
            assert "has restarted" in receiver.result()
        again = [running.host(name, ring_trips(10), 0) for name in ("n1", "n2")]
        assert [host.result() for host in again] == [10, 10]


def received_frames(running: Nodes, name: str) -> int:
    """Return the frames that a node's NIC has received."""
    return running.report(name)["taken"]


@pytest.mark.parametrize("kind", ["descriptors", "words", "everywhere"])
def test_garbage_at_full_speed_affects_no_transfer(kind: str) -> None:
    """A host writes random bytes into its region and rings the doorbell."""

    async def scribble(endpoint: emp.Endpoint, _driver: HostDriver, nic: Attachment) -> int:
        chance, until, written = random.Random(kind), time.monotonic() + 2.0, 0
        ring = nic._doorbells
        memory = endpoint._descriptors.memory
        rung = 0
        while time.monotonic() < until:
            for _ in range(50):
                written += 1
                if kind != "words":
                    index = chance.randrange(640)
                    memory[index * SIZE : (index + 1) * SIZE] = chance.choice([
                        chance.randbytes(SIZE),
                        # What could be a descriptor: to a peer, with a page or a list of them in the heap.
                        bytes([1, chance.randrange(256)]) + chance.randbytes(2) + bytes(5) + chance.randbytes(3)
                        + bytes([0, chance.randrange(4)]) + chance.randbytes(4) + bytes([0, chance.randrange(9)]),
                    ])  # fmt: skip
                    ring._words[0] = rung = rung + 1
                    ring._numbers[rung % len(ring._numbers)] = chance.randrange(1_400)
                    with contextlib.suppress(ProtocolViolationError):  # its own
                        nic.completions.take(64)
                if kind != "descriptors" and not chance.randrange(100):
                    words = chance.choice([ring._words, nic.completions._words])
                    words[chance.randrange(len(words))] = chance.choice(
                        [chance.randrange(2**64), 2**64 - 1, 0, rung + 9]
                    )
                if kind == "everywhere":
                    nic.heap._heap[chance.randrange(1 << 16)] = chance.randrange(256)
                os.eventfd_write(nic._eventfd, 1)
        return written

    with Cluster.star(2).up() as cluster, nodes(cluster, split_driver=split_driver(Settings(give_up=10**9))) as running:
        others = [running.host(name, ring_trips(300), 0) for name in ("n1", "n2")]
        vandals = [running.host(name, scribble, 1) for name in ("n1", "n2")]
        assert [other.result() for other in others] == [300, 300]
        assert min(vandal.result() for vandal in vandals) > 500
        assert_alive(running)


def assert_alive(running: Nodes) -> None:
    """Two new host processes find both agents as they should be."""
    for name in running.agents:
        eventually(lambda name=name: running.regions(name) == 0, "an agent keeps a region")  # type: ignore[misc]
    hosts = [running.host(name, ring_trips(10), 0) for name in ("n1", "n2")]
    assert [host.result() for host in hosts] == [10, 10]


GARBAGE = [
    b"{",
    b"[" * 60_000,
    b"\xff\xfe",
    b"7",
    b"null",
    b'{"do": "attach"}',
    b'{"do": "attach", "version": 1, "ethertype": 34997, "function": -1}',
    b'{"do": "attach", "version": 1, "ethertype": 34997, "function": "0"}',
    b'{"do": ["report"]}',
    b"x" * 100_000,
]


def test_a_process_that_sends_invalid_messages_to_an_agent_is_detached_and_leaves_nothing_behind() -> None:
    """Invalid messages on a new connection and on an attached one, with unexpected file descriptors."""

    def say(garbage: bytes) -> Program:
        async def nonsense(_endpoint: emp.Endpoint, _driver: HostDriver, nic: Attachment) -> None:
            for connection in (attach_protocol.connect(device), nic._connection):
                with contextlib.suppress(ConnectionError):
                    socket.send_fds(connection, [garbage], [0, 1, 2])
            attach_protocol.connect(device).close()  # a connection without a message

        return nonsense

    with Cluster.star(2).up() as cluster, nodes(cluster) as running:
        device, idle = running.device("n1"), running.descriptors("n1")
        for garbage in GARBAGE:
            running.host("n1", say(garbage), 1).result()
            eventually(lambda: running.regions("n1") == 0, "the agent keeps a region")
        eventually(lambda: running.descriptors("n1") == idle, "the agent keeps descriptors")
        assert_alive(running)


def test_a_stopped_host_delays_no_other_and_continues() -> None:
    async def everything(endpoint: emp.Endpoint, _driver: HostDriver, nic: Attachment) -> bool:
        peer, own = 4 - endpoint.number, nic.heap.allocate(1 << 20)
        for _ in range(3):
            arrival = endpoint.post_receive(peer, 5, own)
            await endpoint.send(peer, 5, content(1 << 20, endpoint.number))
            await arrival
        return own == content(1 << 20, peer)

    with Cluster.star(2).up() as cluster, nodes(cluster) as running:
        others = [running.host(name, ring_trips(300), 0) for name in ("n1", "n2")]
        stopped = [running.host(name, everything, 1) for name in ("n1", "n2")]
        stopped[0].kill(signal.SIGSTOP)
        assert [other.result() for other in others] == [300, 300]
        assert running.report("n1")["hosts"]["1"] == stopped[0].pid
        stopped[0].kill(signal.SIGCONT)
        assert all(host.result() for host in stopped)


def test_an_agent_whose_hosts_do_nothing_sleeps() -> None:
    async def wait(endpoint: emp.Endpoint, driver: HostDriver, _nic: Attachment) -> None:
        await driver.loop.timeout(10**12, endpoint.receive(3, 1, bytearray(4)))

    def used(pid: int) -> int:
        """Ticks of the processor, a hundred to a second."""
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    def is_idle() -> bool:
        before = sum(map(used, pids))
        time.sleep(0.05)  # in which it is seen whether they work
        return sum(map(used, pids)) == before

    with Cluster.star(2).up() as cluster, nodes(cluster) as running:
        pids = [running.agents["n1"].pid, *(running.host("n1", wait).pid for _ in range(2))]
        eventually(is_idle, "they have nothing to do any more")
        before = sum(map(used, pids))
        time.sleep(1.0)  # without traffic
        assert sum(map(used, pids)) - before <= 5


def test_a_message_that_has_come_before_the_agent_died_is_not_lost() -> None:
    """The sender has its acknowledgement. The sleeping host sees both the message and the agent's death."""

    async def wait(endpoint: emp.Endpoint, _driver: HostDriver, _nic: Attachment) -> bytes:
        buffer = bytearray(5)
        arrival = endpoint.post_receive(3, 1, buffer)
        await endpoint.send(2, 1, b"ready")
        await arrival
        return bytes(buffer)

    async def hear(endpoint: emp.Endpoint, _driver: HostDriver, _nic: Attachment) -> None:
        await endpoint.receive(0, 1, bytearray(5))

    async def say(endpoint: emp.Endpoint, _driver: HostDriver, _nic: Attachment) -> None:
        await endpoint.send(0, 1, b"hello")

    with Cluster.star(2).up() as cluster, nodes(cluster) as running:
        sleeper, hearer = running.host("n1", wait, 0), running.host("n2", hear, 0)
        hearer.result()
        eventually(lambda: state(sleeper.pid) == "S", "the host sleeps")
        sleeper.kill(signal.SIGSTOP)
        running.host("n2", say, 1).result()
        running.agents["n1"].close()
        sleeper.kill(signal.SIGCONT)
        assert sleeper.result() == b"hello"


def state(pid: int) -> str:
    """Return a process's state letter from /proc: S if it sleeps."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]


def test_hosts_of_an_agent_that_dies_are_notified() -> None:
    async def wait(endpoint: emp.Endpoint, _driver: HostDriver, _nic: Attachment) -> None:
        await endpoint.receive(1, 1, bytearray(4))

    with Cluster.star(2).up() as cluster, nodes(cluster) as running:
        hosts = [running.host("n1", wait) for _ in range(2)]
        running.agents["n1"].kill()
        for host in hosts:
            word, reported = host.next_report()
            assert word == "failed"
            assert "agent of the NIC has ended" in reported
        running.agents["n1"].close()
        running.agents["n1"] = running.start("n1")
        again = [running.host(name, ring_trips(10), 0) for name in ("n1", "n2")]
        assert [host.result() for host in again] == [10, 10]
