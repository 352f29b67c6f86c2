"""The hash's steps in C have the results and the errors of those in Python."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.fates import fate_hash
from testbed.fates.fate_hash import MASK
from testbed.fates.flows import flow_of
from tests.unit.native_modules import native_module

pytestmark = pytest.mark.requires("compiler", "python-headers")

WORDS = st.integers(0, MASK)
MACS = st.binary(max_size=6)


@cache
def interpreted_hash() -> ModuleType:
    """A copy of `fate_hash` whose functions are those in Python, also in the compiled build."""
    spec = importlib.util.spec_from_file_location("interpreted_hash", fate_hash.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with patch.dict(sys.modules, {"testbed.fates.native_hash": None}):
        spec.loader.exec_module(module)
    return module


@given(WORDS, st.lists(WORDS, max_size=8).map(tuple))
def test_chains_are_equal(state: int, words: tuple[int, ...]) -> None:
    native = native_module("testbed.fates.native_hash")
    assert native.chain(state, words) == interpreted_hash().chain(state, words)


@given(WORDS, WORDS)
def test_draws_are_equal(start: int, n: int) -> None:
    native = native_module("testbed.fates.native_hash")
    assert native.draw(start, n) == interpreted_hash().draw(start, n)


@given(WORDS, st.integers(0, 0xFFFF), MACS, MACS, st.lists(st.integers(0, 2**70), max_size=4).map(tuple), WORDS)
def test_starts_of_streams_are_equal(
    key: int, ethertype: int, destination: bytes, source: bytes, fields: tuple[int, ...], stream: int
) -> None:
    arguments = key, ethertype, destination, source, fields, stream
    start = interpreted_hash().flow_start(*arguments)
    assert native_module("testbed.fates.native_hash").flow_start(*arguments) == start
    flow = flow_of(destination.ljust(6, b"\0") + source, {})
    of_flow = interpreted_hash().flow_key(key, ethertype, flow.destination, flow.source, fields)
    assert start == interpreted_hash().absorb(of_flow, stream)


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
        ("flow_start", (0, 0, b"", b"", ()), TypeError),
        ("flow_start", (0, 0, "", b"", (), 1), TypeError),
        ("flow_start", (0, 0, b"", bytes(7), (), 1), ValueError),
        ("flow_start", (0, 0, b"", b"", [], 1), TypeError),
        ("flow_start", (0, 0, b"", b"", ("1",), 1), TypeError),
        ("flow_start", (MASK + 1, 0, b"", b"", (), 1), OverflowError),
    ],
)
def test_an_argument_that_is_no_word_is_refused(
    function: str, arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        getattr(native_module("testbed.fates.native_hash"), function)(*arguments)
