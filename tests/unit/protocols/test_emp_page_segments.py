"""Pages of a message in host memory: adjacent ones are one segment only where the memory is contiguous."""

from __future__ import annotations

import pytest

from protocols.core.memory import PAGE, HostMemory, Scatter
from protocols.emp import descriptors as stat
from protocols.emp.descriptors import Descriptors, pack_page_list


@pytest.mark.parametrize(("apart", "segments"), [(False, [2 * PAGE + 1]), (True, [PAGE, PAGE, 1])])
def test_adjacent_pages_are_one_segment_only_in_contiguous_memory(apart: bool, segments: list[int]) -> None:
    memory, descriptors = HostMemory(), Descriptors(8, apart)
    buffer = memoryview(bytearray(2 * PAGE + 1))
    pages = memory.pin(buffer)
    descriptors.write(0, stat.SEND | stat.CHAIN, pages, 1, 0)
    _, kind, length, address, _, _, count = stat.unpack_head(descriptors.memory, 0)
    chained = descriptors.locate(0, kind, length, address, count, memory)
    assert lengths(chained) == segments
    page_list = memory.pin_page(memoryview(pack_page_list(pages)))
    indirect = descriptors.locate(0, stat.SEND | stat.INDIRECT, 0, page_list, 3, memory)
    assert lengths(indirect) == segments


def lengths(target: memoryview | Scatter) -> list[int]:
    return [len(segment) for segment in ([target] if isinstance(target, memoryview) else target.views(0, len(target)))]
