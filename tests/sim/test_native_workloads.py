"""Native workloads, which call a protocol's own host library."""

from __future__ import annotations

from typing import Any

import pytest

import testbed
from protocols.active_messages.endpoint_names import EndpointName
from protocols.am2.host.library import ActiveMessages
from protocols.am2.host.token import Token
from testbed.controller.runs.runner import RunResult
from testbed.errors import TestbedError, UnsupportedError
from testbed.runtime.nodes.node_run import ProgramError
from testbed.spec.model import Description
from testbed.workloads.form import Native, Node

TAG = 9


class Increments(Native[ActiveMessages]):
    """All nodes send a number to node 1, which replies with the next number. meets: call a barrier first."""

    protocol = "am2"

    meets: bool = False

    async def program(self, library: ActiveMessages, node: Node) -> list[int]:
        if self.meets:
            await node.barrier()
        endpoint = library.allocate_bundle().allocate_endpoint()
        endpoint.tag = TAG
        received: list[int] = []

        def on_request(token: Token, word: int) -> None:
            received.append(word)
            token.reply(2, word + 1)

        endpoint.set_handler(1, on_request)
        endpoint.set_handler(2, lambda _, word: received.append(word))
        if node.rank != 1:
            endpoint.map(0, EndpointName(1, 0), TAG)
            await endpoint.request(0, 1, 40 + node.rank)
        while len(received) < (1 if node.rank != 1 else len(node.names) - 1):
            await endpoint.wait()
            await endpoint.poll()
        node.row(heard=sorted(received))
        return sorted(received)


def run_workload(**options: object) -> RunResult:
    arguments: dict[str, object] = {"protocol": "am2", "mode": "sim", **options}
    return testbed.run(Description.star(3), Increments, **arguments)  # type: ignore[arg-type]


def test_a_native_workload_calls_the_host_library_and_returns_rows() -> None:
    run = run_workload()
    assert run.results == {"n1": [41], "n2": [40, 42], "n3": [43]}
    assert [(row["node"], row["rank"]) for row in run.rows if row["heard"] == [43]] == [("n3", 2)]


def test_a_native_workload_allocates_no_further_endpoint() -> None:
    run = run_workload(firmware={"frames": 1, "virtual": False})  # a second endpoint cannot be allocated
    assert run.results["n1"] == [41]


def test_a_native_workload_is_rejected_over_another_protocol() -> None:
    with pytest.raises(UnsupportedError, match="calls the host library of am2"):
        run_workload(protocol="emp")


def test_the_history_of_a_native_workload_is_checked_on_request() -> None:
    run = run_workload(check=True)
    assert run.checks is not None
    assert run.checks.passed
    assert run.checks.message_count == run.checks.checks["replies"].checked == 2
    assert run_workload().checks is None


class Idle(Native[object]):
    """Native workload of a host library that does not report its messages."""

    protocol = "emp"

    async def program(self, _library: object, _: Node) -> None:
        return


@pytest.mark.parametrize("options", [{"check": True}, {"history": True}], ids=str)
def test_a_history_of_a_host_library_that_does_not_report_messages_is_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="the host library of emp does not report its messages"):
        testbed.run(Description.star(2), Idle, protocol="emp", mode="sim", **options)


def test_a_barrier_in_a_native_workload_is_an_error() -> None:
    with pytest.raises(ProgramError, match="a native workload does not have"):
        run_workload(settings={"meets": "yes"})


def test_an_exception_in_a_native_workload_is_reported_with_its_node() -> None:
    class Fails(Native[ActiveMessages]):
        protocol = "am2"

        async def program(self, library: ActiveMessages, _: Node) -> None:
            library.endpoint(5)

    with pytest.raises(TestbedError, match="n1"):
        testbed.run(Description.star(2), Fails, protocol="am2", mode="sim")
