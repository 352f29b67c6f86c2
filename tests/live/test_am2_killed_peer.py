"""Requests that a node of AM-II has accepted and not handled are returned after its process has been killed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

import testbed
from protocols.active_messages.am_errors import Returned, Status
from protocols.am2.host.library import ActiveMessages
from testbed import Cluster, Scenario
from testbed.spec.fault_models import Crash
from testbed.workloads.form import Native, Node

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

TAG: Final = 7
MILLISECOND: Final = 1_000_000
TIMEOUT: Final = 30.0  # s
LIFETIME: Final = 600_000 * MILLISECOND
KILLED_AT: Final = 1_500 * MILLISECOND
KEEPALIVE: Final = 1_000 * MILLISECOND
FIRMWARE: Final = {"retries": 10, "keepalive": KEEPALIVE}  # a packet is given up after 1.2 s


class UnhandledRequests(Native[ActiveMessages]):
    """Rank 0 sends rank 1 as many requests as it has credits for, and waits for their ends; the others handle nothing. Its
    result: of each request its word, the status of its return, and the nanoseconds until then."""

    protocol = "am2"

    async def program(self, library: ActiveMessages, node: Node) -> list[tuple[int, str, int]]:
        endpoint = library.allocate_bundle().allocate_endpoint()
        endpoint.tag = TAG
        returned: list[tuple[int, str, int]] = []
        unsent = list(range(library.settings.credits))
        if library.rank:
            await node.sleep(LIFETIME if library.rank == 1 else 0)  # its NIC runs meanwhile
            return returned
        sent_at = node.now()

        def on_returned(message: Returned) -> None:
            if message.status is Status.BAD_ENDPOINT:  # rank 1 has not allocated it yet
                unsent.append(message.arguments[0])
            else:
                returned.append((message.arguments[0], message.status.name, node.now() - sent_at))

        endpoint.error_handler = on_returned
        endpoint.map(0, library.name_of(1), TAG)
        while len(returned) < library.settings.credits:
            while unsent:
                await endpoint.request(0, 1, unsent.pop(0))
            await endpoint.wait()
            await endpoint.poll()
        return returned


@pytest.mark.parametrize("cluster", [Cluster.star(2), Cluster.ring(3, kind="myrinet")], ids=["ethernet", "myrinet"])
def test_requests_that_a_killed_node_had_accepted_are_returned(cluster: Cluster, tmp_path: Path) -> None:
    result = testbed.run(
        cluster, UnhandledRequests(), protocol="am2", firmware=FIRMWARE, timeout=TIMEOUT,
        scenario=Scenario(faults=[Crash(on="n2", at=f"{KILLED_AT // MILLISECOND}ms")]), output=tmp_path / "run",
    )  # fmt: skip
    returned = result.results["n1"]
    assert sorted((word, status) for word, status, _ in returned) == [(word, "UNREACHABLE") for word in range(4)]
    assert min(time for _, _, time in returned) > KEEPALIVE, "they were accepted: nothing of them was unacknowledged"
    assert result.counters["n1"]["returned"] == 0, (
        "the NIC returns what was not accepted; accepted requests end at the host"
    )
