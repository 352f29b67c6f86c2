"""AM-II's NICs shared by host processes, whose endpoints compete for few endpoint frames; a killed, paused or
misbehaving process does not disturb the others."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from typing import Any, Final

import pytest

from protocols.active_messages.am_errors import Returned, Status
from protocols.active_messages.endpoint_names import EndpointName
from protocols.am2 import page as layout
from protocols.am2.codec import ETHERTYPE
from protocols.am2.host.endpoint import Endpoint
from protocols.am2.host.library import ActiveMessages
from protocols.am2.host.token import Token
from protocols.am2.settings import Settings
from protocols.am2.shared_frames import SharedHostFrames
from protocols.am2.split_driver import split_driver
from protocols.core.completion import Completion
from testbed import Cluster
from testbed.cluster.running_cluster import RunningCluster
from testbed.engine.tasks import Task, Work
from testbed.runtime.shared.attachment import Attachment, HostDriver
from tests.live.am2_torture import Process, Torture, assert_exactly_once
from tests.live.machine_state import eventually
from tests.live.shared_nic_processes import Nodes, Program, nodes, wait_for_results

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

TAG: Final = 7
SHORT, MEDIUM_DATA, BULK_DATA, REPLY = range(1, 5)
MEDIUM: Final = 700
BULK: Final = 20_000
COUNT: Final = 100
NOT_READY: Final = (Status.BAD_ENDPOINT, Status.BAD_TAG, Status.BAD_SEGMENT)
CONTENT: Final = bytes(range(250)) * (BULK // 250)


def am2(cluster: RunningCluster, processes: int, frames: int = 7, **settings: int) -> Any:
    return nodes(cluster, processes, split_driver(Settings(frames=frames, **settings)), ETHERTYPE)


def serve(endpoints: int, dma_segment: bool = True) -> Program:
    """Reply to every request at each endpoint, forever: with the argument plus one, or with the data's length
    and sum."""

    def on_data(token: Token, data: memoryview, word: int) -> None:
        token.reply(REPLY, word, len(data), sum(data))

    async def program(am: ActiveMessages, _driver: HostDriver, nic: Attachment) -> None:
        bundle = am.allocate_bundle()
        for number in range(endpoints):
            endpoint = bundle.allocate_endpoint()
            assert endpoint.name == EndpointName(am.node, am.name_of(am.rank).endpoint + number)
            # The NIC writes into the first endpoint's segment directly; data for the others are copied.
            endpoint.segment = nic.heap.allocate(BULK) if not number and dma_segment else bytearray(BULK)
            endpoint.set_handler(SHORT, lambda token, word: token.reply(REPLY, word, word + 1, 0))
            endpoint.set_handler(MEDIUM_DATA, on_data)
            endpoint.set_handler(BULK_DATA, on_data)
            endpoint.tag = TAG
        while True:
            await bundle.wait()
            await bundle.poll()

    return program


def send_requests(servers: list[EndpointName], count: int = COUNT, endpoints: int = 1) -> Program:
    """Send `count` requests of all forms to each server endpoint; return the number of endpoint faults."""

    async def program(am: ActiveMessages, driver: HostDriver, _nic: Attachment) -> int:
        # One bundle per endpoint: a sender polls its whole bundle and would handle messages that another task awaits.
        own = [am.allocate_bundle().allocate_endpoint() for _ in range(endpoints)]
        tasks = [driver.loop.spawn(_request_from(endpoint, servers, count), "requests") for endpoint in own]
        for task in tasks:
            await task
        return am.driver.fault_count

    return program


async def _request_from(endpoint: Endpoint, servers: list[EndpointName], count: int) -> None:
    replies: dict[int, tuple[int, int]] = {}
    returned_early: list[int] = []

    def on_reply(_: Token, word: int, *values: int) -> None:
        assert word not in replies, "a second reply"
        replies[word] = (values[0], values[1])

    def returned(message: Returned) -> None:
        assert message.status in NOT_READY, message
        returned_early.append(message.arguments[0])

    async def send(word: int) -> None:
        slot = slots[word % len(slots)]
        if word % 3 == 0:
            await endpoint.request(slot, SHORT, word)
        elif word % 3 == 1:
            await endpoint.request_medium(slot, MEDIUM_DATA, CONTENT[:MEDIUM], word)
        else:
            await endpoint.request_bulk(slot, BULK_DATA, CONTENT, 0, word)

    endpoint.set_handler(REPLY, on_reply)
    endpoint.error_handler = returned
    slots = [endpoint.map_any(server, TAG) for server in servers]
    for word in range(count * len(slots)):
        await send(word)
    while len(replies) < count * len(slots):
        while returned_early:  # the server endpoint did not exist yet
            await send(returned_early.pop())
        await endpoint.wait()
        await endpoint.poll()
    for word, reply in replies.items():
        assert reply == ((word + 1, 0), (MEDIUM, sum(CONTENT[:MEDIUM])), (BULK, sum(CONTENT)))[word % 3]


def server_names(numbers_per_host: int, process: int, endpoints: int) -> list[EndpointName]:
    """Return the names of a process's endpoints on node 1."""
    return [EndpointName(1, process * numbers_per_host + number) for number in range(endpoints)]


NUMBERS: Final = Settings().numbers_per_host


def agent_counters(running: Nodes, name: str) -> dict[str, int]:
    counters: dict[str, int] = running.report(name)["counted"]
    return counters


def test_endpoints_of_several_processes_share_frames_and_each_request_gets_one_reply() -> None:
    with Cluster.star(2).up() as cluster, am2(cluster, 3, frames=3) as running:
        for process in range(3):
            running.host("n2", serve(2), process)
        clients = [
            running.host("n1", send_requests(server_names(NUMBERS, process, 2), endpoints=2), process)
            for process in range(3)
        ]
        assert all(faults > 2 for faults in wait_for_results(clients))
        assert agent_counters(running, "n2")["unloaded"] > 6


def test_processes_of_one_node_send_to_each_other() -> None:
    with Cluster.star(2).up() as cluster, am2(cluster, 2) as running:
        running.host("n2", serve(3), 0)
        assert running.host("n2", send_requests(server_names(NUMBERS, 0, 3)), 1).result()
        assert running.report("n1")["taken"] == 0, "no frame was on the wire"


def test_messages_to_a_killed_process_are_returned_and_its_slot_can_be_reused() -> None:
    async def send_until_returned(am: ActiveMessages, _driver: HostDriver, _nic: Attachment) -> list[str]:
        """Send requests to process 1 of node 1 until one is returned."""
        endpoint, log, received = am.allocate_bundle().allocate_endpoint(), list[str](), list[bool]()
        endpoint.error_handler = lambda returned: log.append(returned.status.name) if received else None
        endpoint.set_handler(REPLY, lambda *_: received.append(True))
        endpoint.map(0, EndpointName(1, NUMBERS), TAG)
        while not log:
            await endpoint.request(0, SHORT, 1)
        return sorted(set(log))

    with Cluster.star(2).up() as cluster, am2(cluster, 2, frames=2) as running:
        idle = running.descriptors("n2")
        running.host("n2", serve(2), 0)
        victim = running.host("n2", serve(2), 1)
        others = running.host("n1", send_requests(server_names(NUMBERS, 0, 2), 400), 0)
        sender = running.host("n1", send_until_returned, 1)
        eventually(lambda: agent_counters(running, "n2")["messages_delivered"] > 100, "requests are delivered")
        victim.kill()
        reported = set(sender.result())  # accepted before its death, and received after it
        assert reported
        assert reported <= {"UNREACHABLE", "BAD_ENDPOINT"}
        assert others.result()
        eventually(lambda: running.regions("n2") == 1, "the agent unmaps the dead host's region")
        running.host("n2", serve(2), 1)
        sender.close()
        assert running.host("n1", send_requests(server_names(NUMBERS, 1, 2)), 1).result()
        assert running.descriptors("n2") > idle


def test_a_stopped_process_does_not_occupy_endpoint_frames_and_continues_after_sigcont() -> None:
    with Cluster.star(2).up() as cluster, am2(cluster, 2, frames=2) as running:
        running.host("n2", serve(2), 0)
        stopped = running.host("n2", serve(2), 1)
        client_of_stopped = running.host("n1", send_requests(server_names(NUMBERS, 1, 2), 400), 1)
        eventually(lambda: agent_counters(running, "n2")["messages_delivered"] > 20, "requests are delivered")
        stopped.kill(signal.SIGSTOP)
        assert running.host("n1", send_requests(server_names(NUMBERS, 0, 2), 50), 0).result()
        assert agent_counters(running, "n2")["forced"]
        stopped.kill(signal.SIGCONT)
        assert client_of_stopped.result()


def test_a_process_with_arbitrary_writes_and_doorbells_is_harmless() -> None:
    async def write_garbage(am: ActiveMessages, _driver: HostDriver, nic: Attachment) -> int:
        frames = am.memory
        assert isinstance(frames, SharedHostFrames)
        endpoint = am.allocate_bundle().allocate_endpoint()
        rng, until, doorbells = random.Random(5), time.monotonic() + 2.0, 0
        while time.monotonic() < until:
            page = rng.choice(frames.frames)
            for _ in range(20):
                offset = rng.randrange(layout.SIZE - 8)
                page[offset : offset + 8] = rng.randbytes(8)
                slot = rng.randrange(layout.SLOTS)
                own = rng.choice([endpoint.name.endpoint, 0, 1, rng.randrange(1 << 16)])
                layout.WRITE_ENTRY[2](
                    page, layout.SLOT_OFFSETS[slot], layout.READY, 0, rng.randrange(3), rng.choice([0, 9, 1 << 31]),
                    rng.getrandbits(rng.choice([12, 30, 64])), 0, rng.randrange(4), slot >> 4 & 1, 1, 2, own,
                    rng.choice([0, 1, NUMBERS]), TAG + 1, doorbells & 0xFFFF, rng.getrandbits(32), rng.getrandbits(32),
                    1, 2,
                )  # fmt: skip
                frames._bound_table[rng.randrange(len(frames.frames))] = rng.choice([own, endpoint.name.endpoint])
                subject = rng.choice([slot, rng.randrange(128)])
                nic._doorbells.put(rng.choice([own << 7 | subject, own << 14 | subject, rng.getrandbits(64)]))
                nic.completions.take(64)
                doorbells += 1
        return doorbells

    with Cluster.star(2).up() as cluster, am2(cluster, 2, frames=4, retries=5) as running:
        running.host("n2", serve(2), 0)
        misbehaving = [running.host(name, write_garbage, 1) for name in ("n1", "n2")]
        client = running.host("n1", send_requests(server_names(NUMBERS, 0, 2), 300), 0)
        assert client.result()
        assert all(doorbells > 500 for doorbells in wait_for_results(misbehaving))
        assert min(agent_counters(running, name)["invalid"] for name in ("n1", "n2")) > 100
        for process in misbehaving:
            process.close()
        eventually(lambda: running.regions("n1") == 0, "the agent unmaps the regions")


class _SharedNicEnvironment:
    """Environment of the torture workload in a host process that shares its NIC."""

    def __init__(self, driver: HostDriver) -> None:
        self._driver = driver

    def spawn(self, work: Work[None], name: str) -> Task[None]:
        return self._driver.loop.spawn(work, name)

    def now(self) -> int:
        return self._driver.now()

    def sleep(self, duration: int) -> Completion[None]:
        return self._driver.loop.sleep(duration)


PROCESSES: Final = 3
VICTIM: Final = 10  # second process of n4


DETOUR: Final = 20_000_000_000
"""Nanoseconds that messages wait for a route. On a busy machine, mapping the network after a flap may take longer than the
default, and messages to live nodes would be returned."""
RETRIES: Final = 120
"""Retransmissions before a peer is unreachable, at intervals up to 160 ms: no NIC dies here, but a busy one may not reply
for seconds."""


async def wait_for_routes(am: ActiveMessages, _driver: HostDriver, _nic: Attachment) -> set[int]:
    """Wait for routes to all other nodes and return these: their NICs return messages to a missing endpoint."""
    endpoint, actual = am.allocate_bundle().allocate_endpoint(), set[int]()

    def returned(message: Returned) -> None:
        assert message.status is Status.BAD_ENDPOINT
        actual.add(message.destination.node)

    endpoint.error_handler = returned
    others = set(range(am.size)) - {am.node}
    for node in others:
        await endpoint.request(endpoint.map_any(EndpointName(node, NUMBERS), TAG), SHORT, 0)
    while actual < others:
        await endpoint.wait()
        await endpoint.poll()
    return actual


@pytest.mark.parametrize(
    "description", [Cluster.star(4), Cluster.ring(4, kind="myrinet")], ids=lambda description: description.name
)
def test_a_killed_process_and_a_flapping_link_do_not_affect_other_processes_and_nodes(
    description: Cluster,
) -> None:
    """Four nodes, twelve endpoints of three processes each over seven frames, 5 % of all frames lost."""
    workload = Torture(endpoints=4, victim=VICTIM, over=3_000_000_000)

    async def torture(am: ActiveMessages, driver: HostDriver, _nic: Attachment) -> dict[str, Any]:
        return await Process(am, _SharedNicEnvironment(driver), workload).run()

    with description.up() as cluster, am2(cluster, PROCESSES, retries=RETRIES, detour=DETOUR) as running:
        for name in running.agents:
            with contextlib.closing(running.host(name, wait_for_routes)) as host:
                assert len(host.result()) == 3
        for name in running.agents:
            cluster.inject(name, loss="5%")
        hosts = [running.host(f"n{node + 1}", torture, process) for node in range(4) for process in range(PROCESSES)]
        start = time.monotonic()
        _sleep_until(start + 1.0)
        hosts[VICTIM].kill()
        for after in (1.3, 2.0):
            _sleep_until(start + after)
            with cluster.cut("n3"):
                _sleep_until(start + after + 0.3)
        reported = {rank: host.result() for rank, host in enumerate(hosts) if rank != VICTIM}
        assert_exactly_once(reported)
        assert all(entry["wrong"] == 0 for entry in reported.values())
        returned_by_rank = {rank: entry["returned"] for rank, entry in reported.items()}
        assert {peer for returned in returned_by_rank.values() for peer, _ in returned} == {VICTIM}, returned_by_rank
        # Twelve endpoints over seven frames: the minimum if each was resident once.
        minimum = PROCESSES * workload.endpoints - Settings().frames
        unloaded = {name: agent_counters(running, name)["unloaded"] for name in running.agents}
        assert min(unloaded.values()) >= minimum, unloaded


def _sleep_until(deadline: float) -> None:
    time.sleep(max(0.0, deadline - time.monotonic()))
