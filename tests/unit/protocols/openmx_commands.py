"""Open-MX's commands for its driver, with any fields."""

from __future__ import annotations

from typing import Final

from protocols.openmx.endpoint_memory import Command, Op

OPS: Final = range(Op.OPEN, Op.CLOSE_PULL + 1)
"""All commands."""


def command(op: int, endpoint: int = 0, **fields: int) -> Command:
    """Make a command. fields: further attributes of `Command`."""
    made = Command(op, endpoint)
    for name, value in fields.items():
        setattr(made, name, value)
    return made
