"""An injection has the number that its machines give it, one on all of them."""

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
from tests.unit.machines.test_refused_plans import FakeWorker

LOSS = partial(compose_impairment, target="all", keys={"loss": 0.1}, rules=(), direction="")


class PartWorker(FakeWorker):
    """A worker of a machine with a part, which gives an injection a number. healed: the numbers that were lifted."""

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


def test_a_number_that_another_command_has_just_used_is_not_printed() -> None:
    assert inject(cast("Workers", workers(a=2, b=2)), "star", LOSS).injection.number == 2


def test_a_conflicting_injection_is_lifted_from_all_machines() -> None:
    running = workers(a=1, b=2)
    with pytest.raises(ConflictError, match="cluster star got another injection at the same time: inject again"):
        inject(cast("Workers", running), "star", LOSS)
    assert [worker.healed for worker in running.values()] == [[1], [2]]
