"""Split-C's operations on AM-II and on SSAM under loss: the memory after each access and its synchronization."""

from __future__ import annotations

from array import array
from functools import partial

import pytest

import testbed
from protocols.active_messages.am_interface import ActiveMessages
from protocols.active_messages.split_c import GlobalAddress, SplitC
from testbed import Cluster
from testbed.workloads.form import Native, Node

KINDS = {"am2": "ethernet", "ssam": "atm"}
SIZE = 3_000
"""Bytes of a bulk access: many cells, and on Ethernet several fragments."""
OWN, PUT, WORDS, STORED, BULK, READ = 0, 32, 48, 100, 1_000, 5_000
"""Offsets in each node's memory: its initial value, the previous node's puts, stores and bulk access, its own reads."""


class Accesses(Native[ActiveMessages]):
    """Each of three nodes accesses the memory of the next one."""

    async def program(self, library: ActiveMessages, node: Node) -> None:
        space = SplitC(library, 77, bytearray(READ + SIZE), partial(node.sleep, 1_000_000))
        previous, following = (node.rank - 1) % 3, (node.rank + 1) % 3
        space.memory[OWN] = 10 + node.rank
        await space.barrier()

        await space.get(READ, GlobalAddress(following, OWN), 1)
        await space.put(GlobalAddress(following, PUT), bytes([20 + node.rank]))
        await space.sync()
        assert space.memory[READ] == 10 + following
        assert await space.read(GlobalAddress(following, PUT), 1, READ) == bytes([20 + node.rank])
        await space.barrier()
        assert space.memory[PUT] == 20 + previous

        words = array("I", [node.rank, 7])  # items of four bytes
        await space.put(GlobalAddress(node.rank, WORDS), memoryview(words))
        await space.put(GlobalAddress(following, WORDS + 8), memoryview(words))
        await space.sync()
        await space.barrier()
        assert array("I", bytes(space.memory[WORDS : WORDS + 16])).tolist() == [node.rank, 7, previous, 7]

        for number in range(40):
            await space.store(GlobalAddress(following, STORED + number), bytes([number]))
        await space.store(GlobalAddress(following, BULK), bytes([previous]) * SIZE)
        await space.all_store_sync()
        assert bytes(space.memory[STORED : STORED + 40]) == bytes(range(40))
        assert bytes(space.memory[BULK : BULK + SIZE]) == bytes([following]) * SIZE
        assert space.stored == 40 + SIZE
        await space.barrier()

        await space.bulk_write(GlobalAddress(following, BULK), bytes([30 + node.rank]) * SIZE)
        assert await space.bulk_read(GlobalAddress(following, BULK), SIZE, READ) == bytes([30 + node.rank]) * SIZE
        await space.barrier()
        assert bytes(space.memory[BULK : BULK + SIZE]) == bytes([30 + previous]) * SIZE

        await space.store(GlobalAddress(following, PUT), bytes([40 + node.rank]))
        await space.store_sync(40 + SIZE + 1)
        assert space.memory[PUT] == 40 + previous
        node.row(rank=node.rank)
        await space.barrier()


@pytest.mark.parametrize("protocol", KINDS)
def test_each_access_is_complete_after_its_synchronization(protocol: str) -> None:
    cluster = Cluster.star(3, kind=KINDS[protocol], loss="2%", delay="5us", seed=4)
    run = testbed.run(cluster, Accesses(), protocol=protocol, mode="sim", seed=4)
    assert sorted(row["rank"] for row in run.rows) == [0, 1, 2]


async def _return_at_once(*_: object) -> None:
    """Replace a synchronization: return without waiting."""


@pytest.mark.requires("interpreted")
@pytest.mark.parametrize("operation", ["sync", "all_store_sync", "store_sync", "barrier"])
@pytest.mark.parametrize("protocol", KINDS)
def test_a_synchronization_that_does_not_wait_is_detected(
    protocol: str, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SplitC, operation, _return_at_once)
    with pytest.raises(testbed.TestbedError, match="AssertionError"):
        test_each_access_is_complete_after_its_synchronization(protocol)
