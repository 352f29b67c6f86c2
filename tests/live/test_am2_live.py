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

TIMEOUT = 20.0  # seconds
TAG = 7
ROUNDS = 60
SHORT, MEDIUM, BULK, REPLY, BYE = range(1, 6)


def open_endpoints(am: ActiveMessages, number: int) -> tuple[list[Endpoint], list[int]]:
    """Return `number` serving endpoints, and the number of BYE messages that they have received."""
    bundle, byes = am.allocate_bundle(), [0]
    endpoints = [bundle.allocate_endpoint() for _ in range(number)]

    def on_bye(_: Token) -> None:
        byes[0] += 1

    for endpoint in endpoints:
        endpoint.tag = TAG
        endpoint.segment = bytearray(40_000)
        endpoint.set_handler(SHORT, lambda token, word: token.reply(REPLY, word, 0))
        endpoint.set_handler(MEDIUM, lambda token, data, word: token.reply(REPLY, word, sum(data)))
        endpoint.set_handler(BULK, lambda token, data, word: token.reply(REPLY, word, sum(data)))
        endpoint.set_handler(BYE, on_bye)
    return endpoints, byes


async def serve(endpoint: Endpoint) -> None:
    """Handle an endpoint's messages while the program waits at another one; otherwise three nodes could deadlock."""
    while True:
        await endpoint.wait()
        await endpoint.poll()


async def send_all_forms(am: ActiveMessages, node: ProgramNode) -> list[tuple[int, int]]:
    """Send requests of all forms to all other nodes' endpoints; return the replies."""
    replies: list[tuple[int, int]] = []
    endpoints, byes = open_endpoints(am, 3)
    for endpoint in endpoints:
        endpoint.set_handler(REPLY, lambda _, word, total: replies.append((word, total)))
    others = [number for number in range(am.size) if number != am.node]
    await node.loop.sleep(100 * MILLISECOND)  # until all nodes have endpoints
    for endpoint in endpoints:
        for slot, number in enumerate(others):
            endpoint.map(slot, EndpointName(number, endpoint.name.endpoint), TAG)
    for endpoint in endpoints:
        node.loop.spawn(serve(endpoint), f"serves endpoint {endpoint.name.endpoint}", service=True)
    for word in range(ROUNDS):
        for endpoint in endpoints:
            slot = word % len(others)
            if word % 3 == 0:
                await endpoint.request(slot, SHORT, word)
            elif word % 3 == 1:
                await endpoint.request_medium(slot, MEDIUM, bytes([1]) * 700, word)
            else:
                await endpoint.request_bulk(slot, BULK, bytes([2]) * 5_000, am.node * 10_000, word)
    while len(replies) < len(endpoints) * ROUNDS:
        await node.loop.sleep(MILLISECOND)
    for endpoint in endpoints:
        for slot in range(len(others)):
            await endpoint.request(slot, BYE)
    while byes[0] < len(endpoints) * len(others):
        await node.loop.sleep(MILLISECOND)
    return sorted(replies)


@pytest.mark.parametrize("frames", [2, 7])
def test_nodes_exchange_requests_of_all_forms_over_a_bridge(frames: int) -> None:
    expected = sorted(3 * [(word, (0, 700, 10_000)[word % 3]) for word in range(ROUNDS)])
    with Cluster.star(3).up() as cluster:
        programs = dict.fromkeys(("n1", "n2", "n3"), send_all_forms)
        with agents(cluster, plug(Settings(frames=frames)), ETHERTYPE, programs) as run:
            outcome = run.wait(TIMEOUT)
    assert all(result == expected for result in outcome.results.values())
    for report in outcome.reports.values():
        assert report.counted["returned"] == 0
        assert (report.counted["unloaded"] > 0) is (frames == 2)
