"""Frames per second of VIA's complete provider in the simulation, compared with EMP's: 16 nodes on one switch, each of which
sends messages of 1,000 bytes to random other nodes. A node has a VI for each other node."""

import time
from collections import Counter, deque
from typing import cast

from benchmarks.engine.firmware import Setting, simulate
from protocols.via.host import ViaNic, plug
from protocols.via.vipl_names import OP_SENDRECV
from protocols.via.virtual_interface import CompletionQueue, Descriptor, Vi
from testbed.engine.sources import source
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation

NODES = 16
SETTING = Setting("star", NODES, "0%", 500, 1_000)
WINDOW = 8  # messages of one node in flight
SECOND = 1_000_000_000
CONTENT = (bytes(range(251)) * (SETTING.size // 251 + 1))[: SETTING.size]


def emp_frames() -> float:
    """Return frames per second of CPU time."""
    return simulate(SETTING).rate


def via_frames() -> float:
    """Return frames per second of CPU time, once all nodes are connected."""
    destinations = []  # of each node's messages
    for number in range(NODES):
        rng = source(1, f"n{number + 1}")
        destinations.append([(number + 1 + rng.below(NODES - 1)) % NODES for _ in range(SETTING.messages)])
    with Simulation(SETTING.cluster(), plug()) as simulation:
        hosts = [
            Host(
                cast(ViaNic, node.endpoint),
                Counter({sender: peers.count(node.number) for sender, peers in enumerate(destinations)}),
            )
            for node in simulation.nodes.values()
        ]
        nodes = list(simulation.nodes.values())
        for node, host in zip(nodes, hosts, strict=True):
            simulation.spawn(node.name, host.connect)
        simulation.run(timeout=SECOND)
        before = sum(node.nic.sent for node in nodes)
        for node, host, peers in zip(nodes, hosts, destinations, strict=True):
            simulation.spawn(node.name, host.send, peers)
            simulation.spawn(node.name, host.receive)
        start = time.process_time_ns()
        simulation.run(timeout=100 * SECOND)
        cpu_time = time.process_time_ns() - start
        frames = sum(node.nic.sent for node in nodes) - before
    if any(host.missing for host in hosts):
        raise AssertionError("not every message has arrived once and unchanged")
    return frames * SECOND / cpu_time


class Host:
    """A node's VIs. missing: number of messages that have not arrived yet, by sender."""

    def __init__(self, nic: ViaNic, missing: Counter[int]) -> None:
        self.missing = +missing
        self._nic = nic
        self._vis: dict[int, Vi] = {}
        self._numbers: dict[Vi, int] = {}
        self._received: CompletionQueue = nic.create_cq(max(1, missing.total()))
        self._sent: CompletionQueue = nic.create_cq(WINDOW)
        self._buffers: dict[Vi, deque[memoryview]] = {}

    async def connect(self, _nic: object, _node: SimNode) -> None:
        """Connect to all others, with a receive for each expected message."""
        nic = self._nic
        self._ptag = await nic.create_ptag()
        for peer in range(nic.size):
            if peer == nic.number:
                continue
            vi = await nic.create_vi(self._ptag, send_cq=self._sent, receive_cq=self._received)
            self._vis[peer], self._numbers[vi], self._buffers[vi] = vi, peer, deque()
            for _ in range(self.missing[peer]):
                buffer = memoryview(bytearray(SETTING.size))
                memory = await nic.register(buffer, self._ptag)
                vi.post_receive(Descriptor(data=(memory.segment(),)))
                self._buffers[vi].append(buffer)
            vi.connect_peer_request(peer, b"simulation")
        for vi in self._vis.values():
            await vi.connect_peer_wait()

    async def send(self, _nic: object, _node: SimNode, peers: list[int]) -> None:
        memory = await self._nic.register(memoryview(bytearray(CONTENT)), self._ptag)
        segment = memory.segment()
        for number, peer in enumerate(peers):
            if number >= WINDOW:
                (await self._sent.wait()).done()
            self._vis[peer].post_send(Descriptor(OP_SENDRECV, (segment,)))
        for _ in range(WINDOW):
            (await self._sent.wait()).done()

    async def receive(self, _nic: object, _node: SimNode) -> None:
        for _ in range(self.missing.total()):
            queue = await self._received.wait()
            descriptor = queue.done()
            if descriptor is not None and self._buffers[queue.vi].popleft() == CONTENT:
                self.missing[self._numbers[queue.vi]] -= 1
        self.missing = +self.missing
