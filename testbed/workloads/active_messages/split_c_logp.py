"""Split-C's accesses, timed as in the SSAM paper (section 3.4.4): remote read and store of one message, and bulk writes."""

from __future__ import annotations

from functools import partial

from protocols.active_messages.am_interface import ActiveMessages
from protocols.active_messages.split_c import GlobalAddress, SplitC
from testbed.workloads.active_messages.barrier import TAG
from testbed.workloads.form import Native, Node, VerificationError
from testbed.workloads.quantiles import quantiles
from testbed.workloads.workload_settings import MessageSizes

_PAUSE = 10_000_000


class SplitCLogP(Native[ActiveMessages]):
    """On active messages: Split-C between nodes 0 and 1: a remote read (round trip), a one-way store (half of two, to and
    fro), a split-phase write, and the bandwidth of bulk writes and reads.

    size: bytes of a read, store and write. count: of each. bulk: bytes of bulk accesses. repeats: of those.
    """

    bears_restarts = False

    size: int = 32
    count: int = 100
    bulk: MessageSizes = (1024, 16384)
    repeats: int = 4

    def __post_init__(self) -> None:
        if min(self.size, self.count, self.repeats, *self.bulk) < 1:
            raise ValueError("size, count, bulk and repeats: 1 or more")

    async def program(self, library: ActiveMessages, node: Node) -> None:
        most = max(self.size, *self.bulk)
        space = SplitC(library, TAG, bytearray(2 * most), partial(node.sleep, _PAUSE))
        space.memory[:most] = bytes(number & 0xFF for number in range(most))
        await space.barrier()
        if node.rank == 0:
            await self._ask(space, node, most)
        await space.barrier()
        if node.rank < 2:
            await self._exchange(space, node, most)
        await space.barrier()

    async def _ask(self, space: SplitC, node: Node, most: int) -> None:
        there, data = GlobalAddress(1, 0), bytes(space.memory[: self.size])
        reads, writes = [], []
        for _ in range(self.count):
            begun = node.now()
            read = await space.read(there, self.size, most)
            reads.append(node.now() - begun)
            if read != data:
                raise VerificationError("a read has come with other bytes than are there")
        for _ in range(self.count):
            begun = node.now()
            await space.write(GlobalAddress(1, most), data)
            writes.append(node.now() - begun)
        node.row(measure="read", size_bytes=self.size, count=self.count, **quantiles(reads))
        node.row(measure="write", size_bytes=self.size, count=self.count, **quantiles(writes))
        for size in self.bulk:
            long, took = bytes(space.memory[:size]), {}
            begun = node.now()
            for _ in range(self.repeats):
                await space.bulk_put(GlobalAddress(1, most), long)
            await space.sync()
            took["bulk write"] = node.now() - begun
            begun = node.now()
            for _ in range(self.repeats):
                await space.bulk_get(most, GlobalAddress(1, most), size)
            await space.sync()
            took["bulk read"] = node.now() - begun
            if space.memory[most : most + size] != long:
                raise VerificationError("what was written in bulk is read back as other bytes")
            for measure, time in took.items():
                rate = 8e9 * size * self.repeats / max(1, time)
                node.row(measure=measure, size_bytes=size, count=self.repeats, bandwidth_bit_s=rate)

    async def _exchange(self, space: SplitC, node: Node, most: int) -> None:
        """Store to and fro."""
        times, data = [], bytes(space.memory[: self.size])
        for _ in range(self.count):
            begun = node.now()
            if node.rank == 0:
                await space.store(GlobalAddress(1, most), data)
            await space.store_sync(self.size)
            if node.rank:
                await space.store(GlobalAddress(0, most), data)
            times.append((node.now() - begun) // 2)
        if node.rank == 0:
            node.row(measure="store", size_bytes=self.size, count=self.count, **quantiles(times))
