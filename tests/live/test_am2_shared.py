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
ASK, SHOW, PUT, ANSWER = range(1, 5)
MEDIUM: Final = 700
BULK: Final = 20_000
COUNT: Final = 100
NOT_YET: Final = (Status.BAD_ENDPOINT, Status.BAD_TAG, Status.BAD_SEGMENT)
CONTENT: Final = bytes(range(250)) * (BULK // 250)


def am2(cluster: RunningCluster, processes: int, frames: int = 7, **settings: int) -> Any:
    return nodes(cluster, processes, split_driver(Settings(frames=frames, **settings)), ETHERTYPE)


def serve(endpoints: int, forms: bool = True) -> Program:
    """Reply to every request at each endpoint, forever: with the word plus one, or with the number of bytes and their
    sum."""

    def given(token: Token, data: memoryview, word: int) -> None:
        token.reply(ANSWER, word, len(data), sum(data))

    async def program(am: ActiveMessages, _driver: HostDriver, nic: Attachment) -> None:
        bundle = am.allocate_bundle()
        for number in range(endpoints):
            endpoint = bundle.allocate_endpoint()
            assert endpoint.name == EndpointName(am.node, am.name_of(am.rank).endpoint + number)
            # The first one's segment is where the NIC puts data, the others' are copied to.
            endpoint.segment = nic.heap.allocate(BULK) if not number and forms else bytearray(BULK)
            endpoint.set_handler(ASK, lambda token, word: token.reply(ANSWER, word, word + 1, 0))
            endpoint.set_handler(SHOW, given)
            endpoint.set_handler(PUT, given)
            endpoint.tag = TAG
        while True:
            await bundle.wait()
            await bundle.poll()

    return program


def ask(servers: list[EndpointName], count: int = COUNT, endpoints: int = 1) -> Program:
    """Send `count` requests of all forms to each endpoint; return the number of endpoint faults."""

    async def program(am: ActiveMessages, driver: HostDriver, _nic: Attachment) -> int:
        # A bundle each: whoever sends from a bundle handles all of its messages, also the one that another task awaits.
        own = [am.allocate_bundle().allocate_endpoint() for _ in range(endpoints)]
        asking = [driver.loop.spawn(_asked(endpoint, servers, count), "ask") for endpoint in own]
        for task in asking:
            await task
        return am.driver.faults

    return program


async def _asked(endpoint: Endpoint, servers: list[EndpointName], count: int) -> None:
    answers: dict[int, tuple[int, int]] = {}
    early: list[int] = []

    def answered(_: Token, word: int, *answer: int) -> None:
        assert word not in answers, "a second answer"
        answers[word] = (answer[0], answer[1])

    def returned(message: Returned) -> None:
        assert message.status in NOT_YET, message
        early.append(message.arguments[0])

    async def put(word: int) -> None:
        place = places[word % len(places)]
        if word % 3 == 0:
            await endpoint.request(place, ASK, word)
        elif word % 3 == 1:
            await endpoint.request_medium(place, SHOW, CONTENT[:MEDIUM], word)
        else:
            await endpoint.request_bulk(place, PUT, CONTENT, 0, word)

    endpoint.set_handler(ANSWER, answered)
    endpoint.error_handler = returned
    places = [endpoint.map_any(server, TAG) for server in servers]
    for word in range(count * len(places)):
        await put(word)
    while len(answers) < count * len(places):
        while early:  # there was no such endpoint yet
            await put(early.pop())
        await endpoint.wait()
        await endpoint.poll()
    for word, answer in answers.items():
        assert answer == ((word + 1, 0), (MEDIUM, sum(CONTENT[:MEDIUM])), (BULK, sum(CONTENT)))[word % 3]


def of(am_numbers: int, process: int, endpoints: int) -> list[EndpointName]:
    """The endpoints of a process of node 1."""
    return [EndpointName(1, process * am_numbers + number) for number in range(endpoints)]


NUMBERS: Final = Settings().numbers_per_host


def agent_counters(running: Nodes, name: str) -> dict[str, int]:
    actual: dict[str, int] = running.report(name)["counted"]
    return actual


def test_endpoints_of_several_processes_share_few_frames_and_each_message_is_answered_once() -> None:
    with Cluster.star(2).up() as cluster, am2(cluster, 3, frames=3) as running:
        for process in range(3):
            running.host("n2", serve(2), process)
        clients = [running.host("n1", ask(of(NUMBERS, process, 2), endpoints=2), process) for process in range(3)]
        assert all(faults > 2 for faults in wait_for_results(clients))
        assert agent_counters(running, "n2")["unloaded"] > 6


def test_processes_of_one_node_send_to_each_other() -> None:
    with Cluster.star(2).up() as cluster, am2(cluster, 2) as running:
        running.host("n2", serve(3), 0)
        assert running.host("n2", ask(of(NUMBERS, 0, 3)), 1).result()
        assert running.report("n1")["taken"] == 0, "none of it was on the wire"


def test_messages_to_a_killed_process_are_returned_and_another_takes_its_slot() -> None:
    async def give(am: ActiveMessages, _driver: HostDriver, _nic: Attachment) -> list[str]:
        """Sends requests to process 1 of node 1 until it has ended."""
        endpoint, log, received = am.allocate_bundle().allocate_endpoint(), list[str](), list[bool]()
        endpoint.error_handler = lambda returned: log.append(returned.status.name) if received else None
        endpoint.set_handler(ANSWER, lambda *_: received.append(True))
        endpoint.map(0, EndpointName(1, NUMBERS), TAG)
        while not log:
            await endpoint.request(0, ASK, 1)
        return sorted(set(log))

    with Cluster.star(2).up() as cluster, am2(cluster, 2, frames=2) as running:
        idle = running.descriptors("n2")
        running.host("n2", serve(2), 0)
        victim = running.host("n2", serve(2), 1)
        others = running.host("n1", ask(of(NUMBERS, 0, 2), 400), 0)
        sender = running.host("n1", give, 1)
        eventually(lambda: agent_counters(running, "n2")["messages_delivered"] > 100, "they talk")
        victim.kill()
        reported = set(sender.result())  # of what it had taken, and of what came too late
        assert reported
        assert reported <= {"UNREACHABLE", "BAD_ENDPOINT"}
        assert others.result()
        eventually(lambda: running.regions("n2") == 1, "the agent keeps a dead host's region")
        running.host("n2", serve(2), 1)
        sender.close()
        assert running.host("n1", ask(of(NUMBERS, 1, 2)), 1).result()
        assert running.descriptors("n2") > idle


def test_a_stopped_process_keeps_no_frames_from_others_and_continues() -> None:
    with Cluster.star(2).up() as cluster, am2(cluster, 2, frames=2) as running:
        running.host("n2", serve(2), 0)
        stopped = running.host("n2", serve(2), 1)
        waits = running.host("n1", ask(of(NUMBERS, 1, 2), 400), 1)
        eventually(lambda: agent_counters(running, "n2")["messages_delivered"] > 20, "they talk")
        stopped.kill(signal.SIGSTOP)
        assert running.host("n1", ask(of(NUMBERS, 0, 2), 50), 0).result()
        assert agent_counters(running, "n2")["forced"]
        stopped.kill(signal.SIGCONT)
        assert waits.result()


def test_a_process_with_arbitrary_writes_and_doorbells_is_harmless() -> None:
    async def scribble(am: ActiveMessages, _driver: HostDriver, nic: Attachment) -> int:
        frames = am.memory
        assert isinstance(frames, SharedHostFrames)
        endpoint = am.allocate_bundle().allocate_endpoint()
        chance, until, rung = random.Random(5), time.monotonic() + 2.0, 0
        while time.monotonic() < until:
            page = chance.choice(frames.frames)
            for _ in range(20):
                at = chance.randrange(layout.SIZE - 8)
                page[at : at + 8] = chance.randbytes(8)
                slot = chance.randrange(layout.SLOTS)
                own = chance.choice([endpoint.name.endpoint, 0, 1, chance.randrange(1 << 16)])
                layout.WRITE_ENTRY[2](
                    page, layout.SLOT_OFFSETS[slot], layout.READY, 0, chance.randrange(3), chance.choice([0, 9, 1 << 31]),
                    chance.getrandbits(chance.choice([12, 30, 64])), 0, chance.randrange(4), slot >> 4 & 1, 1, 2, own,
                    chance.choice([0, 1, NUMBERS]), TAG + 1, rung & 0xFFFF, chance.getrandbits(32), chance.getrandbits(32),
                    1, 2,
                )  # fmt: skip
                frames._bound_table[chance.randrange(len(frames.frames))] = chance.choice([own, endpoint.name.endpoint])
                subject = chance.choice([slot, chance.randrange(128)])
                nic._doorbells.put(chance.choice([own << 7 | subject, own << 14 | subject, chance.getrandbits(64)]))
                nic.completions.take(64)
                rung += 1
        return rung

    with Cluster.star(2).up() as cluster, am2(cluster, 2, frames=4, retries=5) as running:
        running.host("n2", serve(2), 0)
        vandals = [running.host(name, scribble, 1) for name in ("n1", "n2")]
        good = running.host("n1", ask(of(NUMBERS, 0, 2), 300), 0)
        assert good.result()
        assert all(rung > 500 for rung in wait_for_results(vandals))
        assert min(agent_counters(running, name)["invalid"] for name in ("n1", "n2")) > 100
        for vandal in vandals:
            vandal.close()
        eventually(lambda: running.regions("n1") == 0, "the agent keeps a region")


class _SharedNicEnvironment:
    """Surroundings of the torture workload in a host process that shares its NIC."""

    def __init__(self, driver: HostDriver) -> None:
        self._driver = driver

    def spawn(self, work: Work[None], name: str) -> Task[None]:
        return self._driver.loop.spawn(work, name)

    def now(self) -> int:
        return self._driver.now()

    def sleep(self, duration: int) -> Completion[None]:
        return self._driver.loop.sleep(duration)


PROCESSES: Final = 3
VICTIM: Final = 10  # the second of the fourth node's three


DETOUR: Final = 20_000_000_000
"""Nanoseconds that messages wait for a route. While a link flaps, a busy machine may take longer than the default to map
the network again, and messages to nodes that live would be returned."""
RETRIES: Final = 120
"""Resends before a NIC is unreachable, of at most 160 ms: no NIC dies here, and a busy one may not answer for seconds."""


async def reach(am: ActiveMessages, _driver: HostDriver, _nic: Attachment) -> set[int]:
    """Return the other nodes when there are routes to all: their NICs report that the endpoint does not exist."""
    endpoint, actual = am.allocate_bundle().allocate_endpoint(), set[int]()

    def returned(message: Returned) -> None:
        assert message.status is Status.BAD_ENDPOINT
        actual.add(message.destination.node)

    endpoint.error_handler = returned
    others = set(range(am.size)) - {am.node}
    for node in others:
        await endpoint.request(endpoint.map_any(EndpointName(node, NUMBERS), TAG), ASK, 0)
    while actual < others:
        await endpoint.wait()
        await endpoint.poll()
    return actual


@pytest.mark.parametrize(
    "description", [Cluster.star(4), Cluster.ring(4, kind="myrinet")], ids=lambda description: description.name
)
def test_a_process_that_is_killed_and_a_link_that_flaps_disturb_neither_its_nodes_others_nor_other_nodes(
    description: Cluster,
) -> None:
    """Four nodes, twelve endpoints of three processes each over seven frames, 5 % of all frames lost."""
    workload = Torture(endpoints=4, victim=VICTIM, over=3_000_000_000)

    async def one(am: ActiveMessages, driver: HostDriver, _nic: Attachment) -> dict[str, Any]:
        return await Process(am, _SharedNicEnvironment(driver), workload).run()

    with description.up() as cluster, am2(cluster, PROCESSES, retries=RETRIES, detour=DETOUR) as running:
        for name in running.agents:
            with contextlib.closing(running.host(name, reach)) as host:
                assert len(host.result()) == 3
        for name in running.agents:
            cluster.inject(name, loss="5%")
        hosts = [running.host(f"n{node + 1}", one, process) for node in range(4) for process in range(PROCESSES)]
        start = time.monotonic()
        _until(start + 1.0)
        hosts[VICTIM].kill()
        for after in (1.3, 2.0):
            _until(start + after)
            with cluster.cut("n3"):
                _until(start + after + 0.3)
        reported = {rank: host.result() for rank, host in enumerate(hosts) if rank != VICTIM}
        assert_exactly_once(reported)
        assert all(entry["wrong"] == 0 for entry in reported.values())
        returned_by_rank = {rank: entry["returned"] for rank, entry in reported.items()}
        assert {peer for returned in returned_by_rank.values() for peer, _ in returned} == {VICTIM}, returned_by_rank
        # Twelve endpoints over seven frames: the minimum if each was resident once.
        least = PROCESSES * workload.endpoints - Settings().frames
        unloaded = {name: agent_counters(running, name)["unloaded"] for name in running.agents}
        assert min(unloaded.values()) >= least, unloaded


def _until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))
