"""EMP's complete firmware in the simulation, in frames per second: on one switch and in a fat tree, with and without
loss.

A frame is counted once, where a NIC sends it; its cost includes the host library, both firmwares, and every link and
switch on its way. Random peers are the costly case: most frames are the first ones between their two nodes.

A machine's speed varies from minute to minute. So SimPy is measured before and after each simulation, and the rows also
have the result scaled to a machine on which SimPy reaches REFERENCE: these figures are comparable between machines. The
unscaled figure applies to this machine.
"""

import gc
import resource
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from benchmarks.harness.contenders import ContenderError
from benchmarks.harness.rows import Row
from protocols.core.completion import Completion
from protocols.emp.descriptors import ANY_SOURCE
from protocols.emp.host import ANY_TAG, Endpoint, ReceiveResult, plug
from testbed.engine.sources import source
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation
from testbed.spec.model import Description

SIMULATION = "simulation"
RATE = "full-firmware frames/s in sim"
SCALED = "the same at SimPy's 840,000/s"
TOTAL = "seconds"
TOTAL_SCALED = "seconds at SimPy's 840,000/s"
REFERENCE = 840_000  # time-outs of SimPy's processes a second, on the machine for which the limits were set
MEMORY = "peak memory so far"
WINDOW = 8  # messages of one node in flight
SECOND = 1_000_000_000


class Setting(NamedTuple):
    """A cluster and its traffic: every node sends `messages` messages of `size` bytes, each to a random node, or all to the
    next node.

    parameter: size of the shape. wires: rate and delay of the links; empty: loss is the links' only impairment.
    """

    shape: str
    parameter: int
    loss: str
    messages: int
    size: int
    to: Literal["any", "the next"] = "any"
    wires: Literal["", "10gbit 1us"] = "10gbit 1us"

    def cluster(self) -> Description:
        make = {"star": Description.star, "fat tree": Description.fat_tree}[self.shape]
        if not self.wires:
            return make(self.parameter, loss=self.loss)
        rate, delay = self.wires.split()
        return make(self.parameter, loss=self.loss, delay=delay, rate=rate)

    def __str__(self) -> str:
        return f"{self.shape}, {self.size} B to {self.to}, loss {self.loss}{', ' * bool(self.wires)}{self.wires}"


SETTINGS = (
    Setting("star", 2, "0%", 1_000, 16_384),
    Setting("star", 16, "0%", 200, 16_384),
    Setting("star", 16, "0%", 200, 16_384, wires=""),
    Setting("star", 16, "0%", 500, 1_000),
    Setting("star", 256, "0%", 20, 16_384),
    Setting("star", 256, "0%", 20, 16_384, "the next"),
    Setting("fat tree", 8, "1%", 50, 1_000),
    Setting("fat tree", 16, "0%", 10, 16_384, "the next"),
)
LARGEST = tuple([Setting("fat tree", 16, "1%", 100, 1_000, wires=wires) for wires in ("", "10gbit 1us")])
"""The largest settings, of 1,024 nodes: their targets are 20 s and 400 MB (`targets`)."""


Message = tuple[int, int]
"""Source of a message and its tag, which numbers it."""


def _content(size: int) -> bytes:
    return (bytes(range(251)) * (size // 251 + 1))[:size]  # no offset of a frame has a constant value


async def _send(endpoint: Endpoint, node: SimNode, peers: list[int], content: bytes) -> None:  # noqa: ARG001
    in_flight: deque[Completion[ReceiveResult]] = deque()
    for number, peer in enumerate(peers):
        if number >= WINDOW:
            await in_flight.popleft()
        in_flight.append(endpoint.post_send(peer, number, content))
    for completion in in_flight:
        await completion


async def _receive(endpoint: Endpoint, node: SimNode, count: int, content: bytes) -> list[Message]:  # noqa: ARG001
    """Receive `count` messages; return those that arrived unchanged."""
    arrived: list[Message] = []
    posted: deque[tuple[Completion[ReceiveResult], bytearray]] = deque()

    def post() -> None:
        buffer = bytearray(len(content))
        posted.append((endpoint.post_receive(ANY_SOURCE, ANY_TAG, buffer), buffer))

    for _ in range(min(count, 4 * WINDOW)):
        post()
    for number in range(count):
        completion, buffer = posted.popleft()
        source, tag, length = await completion
        if length == len(content) and buffer == content:
            arrived.append((source, tag))
        if number + 4 * WINDOW < count:
            post()
    return arrived


class Run(NamedTuple):
    """Cost of one simulation. rate: frames per second of CPU time. seconds: CPU time."""

    nodes: int
    rate: float
    seconds: float


def simulate(setting: Setting) -> Run:
    with Simulation(setting.cluster(), plug()) as simulation:
        count = len(simulation.nodes)
        destinations = []  # of each node's messages
        for node in simulation.nodes.values():
            rng, others = source(1, node.name), count - 1 if setting.to == "any" else 1
            destinations.append([(node.number + 1 + rng.below(others)) % count for _ in range(setting.messages)])
        expected: list[list[Message]] = [[] for _ in destinations]
        for source_number, peers in enumerate(destinations):
            for tag, peer in enumerate(peers):
                expected[peer].append((source_number, tag))
        receivers, content = [], _content(setting.size)
        for node, peers in zip(simulation.nodes.values(), destinations, strict=True):
            receivers.append(simulation.spawn(node.name, _receive, len(expected[node.number]), content))
            simulation.spawn(node.name, _send, peers, content)
        gc.collect()
        start = time.process_time_ns()
        simulation.run(timeout=1_000 * SECOND)
        cpu_time = time.process_time_ns() - start
        if [sorted(receiver.result()) for receiver in receivers] != expected:
            raise ContenderError(f"{setting}: not every message has arrived once and unchanged")
        sent = sum(node.nic.sent for node in simulation.nodes.values())
        return Run(count, sent * SECOND / cpu_time, cpu_time / SECOND)


def measure(repeat: int, large: bool, progress: Callable[[str], None], simpy: Callable[[], float]) -> Iterator[Row]:
    """Yield rows of rates for each setting. large: measure the largest first, once, with its memory. simpy: returns SimPy's
    present time-outs per second of CPU time."""
    for setting in (*LARGEST, *SETTINGS) if large else SETTINGS:
        turns = 1 if setting in LARGEST else repeat
        runs, scales = [], []
        for turn in range(turns):
            progress(f"{setting}: {turn + 1} of {turns}")
            before = simpy()
            runs.append(simulate(setting))
            scales.append(2 * REFERENCE / (before + simpy()))
        settings = {**setting._asdict(), "of": "CPU time", "window": WINDOW}
        nodes, scaled_runs = runs[0].nodes, list(zip(runs, scales, strict=True))
        rates, scaled = tuple([run.rate for run in runs]), tuple([run.rate * scale for run, scale in scaled_runs])
        yield Row("firmware", SIMULATION, f"{RATE}: {setting}", nodes, "1/s", rates, settings)
        yield Row("firmware", SIMULATION, SCALED, nodes, "1/s", scaled, settings)
        if setting in LARGEST:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
            scaled_totals = tuple([run.seconds / scale for run, scale in scaled_runs])
            yield Row("firmware", SIMULATION, TOTAL, nodes, "s", tuple([run.seconds for run in runs]), settings)
            yield Row("firmware", SIMULATION, TOTAL_SCALED, nodes, "s", scaled_totals, settings)
            yield Row("firmware", SIMULATION, MEMORY, nodes, "MB", (peak,), settings)
