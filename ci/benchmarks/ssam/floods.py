"""Frames and cells through the relay, as fast as it forwards them. The NIC's firmware sends them on its host's request."""

import time
from collections.abc import Callable, Mapping
from functools import partial

from protocols.atm.cell import ETHERNET, PAYLOAD, circuit, header
from protocols.atm.fields import ETHERTYPE
from protocols.core.completion import Completion
from protocols.core.firmware import Adapter, Agent, Nic
from testbed.cluster.records.state import Store
from testbed.cluster.running_cluster import RunningCluster
from testbed.cluster.services import relay_client
from testbed.controller.runs.agents import agents
from testbed.runtime.nodes.run_orders import ProgramNode

TIMEOUT = 60.0  # s


class Firmware:
    """Sends frames of a given number of cells on its host's request, and counts received cells."""

    deadline: int | None = None

    def __init__(self, adapter: Adapter, nic: Nic, cells: int) -> None:
        local, peer = adapter.number, 1 - adapter.number
        head = adapter.addresses[peer] + adapter.address + ETHERTYPE.to_bytes(2, "big")
        self.frame = head + cells * (header(circuit(local, peer, len(adapter.addresses))) + bytes(PAYLOAD))
        self.cells = cells
        self.frames = self.expected = self.received = self.first_time = 0
        self._nic = nic

    def receive(self, now: int, frame: bytes) -> None:
        if not self.received:
            self.first_time = now
        self.received += (len(frame) - ETHERNET) // 53
        if self.received == self.expected:
            self._nic.post_completion(0)

    def on_doorbell(self, _now: int, _index: int) -> None:
        for _ in range(self.frames):
            self._nic.send(self.frame)

    def on_timer(self, _now: int) -> None:
        raise AssertionError("the firmware has no deadline")

    def counter_values(self) -> Mapping[str, int]:
        return {"received": self.received}

    def pending_work(self) -> list[str]:
        return []


class Host:
    """Host of the firmware: it requests cells, and waits for received ones."""

    def __init__(self, nic: Nic, firmware: Firmware) -> None:
        self.firmware = firmware
        self._nic = nic
        self._all = Completion[None]("all cells")

    def send(self, cells: int) -> None:
        self.firmware.frames = cells // self.firmware.cells
        self._nic.ring_doorbell(1, 0, 0)

    def cells(self, count: int) -> Completion[None]:
        self.firmware.expected = count
        return self._all

    def on_completion(self, _index: int) -> None:
        self._all.complete(None)

    def pending_work(self) -> list[str]:
        return [self._all.what]


def _plug(adapter: Adapter, nic: Nic, *, cells: int) -> Agent:
    firmware = Firmware(adapter, nic, cells)
    return Agent(firmware, Host(nic, firmware))


def flood(cluster: RunningCluster, count: int, cells: int = 1) -> tuple[float, float]:
    """Send cells from n1 to n2, in frames of `cells`; return cells/s from the first to the last received one, and the
    relay's processor time for each, in seconds."""

    async def send(host: Host, _node: ProgramNode) -> None:
        host.send(count)

    async def receive(host: Host, _node: ProgramNode) -> float:
        await host.cells(count)
        return (count - 1) * 1e9 / (time.monotonic_ns() - host.firmware.first_time)

    def relay_time() -> int:
        report = relay_client.report(Store(), cluster.state)
        return report["processor"]["used"] if report is not None else 0

    before = relay_time()
    programs: dict[str, Callable[..., object]] = {"n1": send, "n2": receive}
    with agents(cluster, partial(_plug, cells=cells), ETHERTYPE, programs) as run:
        rate: float = run.wait(TIMEOUT).results["n2"]
    return rate, (relay_time() - before) / count / 1e9
