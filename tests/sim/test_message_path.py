"""docs/internals/message.md names the files that a message passes now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def sections(text: str) -> dict[str, str]:
    """Return the text of each section by its heading."""
    found = (part.partition("\n\n") for part in text.split("\n## ")[1:])
    return {heading: body.strip() for heading, _, body in found}


def test_the_files_that_are_documented_are_those_that_a_message_passes() -> None:
    printed = subprocess.run(
        [sys.executable, ROOT / "ci" / "message_path.py"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    documented = sections((ROOT / "docs" / "internals" / "message.md").read_text())
    recorded = sections(printed.stdout)
    assert len(recorded) == 6
    assert {heading: documented.get(heading) for heading in recorded} == recorded


def files(*, priced: bool) -> dict[str, list[str]]:
    documented = sections((ROOT / "docs" / "internals" / "message.md").read_text())
    return {heading: body.splitlines() for heading, body in documented.items() if ("prices" in heading) is priced}


def test_a_message_passes_at_most_twelve_files_where_nothing_has_a_price() -> None:
    """VIA's way is longer: its descriptors, queues and registered memory are files of their own."""
    unpriced = files(priced=False)
    assert len(unpriced) == 8
    longer = {heading: len(passed) for heading, passed in unpriced.items() if len(passed) > 12}
    assert {heading.partition(",")[0] for heading in longer} <= {"VIA"}
    assert max(longer.values(), default=0) <= 15


def test_prices_add_the_loop_and_the_resources_that_take_time() -> None:
    """Pricing adds the loop, the resources, and EMP's timers, which its sender sets before the frame leaves."""
    priced = files(priced=True)
    assert len(priced) == 2
    assert {heading: passed for heading, passed in priced.items() if len(passed) > 14} == {}
