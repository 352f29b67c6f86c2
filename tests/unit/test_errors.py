"""Sentences of errors and reports."""

from __future__ import annotations

from testbed.errors import merge_equal


def test_equal_sentences_of_a_report_are_merged_where_the_first_one_is() -> None:
    assert merge_equal(["a", "b", "a", "c", "a"]) == ["a (3 times)", "b", "c"]
    assert merge_equal(["b", "a"]) == ["b", "a"]
    assert merge_equal([]) == []
