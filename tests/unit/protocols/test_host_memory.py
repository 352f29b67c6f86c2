"""Pinned host memory: its pages, and the segments of a message in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.core.memory import PAGE, HostMemory, Scatter, UnpinnedError


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(0, 500), st.integers(0, 500))
def test_segments_of_a_scattered_message_are_its_bytes(lengths: list[int], begin: int, end: int) -> None:
    message = bytes(index & 0xFF for index in range(sum(lengths)))
    begins = [sum(lengths[:index]) for index in range(len(lengths))]
    scatter = Scatter(
        [memoryview(message)[start : start + length] for start, length in zip(begins, lengths, strict=True)]
    )
    assert len(scatter) == len(message)
    end = min(end, len(message))
    segments = scatter.views(begin, end)
    assert b"".join(segments) == message[begin:end]
    assert all(segments), "no segment is empty"


@pytest.mark.parametrize("size", [0, 1, PAGE - 1, PAGE, PAGE + 1, 10 * PAGE + 3])
def test_pinned_memory_is_accessible_page_by_page_and_nowhere_else(size: int) -> None:
    memory = HostMemory()
    other_pages = memory.pin(memoryview(b"o" * PAGE))
    buffer = memoryview(bytearray(range(256)) * 200)[:size]
    pages = memory.pin(buffer)
    assert b"".join(memory.view(*page) for page in pages) == buffer
    assert all(length <= PAGE for _, length in pages)
    last_address, length = pages[-1]
    for address, count in ((last_address, length + 1), (pages[0][0] - 1, 2), (last_address + length, 1)):
        with pytest.raises(UnpinnedError):
            memory.view(address, count)
    memory.unpin(pages[0][0])
    with pytest.raises(UnpinnedError):
        memory.view(*pages[0])
    assert memory.view(*other_pages[0]) == b"o" * PAGE
    assert len(memory) == 1
