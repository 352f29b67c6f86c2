"""AM-II's complete firmware and host library in the simulation: every request is handled once or returned."""

from __future__ import annotations

from typing import Any, cast

import pytest

from protocols.am2.host.library import ActiveMessages
from protocols.am2.plug import plug
from protocols.am2.settings import MILLISECOND, SECOND, Settings
from protocols.core.profile import IDEAL, Profile
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation
from testbed.spec.elements import Link, Node, Switch
from testbed.spec.model import Description
from tests.sim.am2_endpoints import Transcript, firmware, start_exchange, total_counter

WITH_COSTS = Profile(
    "round numbers", post=500, write_rate=1_000_000_000, translate=300, notice=200, interrupt=5_000, doorbell=100,
    receive=2_000, ring=1_000, tick=500, send=1_500, transfer=200, show=300, fetch=800, fetch_rate=1_000_000_000, store=900,
    store_rate=1_000_000_000, receive_ring=64,
)  # fmt: skip
FAULTS: dict[str, dict[str, Any]] = {
    "none": {},
    "loss": {"loss": "5%"},
    "duplicates": {"duplicate": "10%"},
    "corruption": {"corrupt": "5%"},
    "reordering": {"reorder": "20%"},
    "all": {"loss": "3%", "duplicate": "3%", "corrupt": "3%", "reorder": "10%"},
}


@pytest.mark.parametrize("profile", [IDEAL, WITH_COSTS], ids=["ideal", "with costs"])
@pytest.mark.parametrize("fault", FAULTS)
def test_every_request_is_handled_once_under_any_link_fault(fault: str, profile: Profile) -> None:
    transcript = Transcript()
    cluster = Description.back_to_back(delay="10us", rate="1gbit", seed=3, **FAULTS[fault])
    with Simulation(cluster, plug(on_delivery=transcript.on_delivery), profile=profile) as simulation:
        start_exchange(simulation, transcript, endpoints=2, requests=60)
        simulation.run(timeout=60 * SECOND)
        simulation.run_until(simulation.now() + SECOND)  # the last acknowledgements may have been lost
        assert not transcript.returned
        assert total_counter(simulation, "unreachable") == 0
        assert firmware(simulation, "n1").pending_work() == []
    transcript.check()


@pytest.mark.parametrize("frames", [1, 2, 7])
def test_more_endpoints_than_frames_are_paged(frames: int) -> None:
    transcript = Transcript()
    cluster = Description.star(3, delay="5us", rate="1gbit", loss="1%", seed=1)
    settings = Settings(frames=frames, stay=2 * MILLISECOND)
    with Simulation(cluster, plug(settings, on_delivery=transcript.on_delivery)) as simulation:
        start_exchange(simulation, transcript, endpoints=9, requests=12)
        simulation.run(timeout=120 * SECOND)
        assert total_counter(simulation, "unloaded") > 0
        assert not transcript.returned
    transcript.check()


def test_messages_on_myrinet_wait_for_the_mappers_routes() -> None:
    transcript = Transcript()
    cluster = Description(
        name="line",
        nodes=[Node(name=f"n{number}") for number in range(1, 5)],
        switches=[Switch(name=name, kind="myrinet") for name in ("s1", "s2")],
        links=[
            Link(ends=ends)
            for ends in (("n1", "s1:1"), ("n2", "s1:2"), ("n3", "s2:1"), ("n4", "s2:2"), ("s1:3", "s2:3"))
        ],
    )
    with Simulation(cluster, plug(on_delivery=transcript.on_delivery)) as simulation:
        start_exchange(simulation, transcript, endpoints=2, requests=20)
        simulation.run(timeout=20 * SECOND)
        assert total_counter(simulation, "mapper_tables_installed") >= 4
        assert not transcript.returned
    transcript.check()


def test_an_interrupt_delays_a_page_fault_but_not_a_polled_reply() -> None:
    def reply_times(interrupt: int) -> tuple[int, int]:
        """Return the round-trip times of the first request, which waits for endpoints to be paged in, and of the second."""
        profile = Profile(receive=1_000, notice=100, interrupt=interrupt)
        with Simulation(Description.back_to_back(delay="1us", rate="1gbit"), plug(), profile=profile) as simulation:
            requester, replier = (
                cast(ActiveMessages, simulation.nodes[name].agent.host).allocate_bundle().allocate_endpoint()
                for name in ("n1", "n2")
            )
            replier.tag = 1
            replier.set_handler(1, lambda token: token.reply(1))
            requester.set_handler(1, lambda _: None)
            requester.map(0, replier.name, 1)

            async def send_requests(_: ActiveMessages, node: SimNode) -> tuple[int, int]:
                times = [node.now()]
                for _ in range(2):
                    await requester.request(0, 1)
                    await requester.wait()
                    assert await requester.poll()
                    times.append(node.now())
                return times[1] - times[0], times[2] - times[1]

            async def serve(_: ActiveMessages, __: SimNode) -> None:
                handled_count = 0
                while handled_count < 2:
                    await replier.wait()
                    handled_count += await replier.poll()

            request_task = simulation.spawn("n1", send_requests)
            simulation.spawn("n2", serve)
            simulation.run(timeout=SECOND)
            return request_task.result()

    (without_interrupts, polled), (with_interrupts, polled_with_interrupts) = reply_times(0), reply_times(200_000)
    assert with_interrupts >= without_interrupts + 200_000
    assert polled == polled_with_interrupts
