"""Runs as their folders tell of them; what is in a folder says `testbed.controller.folders`, which writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from testbed.errors import NotFoundError, TestbedError, UnsupportedError, reason_of
from testbed.runtime.journal import read

FORMAT: Final = 1
"""Of what this version writes; older ones it can read."""

FATES: Final = "fates.jsonl"
"""In a repetition's folder, or the run's own: every fate that was not a pass."""

RUN: Final = "run.json"
RESULT: Final = "result.json"
ROWS: Final = "rows.jsonl"
EVENTS: Final = "events.jsonl"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run as its folder tells of it. result: empty where the run has not ended, or was killed."""

    folder: Path
    asked: Mapping[str, Any]
    result: Mapping[str, Any]

    @property
    def status(self) -> str:
        return str(self.result.get("status", "unfinished"))

    def rows(self) -> Iterator[Mapping[str, Any]]:
        return read(self.folder / ROWS)

    def events(self) -> Iterator[Mapping[str, Any]]:
        return read(self.folder / EVENTS)


def recorded(folder: Path) -> Recorded:
    """Raises NotFoundError where there is no run, UnsupportedError for one of a newer version, TestbedError for a broken
    file."""
    asked = _take(folder / RUN)
    if asked is None:
        raise NotFoundError(f"{folder} is no folder of a run: it has no {RUN}")
    return Recorded(folder, asked, _take(folder / RESULT) or {})


def runs(place: Path) -> tuple[list[Recorded], list[str]]:
    """The runs in a directory, the oldest first, and a sentence for each that cannot be read."""
    found, unreadable = [], []
    try:
        folders = sorted(each for each in place.iterdir() if (each / RUN).exists())
    except OSError:
        folders = []
    for folder in folders:
        try:
            found.append(recorded(folder))
        except TestbedError as error:
            unreadable.append(str(error))
    return sorted(found, key=lambda run: float(run.asked.get("began", 0))), unreadable


def _take(path: Path) -> Mapping[str, Any] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        version = document["format"]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TestbedError(f"{path} cannot be read: {reason_of(error)}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise TestbedError(f"{path} cannot be understood: it is damaged, or no run's") from error
    if not isinstance(version, int) or version > FORMAT:
        raise UnsupportedError(
            f"{path.parent} was written by a newer version of testbed (format {version}; this one reads up to {FORMAT})"
        )
    found: Mapping[str, Any] = document
    return found
