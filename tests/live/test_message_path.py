"""docs/internals/message.md lists the files that a message passes through in the modes with real frames."""

from __future__ import annotations

import os

import pytest

from tests.message_paths import documented_paths, recorded_paths

pytestmark = [pytest.mark.requires("root", "interpreted"), pytest.mark.usefixtures("machine")]

INLINE = "live, in the program's own process"
MODES = (INLINE, "live, by the agent of a shared NIC", "dilated")
LONG = bool(os.environ.get("TESTBED_LONG"))


@pytest.mark.parametrize("mode", MODES if LONG else (INLINE,))
def test_the_documented_files_are_those_that_a_message_passes_through(mode: str) -> None:
    recorded, documented = recorded_paths("--mode", mode), documented_paths()
    assert len(recorded) in (4, 5)
    assert {title: documented.get(title) for title in recorded} == recorded
