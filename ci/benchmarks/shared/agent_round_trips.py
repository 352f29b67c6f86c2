"""Round trips from host to agent and back: firmware that completes every descriptor at once, on the agent's loop."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping

from benchmarks.harness.host_programs import Quantiles, quantiles, warm_up
from benchmarks.shared.processes import Process, agent
from protocols.core.completion import Completion
from protocols.core.firmware import Adapter, HostActions
from protocols.core.split_memory import HostSlot, OnDoorbell, SharedActions, SplitDriver
from testbed.kernel import syscalls
from testbed.runtime.shared.agent import NicConfig
from testbed.runtime.shared.attachment import Attachment, HostDriver

_ETHERTYPE = 0x88B6  # IEEE 802 local experimental EtherType 2
_ENTRIES = 64
SPIN = 10_000_000_000  # ns: never sleep


class EchoFirmware:
    """Firmware that posts a completion for each doorbell."""

    deadline = None

    def __init__(self, nic: SharedActions) -> None:
        self._post_completion = nic.post_completion

    def on_doorbell(self, _now: int, index: int) -> None:
        self._post_completion(0, index)

    def receive(self, _now: int, _frame: bytes) -> None: ...

    def on_timer(self, _now: int) -> None: ...

    def counter_values(self) -> Mapping[str, int]:
        return {}

    def pending_work(self) -> list[str]:
        return []


class EchoLibrary:
    """Host library that rings the doorbell and waits for its completion."""

    def __init__(self, nic: HostActions) -> None:
        self._nic = nic
        self._pending: dict[int, Completion[int]] = {}

    def ring(self, index: int) -> Completion[int]:
        self._pending[index] = completion = Completion("a completion")
        self._nic.ring_doorbell(index, 0, 0)
        return completion

    def on_completion(self, index: int) -> None:
        self._pending.pop(index).complete(index)

    def pending_work(self) -> list[str]:
        return []


class SharedNic:
    """The agent's side of the split driver."""

    def __init__(self, adapter: Adapter, nic: SharedActions) -> None:
        self.adapter = adapter
        self.firmware = EchoFirmware(nic)

    def attach(self, _now: int, _host: int, _memory: object, _descriptors: memoryview) -> OnDoorbell:
        return self.firmware.on_doorbell

    def detach(self, _now: int, _host: int, _incarnation: int) -> None: ...


def _host(
    _adapter: Adapter, nic: HostActions, _memory: object, _descriptors: memoryview, _slot: HostSlot
) -> EchoLibrary:
    return EchoLibrary(nic)


SPLIT_DRIVER = SplitDriver(0, _ENTRIES, SharedNic, _host)


@contextlib.contextmanager
def _running_agent(spin: int, cpu: int) -> Iterator[Process]:
    """Run an agent on the loopback interface of this process's network namespace."""
    config = NicConfig(SPLIT_DRIVER, _ETHERTYPE, "lo", (Adapter(0, (bytes(6),)),), spin=spin)
    process = agent(config, cpu=cpu)
    try:
        yield process
    finally:
        process.kill()


def trips(spin: bool, cpus: tuple[int, int], count: int) -> Quantiles:
    """Measure doorbells that are each answered by a completion, in ns. cpus: the processors of host and agent."""
    budget = SPIN if spin else 0

    def host(_report: Callable[[object], None]) -> Quantiles:
        syscalls.unshare(syscalls.CLONE_NEWNET)
        with _running_agent(budget, cpus[1]):
            os.sched_setaffinity(0, {cpus[0]})
            nic = Attachment("lo", _ETHERTYPE, SPLIT_DRIVER)
            assert isinstance(nic.host, EchoLibrary)
            driver = HostDriver(nic, nic.host, budget)
            return driver.loop.complete(_measure(nic.host, count))

    process = Process("", -1, host)
    try:
        result: Quantiles = process.next_report()
        return result
    finally:
        process.kill()


async def _measure(host: EchoLibrary, count: int) -> Quantiles:
    samples, used, now = [], 0, time.monotonic_ns
    for number in range(-warm_up(count), count):
        if not number:
            used = time.process_time_ns()
        start = now()
        await host.ring(1)
        if number >= 0:
            samples.append(now() - start)
    return quantiles(samples, time.process_time_ns() - used)
