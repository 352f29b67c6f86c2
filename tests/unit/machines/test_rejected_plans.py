"""Machines that cannot have a part of a cluster or links to other machines: the error, and no change of any machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, cast

import pytest

from testbed.errors import ConflictError, TestbedError, UnsupportedError
from testbed.kernel.capability_probe import Capability
from testbed.machines import spread
from testbed.machines.machine_report import MachineReport
from testbed.machines.node_placement import Constraints
from testbed.machines.remote_workers import WorkerLostError
from testbed.spec.machines import Machine
from testbed.spec.model import Description
from testbed.spec.resolver import resolve

LAYOUT = resolve(Description.star(4))
ROOT = Capability("root", True, "has CAP_NET_ADMIN", "clusters that 'ip netns' sees", "run as root")
VXLAN = Capability("vxlan", True, "works", "links to other machines", "load the module (modprobe vxlan)")
NAMESPACES = Capability("network namespaces", True, "made one", "everything", "")
REPORT = MachineReport("lab", "0.1.0", "3.12.3", "6.12.0", 8, 16 * 2**30, 1600, (ROOT, VXLAN, NAMESPACES))
CHANGES = {"up", "down", "inject", "heal"}


class FakeWorker:
    """A worker with prepared replies by call; a reply that is an error is raised. calls: names of the calls."""

    def __init__(self, machine: Machine, report: MachineReport = REPORT, **replies: object) -> None:
        self.machine = machine
        self.calls: list[str] = []
        self._replies: Mapping[str, object] = {
            "survey": {"report": asdict(report), "present": {"owners": [], "tunnels": []}},
            "clusters": [],
            "round_trips": {f"192.168.7.{number}": [100_000] * 20 for number in range(1, 5)},
            "up": {"operations": 5, "changed": False},
            "down": {"was_there": True},
            **replies,
        }

    def begin(self, method: str, **_arguments: object) -> int:
        self.calls.append(method)
        return len(self.calls)

    def finish(self, number: int, timeout: float | None = None) -> Any:  # noqa: ARG002
        reply = self._replies[self.calls[number - 1]]
        if isinstance(reply, Exception):
            raise reply
        return reply

    def call(self, method: str, **arguments: object) -> Any:
        return self.finish(self.begin(method, **arguments))


def two_workers(second_worker: FakeWorker, **keys: object) -> dict[str, FakeWorker]:
    first = Machine(**{"name": "lab1", "underlay": "192.168.7.1", **keys})
    return {"lab1": FakeWorker(first), "lab2": second_worker}


def lab2(**keys: object) -> Machine:
    return Machine(**{"name": "lab2", "underlay": "192.168.7.2", **keys})


def plan(workers: Mapping[str, FakeWorker]) -> spread.SpreadPlan:
    return spread.plan_spread(cast("spread.Workers", workers), LAYOUT, "star", Constraints())


def rejection(workers: Mapping[str, FakeWorker]) -> str:
    with pytest.raises(UnsupportedError) as caught:
        plan(workers)
    assert not any(CHANGES & {*worker.calls} for worker in workers.values())
    return str(caught.value)


def without(capability: Capability, detail: str) -> MachineReport:
    unable = replace(capability, available=False, detail=detail)
    return replace(
        REPORT, capabilities=tuple(unable if reported is capability else reported for reported in REPORT.capabilities)
    )


def test_planning_changes_no_machine() -> None:
    workers = two_workers(FakeWorker(lab2()))
    spread_plan = plan(workers)
    assert {*spread_plan.parts} == {"lab1", "lab2"}
    assert spread_plan.placement.cut
    assert [worker.calls for worker in workers.values()] == [["survey", "round_trips"], ["survey"]]
    assert not any(CHANGES & {*worker.calls} for worker in workers.values())


@pytest.mark.parametrize(("remote", "machine", "is_rejected"), [
    ("192.168.7.3", "lab3", True), ("192.168.7.3", "lab2", False), ("192.168.7.2", "old-lab2", False),
])  # fmt: skip
def test_a_part_on_a_machine_that_is_not_in_the_file(remote: str, machine: str, is_rejected: bool) -> None:
    """A machine of the file may have a new name or address."""
    survey = {"report": asdict(REPORT), "present": {"owners": ["n1"], "tunnels": [[remote, 100_000, machine]]}}
    workers = {
        "lab1": FakeWorker(Machine(name="lab1", underlay="192.168.7.1"), survey=survey), "lab2": FakeWorker(lab2())
    }  # fmt: skip
    if not is_rejected:
        assert plan(workers).placement.machine_of["n1"] == "lab1"
        return
    with pytest.raises(
        ConflictError, match=r"^cluster star has nodes on machine lab3 \(192\.168\.7\.3\), which is not"
    ):
        plan(workers)
    assert not any(CHANGES & {*worker.calls} for worker in workers.values())


def test_a_remote_user_who_cannot_create_namespaces() -> None:
    report = without(NAMESPACES, "user namespaces are forbidden")
    assert rejection(two_workers(FakeWorker(lab2(), report))) == (
        "machine lab2: it cannot make network namespaces: user namespaces are forbidden"
    )


def test_links_to_another_machine_without_root_or_without_vxlan() -> None:
    assert rejection(two_workers(FakeWorker(lab2(), without(ROOT, "uid 1000")))) == (
        "machine lab2 cannot have links to other machines: uid 1000; run as root"
    )
    assert rejection(two_workers(FakeWorker(lab2(), without(VXLAN, "not supported")))) == (
        "machine lab2 cannot have links to other machines: not supported; load the module (modprobe vxlan)"
    )


def test_links_to_another_machine_without_an_underlay() -> None:
    assert rejection(two_workers(FakeWorker(lab2(underlay=None)))) == (
        "machine lab2: links of star lead to other machines, and the machines file has no 'underlay' for it"
    )


def test_an_underlay_without_echo_replies() -> None:
    workers = two_workers(FakeWorker(lab2()))
    workers["lab1"] = FakeWorker(workers["lab1"].machine, round_trips={"192.168.7.2": []})
    assert rejection(workers) == (
        "machine lab1 gets no answer to ICMP echo requests from lab2 (192.168.7.2): the network between them must carry "
        "these, and VXLAN (UDP port 4789)"
    )


def test_an_underlay_whose_mtu_is_too_small() -> None:
    small_mtu = replace(REPORT, underlay_mtu=1500)
    assert rejection(two_workers(FakeWorker(lab2(), small_mtu))).splitlines()[1:] == [
        "  machine lab2: its underlay has the MTU 1,500, and frames of 1,500 bytes with VXLAN's 50 need 1,550: raise it, or "
        "lower the nodes' MTU to 1,450"
    ]


@pytest.mark.parametrize(
    "failure",
    [
        TestbedError("machine lab2: the VXLAN id 7 is taken"),
        WorkerLostError("lab2", "machine lab2: the connection to its worker has ended: no answer"),
    ],
)
def test_a_failed_part_removes_the_other_parts(failure: TestbedError) -> None:
    workers = two_workers(FakeWorker(lab2(), up=failure))
    spread_plan = plan(workers)
    with pytest.raises(type(failure), match=f"^{failure}$"):
        spread.up(cast("spread.Workers", workers), spread_plan, "star", "here", "auto")
    assert workers["lab1"].calls[-1] == "down"
