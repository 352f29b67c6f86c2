"""Options of `testbed.run`: unknown names, defaults and documentation."""

from __future__ import annotations

import inspect

import pytest

import testbed
from testbed.controller.runs.run_options import DEFAULTS, PlainOptions, RunOptions


def test_an_unknown_option_is_a_type_error_that_lists_the_valid_ones() -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'sead'; known are: .*seed"):
        testbed.run("star-2", "pingpong", mode="sim", sead=1)  # type: ignore[call-arg]


def test_every_option_has_a_default_and_is_documented() -> None:
    keys = RunOptions.__annotations__.keys() | PlainOptions.__annotations__.keys()
    assert DEFAULTS.keys() == keys
    text = f"{inspect.getdoc(PlainOptions)}\n{inspect.getdoc(RunOptions)}"
    assert [key for key in keys if f"\n{key}: " not in text] == []
