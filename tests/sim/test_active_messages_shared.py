"""Workloads of active messages on AM-II and on SSAM, checked, on lossy links."""

from __future__ import annotations

import pytest

import testbed
from protocols.active_messages.split_c import GlobalAddress, SplitC
from testbed import Cluster, TestbedError
from testbed.controller.runs.runner import RunResult
from testbed.errors import UnsupportedError
from testbed.workloads.active_messages.radix_sort import RadixSort

KINDS = {"am2": "ethernet", "ssam": "atm"}
SMALL: dict[str, dict[str, object]] = {
    "am-random": {"requests": 40},
    "am-logp": {"count": 10, "burst": 10, "rounds": 1},
    "am-bulk": {"sizes": "1,4000", "count": 3},
    "am-contention": {"clients": "1,2", "time": "1ms"},
    "am-bulk-contention": {"clients": "2", "size": "400", "time": "4ms"},
    "am-permutations": {"size": "20", "count": 4, "trips": 2},
    "am-sort": {"keys": 60},
    "am-split-c": {"count": 10, "bulk": "1000", "repeats": 2},
}


def run_shared(protocol: str, workload: str, **options: object) -> RunResult:
    cluster = Cluster.star(3, kind=KINDS[protocol], loss="2%", delay="5us")
    arguments = {"settings": SMALL[workload], "seed": 5, "check": True, **options}
    return testbed.run(cluster, workload, protocol=protocol, mode="sim", **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", KINDS)
@pytest.mark.parametrize("workload", SMALL)
def test_a_workload_of_active_messages_passes_its_checks_under_loss(workload: str, protocol: str) -> None:
    run = run_shared(protocol, workload)
    assert run.rows
    assert run.checks is not None
    assert run.checks.passed
    assert run.checks.message_count > 5


def test_the_extensions_planned_in_the_ssam_paper_pass_the_checks() -> None:
    firmware = {"long_payload": True, "window": 4, "long_window": 32, "interrupts": True}
    assert run_shared("ssam", "am-random", firmware=firmware).checks.passed  # type: ignore[union-attr]


def test_a_protocol_without_active_messages_is_rejected_with_a_list_of_those_that_have_them() -> None:
    with pytest.raises(UnsupportedError, match=r"which emp does not have: use --protocol with one of am2, ssam"):
        testbed.run(Cluster.star(2), "am-random", protocol="emp", mode="sim")


@pytest.mark.parametrize("protocol", KINDS)
def test_the_sort_fails_if_a_store_writes_to_a_wrong_address(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sort verifies its result, so that a defect of Split-C's store makes it fail."""
    store = SplitC.store

    async def store_at_wrong_address(space: SplitC, address: GlobalAddress, data: bytes) -> None:
        await store(space, address._replace(offset=address.offset ^ 4) if len(data) == 4 else address, data)

    monkeypatch.setattr(SplitC, "store", store_at_wrong_address)
    with pytest.raises(TestbedError, match=r"keys are lost or new|not in order"):
        testbed.run(
            Cluster.star(3, kind=KINDS[protocol]), RadixSort(keys=60), protocol=protocol, mode="sim", check=False
        )
