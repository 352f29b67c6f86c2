"""`testbed` itself as a command of views, which call it as a user would: with the same options, messages and roll-back."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

_CALL: Final = "import sys; sys.argv[0] = 'testbed'; from testbed.cli.main import main; main()"


def own_command(words: Sequence[str]) -> list[str]:
    """Return the program and arguments that run `testbed` with these words, by this interpreter."""
    return [sys.executable, "-P", "-c", _CALL, *words]


def outcome(text: str, *, failed: bool) -> str:
    """Join a command's output to one line; of an error without the usage."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not failed:
        return "; ".join(lines)
    errors = [line for line in lines if line.startswith("Error: ")]
    return errors[-1].removeprefix("Error: ") if errors else " ".join(lines).removeprefix("testbed: ")
