"""Messages in SSAM's cells: written as payloads, and compared by their fields."""

from __future__ import annotations

from protocols.ssam.cells import Message, pack_into


def write_payload(buffer: bytearray, offset: int, message: Message) -> None:
    """Write a message into a cell's payload."""
    pack_into(buffer, offset, message.kind, message.session, message.number, message.handler, message.data)


def fields_of(message: Message | None) -> tuple[int, int, int, int, bytes] | None:
    """Return a message's kind, session, number, handler and data; None for a cell without a message."""
    return message and (message.kind, message.session, message.number, message.handler, message.data)
