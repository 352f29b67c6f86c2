"""What packages offer to a testbed by name, as entry points: protocols and workloads, ours among them.

Nothing is imported but what is asked for.
"""

from __future__ import annotations

import traceback
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from testbed.errors import NotFoundError, TestbedError

PROTOCOLS: Final = "testbed.protocols"
WORKLOADS: Final = "testbed.workloads"


def offered(group: str) -> dict[str, EntryPoint]:
    """All of a group, by name. Of two with one name the one counts that the interpreter's path has first."""
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        found.setdefault(entry.name, entry)
    return dict(sorted(found.items()))


def load(group: str, name: str) -> object:
    """What is registered under that name. Raises NotFoundError with the names that there are, and TestbedError with a
    traceback where importing it fails."""
    there = offered(group)
    entry = there.get(name)
    kind = group.rpartition(".")[2].removesuffix("s")
    if entry is None:
        near = get_close_matches(name, there, 1)
        hint = f" — did you mean {near[0]!r}?" if near else ""
        known = f"there are {', '.join(there)}" if there else "no package registers one: is testbed installed anew?"
        raise NotFoundError(f"no {kind} is called {name!r}{hint}; {known}")
    try:
        value: object = entry.load()
    except Exception as error:
        raise TestbedError(f"{kind} {name!r} ({entry.value}) cannot be imported:\n{traceback.format_exc()}") from error
    return value
