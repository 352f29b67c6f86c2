"""Shared NICs: one agent per node, attached host processes, and isolation from killed or misbehaving ones."""

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


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)  # between two samples


async def exchange_with_all(endpoint: emp.Endpoint, _driver: HostDriver, _nic: Attachment) -> list[bool]:
    """Exchange messages of all sizes with every other host process; return whether each arrived intact."""
    own, intact = endpoint.number, []
    others = [number for number in range(endpoint.size) if number != own]
    for size in SIZES:
        buffers = {peer: bytearray(size) for peer in others}
        arrivals = [endpoint.post_receive(peer, 7, buffer) for peer, buffer in buffers.items()]
        sends = [endpoint.post_send(peer, 7, content(size, own)) for peer in others]
        for completion in (*arrivals, *sends):
            await completion
        intact += [buffer == content(size, peer) for peer, buffer in buffers.items()]
    return [*intact, endpoint.pinned == 0]


def ring_trips(number: int) -> Callable[[emp.Endpoint, HostDriver, Attachment], object]:
    """Return a program that makes `number` round trips between endpoints 0 and 2; endpoint 2 replies."""

    async def trips(endpoint: emp.Endpoint, _driver: HostDriver, _nic: Attachment) -> int:
        peer, buffer = 2 - endpoint.number, bytearray(4)
        for trip in range(number):
            if endpoint.number == 0:
                reply = endpoint.post_receive(peer, 1, buffer)
                await endpoint.send(peer, 1, trip.to_bytes(4, "big"))
                await reply
            else:
                await endpoint.receive(peer, 1, buffer)
                await endpoint.send(peer, 1, bytes(buffer))
            assert int.from_bytes(buffer, "big") == trip
        return number

    return trips


def test_host_processes_of_two_nodes_exchange_messages_with_all_others() -> None:
    """Two processes per node; those of one node communicate without a link."""
    with Cluster.star(2).up() as cluster, nodes(cluster) as running:
        hosts = [running.host(name, exchange_with_all, function) for name in ("n1", "n2") for function in (0, 1)]
        for host in hosts:
            intact = host.result()
            assert len(intact) == 3 * len(SIZES) + 1
            assert all(intact), intact


def test_buffers_in_the_heap_are_used_without_a_copy() -> None:
    async def exchange(endpoint: emp.Endpoint, _driver: HostDriver, nic: Attachment) -> int:
        size, peer = 200_000, 2 - endpoint.number
        sent, arrived = nic.heap.allocate(size), nic.heap.allocate(size)
        sent[:] = content(size, endpoint.number)
        free = nic.heap.free
        arrival = endpoint.post_receive(peer, 1, arrived)
        sending = endpoint.post_send(peer, 1, sent)
        allocated = free - nic.heap.free
        await arrival
        await sending
        assert arrived == content(size, peer)
        return allocated

    with Cluster.star(2).up() as cluster, nodes(cluster) as running:
        hosts = [running.host(name, exchange, 0) for name in ("n1", "n2")]
        for host in hosts:
            assert host.result() <= 8192  # the page lists


def test_a_send_larger_than_the_heap_fails_and_allocates_nothing() -> None:
    async def send_too_much(endpoint: emp.Endpoint, _driver: HostDriver, nic: Attachment) -> tuple[int, int]:
        free, descriptors = nic.heap.free, endpoint.free_descriptors
        with pytest.raises(emp.DescriptorsExhaustedError, match="pinned memory"):
            endpoint.post_send(1, 1, bytes(HEAP + 1))
        return free - nic.heap.free, descriptors - endpoint.free_descriptors

    with Cluster.star(2).up() as cluster, nodes(cluster) as running:
        assert running.host("n1", send_too_much).result() == (0, 0)


def test_a_function_has_one_host_process_at_a_time() -> None:
    async def attach_again(endpoint: emp.Endpoint, _driver: HostDriver, nic: Attachment) -> str:
        with pytest.raises(Exception, match="function 0 of this NIC already has a host process"):
            Attachment(device, ETHERTYPE, split_driver(), 0)
        with pytest.raises(Exception, match="functions 0 to 0"):
            Attachment(device, ETHERTYPE, split_driver(), 1)
        with pytest.raises(Exception, match="which have all attached"):
            Attachment(device, ETHERTYPE, split_driver())
        with pytest.raises(Exception, match="EtherType 0x"):
            Attachment(device, ETHERTYPE + 1, split_driver())
        with pytest.raises(Exception, match="no agent shares"):
            Attachment("lo", ETHERTYPE, split_driver())
        return nic.report()["counted"].keys() >= {"frames_sent"} and endpoint.number == 0

    with Cluster.star(2).up() as cluster, nodes(cluster, 1) as running:
        device = running.device("n1")
        assert running.host("n1", attach_again).result()


LARGE = 7 << 20  # bytes, many times a NIC's window


async def send_and_die(endpoint: emp.Endpoint, _driver: HostDriver, nic: Attachment) -> None:
    """Send a large message from endpoint 1 to 3; kill this process when part of it has been sent."""
    endpoint.post_send(3, 5, nic.heap.allocate(LARGE))
    while nic.report()["counted"]["frames_sent"] < 50:
        pass
    os.kill(os.getpid(), signal.SIGKILL)


async def wait_for_error(endpoint: emp.Endpoint, _driver: HostDriver, nic: Attachment) -> str:
    """Return the error that endpoint 3 receives."""
    try:
        await endpoint.receive(1, 5, nic.heap.allocate(LARGE))
    except emp.EmpError as error:
        return str(error)
    return ""


def test_a_host_killed_during_a_send_affects_only_its_peer_which_is_notified() -> None:
    with Cluster.star(2).up() as cluster, nodes(cluster) as running:
        idle = running.descriptors("n1")
        others = [running.host(name, ring_trips(300), 0) for name in ("n1", "n2")]
        receiver = running.host("n2", wait_for_error, 1)
        running.host("n1", send_and_die, 1)
        assert "node 1 has restarted" in receiver.result()
        assert [other.result() for other in others] == [300, 300]
        for other in others:
            other.close()
        eventually(lambda: running.regions("n1") == 0, "the agent unmaps the dead host's region")
        eventually(lambda: running.descriptors("n1") == idle, "the agent closes the dead host's descriptors")


def test_sends_to_a_killed_host_fail_and_a_new_host_can_receive() -> None:
    async def receive(endpoint: emp.Endpoint, _driver: HostDriver, _nic: Attachment) -> bytes:
        buffer = bytearray(5)
        await endpoint.receive(2, 1, buffer)
        return bytes(buffer)

    async def wait(endpoint: emp.Endpoint, driver: HostDriver, _nic: Attachment) -> None:
        await endpoint.receive(2, 1, bytearray(5))  # so that both know each other's incarnation
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
        time.sleep(0.1)  # the second message may or may not have been sent by now
        first.kill()
        eventually(lambda: running.regions("n1") == 0, "the agent unmaps the region")
        assert running.host("n1", receive, 0).result() == b"again"
        reported = sender.result()
        assert reported
        assert all("has restarted" in entry for entry in reported)


def test_a_peer_is_notified_of_a_hosts_death_at_50_percent_loss() -> None:
    """The receiver waits for the rest of a message whose sender was killed."""

    async def send(endpoint: emp.Endpoint, _driver: HostDriver, _nic: Attachment) -> None:
        await endpoint.send(2, 1, content(4 << 20, 0))

    async def receive(endpoint: emp.Endpoint, _driver: HostDriver, _nic: Attachment) -> str:
        try:
            await endpoint.receive(0, 1, bytearray(4 << 20))
        except emp.EmpError as error:
            return str(error)
        return "the message is complete"

    with Cluster.star(2).up() as cluster, nodes(cluster) as running:
        with cluster.inject("n1", loss="50%"):
            receiver = running.host("n2", receive, 0)
            sender = running.host("n1", send, 0)
            eventually(lambda: received_frames(running, "n2") > 20, "part of the message arrives")
            sender.kill()
            assert "has restarted" in receiver.result()
        again = [running.host(name, ring_trips(10), 0) for name in ("n1", "n2")]
        assert [host.result() for host in again] == [10, 10]


def received_frames(running: Nodes, name: str) -> int:
    """Return the frames that a node's NIC has received."""
    return running.report(name)["taken"]


@pytest.mark.parametrize("kind", ["descriptors", "words", "everywhere"])
def test_garbage_in_the_shared_region_affects_no_other_host(kind: str) -> None:
    """A host writes random bytes into its region and rings the doorbell."""

    async def write_garbage(endpoint: emp.Endpoint, _driver: HostDriver, nic: Attachment) -> int:
        rng, until, written = random.Random(kind), time.monotonic() + 2.0, 0
        ring = nic._doorbells
        memory = endpoint._descriptors.memory
        doorbells = 0
        while time.monotonic() < until:
            for _ in range(50):
                written += 1
                if kind != "words":
                    index = rng.randrange(640)
                    memory[index * SIZE : (index + 1) * SIZE] = rng.choice([
                        rng.randbytes(SIZE),
                        # A plausible descriptor: to a peer, with a page or a page list in the heap.
                        bytes([1, rng.randrange(256)]) + rng.randbytes(2) + bytes(5) + rng.randbytes(3)
                        + bytes([0, rng.randrange(4)]) + rng.randbytes(4) + bytes([0, rng.randrange(9)]),
                    ])  # fmt: skip
                    ring._words[0] = doorbells = doorbells + 1
                    ring._numbers[doorbells % len(ring._numbers)] = rng.randrange(1_400)
                    with contextlib.suppress(ProtocolViolationError):  # of this process's own garbage
                        nic.completions.take(64)
                if kind != "descriptors" and not rng.randrange(100):
                    words = rng.choice([ring._words, nic.completions._words])
                    words[rng.randrange(len(words))] = rng.choice([rng.randrange(2**64), 2**64 - 1, 0, doorbells + 9])
                if kind == "everywhere":
                    nic.heap._heap[rng.randrange(1 << 16)] = rng.randrange(256)
                os.eventfd_write(nic._eventfd, 1)
        return written

    with Cluster.star(2).up() as cluster, nodes(cluster, split_driver=split_driver(Settings(give_up=10**9))) as running:
        others = [running.host(name, ring_trips(300), 0) for name in ("n1", "n2")]
        misbehaving = [running.host(name, write_garbage, 1) for name in ("n1", "n2")]
        assert [other.result() for other in others] == [300, 300]
        assert min(process.result() for process in misbehaving) > 500
        assert_agents_work(running)


def assert_agents_work(running: Nodes) -> None:
    """Assert that two new host processes can exchange messages over both agents."""
    for name in running.agents:
        eventually(lambda name=name: running.regions(name) == 0, "the agent unmaps the regions")  # type: ignore[misc]
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


def test_a_process_that_sends_invalid_messages_is_detached_without_leaks() -> None:
    """Invalid messages on a new connection and on an attached one, with unexpected file descriptors."""

    def send_garbage(garbage: bytes) -> Program:
        async def program(_endpoint: emp.Endpoint, _driver: HostDriver, nic: Attachment) -> None:
            for connection in (attach_protocol.connect(device), nic._connection):
                with contextlib.suppress(ConnectionError):
                    socket.send_fds(connection, [garbage], [0, 1, 2])
            attach_protocol.connect(device).close()  # a connection without a message

        return program

    with Cluster.star(2).up() as cluster, nodes(cluster) as running:
        device, idle = running.device("n1"), running.descriptors("n1")
        for garbage in GARBAGE:
            running.host("n1", send_garbage(garbage), 1).result()
            eventually(lambda: running.regions("n1") == 0, "the agent unmaps the region")
        eventually(lambda: running.descriptors("n1") == idle, "the agent closes the descriptors")
        assert_agents_work(running)


def test_a_stopped_host_does_not_delay_others_and_continues_after_sigcont() -> None:
    async def exchange_large(endpoint: emp.Endpoint, _driver: HostDriver, nic: Attachment) -> bool:
        peer, own = 4 - endpoint.number, nic.heap.allocate(1 << 20)
        for _ in range(3):
            arrival = endpoint.post_receive(peer, 5, own)
            await endpoint.send(peer, 5, content(1 << 20, endpoint.number))
            await arrival
        return own == content(1 << 20, peer)

    with Cluster.star(2).up() as cluster, nodes(cluster) as running:
        others = [running.host(name, ring_trips(300), 0) for name in ("n1", "n2")]
        stopped = [running.host(name, exchange_large, 1) for name in ("n1", "n2")]
        stopped[0].kill(signal.SIGSTOP)
        assert [other.result() for other in others] == [300, 300]
        assert running.report("n1")["hosts"]["1"] == stopped[0].pid
        stopped[0].kill(signal.SIGCONT)
        assert all(host.result() for host in stopped)


def test_an_agent_with_idle_hosts_uses_no_cpu() -> None:
    async def wait(endpoint: emp.Endpoint, driver: HostDriver, _nic: Attachment) -> None:
        await driver.loop.timeout(10**12, endpoint.receive(3, 1, bytearray(4)))

    def cpu_ticks(pid: int) -> int:
        """Return the CPU time of a process in ticks of 10 ms."""
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    def is_idle() -> bool:
        before = sum(map(cpu_ticks, pids))
        time.sleep(0.05)  # measuring interval
        return sum(map(cpu_ticks, pids)) == before

    with Cluster.star(2).up() as cluster, nodes(cluster) as running:
        pids = [running.agents["n1"].pid, *(running.host("n1", wait).pid for _ in range(2))]
        eventually(is_idle, "agent and hosts are idle")
        before = sum(map(cpu_ticks, pids))
        time.sleep(1.0)  # without traffic
        assert sum(map(cpu_ticks, pids)) - before <= 5


def test_a_message_received_before_the_agent_was_killed_is_delivered() -> None:
    """The sender has its acknowledgement. The blocked host sees the message and the agent's death at once."""

    async def wait(endpoint: emp.Endpoint, _driver: HostDriver, _nic: Attachment) -> bytes:
        buffer = bytearray(5)
        arrival = endpoint.post_receive(3, 1, buffer)
        await endpoint.send(2, 1, b"ready")
        await arrival
        return bytes(buffer)

    async def receive(endpoint: emp.Endpoint, _driver: HostDriver, _nic: Attachment) -> None:
        await endpoint.receive(0, 1, bytearray(5))

    async def send(endpoint: emp.Endpoint, _driver: HostDriver, _nic: Attachment) -> None:
        await endpoint.send(0, 1, b"hello")

    with Cluster.star(2).up() as cluster, nodes(cluster) as running:
        blocked, receiver = running.host("n1", wait, 0), running.host("n2", receive, 0)
        receiver.result()
        eventually(lambda: state(blocked.pid) == "S", "the host is blocked")
        blocked.kill(signal.SIGSTOP)
        running.host("n2", send, 1).result()
        running.agents["n1"].close()
        blocked.kill(signal.SIGCONT)
        assert blocked.result() == b"hello"


def state(pid: int) -> str:
    """Return a process's state letter from /proc: S if it sleeps."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]


def test_hosts_of_a_killed_agent_are_notified() -> None:
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
