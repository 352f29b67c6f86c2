"""Firmware on a host's cores: what each event costs, on which core, and when its effects appear."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from protocols.core.firmware import Agent
from protocols.core.host_work import (
    COPY,
    INTERRUPT,
    LIBRARY,
    OFFLOAD,
    POLL,
    SOFTIRQ,
    SWITCH,
    TRAP,
    WAKE,
    ZERO_COST_WORK,
    host_work,
)  # fmt: skip
from protocols.core.profile import Cost, Profile
from testbed.engine.loop import Loop, VirtualClock
from testbed.engine.server import Core
from testbed.nic.hosted import HostedNic, HostSide
from testbed.nic.immediate import ImmediateNic

GBIT = 8 * 10**9  # bit/s: a byte takes 1 ns
WORK = {
    TRAP: Cost(300), INTERRUPT: Cost(5_000), SOFTIRQ: Cost(2_000), WAKE: Cost(3_000), SWITCH: Cost(4_000),
    COPY: Cost(100, GBIT, 4 * GBIT, 2 * GBIT), OFFLOAD: Cost(50, GBIT), "header": Cost(700),
}  # fmt: skip
PROFILE = Profile("round numbers", hosted=True, post=500, notice=200, work=WORK)
OWN, PEER = b"\2\0\0\0\0\1", b"\2\0\0\0\0\2"
MARK = b"\x88\xb5"


def frame(size: int = 100, destination: bytes = OWN) -> bytes:
    return (destination + PEER + MARK).ljust(size, b"\0")


class Machine:
    """Host with one NIC and scripted firmware and library.

    departures: times and frames. completions: times and indexes. handled_frames: times and cores of the frame handler.
    """

    deadline = None

    def __init__(
        self, profile: Profile = PROFILE, cores: int = 1, steer: Callable[[bytes, int], int] | None = None
    ) -> None:
        self.clock = VirtualClock()
        self.loop = Loop(self.clock)
        self.cores = [Core(f"core {number}", self.loop) for number in range(cores)]
        caches = [number // 2 for number in range(cores)]
        self.host = HostSide(self.clock, "n1", self.cores, caches, profile.receive_queues, steer)
        self.nic = HostedNic(self.clock, self.loop, self, 0, profile, 9_000, self.host, OWN)
        self.nic.begin(0, Agent(self, self))
        self.departures: list[tuple[int, bytes]] = []
        self.completions: list[tuple[int, int]] = []
        self.handled_frames: list[tuple[int, int]] = []
        self.on_frame: Callable[[], object] = lambda: None
        self.on_descriptor: Callable[[], object] = lambda: None

    def causes(self, core: int = 0) -> Mapping[str, int]:
        return dict(self.cores[core].causes)

    # Port, firmware and host library

    def enter(self, now: int, frame: bytes) -> None:
        self.departures.append((now, frame))

    def receive(self, now: int, frame: bytes) -> None:  # noqa: ARG002
        self.handled_frames.append((now, self.nic.core))
        self.on_frame()

    def on_doorbell(self, now: int, index: int) -> None:  # noqa: ARG002
        self.on_descriptor()

    def on_timer(self, now: int) -> None:
        """No timer is set."""

    def on_completion(self, index: int) -> bool:
        self.completions.append((self.clock.time, index))
        return True

    def counter_values(self) -> Mapping[str, int]:
        return {}

    def pending_work(self) -> list[str]:
        return []


def test_a_doorbell_is_a_trap_and_its_frame_leaves_after_all_work_of_the_core() -> None:
    machine = Machine()

    def send() -> None:
        machine.nic.spend("header")
        machine.nic.send(frame(destination=PEER))

    machine.on_descriptor = send
    machine.nic.ring_doorbell(1, 0, 0)
    assert machine.nic.posting_end == 500 + 300 + 700
    machine.loop.run()
    assert machine.departures == [(1_500, frame(destination=PEER))]
    assert machine.causes() == {LIBRARY: 500, TRAP: 300, "header": 700}


def test_a_frame_wakes_an_idle_core_interrupts_it_and_is_handled_in_the_softirq() -> None:
    machine = Machine()
    machine.on_frame = lambda: machine.nic.post_completion(7)
    machine.nic.receive(0, frame())
    machine.loop.run()
    assert machine.handled_frames == [(3_000 + 5_000 + 2_000, 0)]
    assert machine.completions == [(10_000 + 200, 7)]
    assert machine.causes() == {WAKE: 3_000, INTERRUPT: 5_000, SOFTIRQ: 2_000, LIBRARY: 200}


def test_frames_that_arrive_while_the_softirq_works_need_no_interrupt_and_a_later_one_does() -> None:
    machine = Machine()
    for time in (0, 1_000, 9_000, 40_000):
        machine.loop.at(time, lambda now: machine.nic.receive(now, frame()))
    machine.loop.run()
    assert [handled_at for handled_at, _ in machine.handled_frames] == [10_000, 12_000, 14_000, 50_000]
    assert machine.causes()[INTERRUPT] == 2 * 5_000


def test_a_core_whose_program_polls_is_not_woken() -> None:
    machine = Machine()
    machine.cores[0].begin_poll(0)
    machine.nic.receive(0, frame())
    machine.loop.run()
    assert WAKE not in machine.causes()
    machine.cores[0].end_poll(20_000)
    assert machine.causes()[POLL] == 20_000 - 7_000  # interrupt and softirq are the rest


def test_an_interrupt_delays_the_computation_on_its_core() -> None:
    machine = Machine(cores=2)
    end_times = []

    async def compute(core: Core) -> None:
        await core.compute(100_000)
        end_times.append((core.name, machine.clock.time))

    for core in machine.cores:
        machine.loop.spawn(compute(core), core.name)
    machine.loop.at(30_000, lambda now: machine.nic.receive(now, frame()))
    machine.loop.run()
    assert end_times == [("core 1", 100_000), ("core 0", 100_000 + 5_000 + 2_000)]
    assert machine.handled_frames == [(37_000, 0)]


def test_a_program_that_sleeps_is_switched_to_before_it_sees_a_completion() -> None:
    machine = Machine(cores=2)
    machine.nic.bind(1)
    machine.on_frame = lambda: machine.nic.interrupt(7)
    machine.nic.receive(0, frame())
    machine.loop.run()
    assert machine.completions == [(10_000 + 3_000 + 4_000 + 200, 7)]
    assert machine.causes(1) == {WAKE: 3_000, SWITCH: 4_000, LIBRARY: 200}


@pytest.mark.parametrize(
    ("source", "cost"), [(0, 1_100), (2, 350), (3, 600), (-1, 1_100)],
    ids=["another cache", "its own", "a shared cache", "memory"],
)  # fmt: skip
def test_the_rate_of_a_copy_depends_on_the_cache_of_its_source(source: int, cost: int) -> None:
    machine = Machine(cores=4)
    machine.nic.bind(2)
    machine.nic.spend(COPY, 1_000, source)
    assert machine.causes(2) == {COPY: cost}


def test_a_completion_waits_for_the_copy_engine_and_a_frame_does_not() -> None:
    machine = Machine()

    def offload() -> None:
        machine.nic.offload(8_000)
        machine.nic.send(frame(destination=PEER))
        machine.nic.post_completion(7)

    machine.on_descriptor = offload
    machine.nic.ring_doorbell(1, 0, 0)
    machine.loop.run()
    assert machine.departures == [(850, frame(destination=PEER))]
    assert machine.completions == [(850 + 8_000 + 200, 7)]
    assert machine.host.copying.busy == 8_000


def test_caught_up_completes_after_the_work_charged_so_far() -> None:
    machine = Machine()
    continued = []

    async def spend() -> None:
        assert machine.nic.caught_up().done, "caught_up waits without charged work"
        machine.nic.spend("header")
        assert machine.nic.reached == 700
        await machine.nic.caught_up()
        continued.append(machine.clock.time)

    machine.loop.spawn(spend(), "program")
    machine.loop.at(300, lambda now: machine.nic.receive(now, frame()))
    machine.loop.run()
    assert continued == [700], "kernel work that arrived later delayed the program"


def test_each_receive_queue_interrupts_its_own_core() -> None:
    profile = Profile("queues", hosted=True, receive_queues=2, work=WORK)
    machine = Machine(profile, cores=2, steer=lambda raw, queues: raw[14] % queues)
    for number in (0, 1, 3):
        machine.nic.receive(0, frame()[:14] + bytes([number]) + bytes(50))
    machine.loop.run()
    assert sorted(machine.handled_frames) == [(10_000, 0), (10_000, 1), (12_000, 1)]


def test_frames_wait_in_a_polled_nic_until_the_host_reads_them() -> None:
    fifo = Profile("fifo", hosted=True, polled=True, receive_ring=2, work={TRAP: Cost(300), "pull": Cost(4_000)})
    machine = Machine(fifo)
    machine.on_frame = lambda: machine.nic.spend("pull")
    for _ in range(3):
        machine.nic.receive(0, frame())
    machine.loop.run()
    assert (machine.handled_frames, machine.nic.dropped) == ([], 1)
    assert machine.nic.read_frames(1) == 1
    assert machine.nic.posting_end == 300 + 4_000
    assert machine.nic.read_frames(5) == 1
    assert machine.nic.read_frames(5) == 0
    assert machine.causes() == {TRAP: 900, "pull": 8_000}


def test_a_frame_between_two_ranks_stays_in_the_kernel() -> None:
    machine = Machine()
    HostedNic(machine.clock, machine.loop, machine, 0, PROFILE, 9_000, machine.host, PEER).begin(
        0, Agent(machine, machine)
    )
    machine.on_descriptor = lambda: machine.nic.send(frame(destination=PEER))
    machine.nic.ring_doorbell(1, 0, 0)
    machine.loop.run()
    assert machine.departures == []
    assert [time for time, _ in machine.handled_frames] == [800]
    assert machine.causes() == {LIBRARY: 500, TRAP: 300}


def test_a_nic_cannot_be_bound_to_a_core_that_its_node_lacks() -> None:
    with pytest.raises(ValueError, match="core must be 0 to 1, got 2"):
        Machine(cores=2).nic.bind(2)


def test_a_nic_without_prices_has_zero_cost_work() -> None:
    clock = VirtualClock()
    machine = Machine()
    assert host_work(ImmediateNic(clock, Loop(clock), machine, 1_500)) is ZERO_COST_WORK
    assert host_work(machine.nic) is machine.nic
    assert ZERO_COST_WORK.read_frames(3) == 0
