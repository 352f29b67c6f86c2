"""Frames through a Myrinet crossbar in the relay: rate, CPU time per frame, and round trips."""

import time
from collections.abc import Callable, Iterator, Mapping

from benchmarks.harness.rows import Row
from protocols.core.completion import Completion
from protocols.core.firmware import Adapter, Agent, Nic
from testbed import Cluster
from testbed.cluster.records.state import Store
from testbed.cluster.services import relay_client
from testbed.controller.runs.agents import agents
from testbed.fabric.myrinet.route import append_crc, route_byte
from testbed.runtime.nodes.run_orders import ProgramNode
from testbed.spec.elements import Link, Node, Switch

ETHERTYPE = 0x88B6
TYPE = b"\0\4"
ROUTES = {0: bytes([route_byte(1)]), 1: bytes([route_byte(-1)])}  # from port 1 to 2 of the only switch, and back
SIZES = (64, 1500)
FRAMES = 20_000
TRIPS = 2_000
TIMEOUT = 60.0  # s
ROUND_TRIP, FLOOD, COST = "round trip", "frames of {} bytes", "relay's processor time for a frame of {} bytes"


class Firmware:
    """Firmware that sends on its host's request, counts received frames, and echoes them on request."""

    deadline: int | None = None

    def __init__(self, adapter: Adapter, nic: Nic) -> None:
        self.head = bytes(6) + adapter.address + ETHERTYPE.to_bytes(2, "big")
        self.route = ROUTES[adapter.number]
        self.echoes = False
        self.expected = self.received = self.first_time = 0
        self.order = (0, 0)
        self._nic = nic

    def receive(self, now: int, frame: bytes) -> None:
        if not self.received:
            self.first_time = now
        self.received += 1
        if self.echoes:
            self._nic.send(append_crc(self.head, self.route + frame[14:-1]))
        if self.received == self.expected:
            self._nic.post_completion(0)

    def on_doorbell(self, _now: int, _index: int) -> None:
        count, size = self.order
        frame = append_crc(self.head, (self.route + TYPE).ljust(size - 15, b"\x55"))
        for _ in range(count):
            self._nic.send(frame)

    def on_timer(self, _now: int) -> None:
        raise AssertionError("the firmware has no deadline")

    def counter_values(self) -> Mapping[str, int]:
        return {"received": self.received}

    def pending_work(self) -> list[str]:
        return []


class Host:
    """Host of the firmware: it requests frames, and waits for received ones."""

    def __init__(self, nic: Nic, firmware: Firmware) -> None:
        self.firmware = firmware
        self._nic = nic
        self._pending = Completion[None]("frames")

    def send(self, count: int, size: int) -> None:
        self.firmware.order = count, size
        self._nic.ring_doorbell(1, size, 0)

    def frames(self, count: int) -> Completion[None]:
        self._pending = Completion[None](f"{count} frames")
        self.firmware.expected = count
        return self._pending

    def on_completion(self, _index: int) -> None:
        self._pending.complete(None)

    def pending_work(self) -> list[str]:
        return [self._pending.what]


def plug(adapter: Adapter, nic: Nic) -> Agent:
    firmware = Firmware(adapter, nic)
    return Agent(firmware, Host(nic, firmware))


async def trips(host: Host, _node: ProgramNode) -> float:
    """Return the median round trip, nanoseconds."""
    times = []
    for number in range(1, TRIPS + 1):
        start = time.monotonic_ns()
        arrived = host.frames(number)
        host.send(1, SIZES[0])
        await arrived
        times.append(time.monotonic_ns() - start)
    return sorted(times)[TRIPS // 2]


async def echo(host: Host, _node: ProgramNode) -> None:
    host.firmware.echoes = True
    await host.frames(TRIPS)


def flood_programs(size: int) -> dict[str, Callable[..., object]]:
    async def flood(host: Host, _node: ProgramNode) -> None:
        host.send(FRAMES, size)

    async def receive(host: Host, _node: ProgramNode) -> float:
        await host.frames(FRAMES)
        return (FRAMES - 1) * 1e9 / (time.monotonic_ns() - host.firmware.first_time)

    return {"n1": flood, "n2": receive}


def measure(repeat: int, progress: Callable[[str], None]) -> Iterator[Row]:
    """Measure each quantity in turn on one cluster."""
    description = Cluster(
        name="crossbar",
        nodes=[Node(name="n1"), Node(name="n2")],
        switches=[Switch(name="s1", kind="myrinet")],
        links=[Link(ends=["n1", "s1:1"]), Link(ends=["n2", "s1:2"])],
    )
    samples_by_key: dict[tuple[str, str], list[float]] = {}
    with description.up() as cluster:

        def relay_time() -> int:
            report = relay_client.report(Store(), cluster.state)
            return report["processor"]["used"] if report is not None else 0

        def results_of(programs: dict[str, Callable[..., object]]) -> Mapping[str, float]:
            with agents(cluster, plug, ETHERTYPE, programs) as run:
                outcome = run.wait(TIMEOUT)
            return outcome.results

        for turn in range(repeat):
            progress(f"myrinet: {turn + 1} of {repeat}")
            samples_by_key.setdefault((ROUND_TRIP, "s"), []).append(results_of({"n1": trips, "n2": echo})["n1"] / 1e9)
            for size in SIZES:
                before = relay_time()
                samples_by_key.setdefault((FLOOD.format(size), "1/s"), []).append(
                    results_of(flood_programs(size))["n2"]
                )
                samples_by_key.setdefault((COST.format(size), "s"), []).append((relay_time() - before) / FRAMES / 1e9)
    settings = {
        "frames": FRAMES,
        "trips": TRIPS,
        "from": "one program to the other, through both NICs and one crossbar",
    }
    for (measured, unit), samples in samples_by_key.items():
        yield Row("myrinet", "testbed", measured, 2, unit, tuple(samples), settings)
