"""Commands for Open-MX's driver, with arbitrary fields."""

from __future__ import annotations

from typing import Final

from protocols.openmx.endpoint_memory import Command, Op

OPS: Final = range(Op.OPEN, Op.CLOSE_PULL + 1)
"""Codes of all commands."""


def command(op: int, endpoint: int = 0, **fields: int) -> Command:
    """Make a command. fields: further attributes of `Command`."""
    result = Command(op, endpoint)
    for name, value in fields.items():
        setattr(result, name, value)
    return result
