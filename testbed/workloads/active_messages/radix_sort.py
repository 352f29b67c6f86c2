"""Verified parallel sort in Split-C: alternating local sorts and permutations, as in the introduction of the SSAM paper."""

from __future__ import annotations

from array import array
from functools import partial
from itertools import accumulate, groupby, pairwise
from typing import Final

from protocols.active_messages.am_interface import ActiveMessages
from protocols.active_messages.split_c import GlobalAddress, SplitC
from testbed.workloads.active_messages.barrier import TAG
from testbed.workloads.form import Native, Node, VerificationError

_TYPE: Final = "I"
_WIDTH: Final = array(_TYPE).itemsize
_DIGITS: Final = 4  # digits of a key
_BASE: Final = 256
_COUNTS: Final = _BASE * _WIDTH
_SUMS: Final = 5  # words of a node's checksums
_RETRY_DELAY: Final = 10_000_000  # nanoseconds


class RadixSort(Native[ActiveMessages]):
    """On active messages: parallel radix sort in Split-C of random 32-bit keys that are distributed over all nodes. For each
    of four digits, every node sorts its keys and stores each at its position.

    Verified: every node's keys are in order, no key is below the last key of the previous node, no key is lost or new.
    keys: number of keys of each node.
    """

    supports_restarts = False

    keys: int = 400

    def __post_init__(self) -> None:
        if not 1 <= self.keys <= 1 << 20:
            raise ValueError(f"keys: 1 to {1 << 20:,}")

    async def program(self, library: ActiveMessages, node: Node) -> int:
        return await _Sorting(library, node, self.keys).run()


class _Sorting:
    """The program of one node. Its memory contains two areas of keys, between which the permutations alternate, the digit
    counts of all nodes, and the checksums of all nodes."""

    def __init__(self, library: ActiveMessages, node: Node, keys: int) -> None:
        self._node = node
        self._keys = keys
        self._nodes = library.size
        self._counts = 2 * keys * _WIDTH
        self._sums = self._counts + self._nodes * _COUNTS
        size = self._sums + self._nodes * _SUMS * _WIDTH
        self._space = SplitC(library, TAG, bytearray(size), partial(node.sleep, _RETRY_DELAY))

    async def run(self) -> int:
        rng = self._node.random("keys")
        initial_keys = array(_TYPE, [rng.getrandbits(32) for _ in range(self._keys)])
        await self._space.barrier()
        start_time = self._node.now()
        keys, stores = initial_keys, 0
        for digit in range(_DIGITS):
            keys, count = await self._permute(keys, digit)
            stores += count
        took = self._node.now() - start_time
        await self._verify(initial_keys, keys)
        total = self._keys * self._nodes
        self._node.row(keys=total, stores=stores, took_ns=took, keys_per_s=1e9 * total / max(1, took))
        await self._space.barrier()
        return len(keys)

    async def _permute(self, keys: array[int], digit: int) -> tuple[array[int], int]:
        """Sort by one digit, and store every key at its position; return this node's new keys, and the number of stores."""
        space, shift, area = self._space, 8 * digit, digit % 2 * self._keys * _WIDTH
        ordered = sorted(keys, key=lambda key: key >> shift & 0xFF)
        runs = [(value, array(_TYPE, list(run))) for value, run in groupby(ordered, lambda key: key >> shift & 0xFF)]
        counts = array(_TYPE, bytes(_COUNTS))
        for value, run in runs:
            counts[value] = len(run)
        for node in range(self._nodes):
            await space.store(GlobalAddress(node, self._counts + space.node * _COUNTS), counts.tobytes())
        await space.all_store_sync()
        positions, stores = self._first_positions(), 0
        for value, run in runs:
            position = positions[value]
            while run:
                node, first = divmod(position, self._keys)
                chunk = run[: min(len(run), self._keys - first, max(1, space.max_medium // _WIDTH))]
                await space.store(GlobalAddress(node, area + first * _WIDTH), chunk.tobytes())
                run, position, stores = run[len(chunk) :], position + len(chunk), stores + 1
        await space.all_store_sync()
        return array(_TYPE, bytes(space.memory[area : area + self._keys * _WIDTH])), stores

    def _first_positions(self) -> list[int]:
        """Return, for each value of the digit, the position of this node's first key among the keys of all nodes."""
        table = array(_TYPE, bytes(self._space.memory[self._counts : self._sums]))
        rows = [table[row * _BASE : (row + 1) * _BASE] for row in range(self._nodes)]
        totals = [sum(column) for column in zip(*rows, strict=True)]
        before = [sum(row[value] for row in rows[: self._space.node]) for value in range(_BASE)]
        return [
            start + local_before for start, local_before in zip(accumulate(totals, initial=0), before, strict=False)
        ]

    async def _verify(self, initial_keys: array[int], keys: array[int]) -> None:
        """Compare the keys of all nodes before and after the sort by checksums, which each node writes to all nodes."""
        space, name = self._space, self._node.name
        if any(first > second for first, second in pairwise(keys)):
            raise VerificationError(f"the keys of {name} are not in order")
        mask = 0xFFFF_FFFF
        values = [sum(initial_keys), _checksum(initial_keys), sum(keys), _checksum(keys), 0]
        sums = array(_TYPE, [value & mask for value in values])
        for node in range(self._nodes):
            sums[4] = keys[-1]
            await space.write(GlobalAddress(node, self._sums + space.node * _SUMS * _WIDTH), sums.tobytes())
        await space.barrier()
        table = array(_TYPE, bytes(space.memory[self._sums :]))
        columns = [[table[row * _SUMS + column] for row in range(self._nodes)] for column in range(_SUMS)]
        before, after = (sum(columns[0]), sum(columns[1])), (sum(columns[2]), sum(columns[3]))
        if any((a - b) & mask for a, b in zip(before, after, strict=True)):
            raise VerificationError(f"{name}: the keys' checksums differ after the sort: keys are lost or new")
        if space.node and keys[0] < columns[4][space.node - 1]:
            raise VerificationError(
                f"{name} has the key {keys[0]}, and the node before it {columns[4][space.node - 1]}"
            )


def _checksum(keys: array[int]) -> int:
    """Return a checksum that also detects changes of keys that leave their sum unchanged."""
    return sum(key * key % 2_147_483_647 for key in keys)
