"""Number of an injection, which all its machines assign equally."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import pytest

from testbed.cluster.faults.fault_injection import compose_impairment
from testbed.errors import ConflictError
from testbed.machines.spread import Workers
from testbed.machines.spread_faults import inject
from testbed.spec.layout_json import to_json
from testbed.spec.machines import Machine
from tests.unit.machines.test_parts import pair, spread
from tests.unit.machines.test_rejected_plans import FakeWorker

LOSS = partial(compose_impairment, target="all", keys={"loss": 0.1}, rules=(), direction="")


class PartWorker(FakeWorker):
    """A worker with a part of a cluster, which assigns a number to an injection. healed: numbers of lifted injections."""

    def __init__(self, machine: str, number: int) -> None:
        part = {"layout": to_json(spread(pair())[machine]), "injected": [], "issued": 0}
        done = {"number": number, "datapaths": {}, "took": 0.1}
        super().__init__(Machine(name=machine), clusters=["star"], part=part, inject=done, heal=[])
        self.healed: list[int] = []

    def begin(self, method: str, **arguments: Any) -> int:
        if method == "heal":
            self.healed += arguments["numbers"]
        return super().begin(method, **arguments)


def workers(**numbers: int) -> dict[str, PartWorker]:
    return {machine: PartWorker(machine, number) for machine, number in numbers.items()}


def test_the_reported_number_is_the_one_that_the_machines_assign() -> None:
    assert inject(cast("Workers", workers(a=2, b=2)), "star", LOSS).injection.number == 2


def test_a_conflicting_injection_is_lifted_from_all_machines() -> None:
    running = workers(a=1, b=2)
    with pytest.raises(ConflictError, match="cluster star got another injection at the same time: inject again"):
        inject(cast("Workers", running), "star", LOSS)
    assert [worker.healed for worker in running.values()] == [[1], [2]]
