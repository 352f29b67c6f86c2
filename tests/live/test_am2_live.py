"""AM-II's NICs on real interfaces, each inline in its host's process."""

from __future__ import annotations

import pytest

from protocols.active_messages.endpoint_names import EndpointName
from protocols.am2.codec import ETHERTYPE
from protocols.am2.host.endpoint import Endpoint
from protocols.am2.host.library import ActiveMessages
from protocols.am2.host.token import Token
from protocols.am2.plug import plug
from protocols.am2.settings import MILLISECOND, Settings
from testbed import Cluster
from testbed.controller.runs.agents import agents
from testbed.runtime.nodes.run_orders import ProgramNode

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

TIMEOUT = 20.0  # s
TAG = 7
ROUNDS = 60
SHORT, MEDIUM, BULK, ANSWER, BYE = range(1, 6)


def open_endpoints(am: ActiveMessages, number: int) -> tuple[list[Endpoint], list[int]]:
    """Return `number` serving endpoints, and a count of the peers that have finished with them."""
    bundle, gone = am.allocate_bundle(), [0]
    endpoints = [bundle.allocate_endpoint() for _ in range(number)]

    def bye(_: Token) -> None:
        gone[0] += 1

    for endpoint in endpoints:
        endpoint.tag = TAG
        endpoint.segment = bytearray(40_000)
        endpoint.set_handler(SHORT, lambda token, word: token.reply(ANSWER, word, 0))
        endpoint.set_handler(MEDIUM, lambda token, data, word: token.reply(ANSWER, word, sum(data)))
        endpoint.set_handler(BULK, lambda token, data, word: token.reply(ANSWER, word, sum(data)))
        endpoint.set_handler(BYE, bye)
    return endpoints, gone


async def serve(endpoint: Endpoint) -> None:
    """Handle messages at an endpoint while the program waits for another: three nodes that each serve one endpoint only
    could wait in a circle."""
    while True:
        await endpoint.wait()
        await endpoint.poll()


async def everybody(am: ActiveMessages, node: ProgramNode) -> list[tuple[int, int]]:
    """Send requests of all forms to all other nodes' endpoints; return the replies."""
    answers: list[tuple[int, int]] = []
    endpoints, gone = open_endpoints(am, 3)
    for endpoint in endpoints:
        endpoint.set_handler(ANSWER, lambda _, word, total: answers.append((word, total)))
    others = [number for number in range(am.size) if number != am.node]
    await node.loop.sleep(100 * MILLISECOND)  # until everybody has endpoints
    for endpoint in endpoints:
        for place, number in enumerate(others):
            endpoint.map(place, EndpointName(number, endpoint.name.endpoint), TAG)
    for endpoint in endpoints:
        node.loop.spawn(serve(endpoint), f"serves endpoint {endpoint.name.endpoint}", service=True)
    for word in range(ROUNDS):
        for endpoint in endpoints:
            place = word % len(others)
            if word % 3 == 0:
                await endpoint.request(place, SHORT, word)
            elif word % 3 == 1:
                await endpoint.request_medium(place, MEDIUM, bytes([1]) * 700, word)
            else:
                await endpoint.request_bulk(place, BULK, bytes([2]) * 5_000, am.node * 10_000, word)
    while len(answers) < len(endpoints) * ROUNDS:
        await node.loop.sleep(MILLISECOND)
    for endpoint in endpoints:
        for place in range(len(others)):
            await endpoint.request(place, BYE)
    while gone[0] < len(endpoints) * len(others):
        await node.loop.sleep(MILLISECOND)
    return sorted(answers)


@pytest.mark.parametrize("frames", [2, 7])
def test_nodes_exchange_requests_of_all_forms_over_a_bridge(frames: int) -> None:
    expected = sorted(3 * [(word, (0, 700, 10_000)[word % 3]) for word in range(ROUNDS)])
    with Cluster.star(3).up() as cluster:
        programs = dict.fromkeys(("n1", "n2", "n3"), everybody)
        with agents(cluster, plug(Settings(frames=frames)), ETHERTYPE, programs) as run:
            outcome = run.wait(TIMEOUT)
    assert all(result == expected for result in outcome.results.values())
    for report in outcome.reports.values():
        assert report.counted["returned"] == 0
        assert (report.counted["unloaded"] > 0) is (frames == 2)
