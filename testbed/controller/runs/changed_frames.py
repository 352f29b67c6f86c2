"""Notes, in the error of a run, on frames that rules changed in a way that no receiver can detect.

A rule may set a field and recompute the checks (`mend-check`). Then a NIC or a library that trusts its peer's frames may
wait forever or fail, although neither it nor the program has an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from testbed.errors import TestbedError
from testbed.fates.records import Record
from testbed.observe.recorded import FATES

_MENDED: Final = '"mend": true'


@contextlib.contextmanager
def errors_naming_changed_frames(*folders: Path) -> Iterator[None]:
    """Add a note on changed frames with valid checks, if there are any, to an error of the block. folders: those that may
    have a log of fates; the first log counts."""
    try:
        yield
    except TestbedError as error:
        note = _note(folders)
        if note:
            error.args = (f"{error}\n{note}",)
        raise


def _note(folders: tuple[Path, ...]) -> str:
    """Return a sentence on the changed frames in the first log; empty if there is no log or no such frame."""
    path = next((folder / FATES for folder in folders if (folder / FATES).exists()), None)
    if path is None:
        return ""
    with path.open() as log:
        lines = [line for line in log if _MENDED in line]
    if not lines:
        return ""
    record = Record.from_line(lines[0])
    more = f", and {len(lines) - 1} more" if len(lines) > 1 else ""
    return f"frames have been changed on their way, with valid checks: on {record.link}, {record.describe()}{more}"
