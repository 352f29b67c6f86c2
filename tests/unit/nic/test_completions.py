"""Calls between firmware and host library under each executor: neither is re-entered."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, cast

import pytest

from protocols.core.firmware import Adapter, Agent
from protocols.core.host_work import TRAP
from protocols.core.profile import Cost, Profile
from testbed.engine.loop import Loop, VirtualClock
from testbed.engine.server import Core
from testbed.nic.hosted import HostedNic, HostSide
from testbed.nic.immediate import ImmediateNic
from testbed.nic.priced import Hardware, PricedNic
from testbed.runtime.nodes.dilated_host import DilatedHost
from testbed.runtime.nodes.inline_nic import InlineNic
from testbed.runtime.nodes.veth_port import VethPort
from testbed.spec.model import Description
from testbed.spec.placement import Rank
from testbed.spec.resolver import resolve

if TYPE_CHECKING:
    from protocols.core.firmware import Firmware, Host, Nic
    from testbed.kernel.frame_socket import FrameSocket
    from testbed.nic.immediate import Port

PRICES = Profile("round numbers", ring=200, show=70, notice=30, doorbell=20)
KERNEL = Profile("kernel", hosted=True, post=50, notice=30, work={TRAP: Cost(200)})


class SilentPort:
    """Port without incoming frames, on which nothing may be sent."""

    def __init__(self) -> None:
        self._end, self._far_end = socket.socketpair()

    def fileno(self) -> int:
        return self._end.fileno()

    def enable_timestamps(self) -> None:
        """Do nothing: no frame arrives."""

    def send(self, _frame: bytes) -> None:
        raise AssertionError("nothing is sent")

    def close(self) -> None:
        self._end.close()
        self._far_end.close()


class ScriptedCard:
    """Firmware and its host.

    completions: descriptors that the firmware completes on a doorbell for a descriptor. doorbells: descriptors that the host
    rings on a completion. events: all events, in order.
    """

    deadline = None

    def __init__(self, completions: dict[int, list[int]], doorbells: dict[int, list[int]]) -> None:
        self.events: list[tuple[str, int]] = []
        self._completions = completions
        self._doorbells = doorbells
        self._inside: set[str] = set()
        self.nic: Nic

    @contextmanager
    def entered(self, name: str) -> Iterator[None]:
        assert name not in self._inside, f"the {name} is re-entered"
        self._inside.add(name)
        yield
        self._inside.remove(name)

    def on_doorbell(self, _now: int, index: int) -> None:
        with self.entered("firmware"):
            self.events.append(("rung", index))
            for completion in self._completions.get(index, ()):
                self.nic.post_completion(completion)
            self.events.append(("answered", index))

    def on_completion(self, index: int) -> None:
        with self.entered("host"):
            self.events.append(("seen", index))
            for rung in self._doorbells.get(index, ()):
                self.nic.ring_doorbell(rung, 0, 0)


Executor = Callable[[ScriptedCard, SilentPort], Callable[[], object]]
"""Attaches a card to a NIC; returns a function that runs its clock until no event is left."""


def immediate(card: ScriptedCard, _wire: SilentPort) -> Callable[[], object]:
    clock = VirtualClock()
    nic = ImmediateNic(clock, Loop(clock), cast("Port", None), 1_500)
    card.nic = nic
    nic.begin(0, Agent(cast("Firmware", card), cast("Host", card)))
    return lambda: None


def priced(card: ScriptedCard, _wire: SilentPort) -> Callable[[], object]:
    loop = Loop(clock := VirtualClock())
    hardware = Hardware(clock, loop, "NIC", PRICES.processors)
    nic = PricedNic(clock, loop, cast("Port", None), Core("core", loop), PRICES, 1_500, hardware)
    card.nic = nic
    nic.begin(0, Agent(cast("Firmware", card), cast("Host", card)))
    return loop.run


def hosted(card: ScriptedCard, _wire: SilentPort) -> Callable[[], object]:
    loop = Loop(clock := VirtualClock())
    host = HostSide(clock, "n1", [Core("core", loop)], [0], 1, None)
    card.nic = nic = HostedNic(clock, loop, cast("Port", None), 0, KERNEL, 1_500, host, bytes(6))
    nic.begin(0, Agent(cast("Firmware", card), cast("Host", card)))
    return loop.run


def inline(card: ScriptedCard, wire: SilentPort) -> Callable[[], object]:
    nic = InlineNic(VethPort(cast("FrameSocket", wire)))
    card.nic = nic
    nic.attach(Agent(cast("Firmware", card), cast("Host", card)))
    return lambda: None


def dilated(card: ScriptedCard, wire: SilentPort) -> Callable[[], object]:
    node = resolve(Description.star(2)).nodes[0]
    host = DilatedHost(cast("FrameSocket", wire), node, PRICES, 100)

    def plug(_adapter: Adapter, nic: Nic) -> Agent:
        card.nic = nic
        return Agent(cast("Firmware", card), cast("Host", card))

    host.attach([Rank("n1", 0, "n1", 0, 0)], [Adapter(0, [bytes(6)])], plug, lambda library: library)
    host.loop.stop_at(1_000_000)
    return host.loop.run


immediate_executors = pytest.mark.parametrize("executor", [immediate, inline])
all_executors = pytest.mark.parametrize("executor", [immediate, priced, hosted, inline, dilated])


def record_events(
    executor: Executor, completions: dict[int, list[int]], doorbells: dict[int, list[int]]
) -> list[tuple[str, int]]:
    """Return the events that a doorbell for descriptor 1 causes."""
    card = ScriptedCard(completions, doorbells)
    with closing(SilentPort()) as wire:
        run_executor = executor(card, wire)
        card.nic.ring_doorbell(1, 0, 0)
        run_executor()
    return card.events


@all_executors
def test_the_host_sees_completions_after_the_firmware_has_returned(executor: Executor) -> None:
    assert record_events(executor, {1: [10, 20]}, {}) == [("rung", 1), ("answered", 1), ("seen", 10), ("seen", 20)]


@immediate_executors
def test_a_doorbell_during_a_completion_is_handled_at_once_and_its_completions_follow_the_others(
    executor: Executor,
) -> None:
    assert record_events(executor, {1: [10, 20], 2: [30]}, {10: [2]}) == [
        ("rung", 1), ("answered", 1), ("seen", 10), ("rung", 2), ("answered", 2), ("seen", 20), ("seen", 30),
    ]  # fmt: skip


@all_executors
def test_a_host_may_ring_a_doorbell_on_each_of_many_completions(executor: Executor) -> None:
    numbers = range(1, 1_001)
    log = record_events(
        executor, {number: [number] for number in numbers}, {number: [number + 1] for number in numbers[:-1]}
    )
    expected = [[("rung", number), ("answered", number), ("seen", number)] for number in numbers]
    assert log == [event for events in expected for event in events]
