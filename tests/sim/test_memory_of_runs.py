"""A finished run of the simulation leaves no memory behind that a next one in the same process would add to."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

import testbed
from protocols.mpi.comm import Comm
from testbed import Cluster
from testbed.workloads.form import Node


class Cycle:
    """An object that only the garbage collector frees. data: bytes that it keeps in memory."""

    def __init__(self, size: int) -> None:
        self.me = self
        self.data = bytes([1]) * size


@pytest.fixture(autouse=True)
def _without_automatic_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(("mebibytes", "is_freed"), [(100, True), (1, False)])
def test_much_garbage_of_a_run_is_collected_at_its_end(mebibytes: int, is_freed: bool) -> None:
    cycles: list[weakref.ref[Cycle]] = []

    async def program(comm: Comm, node: Node) -> None:  # noqa: ARG001
        cycles.append(weakref.ref(Cycle(mebibytes << 20)))

    testbed.run(Cluster.star(2), program, mode="sim")
    assert [cycle() is None for cycle in cycles] == [is_freed, is_freed]
    gc.collect()
