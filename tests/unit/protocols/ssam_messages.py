"""Messages of SSAM's cells, written and compared."""

from __future__ import annotations

from protocols.ssam.cells import Message, pack_into


def write(buffer: bytearray, offset: int, message: Message) -> None:
    """Write a message's payload."""
    pack_into(buffer, offset, message.kind, message.session, message.number, message.handler, message.data)


def fields(message: Message | None) -> tuple[int, int, int, int, bytes] | None:
    """Return a message's kind, session, number, handler and data; None for a cell without a message."""
    return message and (message.kind, message.session, message.number, message.handler, message.data)
