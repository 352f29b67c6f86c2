"""Times of Split-C's accesses, as in the SSAM paper (section 3.4.4): remote read and store of one message, bulk writes."""

from __future__ import annotations

from functools import partial

from protocols.active_messages.am_interface import ActiveMessages
from protocols.active_messages.split_c import GlobalAddress, SplitC
from testbed.workloads.active_messages.barrier import TAG
from testbed.workloads.form import Native, Node, VerificationError
from testbed.workloads.quantiles import quantiles
from testbed.workloads.workload_settings import MessageSizes

_RETRY_DELAY = 10_000_000  # nanoseconds


class SplitCLogP(Native[ActiveMessages]):
    """On active messages: times of Split-C's accesses between nodes 0 and 1: a remote read (round trip), a one-way store
    (half of a store in both directions), a split-phase write; and the bandwidth of bulk writes and reads.

    size: bytes of a read, store and write. count: number of each. bulk: bytes of a bulk access. repeats: number of bulk
    accesses of each size.
    """

    supports_restarts = False

    size: int = 32
    count: int = 100
    bulk: MessageSizes = (1024, 16384)
    repeats: int = 4

    def __post_init__(self) -> None:
        if min(self.size, self.count, self.repeats, *self.bulk) < 1:
            raise ValueError("size, count, bulk and repeats: 1 or more")

    async def program(self, library: ActiveMessages, node: Node) -> None:
        max_size = max(self.size, *self.bulk)
        space = SplitC(library, TAG, bytearray(2 * max_size), partial(node.sleep, _RETRY_DELAY))
        space.memory[:max_size] = bytes(number & 0xFF for number in range(max_size))
        await space.barrier()
        if node.rank == 0:
            await self._read_and_write(space, node, max_size)
        await space.barrier()
        if node.rank < 2:
            await self._store(space, node, max_size)
        await space.barrier()

    async def _read_and_write(self, space: SplitC, node: Node, max_size: int) -> None:
        remote, data = GlobalAddress(1, 0), bytes(space.memory[: self.size])
        reads, writes = [], []
        for _ in range(self.count):
            start_time = node.now()
            read = await space.read(remote, self.size, max_size)
            reads.append(node.now() - start_time)
            if read != data:
                raise VerificationError("a read has returned wrong data")
        for _ in range(self.count):
            start_time = node.now()
            await space.write(GlobalAddress(1, max_size), data)
            writes.append(node.now() - start_time)
        node.row(measure="read", size_bytes=self.size, count=self.count, **quantiles(reads))
        node.row(measure="write", size_bytes=self.size, count=self.count, **quantiles(writes))
        for size in self.bulk:
            bulk_data, took = bytes(space.memory[:size]), {}
            start_time = node.now()
            for _ in range(self.repeats):
                await space.bulk_put(GlobalAddress(1, max_size), bulk_data)
            await space.sync()
            took["bulk write"] = node.now() - start_time
            start_time = node.now()
            for _ in range(self.repeats):
                await space.bulk_get(max_size, GlobalAddress(1, max_size), size)
            await space.sync()
            took["bulk read"] = node.now() - start_time
            if space.memory[max_size : max_size + size] != bulk_data:
                raise VerificationError("a bulk read has returned data other than the bulk write's")
            for measure, time in took.items():
                rate = 8e9 * size * self.repeats / max(1, time)
                node.row(measure=measure, size_bytes=size, count=self.repeats, bandwidth_bit_s=rate)

    async def _store(self, space: SplitC, node: Node, max_size: int) -> None:
        """Measure stores, alternately in both directions."""
        times, data = [], bytes(space.memory[: self.size])
        for _ in range(self.count):
            start_time = node.now()
            if node.rank == 0:
                await space.store(GlobalAddress(1, max_size), data)
            await space.store_sync(self.size)
            if node.rank:
                await space.store(GlobalAddress(0, max_size), data)
            times.append((node.now() - start_time) // 2)
        if node.rank == 0:
            node.row(measure="store", size_bytes=self.size, count=self.count, **quantiles(times))
