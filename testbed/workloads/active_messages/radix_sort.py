"""Parallel sort in Split-C: local sorts and permutations by turns, as in the introduction of the SSAM paper, verified."""

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
_DIGITS: Final = 4  # of a key
_BASE: Final = 256
_COUNTS: Final = _BASE * _WIDTH
_SUMS: Final = 5  # words by which a node's keys are compared
_PAUSE: Final = 10_000_000


class RadixSort(Native[ActiveMessages]):
    """On active messages: Split-C sorts random 32-bit keys that are spread over all nodes: for each of four digits a local
    sort, and a permutation by stores to where every key belongs.

    Verified: every node's keys are in order, none is below the last of the node before, none is lost or new. keys: of each
    node.
    """

    bears_restarts = False

    keys: int = 400

    def __post_init__(self) -> None:
        if not 1 <= self.keys <= 1 << 20:
            raise ValueError(f"keys: 1 to {1 << 20:,}")

    async def program(self, library: ActiveMessages, node: Node) -> int:
        return await _Sorting(library, node, self.keys).run()


class _Sorting:
    """One node's part. Its memory: two areas of keys, between which the permutations alternate, the counts of all nodes'
    digits, and the sums of all nodes."""

    def __init__(self, library: ActiveMessages, node: Node, keys: int) -> None:
        self._node = node
        self._keys = keys
        self._nodes = library.size
        self._counts = 2 * keys * _WIDTH
        self._sums = self._counts + self._nodes * _COUNTS
        size = self._sums + self._nodes * _SUMS * _WIDTH
        self._space = SplitC(library, TAG, bytearray(size), partial(node.sleep, _PAUSE))

    async def run(self) -> int:
        chance = self._node.random("keys")
        mine = array(_TYPE, [chance.getrandbits(32) for _ in range(self._keys)])
        await self._space.barrier()
        begun = self._node.now()
        keys, stores = mine, 0
        for digit in range(_DIGITS):
            keys, count = await self._permute(keys, digit)
            stores += count
        took = self._node.now() - begun
        await self._verify(mine, keys)
        total = self._keys * self._nodes
        self._node.row(keys=total, stores=stores, took_ns=took, keys_per_s=1e9 * total / max(1, took))
        await self._space.barrier()
        return len(keys)

    async def _permute(self, keys: array[int], digit: int) -> tuple[array[int], int]:
        """Sort by one digit, store every key where it belongs; return this node's new keys, and the number of stores."""
        space, shift, area = self._space, 8 * digit, digit % 2 * self._keys * _WIDTH
        ordered = sorted(keys, key=lambda key: key >> shift & 0xFF)
        runs = [(value, array(_TYPE, list(run))) for value, run in groupby(ordered, lambda key: key >> shift & 0xFF)]
        counts = array(_TYPE, bytes(_COUNTS))
        for value, run in runs:
            counts[value] = len(run)
        for node in range(self._nodes):
            await space.store(GlobalAddress(node, self._counts + space.node * _COUNTS), counts.tobytes())
        await space.all_store_sync()
        begins, stores = self._begins(), 0
        for value, run in runs:
            place = begins[value]
            while run:
                node, first = divmod(place, self._keys)
                part = run[: min(len(run), self._keys - first, max(1, space.max_medium // _WIDTH))]
                await space.store(GlobalAddress(node, area + first * _WIDTH), part.tobytes())
                run, place, stores = run[len(part) :], place + len(part), stores + 1
        await space.all_store_sync()
        return array(_TYPE, bytes(space.memory[area : area + self._keys * _WIDTH])), stores

    def _begins(self) -> list[int]:
        """Return where this node's keys of each value of the digit begin, among the keys of all nodes."""
        table = array(_TYPE, bytes(self._space.memory[self._counts : self._sums]))
        rows = [table[row * _BASE : (row + 1) * _BASE] for row in range(self._nodes)]
        totals = [sum(column) for column in zip(*rows, strict=True)]
        before = [sum(row[value] for row in rows[: self._space.node]) for value in range(_BASE)]
        return [start + ours for start, ours in zip(accumulate(totals, initial=0), before, strict=False)]

    async def _verify(self, mine: array[int], keys: array[int]) -> None:
        """Compare the keys of all nodes, before and after, by what each node writes of them to node 0."""
        space, name = self._space, self._node.name
        if any(first > second for first, second in pairwise(keys)):
            raise VerificationError(f"the keys of {name} are not in order")
        mask = 0xFFFF_FFFF
        sums = array(_TYPE, [sum(mine) & mask, _mixed(mine) & mask, sum(keys) & mask, _mixed(keys) & mask, 0])
        for node in range(self._nodes):
            sums[4] = keys[-1]
            await space.write(GlobalAddress(node, self._sums + space.node * _SUMS * _WIDTH), sums.tobytes())
        await space.barrier()
        table = array(_TYPE, bytes(space.memory[self._sums :]))
        columns = [[table[row * _SUMS + column] for row in range(self._nodes)] for column in range(_SUMS)]
        before, after = (sum(columns[0]), sum(columns[1])), (sum(columns[2]), sum(columns[3]))
        if any((one - other) & mask for one, other in zip(before, after, strict=True)):
            raise VerificationError(f"{name} finds other keys after the sort than before: keys are lost or new")
        if space.node and keys[0] < columns[4][space.node - 1]:
            raise VerificationError(
                f"{name} has the key {keys[0]}, and the node before it {columns[4][space.node - 1]}"
            )


def _mixed(keys: array[int]) -> int:
    """Return a sum that detects changes of keys that keep their plain sum."""
    return sum(key * key % 2_147_483_647 for key in keys)
