"""Pinned memory in a shared region: what lies in it is used in place, what does not is copied, and nothing overlaps."""

from __future__ import annotations

import mmap
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.core.memory import PAGE, UnpinnedError
from testbed.runtime.shared.heap import Heap, ReachedMemory

SIZE = 17 * PAGE
ROOM = SIZE - PAGE


def both() -> tuple[Heap, ReachedMemory]:
    memory = memoryview(mmap.mmap(-1, SIZE + PAGE))[PAGE:]  # something lies before it, as in a region
    return Heap(memory), ReachedMemory(memory)


@given(st.lists(st.tuples(st.integers(0, 5 * PAGE), st.booleans(), st.integers(0, 7))))
def test_buffers_keep_their_bytes_and_pages_do_not_overlap(steps: list[tuple[int, bool, int]]) -> None:
    """Each step pins a buffer, or, where that is asked for or nothing is free, unpins one."""
    heap, reached = both()
    chance = random.Random(0)
    held: list[tuple[int, bytes]] = []
    for size, gives_back, which in steps:
        if gives_back and held:
            address, content = held.pop(which % len(held))
            assert reached.view(address, len(content)) == content
            heap.unpin(address)
            continue
        content = chance.randbytes(size)
        try:
            pages = heap.pin(memoryview(content))
        except MemoryError:
            assert heap.free < ROOM
            continue
        assert [length for _, length in pages[:-1]] == [PAGE] * (len(pages) - 1)
        assert sum(length for _, length in pages) == size
        assert pages[0][0]
        held.append((pages[0][0], content))
    for address, content in held:
        assert reached.view(address, len(content)) == content
        heap.unpin(address)
    assert len(heap) == 0
    assert heap.free == ROOM
    assert len(heap.allocate(ROOM)) == ROOM  # in one piece again


def test_a_receive_is_filled_as_far_as_its_message_is_long() -> None:
    heap, reached = both()
    buffer = bytearray(b"." * 10)
    address = heap.pin_page(memoryview(buffer), 1)
    reached.view(address, 10)[:] = b"0123456789"
    assert buffer == b"." * 10
    heap.unpin(address, 4)
    assert buffer == b"0123......"


def test_a_longer_message_than_the_receive_fills_it_and_no_more() -> None:
    heap, reached = both()
    buffer = bytearray(4)
    address = heap.pin_page(memoryview(buffer), 1)
    reached.view(address, 8)[:] = b"01234567"
    heap.unpin(address, 8)
    assert buffer == b"0123"


def test_a_buffer_in_the_heap_is_used_where_it_is() -> None:
    heap, reached = both()
    other, own = heap.allocate(100), heap.allocate(3 * PAGE)
    free = heap.free
    ((address, _), *_) = heap.pin(own[10:2000], 1)
    assert heap.free == free
    assert len(heap) == 1
    reached.view(address, 3)[:] = b"abc"
    assert own[10:13] == b"abc"
    heap.unpin(address, 3)
    assert len(heap) == 0
    heap.release(own)
    heap.release(other)
    assert heap.free == ROOM


def test_nothing_to_send_needs_no_memory_to_be_there() -> None:
    heap, reached = both()
    address = heap.pin_page(memoryview(b""))
    assert reached.view(address, 0) == b""
    heap.unpin(address)


@pytest.mark.parametrize(
    ("address", "length"), [(SIZE, 1), (SIZE - 1, 2), (1 << 63, 1), (2**64 - 1, 65_535), (0, SIZE + 1)]
)
def test_the_nic_reaches_nothing_beyond_the_heap(address: int, length: int) -> None:
    with pytest.raises(UnpinnedError):
        both()[1].view(address, length)
