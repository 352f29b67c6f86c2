"""Many host processes on the NIC of one node: cost of each, fairness, and losses while they are killed repeatedly."""

import contextlib
import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.direct_pair import direct_pair
from benchmarks.harness.idle_processes import wait_until_idle
from benchmarks.shared.processes import Process, agent
from protocols.core.completion import Completion
from protocols.core.firmware import Adapter
from protocols.emp.codec import ETHERTYPE
from protocols.emp.descriptors import ANY_SOURCE
from protocols.emp.host import ANY_TAG, EmpError, Endpoint
from protocols.emp.split_driver import split_driver
from testbed import Cluster
from testbed.cluster.running_cluster import RunningCluster
from testbed.runtime.shared.agent import NicConfig
from testbed.runtime.shared.attachment import Attachment, HostDriver
from testbed.spec.placement import address_of

_QUIET = 2.0  # s without traffic
_SIZE = 64  # bytes of a message
_IN_FLIGHT = 4  # messages of one host process
_POSTED = 256  # receives
_LINGER = 1_000_000_000  # ns
_SPLIT_DRIVER = split_driver()


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one attached, idle host process.

    attach: seconds. agent: bytes of the agent's memory. own: bytes of the process's private memory, beyond that of an
    unattached process. idle: processor seconds per second of all processes and the agent, divided by the number of
    processes.
    """

    attach: float
    agent: float
    own: float
    idle: float


class Pair:
    """Two nodes on one pair of interfaces, with an agent each. functions: number of functions of each NIC."""

    def __init__(self, functions: tuple[int, int], loss: float = 0.0) -> None:
        self._stack = contextlib.ExitStack()
        self._cluster = self._stack.enter_context(_up(loss))
        nodes = list(self._cluster)
        self._namespaces = [node.namespace for node in nodes]
        self._devices = [node.layout.nics[0].name for node in nodes]
        macs = [bytes.fromhex(node.layout.nics[0].mac.replace(":", "")) for node in nodes]
        owners = [place for place, count in enumerate(functions) for _ in range(count)]
        numbers = [[number for number, owner in enumerate(owners) if owner == place] for place in range(len(functions))]
        addresses = tuple(
            address_of(mac, function) for mac, count in zip(macs, functions, strict=True) for function in range(count)
        )
        self.agents = []
        for place, namespace in enumerate(self._namespaces):
            adapters = tuple(Adapter(number, addresses) for number in numbers[place])
            self.agents.append(agent(NicConfig(_SPLIT_DRIVER, ETHERTYPE, self._devices[place], adapters), namespace))
            self._stack.callback(self.agents[-1].kill)

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def host(self, place: int, program: Callable[[Endpoint, HostDriver], Any], function: int | None = None) -> Process:
        """Start a host process on a node. Its first report is the seconds that it took to attach, its last one the program's
        result. place: index of the node."""
        device = self._devices[place]

        def run(report: Callable[[object], None]) -> object:
            start = time.monotonic()
            nic = Attachment(device, ETHERTYPE, _SPLIT_DRIVER, function)
            report(time.monotonic() - start)
            assert isinstance(nic.host, Endpoint)
            driver = HostDriver(nic, nic.host)
            return driver.loop.complete(program(nic.host, driver))

        process = Process(self._namespaces[place], -1, run)
        self._stack.callback(process.kill)
        return process


@contextlib.contextmanager
def _up(loss: float) -> Iterator[RunningCluster]:
    with (Cluster.back_to_back() if loss else direct_pair()).up() as cluster:
        if loss:
            with cluster.inject("n1", loss=loss):
                yield cluster
        else:
            yield cluster


async def _wait(endpoint: Endpoint, _driver: HostDriver) -> None:
    await endpoint.receive(ANY_SOURCE, ANY_TAG, bytearray(4))


def cost(hosts: int) -> Cost:
    """Measure the cost of one of `hosts` attached processes: the median of the times to attach, and means of the rest."""
    with Pair((hosts, 1)) as pair:
        process = pair.agents[0]
        before = _private(process.pid)
        unattached = Process("", -1, lambda _: time.sleep(3600))
        waiting = [pair.host(0, _wait) for _ in range(hosts)]
        attach_times = [float(host.next_report()) for host in waiting]
        wait_until_idle([process.pid, *(host.pid for host in waiting)])
        grown = _private(process.pid) - before
        own = sum(_private(host.pid) for host in waiting) / hosts - _private(unattached.pid)
        unattached.kill()
        pids = [process.pid, *(host.pid for host in waiting)]
        used = sum(map(_cpu, pids))
        time.sleep(_QUIET)  # the measured time
        idle = (sum(map(_cpu, pids)) - used) / _QUIET
        return Cost(sorted(attach_times)[hosts // 2], grown / hosts, own, idle / hosts)


def _private(pid: int) -> int:
    lines = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]]
    kilobytes = {line[0]: int(line[1]) for line in lines}
    return (kilobytes["Private_Clean:"] + kilobytes["Private_Dirty:"]) * 1024


def _cpu(pid: int) -> float:
    """Return the CPU time so far, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def messages_by_host(hosts: int, seconds: float) -> list[int]:
    """Return the number of messages that arrive from each of `hosts` processes when all send at once."""
    sink = hosts  # number of the receiving process

    async def flood(endpoint: Endpoint, _driver: HostDriver) -> None:
        in_flight: deque[Completion[Any]] = deque()
        data = bytes(_SIZE)
        with contextlib.suppress(EmpError):  # the peer has ended
            while True:
                if len(in_flight) == _IN_FLIGHT:
                    await in_flight.popleft()
                in_flight.append(endpoint.post_send(sink, 1, data))

    async def count(endpoint: Endpoint, driver: HostDriver) -> list[int]:
        counts, buffers = [0] * endpoint.size, [bytearray(_SIZE) for _ in range(_POSTED)]
        posted = deque((buffer, endpoint.post_receive(ANY_SOURCE, ANY_TAG, buffer)) for buffer in buffers)
        start = 0
        while True:
            buffer, arrival = posted.popleft()
            received = await arrival
            counts[received.source] += 1
            posted.append((buffer, endpoint.post_receive(ANY_SOURCE, ANY_TAG, buffer)))
            if not start:
                if min(counts[:hosts]):  # all have started
                    start, counts = driver.now(), [0] * endpoint.size
            elif driver.now() - start > seconds * 1e9:
                return counts[:hosts]

    with Pair((hosts, 1)) as pair:
        sinking = pair.host(1, count)
        sinking.next_report()
        for host in [pair.host(0, flood) for _ in range(hosts)]:
            host.next_report()
        results: list[int] = sinking.next_report()
        return results


def jain(counts: list[int]) -> float:
    """Return Jain's index of fairness: 1 if all shares are equal, 1/n if one process has all."""
    squares = len(counts) * sum(count * count for count in counts)
    return sum(counts) ** 2 / squares if squares else 0.0


def torture(messages: int, hosts: int, loss: float, every: float) -> dict[str, float]:
    """Exchange numbered messages between pairs of host processes over loss, while one process of the last pair is
    killed and restarted.

    messages: total of the pairs that are not killed. every: seconds between kills. Returns the numbers of messages,
    of messages out of sequence and of kills, and seconds.
    """
    share = messages // (2 * (hosts - 1))

    def counting(peer_of: Callable[[int], int]) -> Callable[[Endpoint, HostDriver], Any]:
        async def both_ways(endpoint: Endpoint, driver: HostDriver) -> int:
            peer = peer_of(endpoint.number)
            sending = driver.loop.spawn(_send(endpoint, peer, share), "send")
            wrong = await _check(endpoint, peer, share)
            await sending
            await driver.loop.sleep(_LINGER)  # for a peer whose last message's acknowledgement was lost
            return wrong

        return both_ways

    async def victim(endpoint: Endpoint, driver: HostDriver) -> None:
        """Exchange large messages with the peer forever, ignoring all errors."""
        peer = (endpoint.number + hosts) % (2 * hosts)
        rng, buffer = random.Random(endpoint.number), bytearray(1 << 16)
        while True:
            arrival = endpoint.post_receive(peer, 2, buffer)
            with contextlib.suppress(EmpError):
                await endpoint.send(peer, 2, bytes(rng.randrange(1 << 16)))
            with contextlib.suppress(EmpError, TimeoutError):
                await driver.loop.timeout(100_000_000, _done(arrival))
            if not arrival.done:
                endpoint.cancel(arrival)
                with contextlib.suppress(EmpError):
                    await arrival

    with Pair((hosts, hosts), loss) as pair:
        start = time.monotonic()
        pairs = [
            pair.host(place, counting(lambda own: (own + hosts) % (2 * hosts)), function)
            for function in range(hosts - 1)
            for place in (0, 1)
        ]
        for host in pairs:
            host.next_report()
        victims = [pair.host(place, victim, hosts - 1) for place in (0, 1)]
        kills = 0
        while any(_is_alive(host.pid) for host in pairs):
            time.sleep(every)  # between two kills
            place = kills % 2
            victims[place].kill()
            victims[place] = pair.host(place, victim, hosts - 1)
            kills += 1
        wrong = sum(int(host.next_report()) for host in pairs)
        seconds = time.monotonic() - start
    return {"messages": share * 2 * (hosts - 1), "wrong": wrong, "kills": kills, "seconds": seconds}


async def _done(completion: Completion[Any]) -> None:
    await completion


def _is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


async def _send(endpoint: Endpoint, peer: int, count: int) -> None:
    in_flight: deque[Completion[Any]] = deque()
    for number in range(count):
        if len(in_flight) == 32:
            await in_flight.popleft()
        in_flight.append(endpoint.post_send(peer, 1, number.to_bytes(4, "big")))
    for sent in in_flight:
        await sent


async def _check(endpoint: Endpoint, peer: int, count: int) -> int:
    """Return the number of messages out of sequence."""
    wrong, buffers = 0, [bytearray(4) for _ in range(min(32, count))]
    posted = deque(endpoint.post_receive(peer, 1, buffer) for buffer in buffers)
    for number in range(count):
        await posted.popleft()
        buffer = buffers[number % len(buffers)]
        wrong += int.from_bytes(buffer, "big") != number
        if number + len(buffers) < count:
            posted.append(endpoint.post_receive(peer, 1, buffer))
    return wrong
