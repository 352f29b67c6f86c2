"""The hash's steps in C have the results and the errors of those in Python."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.fates import interpreted_hash
from testbed.fates.interpreted_hash import MASK
from tests.unit.native_modules import native_module

pytestmark = pytest.mark.requires("compiler", "python-headers")

WORDS = st.integers(0, MASK)


@given(WORDS, st.lists(WORDS, max_size=8).map(tuple))
def test_chains_are_equal(state: int, words: tuple[int, ...]) -> None:
    native = native_module("testbed.fates.native_hash")
    assert native.chain(state, words) == interpreted_hash.chain(state, words)


@given(WORDS, WORDS)
def test_draws_are_equal(start: int, n: int) -> None:
    native = native_module("testbed.fates.native_hash")
    assert native.draw(start, n) == interpreted_hash.draw(start, n)


@pytest.mark.parametrize(
    ("function", "arguments", "error"),
    [
        ("chain", (MASK + 1, ()), OverflowError),
        ("chain", (0, (1, MASK + 1)), OverflowError),
        ("chain", (0, (-1,)), OverflowError),
        ("chain", (0, ("1",)), TypeError),
        ("chain", (0, 1), TypeError),
        ("chain", (0,), TypeError),
        ("draw", (-1, 1), OverflowError),
        ("draw", (0, 1.5), TypeError),
        ("draw", (0, 1, 2), TypeError),
    ],
)
def test_an_argument_that_is_no_word_is_refused(
    function: str, arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        getattr(native_module("testbed.fates.native_hash"), function)(*arguments)
