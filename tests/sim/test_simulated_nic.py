"""Costs of a simulated NIC's actions, their order, and the NIC's restart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocols.core.profile import IDEAL, Profile
from testbed.nic.priced import PricedNic
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation, StalledError
from testbed.spec.model import Description
from tests.sim.echo_and_flood import EchoEndpoint, EchoFirmware, EchoPlug

LINE = Description.back_to_back(delay="1us")
WITH_COSTS = Profile(
    "round numbers", post=100, write_rate=8_000_000_000, translate=50, notice=30, doorbell=20, receive=300, ring=200,
    tick=10, send=400, transfer=60, show=70, fetch=500, fetch_rate=1_000_000_000, store=600, store_rate=2_000_000_000,
)  # fmt: skip


async def ask(endpoint: EchoEndpoint, node: SimNode, peer: int, count: int, size: int) -> list[int]:
    """Send requests one by one; return when each reply came."""
    times_measured = []
    for _ in range(count):
        await endpoint.request(peer, bytes(size))
        times_measured.append(node.now())
    return times_measured


async def ask_at_once(endpoint: EchoEndpoint, node: SimNode, peer: int, count: int, size: int) -> int:
    for completion in [endpoint.request(peer, bytes(size)) for _ in range(count)]:
        await completion
    return node.now()


def test_a_round_trip_is_the_sum_of_its_steps() -> None:
    with Simulation(LINE, EchoPlug(), profile=WITH_COSTS) as simulation:
        task = simulation.spawn("n1", ask, 1, 1, 1000)
        simulation.run()
    post = 100 + 50 + 32  # the host: the descriptor's 32 bytes at a byte a nanosecond
    # The processor continues with the send while the DMA engine fetches: the later of the two counts.
    request_time = 20 + 200 + 60 + max(400, 500 + 8000)
    replying = 300 + 400
    # The show waits for the store, which begins when the processor has started it.
    taking = 300 + 60 + max(70, 600 + 4000) + 30
    assert task.result() == [post + request_time + 1_000 + replying + 1_000 + taking]


def test_busy_time_is_counted() -> None:
    with Simulation(LINE, EchoPlug(), profile=WITH_COSTS) as simulation:
        simulation.spawn("n1", ask, 1, 10, 1000)
        simulation.run()
        nic = simulation.nodes["n1"].nic
        assert isinstance(nic, PricedNic)
        assert nic.processor.busy == 10 * (200 + 60 + 400 + 300 + 60 + 70)
        assert (nic.reading.busy, nic.writing.busy) == (10 * 8_500, 10 * 4_600)
        assert simulation.nodes["n1"].core.busy == 10 * (100 + 50 + 32 + 30)
        assert (nic.sent, nic.received, nic.dropped) == (10, 10, 0)


EVENTS = Profile(
    "events", post=100, write_rate=8_000_000_000, translate=50, notice=40, ring=200, receive=300, fetched=210, stored=310,
    sent=110, fetch=500, store=600, bus_rate=1_000_000_000, bus_transaction=80, bus_burst=512,
)  # fmt: skip


def test_a_processor_that_takes_events_continues_after_a_transfer() -> None:
    """A round trip through idle NICs: 1000 bytes occupy the bus for 8 us and two transactions, while the processor is
    free; it handles their arrival when the transfer ends."""
    with Simulation(LINE, EchoPlug(), profile=EVENTS) as simulation:
        task = simulation.spawn("n1", ask, 1, 1, 1000)
        simulation.run()
        nic = simulation.nodes["n1"].nic
        assert isinstance(nic, PricedNic)
        request_time = 200 + 500 + 2 * 80 + 8_000 + 210
        taking = 300 + 600 + 2 * 80 + 8_000 + 310 + 40
        assert task.result() == [100 + 50 + 32 + request_time + 1_000 + 300 + 1_000 + taking]
        assert nic.processor.busy == 200 + 210 + 110 + 300 + 310
        assert nic.bus.busy == 32 + 2 * (160 + 8_000) + 40
        assert (nic.reading.busy, nic.writing.busy) == (500 + 8_160, 600 + 8_160)


def test_the_time_that_each_part_is_busy_is_the_sum_of_its_costs() -> None:
    """The sum also holds where many transfers compete for a part."""
    with Simulation(LINE, EchoPlug(), profile=EVENTS) as simulation:
        simulation.spawn("n1", ask_at_once, 1, 40, 1000)
        simulation.spawn("n2", ask_at_once, 0, 40, 1000)
        simulation.run()
        now = simulation.now() + 10_000  # all is over by then
        for node in simulation.nodes.values():
            nic = node.nic
            assert isinstance(nic, PricedNic)
            costs = {
                nic.processor: 40 * (200 + 210 + 110 + 300 + 310) + 40 * (300 + 110),
                nic.bus: 40 * (32 + 2 * 8_160 + 40),
            }
            for server, cost in costs.items():
                assert server.busy == cost
                assert round(server.utilisation(now) * now) == cost
            assert nic.bus.waited > 0  # what one engine transfers the other one cannot
            assert node.core.busy >= 40 * (100 + 50 + 32 + 40)


def test_frames_that_come_have_the_second_processor() -> None:
    with Simulation(LINE, EchoPlug(), profile=replace(EVENTS, processors=2)) as simulation:
        simulation.spawn("n1", ask, 1, 10, 1000)
        simulation.run()
        nic = simulation.nodes["n1"].nic
        assert isinstance(nic, PricedNic)
        assert nic.processor.busy == 10 * (200 + 210 + 110)
        assert nic.receiver.busy == 10 * (300 + 310)
        assert nic.processed == nic.processor.busy + nic.receiver.busy


def test_a_nic_with_room_for_one_frame_fetches_the_next_when_that_has_left() -> None:
    def elapsed_time(elapsed_with_room: int) -> int:
        profile = Profile(transfer=10, fetch=1_000, send=10, fetched=1_000, ahead=elapsed_with_room)
        with Simulation(LINE, EchoPlug(), profile=profile) as simulation:
            task = simulation.spawn("n1", ask_at_once, 1, 100, 100)
            simulation.run()
            return task.result()

    assert elapsed_time(1) == pytest.approx(100 * 2_010, rel=0.02)  # nothing happens concurrently
    assert elapsed_time(2) == pytest.approx(elapsed_time(0), rel=0.02)
    assert elapsed_time(0) < 0.6 * elapsed_time(1)


def test_a_buffer_that_is_flushed_after_each_transfer_takes_the_hosts_core() -> None:
    def times_with(profile: Profile) -> tuple[int, int]:
        with Simulation(LINE, EchoPlug(), profile=profile) as simulation:
            task = simulation.spawn("n1", ask, 1, 1, 100)
            simulation.run()
            return task.result()[0], simulation.nodes["n1"].core.busy

    unflushed = Profile(fetch=1_000, store=2_000)
    (before, idle_time), (after, busy_time) = times_with(unflushed), times_with(replace(unflushed, flush=300))
    transfers = 2  # the question is read, and the answer is written
    assert after - before == busy_time - idle_time == transfers * 300


def test_dma_transactions_may_cost_more_than_the_hosts() -> None:
    def elapsed(profile: Profile) -> int:
        with Simulation(LINE, EchoPlug(), profile=profile) as simulation:
            task = simulation.spawn("n1", ask, 1, 1, 100)
            simulation.run()
            return task.result()[0]

    default_profile = Profile(bus_transaction=100, bus_burst=50)
    assert elapsed(replace(default_profile, dma_transaction=100)) == elapsed(default_profile)
    assert (
        elapsed(replace(default_profile, dma_transaction=130)) - elapsed(default_profile) == 2 * 2 * 30
    )  # two bursts in each of two transfers


def test_the_slowest_resource_sets_the_pace() -> None:
    with Simulation(LINE, EchoPlug(), profile=WITH_COSTS) as simulation:
        task = simulation.spawn("n1", ask_at_once, 1, 100, 1000)
        simulation.run()
        assert task.result() == pytest.approx(100 * 8_500, rel=0.02)


def test_a_program_that_computes_keeps_the_core_from_its_nic() -> None:
    async def compute_and_ask(endpoint: EchoEndpoint, node: SimNode) -> list[int]:
        reply = endpoint.request(1, bytes(10))
        await node.compute(1_000_000)
        times_measured = [node.now()]
        await reply
        times_measured.append(node.now())
        return times_measured

    with Simulation(LINE, EchoPlug(), profile=Profile(post=100, notice=30)) as simulation:
        task = simulation.spawn("n1", compute_and_ask)
        simulation.run()
        assert task.result() == [1_000_100, 1_000_130]


def test_a_full_receive_ring_drops_and_counts() -> None:
    plug = EchoPlug()
    with Simulation(LINE, plug, profile=Profile(receive=10_000, receive_ring=4)) as simulation:
        simulation.spawn("n1", ask_at_once, 1, 20, 100)
        with pytest.raises(StalledError):
            simulation.run()
        # One is being looked at, and four wait.
        assert (simulation.nodes["n2"].nic.dropped, len(plug.endpoints[1].firmware.frames)) == (15, 5)


def test_a_deadline_is_kept_to_the_nanosecond() -> None:
    plug = EchoPlug(timeout=50_000)
    with Simulation(LINE, plug) as simulation:
        link = simulation.layout.links[0].name
        simulation.cut(link)
        task = simulation.spawn("n1", ask, 1, 1, 100)
        simulation.run_until(120_000)
        simulation.restore(link)
        simulation.run()
        assert task.result() == [150_000 + 2_000]
        assert plug.endpoints[0].firmware.resent == 3


@pytest.mark.parametrize("profile", [IDEAL, WITH_COSTS], ids=["ideal", "with costs"])
def test_costs_of_the_profile_do_not_change_fates(profile: Profile) -> None:
    """A dialogue without timers has equal frames in equal order with and without prices."""
    plug = EchoPlug()
    with Simulation(LINE, plug, profile=profile) as simulation:
        simulation.spawn("n1", ask_at_once, 1, 50, 64)
        simulation.spawn("n2", ask_at_once, 0, 50, 65)
        simulation.run()
    for endpoint in plug.endpoints:
        requests = [data for _, data in endpoint.firmware.frames if data[14] == 1]
        replies = [data for _, data in endpoint.firmware.frames if data[14] == 2]
        assert [int.from_bytes(data[15:19], "big") for data in requests] == list(range(50))
        assert [int.from_bytes(data[15:19], "big") for data in replies] == list(range(50))


@pytest.mark.parametrize("profile", [IDEAL, WITH_COSTS], ids=["ideal", "with costs"])
def test_a_nic_that_starts_again_forgets_and_has_the_next_incarnation(profile: Profile) -> None:
    plug = EchoPlug(timeout=5_000_000)
    with Simulation(Description.back_to_back(delay="1ms"), plug, profile=profile) as simulation:
        old = simulation.spawn("n1", ask, 1, 1, 100)
        simulation.run_until(1_500_000)
        node = simulation.restart("n1")
        assert node.adapter.incarnation == 2
        assert node.endpoint is plug.endpoints[2]
        simulation.run_until(50_000_000)
        assert not old.done
        assert plug.endpoints[0].firmware.frames == []  # the reply came to the new NIC
        assert len(plug.endpoints[2].firmware.frames) == 1
        assert plug.endpoints[0].firmware.resent == 0
        new = simulation.spawn("n1", ask, 1, 1, 100)
        old.cancel()
        simulation.run()
        assert new.result()[0] >= 52_000_000


@pytest.mark.parametrize("profile", [IDEAL, WITH_COSTS], ids=["ideal", "with costs"])
def test_a_host_that_reacts_to_a_completion_finds_the_firmware_idle(
    profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work: list[str] = []
    receive, ring = EchoFirmware.receive, EchoFirmware.on_doorbell

    def on_frame(self: EchoFirmware, now: int, frame: bytes) -> None:
        at_work.append("receive")
        receive(self, now, frame)
        at_work.pop()

    def rung(self: EchoFirmware, now: int, index: int) -> None:
        assert at_work == []
        ring(self, now, index)

    monkeypatch.setattr(EchoFirmware, "receive", on_frame)
    monkeypatch.setattr(EchoFirmware, "on_doorbell", rung)

    async def keep_asking(endpoint: EchoEndpoint, node: SimNode) -> int:
        requests = [endpoint.request(1, b"")]

        def ask_again(_: object) -> None:
            if len(requests) < 10:
                requests.append(endpoint.request(1, b""))
                requests[-1].add_callback(ask_again)

        requests[0].add_callback(ask_again)
        while not requests[-1].done:
            await requests[-1]
        return node.now()

    with Simulation(LINE, EchoPlug(), profile=profile) as simulation:
        task = simulation.spawn("n1", keep_asking)
        simulation.run()
        assert task.result() >= 10 * 2_000


def test_a_stuck_run_reports_which_node_waits_for_what() -> None:
    with Simulation(LINE, EchoPlug()) as simulation:
        simulation.cut(simulation.layout.links[0].name)
        simulation.spawn("n1", ask, 1, 1, 100)
        with pytest.raises(StalledError) as caught:
            simulation.run(timeout=1_000_000_000)
    text = str(caught.value)
    assert "nothing is left that could happen, and 1 program has not ended" in text
    assert "ask on n1 waits for the reply of node 1 to request 0" in text
    assert "n1, host: the reply of node 1 to request 0" in text
    assert "n1, firmware: request 0 has no reply" in text


def test_a_run_that_takes_too_long_is_reported_and_can_continue() -> None:
    plug = EchoPlug(timeout=50_000)
    with Simulation(LINE, plug) as simulation:
        link = simulation.layout.links[0].name
        simulation.cut(link)
        task = simulation.spawn("n1", ask, 1, 1, 100)
        with pytest.raises(StalledError, match="at 1010000 ns: 1010000 ns have passed"):
            simulation.run(timeout=1_010_000)
        simulation.restore(link)
        simulation.run(timeout=1_000_000)
        assert task.result() == [1_052_000]


def test_an_exception_of_a_program_ends_the_run_with_its_name() -> None:
    async def fail(endpoint: EchoEndpoint, node: SimNode) -> None:  # noqa: ARG001
        await node.sleep(5)
        raise LookupError("lost")

    with Simulation(LINE, EchoPlug()) as simulation:
        simulation.spawn("n2", fail)
        with pytest.raises(LookupError, match="lost") as caught:
            simulation.run()
        assert caught.value.__notes__ == ["in task 'fail on n2' at 5 ns"]
