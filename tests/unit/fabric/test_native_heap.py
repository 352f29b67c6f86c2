"""The heap of events in C gives entries in the order of that in Python, keeps them alive, and has the same errors for its
users."""

from __future__ import annotations

import gc
import heapq
import sys
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.native_modules import native_module

pytestmark = pytest.mark.requires("compiler", "python-headers")

TIMES = st.one_of(st.integers(0, 5), st.integers(-(2**65), 2**65), st.sampled_from([2**63 - 1, 2**63, -(2**63)]))


def native() -> Any:
    return native_module("testbed.fabric.native_heap")


class Kept:
    """An argument of an entry."""


@given(st.lists(st.one_of(TIMES, st.none())))
def test_entries_come_in_the_same_order(steps: list[int | None]) -> None:
    """A step is the time of an entry to push, or None for one to pop."""
    heap, expected = native().Heap(), list[Any]()
    for sequence, when in enumerate(steps):
        if when is not None:
            entry = (when, sequence, None, object())
            native().heappush(heap, entry)
            heapq.heappush(expected, entry)
        elif expected:
            assert native().heappop(heap) is heapq.heappop(expected)
        assert len(heap) == len(expected)
        assert bool(heap) == bool(expected)
        assert not expected or heap[0] is expected[0]
    while expected:
        assert native().heappop(heap) is heapq.heappop(expected)
    assert not heap


def test_a_thousand_entries_are_sorted() -> None:
    heap = native().Heap()
    entries = [(number * 7919 % 500, number) for number in range(1_000)]
    for entry in entries:
        native().heappush(heap, entry)
    assert [native().heappop(heap) for _ in entries] == sorted(entries)


def test_an_empty_heap_has_no_first_entry() -> None:
    heap = native().Heap()
    with pytest.raises(IndexError):
        heap[0]
    with pytest.raises(IndexError):
        native().heappop(heap)


def test_entries_live_as_long_as_they_are_in_the_heap() -> None:
    heap, kept = native().Heap(), Kept()
    entry, gone = (1, 1, None, kept), weakref.ref(kept)
    references = sys.getrefcount(entry)
    native().heappush(heap, entry)
    assert sys.getrefcount(entry) == references + 1
    del kept, entry
    assert gone() is not None
    native().heappop(heap)
    assert gone() is None


@pytest.mark.parametrize("is_cycle", [True, False])
def test_a_heap_that_is_not_used_any_more_is_freed_with_its_entries(is_cycle: bool) -> None:
    heap, kept = native().Heap(), Kept()
    native().heappush(heap, (1, 1, None, kept))
    native().heappush(heap, (1, 2, None, heap if is_cycle else None))
    gone = weakref.ref(kept)
    del heap, kept
    assert (gone() is None) != is_cycle
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("heappush", ()),
        ("heappush", ([], (1, 1))),
        ("heappush", ("heap", [1, 1])),
        ("heappush", ("heap", (1,))),
        ("heappush", ("heap", (1.5, 1))),
        ("heappush", ("heap", (1, "1"))),
        ("heappop", ()),
        ("heappop", ([],)),
    ],
)
def test_what_is_no_heap_or_no_entry_is_refused(function: str, arguments: tuple[Any, ...]) -> None:
    heap = native().Heap()
    with pytest.raises(TypeError):
        getattr(native(), function)(*[heap if argument == "heap" else argument for argument in arguments])
    assert len(heap) == 0


def test_a_sequence_number_beyond_64_bits_is_refused() -> None:
    heap = native().Heap()
    with pytest.raises(OverflowError):
        native().heappush(heap, (1, 2**63))
    assert len(heap) == 0
