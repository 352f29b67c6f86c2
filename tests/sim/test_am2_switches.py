"""AM-II with the features that GAM lacks switched off: acknowledgements, protection and virtual networks."""

from __future__ import annotations

from collections import Counter
from typing import cast

import pytest

from protocols.active_messages.endpoint_names import EndpointName
from protocols.am2.host.endpoint import Endpoint
from protocols.am2.host.library import ActiveMessages, ResourceError
from protocols.am2.plug import plug
from protocols.am2.receiver import Delivery
from protocols.am2.settings import SECOND, Settings
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation
from testbed.spec.model import Description
from tests.sim.am2_endpoints import Transcript, start_exchange, total_counter
from tests.sim.test_am2_errors import SECOND_NODE, TAG, Pair

GAM = Settings(reliable=False, guarded=False, virtual=False)


def test_with_all_features_off_only_messages_are_sent() -> None:
    transcript = Transcript()
    with Simulation(Description.back_to_back(delay="5us"), plug(GAM, on_delivery=transcript.on_delivery)) as simulation:
        start_exchange(simulation, transcript, endpoints=2, requests=40)
        simulation.run(timeout=SECOND)
        assert total_counter(simulation, "acknowledgements_sent") == 0
        assert total_counter(simulation, "dropped") == 0
        assert total_counter(simulation, "packets_sent") == total_counter(simulation, "packets_received")
    transcript.check()


def test_without_acknowledgements_lost_messages_are_not_resent() -> None:
    pair = Pair(Settings(reliable=False, virtual=False))
    pair.requester.map(0, SECOND_NODE, TAG)
    pair.simulation.cut(pair.link)
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 41), until=lambda: pair.simulation.now() > SECOND)
    assert (pair.returned, pair.replies, pair.delivered) == ([], [], [])
    assert pair.requester.outbox.is_idle
    assert pair.counter("n1", "packets_resent") == 0


def test_without_protection_tags_are_ignored() -> None:
    pair = Pair(Settings(guarded=False))
    pair.requester.map(0, SECOND_NODE, TAG + 1)
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 41))
    assert pair.replies == [42]


def test_without_virtual_networks_each_endpoint_keeps_a_frame_and_no_more_can_be_allocated() -> None:
    transcript = Transcript()
    settings = Settings(virtual=False, frames=3)
    with Simulation(
        Description.back_to_back(delay="5us"), plug(settings, on_delivery=transcript.on_delivery)
    ) as simulation:
        start_exchange(simulation, transcript, endpoints=3, requests=10)
        simulation.run(timeout=SECOND)
        assert total_counter(simulation, "not_resident") == total_counter(simulation, "unloaded") == 0
        with pytest.raises(ResourceError, match="3 endpoints"):
            cast(ActiveMessages, simulation.nodes["n1"].agent.host).allocate_bundle().allocate_endpoint()
    transcript.check()


@pytest.mark.parametrize("exponent", [0, 1, 3])
def test_the_scheduler_bounds_an_endpoints_wait_during_a_flood(exponent: int) -> None:
    """Section "Endpoint scheduling". All endpoints share one channel; two of four always have messages to send, the third
    one sends a request now and then, and the fourth one never."""
    delivered: list[Delivery] = []
    settings = Settings(channels=1, attempts=exponent, frames=4, credits=16)
    with Simulation(
        Description.back_to_back(delay="2us", rate="1gbit"), plug(settings, on_delivery=delivered.append)
    ) as simulation:
        own_library, peer_library = (cast(ActiveMessages, simulation.nodes[name].agent.host) for name in ("n1", "n2"))
        bundle = own_library.allocate_bundle()
        requesters = [bundle.allocate_endpoint() for _ in range(4)]
        server = peer_library.allocate_bundle().allocate_endpoint()
        server.tag = TAG
        server.set_handler(1, lambda _: None)
        for endpoint in requesters:
            endpoint.map(0, EndpointName(1, 0), TAG)

        async def flood(am: ActiveMessages, node: SimNode, endpoint: Endpoint, pause: int) -> None:  # noqa: ARG001
            while len(delivered) < 2_000:
                await endpoint.request(0, 1)
                if pause:
                    await node.sleep(pause)

        async def serve(am: ActiveMessages, node: SimNode) -> None:  # noqa: ARG001
            while len(delivered) < 2_000:
                await server.wait()
                await server.poll()

        for endpoint, pause in zip(requesters, (0, 0, 300_000), strict=False):
            simulation.spawn("n1", flood, endpoint, pause)
        simulation.spawn("n2", serve)
        simulation.run_until(SECOND)
    requests = [delivery.endpoint for delivery in delivered if delivery.node == 0]
    shares = Counter(requests)
    assert shares[2] >= 20
    assert 0.8 < shares[0] / shares[1] < 1.25
    # Between two packets of an endpoint with messages to send, the three others have their attempts. One packet more may
    # be on its way, as there is one channel.
    longest = {0: 0, 1: 0}
    current = {0: 0, 1: 0}
    for sender in requests[100:]:
        for endpoint in current:
            current[endpoint] = 0 if sender == endpoint else current[endpoint] + 1
            longest[endpoint] = max(longest[endpoint], current[endpoint])
    assert max(longest.values()) <= (3 << exponent) + 1
