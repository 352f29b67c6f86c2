"""The lines of a file that grows, while it grows: of events as they are recorded."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_MOST: Final = 1 << 20  # bytes at a time


class Tail:
    """A file of JSON Lines from its beginning on. It need not be there yet, and may go."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        self._rest = b""

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def read(self) -> list[Mapping[str, Any]]:
        """The documents whose lines have become whole since the last call. A line that is none is passed over."""
        if self._descriptor < 0:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return []
        found: list[Mapping[str, Any]] = []
        while data := os.read(self._descriptor, _MOST):
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                try:
                    document = json.loads(line)
                except ValueError:  # a killed process may leave half a line
                    continue
                if isinstance(document, dict):
                    found.append(document)
        return found
