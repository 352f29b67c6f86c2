"""Costs and order of a simulated NIC's actions, and its restart."""

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


async def send_requests(endpoint: EchoEndpoint, node: SimNode, peer: int, count: int, size: int) -> list[int]:
    """Send requests, each after the previous reply; return the times of the replies."""
    times = []
    for _ in range(count):
        await endpoint.request(peer, bytes(size))
        times.append(node.now())
    return times


async def post_requests(endpoint: EchoEndpoint, node: SimNode, peer: int, count: int, size: int) -> int:
    for completion in [endpoint.request(peer, bytes(size)) for _ in range(count)]:
        await completion
    return node.now()


def test_a_round_trip_takes_the_sum_of_its_costs() -> None:
    with Simulation(LINE, EchoPlug(), profile=WITH_COSTS) as simulation:
        task = simulation.spawn("n1", send_requests, 1, 1, 1000)
        simulation.run()
    post = 100 + 50 + 32  # the host: 32 bytes of the descriptor at one byte per ns
    # The processor prepares the send while the DMA engine fetches: the longer of the two counts.
    request_time = 20 + 200 + 60 + max(400, 500 + 8000)
    reply_time = 300 + 400
    # The completion is posted after the store, which begins when the processor has started it.
    receive_time = 300 + 60 + max(70, 600 + 4000) + 30
    assert task.result() == [post + request_time + 1_000 + reply_time + 1_000 + receive_time]


def test_the_busy_times_of_processor_dma_engines_and_core_are_counted() -> None:
    with Simulation(LINE, EchoPlug(), profile=WITH_COSTS) as simulation:
        simulation.spawn("n1", send_requests, 1, 10, 1000)
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


def test_an_event_driven_processor_handles_the_end_of_each_transfer() -> None:
    """A round trip through idle NICs: 1000 bytes occupy the bus for 8 us and two transactions, during which the processor is
    idle; it handles an event when the transfer ends."""
    with Simulation(LINE, EchoPlug(), profile=EVENTS) as simulation:
        task = simulation.spawn("n1", send_requests, 1, 1, 1000)
        simulation.run()
        nic = simulation.nodes["n1"].nic
        assert isinstance(nic, PricedNic)
        request_time = 200 + 500 + 2 * 80 + 8_000 + 210
        receive_time = 300 + 600 + 2 * 80 + 8_000 + 310 + 40
        assert task.result() == [100 + 50 + 32 + request_time + 1_000 + 300 + 1_000 + receive_time]
        assert nic.processor.busy == 200 + 210 + 110 + 300 + 310
        assert nic.bus.busy == 32 + 2 * (160 + 8_000) + 40
        assert (nic.reading.busy, nic.writing.busy) == (500 + 8_160, 600 + 8_160)


def test_the_busy_time_of_each_resource_is_the_sum_of_its_costs_under_contention() -> None:
    """Many transfers compete for each resource."""
    with Simulation(LINE, EchoPlug(), profile=EVENTS) as simulation:
        simulation.spawn("n1", post_requests, 1, 40, 1000)
        simulation.spawn("n2", post_requests, 0, 40, 1000)
        simulation.run()
        now = simulation.now() + 10_000  # all transfers have ended
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
            assert nic.bus.waited > 0  # the two DMA engines share the bus
            assert node.core.busy >= 40 * (100 + 50 + 32 + 40)


def test_received_frames_are_handled_by_the_second_processor() -> None:
    with Simulation(LINE, EchoPlug(), profile=replace(EVENTS, processors=2)) as simulation:
        simulation.spawn("n1", send_requests, 1, 10, 1000)
        simulation.run()
        nic = simulation.nodes["n1"].nic
        assert isinstance(nic, PricedNic)
        assert nic.processor.busy == 10 * (200 + 210 + 110)
        assert nic.receiver.busy == 10 * (300 + 310)
        assert nic.processor_time == nic.processor.busy + nic.receiver.busy


def test_a_nic_with_a_buffer_for_one_frame_does_not_fetch_the_next_one_ahead() -> None:
    def elapsed_time(ahead: int) -> int:
        profile = Profile(transfer=10, fetch=1_000, send=10, fetched=1_000, ahead=ahead)
        with Simulation(LINE, EchoPlug(), profile=profile) as simulation:
            task = simulation.spawn("n1", post_requests, 1, 100, 100)
            simulation.run()
            return task.result()

    assert elapsed_time(1) == pytest.approx(100 * 2_010, rel=0.02)  # fetching and sending do not overlap
    assert elapsed_time(2) == pytest.approx(elapsed_time(0), rel=0.02)
    assert elapsed_time(0) < 0.6 * elapsed_time(1)


def test_flushing_buffers_after_dma_transfers_costs_time_of_the_hosts_core() -> None:
    def measure(profile: Profile) -> tuple[int, int]:
        with Simulation(LINE, EchoPlug(), profile=profile) as simulation:
            task = simulation.spawn("n1", send_requests, 1, 1, 100)
            simulation.run()
            return task.result()[0], simulation.nodes["n1"].core.busy

    unflushed = Profile(fetch=1_000, store=2_000)
    (before, busy_before), (after, busy_after) = measure(unflushed), measure(replace(unflushed, flush=300))
    transfers = 2  # the request is read, and the reply is written
    assert after - before == busy_after - busy_before == transfers * 300


def test_dma_transactions_have_their_own_cost() -> None:
    def elapsed(profile: Profile) -> int:
        with Simulation(LINE, EchoPlug(), profile=profile) as simulation:
            task = simulation.spawn("n1", send_requests, 1, 1, 100)
            simulation.run()
            return task.result()[0]

    base_profile = Profile(bus_transaction=100, bus_burst=50)
    assert elapsed(replace(base_profile, dma_transaction=100)) == elapsed(base_profile)
    assert (
        elapsed(replace(base_profile, dma_transaction=130)) - elapsed(base_profile) == 2 * 2 * 30
    )  # two bursts in each of two transfers


def test_the_throughput_is_that_of_the_slowest_resource() -> None:
    with Simulation(LINE, EchoPlug(), profile=WITH_COSTS) as simulation:
        task = simulation.spawn("n1", post_requests, 1, 100, 1000)
        simulation.run()
        assert task.result() == pytest.approx(100 * 8_500, rel=0.02)


def test_a_computing_program_delays_the_handling_of_completions() -> None:
    async def compute_after_request(endpoint: EchoEndpoint, node: SimNode) -> list[int]:
        reply = endpoint.request(1, bytes(10))
        await node.compute(1_000_000)
        times = [node.now()]
        await reply
        times.append(node.now())
        return times

    with Simulation(LINE, EchoPlug(), profile=Profile(post=100, notice=30)) as simulation:
        task = simulation.spawn("n1", compute_after_request)
        simulation.run()
        assert task.result() == [1_000_100, 1_000_130]


def test_a_full_receive_ring_drops_frames_and_counts_them() -> None:
    plug = EchoPlug()
    with Simulation(LINE, plug, profile=Profile(receive=10_000, receive_ring=4)) as simulation:
        simulation.spawn("n1", post_requests, 1, 20, 100)
        with pytest.raises(StalledError):
            simulation.run()
        # One frame is being handled, and four wait in the ring.
        assert (simulation.nodes["n2"].nic.dropped, len(plug.endpoints[1].firmware.frames)) == (15, 5)


def test_timers_fire_exactly_at_the_deadline() -> None:
    plug = EchoPlug(timeout=50_000)
    with Simulation(LINE, plug) as simulation:
        link = simulation.layout.links[0].name
        simulation.cut(link)
        task = simulation.spawn("n1", send_requests, 1, 1, 100)
        simulation.run_until(120_000)
        simulation.restore(link)
        simulation.run()
        assert task.result() == [150_000 + 2_000]
        assert plug.endpoints[0].firmware.resent == 3


@pytest.mark.parametrize("profile", [IDEAL, WITH_COSTS], ids=["ideal", "with costs"])
def test_costs_of_the_profile_do_not_change_fates(profile: Profile) -> None:
    """Without timers, the frames and their order are the same with and without costs."""
    plug = EchoPlug()
    with Simulation(LINE, plug, profile=profile) as simulation:
        simulation.spawn("n1", post_requests, 1, 50, 64)
        simulation.spawn("n2", post_requests, 0, 50, 65)
        simulation.run()
    for endpoint in plug.endpoints:
        requests = [data for _, data in endpoint.firmware.frames if data[14] == 1]
        replies = [data for _, data in endpoint.firmware.frames if data[14] == 2]
        assert [int.from_bytes(data[15:19], "big") for data in requests] == list(range(50))
        assert [int.from_bytes(data[15:19], "big") for data in replies] == list(range(50))


@pytest.mark.parametrize("profile", [IDEAL, WITH_COSTS], ids=["ideal", "with costs"])
def test_a_restarted_nic_has_no_former_state_and_the_next_incarnation(profile: Profile) -> None:
    plug = EchoPlug(timeout=5_000_000)
    with Simulation(Description.back_to_back(delay="1ms"), plug, profile=profile) as simulation:
        old = simulation.spawn("n1", send_requests, 1, 1, 100)
        simulation.run_until(1_500_000)
        node = simulation.restart("n1")
        assert node.adapter.incarnation == 2
        assert node.endpoint is plug.endpoints[2]
        simulation.run_until(50_000_000)
        assert not old.done
        assert plug.endpoints[0].firmware.frames == []  # the reply arrived at the new NIC
        assert len(plug.endpoints[2].firmware.frames) == 1
        assert plug.endpoints[0].firmware.resent == 0
        new = simulation.spawn("n1", send_requests, 1, 1, 100)
        old.cancel()
        simulation.run()
        assert new.result()[0] >= 52_000_000


@pytest.mark.parametrize("profile", [IDEAL, WITH_COSTS], ids=["ideal", "with costs"])
def test_doorbells_of_completion_callbacks_do_not_interrupt_the_firmware(
    profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[str] = []
    receive, ring = EchoFirmware.receive, EchoFirmware.on_doorbell

    def watched_receive(self: EchoFirmware, now: int, frame: bytes) -> None:
        running.append("receive")
        receive(self, now, frame)
        running.pop()

    def watched_doorbell(self: EchoFirmware, now: int, index: int) -> None:
        assert running == []
        ring(self, now, index)

    monkeypatch.setattr(EchoFirmware, "receive", watched_receive)
    monkeypatch.setattr(EchoFirmware, "on_doorbell", watched_doorbell)

    async def send_from_callbacks(endpoint: EchoEndpoint, node: SimNode) -> int:
        requests = [endpoint.request(1, b"")]

        def send_next(_: object) -> None:
            if len(requests) < 10:
                requests.append(endpoint.request(1, b""))
                requests[-1].add_callback(send_next)

        requests[0].add_callback(send_next)
        while not requests[-1].done:
            await requests[-1]
        return node.now()

    with Simulation(LINE, EchoPlug(), profile=profile) as simulation:
        task = simulation.spawn("n1", send_from_callbacks)
        simulation.run()
        assert task.result() >= 10 * 2_000


def test_a_stalled_run_reports_what_each_node_waits_for() -> None:
    with Simulation(LINE, EchoPlug()) as simulation:
        simulation.cut(simulation.layout.links[0].name)
        simulation.spawn("n1", send_requests, 1, 1, 100)
        with pytest.raises(StalledError) as caught:
            simulation.run(timeout=1_000_000_000)
    text = str(caught.value)
    assert "no event is pending, and 1 program has not ended" in text
    assert "send_requests on n1 waits for the reply of node 1 to request 0" in text
    assert "n1, host: the reply of node 1 to request 0" in text
    assert "n1, firmware: request 0 has no reply" in text


def test_a_run_can_continue_after_a_timeout() -> None:
    plug = EchoPlug(timeout=50_000)
    with Simulation(LINE, plug) as simulation:
        link = simulation.layout.links[0].name
        simulation.cut(link)
        task = simulation.spawn("n1", send_requests, 1, 1, 100)
        with pytest.raises(StalledError, match="at 1010000 ns: 1010000 ns have passed"):
            simulation.run(timeout=1_010_000)
        simulation.restore(link)
        simulation.run(timeout=1_000_000)
        assert task.result() == [1_052_000]


def test_an_exception_in_a_program_ends_the_run_with_a_note_of_the_task() -> None:
    async def fail(endpoint: EchoEndpoint, node: SimNode) -> None:  # noqa: ARG001
        await node.sleep(5)
        raise LookupError("lost")

    with Simulation(LINE, EchoPlug()) as simulation:
        simulation.spawn("n2", fail)
        with pytest.raises(LookupError, match="lost") as caught:
            simulation.run()
        assert caught.value.__notes__ == ["in task 'fail on n2' at 5 ns"]
