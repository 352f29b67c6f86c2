"""docs/internals/message.md lists the files that a message passes through; tests/live/test_message_path.py records those
that need root."""

from __future__ import annotations

import pytest

from tests.message_paths import documented_paths, recorded_paths

MAX_FILES = 12
LONGER = {
    "VIA, simulated": 17,
    "Open-MX, simulated": 14,
    "EMP, simulated with costs": 13,
    "AM-II, simulated with costs": 13,
    "VIA, simulated with costs": 20,
    "Open-MX, simulated with costs": 16,
    "SSAM, simulated with costs": 14,
    "VIA, live, in the program's own process": 16,
    "Open-MX, live, in the program's own process": 13,
    "EMP, live, by the agent of a shared NIC": 15,
    "AM-II, live, by the agent of a shared NIC": 17,
    "VIA, live, by the agent of a shared NIC": 21,
    "Open-MX, live, by the agent of a shared NIC": 18,
    "EMP, dilated": 14,
    "AM-II, dilated": 16,
    "VIA, dilated": 21,
    "Open-MX, dilated": 17,
    "SSAM, dilated": 15,
}
"""Paths of more files than that; the page gives the reasons."""


@pytest.mark.requires("interpreted")
def test_the_documented_files_are_those_that_a_simulated_message_passes_through() -> None:
    recorded, documented = recorded_paths(), documented_paths()
    assert len(recorded) == 10
    assert {title: documented.get(title) for title in recorded} == recorded


def test_messages_pass_through_at_most_twelve_files_except_on_the_paths_with_reasons() -> None:
    counts = {title: len(files) for title, files in documented_paths().items()}
    assert len(counts) == 24
    assert {title: count for title, count in counts.items() if count > MAX_FILES} == LONGER
