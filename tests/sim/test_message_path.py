"""docs/internals/message.md lists the files that a message passes through."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def sections(text: str) -> dict[str, str]:
    """Return the text of each section by its heading."""
    parts = (part.partition("\n\n") for part in text.split("\n## ")[1:])
    return {heading: body.strip() for heading, _, body in parts}


@pytest.mark.requires("interpreted")
def test_the_documented_files_are_those_that_a_message_passes_through() -> None:
    completed = subprocess.run(
        [sys.executable, ROOT / "ci" / "message_path.py"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    documented = sections((ROOT / "docs" / "internals" / "message.md").read_text())
    recorded = sections(completed.stdout)
    assert len(recorded) == 7
    assert {heading: documented.get(heading) for heading in recorded} == recorded


def files(*, priced: bool) -> dict[str, list[str]]:
    documented = sections((ROOT / "docs" / "internals" / "message.md").read_text())
    return {heading: body.splitlines() for heading, body in documented.items() if ("prices" in heading) is priced}


def test_without_costs_only_messages_of_via_and_open_mx_pass_through_more_than_twelve_files() -> None:
    """VIA's descriptors, queues and registered memory, and Open-MX's library, partners and driver, are separate files: their
    paths are still to be shortened."""
    unpriced = files(priced=False)
    assert len(unpriced) == 10
    assert {heading.partition(",")[0] for heading, passed_files in unpriced.items() if len(passed_files) > 12} == {
        "VIA",
        "Open-MX",
    }


def test_with_costs_messages_pass_through_at_most_fourteen_files() -> None:
    """Costs add the event loop, the resources, and EMP's timers, which its sender sets before the frame is sent."""
    priced = files(priced=True)
    assert len(priced) == 2
    assert {heading: passed_files for heading, passed_files in priced.items() if len(passed_files) > 14} == {}
