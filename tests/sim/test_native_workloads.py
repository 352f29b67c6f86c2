"""Workloads on a protocol's own host library."""

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
    """Node 1 adds one to each received number."""

    protocol = "am2"

    meets: bool = False

    async def program(self, library: ActiveMessages, node: Node) -> list[int]:
        if self.meets:
            await node.barrier()
        endpoint = library.allocate_bundle().allocate_endpoint()
        endpoint.tag = TAG
        words_received: list[int] = []

        def on_request(token: Token, word: int) -> None:
            words_received.append(word)
            token.reply(2, word + 1)

        endpoint.set_handler(1, on_request)
        endpoint.set_handler(2, lambda _, word: words_received.append(word))
        if node.rank != 1:
            endpoint.map(0, EndpointName(1, 0), TAG)
            await endpoint.request(0, 1, 40 + node.rank)
        while len(words_received) < (1 if node.rank != 1 else len(node.names) - 1):
            await endpoint.wait()
            await endpoint.poll()
        node.row(heard=sorted(words_received))
        return sorted(words_received)


def run_workload(**options: object) -> RunResult:
    options_given: dict[str, object] = {"protocol": "am2", "mode": "sim", **options}
    return testbed.run(Description.star(3), Increments, **options_given)  # type: ignore[arg-type]


def test_a_native_workload_has_the_host_library_and_tells_rows_as_others_do() -> None:
    run = run_workload()
    assert run.results == {"n1": [41], "n2": [40, 42], "n3": [43]}
    assert [(row["node"], row["rank"]) for row in run.rows if row["heard"] == [43]] == [("n3", 2)]


def test_it_uses_a_single_endpoint() -> None:
    run = run_workload(firmware={"frames": 1, "virtual": False})  # there would be no second one
    assert run.results["n1"] == [41]


def test_it_runs_over_its_own_protocol_only() -> None:
    with pytest.raises(UnsupportedError, match="calls the host library of am2"):
        run_workload(protocol="emp")


def test_its_history_is_checked_on_request() -> None:
    run = run_workload(check=True)
    assert run.checks is not None
    assert run.checks.passed
    assert run.checks.messages == run.checks.checks["replies"].checked == 2
    assert run_workload().checks is None


class Idle(Native[object]):
    """Speaks to a host library that reports no active messages."""

    protocol = "emp"

    async def program(self, _library: object, _: Node) -> None:
        return


@pytest.mark.parametrize("options", [{"check": True}, {"history": True}], ids=str)
def test_a_host_library_that_reports_nothing_has_no_history(options: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="the host library of emp does not report its messages"):
        testbed.run(Description.star(2), Idle, protocol="emp", mode="sim", **options)


def test_it_has_no_barriers() -> None:
    with pytest.raises(ProgramError, match="a native workload does not have"):
        run_workload(settings={"meets": "yes"})


def test_an_exception_of_a_native_program_ends_the_run_with_its_node() -> None:
    class Fails(Native[ActiveMessages]):
        protocol = "am2"

        async def program(self, library: ActiveMessages, _: Node) -> None:
            library.endpoint(5)

    with pytest.raises(TestbedError, match="n1"):
        testbed.run(Description.star(2), Fails, protocol="am2", mode="sim")
