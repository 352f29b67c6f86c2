"""Heap of a shared region: its own buffers are pinned in place, others are copied, and pages never overlap."""

from __future__ import annotations

import mmap
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.core.memory import PAGE, UnpinnedError
from testbed.runtime.shared.heap import Heap, HeapView

SIZE = 17 * PAGE
CAPACITY = SIZE - PAGE


def heap_and_view() -> tuple[Heap, HeapView]:
    memory = memoryview(mmap.mmap(-1, SIZE + PAGE))[PAGE:]  # not at the start of the mapping, as in a region
    return Heap(memory), HeapView(memory)


@given(st.lists(st.tuples(st.integers(0, 5 * PAGE), st.booleans(), st.integers(0, 7))))
def test_buffers_keep_their_bytes_and_pages_do_not_overlap(steps: list[tuple[int, bool, int]]) -> None:
    """Each step pins a buffer, or unpins one."""
    heap, view = heap_and_view()
    rng = random.Random(0)
    pinned: list[tuple[int, bytes]] = []
    for size, unpins, index in steps:
        if unpins and pinned:
            address, content = pinned.pop(index % len(pinned))
            assert view.view(address, len(content)) == content
            heap.unpin(address)
            continue
        content = rng.randbytes(size)
        try:
            pages = heap.pin(memoryview(content))
        except MemoryError:
            assert heap.free < CAPACITY
            continue
        assert [length for _, length in pages[:-1]] == [PAGE] * (len(pages) - 1)
        assert sum(length for _, length in pages) == size
        assert pages[0][0]
        pinned.append((pages[0][0], content))
    for address, content in pinned:
        assert view.view(address, len(content)) == content
        heap.unpin(address)
    assert len(heap) == 0
    assert heap.free == CAPACITY
    assert len(heap.allocate(CAPACITY)) == CAPACITY  # contiguous again


def test_unpinning_copies_the_length_of_the_message() -> None:
    heap, view = heap_and_view()
    buffer = bytearray(b"." * 10)
    address = heap.pin_page(memoryview(buffer), 1)
    view.view(address, 10)[:] = b"0123456789"
    assert buffer == b"." * 10
    heap.unpin(address, 4)
    assert buffer == b"0123......"


def test_a_message_longer_than_the_receive_buffer_is_truncated() -> None:
    heap, view = heap_and_view()
    buffer = bytearray(4)
    address = heap.pin_page(memoryview(buffer), 1)
    view.view(address, 8)[:] = b"01234567"
    heap.unpin(address, 8)
    assert buffer == b"0123"


def test_a_buffer_in_the_heap_is_used_in_place() -> None:
    heap, view = heap_and_view()
    other_buffer, own_buffer = heap.allocate(100), heap.allocate(3 * PAGE)
    free_before = heap.free
    ((address, _), *_) = heap.pin(own_buffer[10:2000], 1)
    assert heap.free == free_before
    assert len(heap) == 1
    view.view(address, 3)[:] = b"abc"
    assert own_buffer[10:13] == b"abc"
    heap.unpin(address, 3)
    assert len(heap) == 0
    heap.release(own_buffer)
    heap.release(other_buffer)
    assert heap.free == CAPACITY


def test_an_empty_buffer_can_be_pinned() -> None:
    heap, view = heap_and_view()
    address = heap.pin_page(memoryview(b""))
    assert view.view(address, 0) == b""
    heap.unpin(address)


@pytest.mark.parametrize(
    ("address", "length"), [(SIZE, 1), (SIZE - 1, 2), (1 << 63, 1), (2**64 - 1, 65_535), (0, SIZE + 1)]
)
def test_the_nic_cannot_access_memory_outside_the_heap(address: int, length: int) -> None:
    with pytest.raises(UnpinnedError):
        heap_and_view()[1].view(address, length)
