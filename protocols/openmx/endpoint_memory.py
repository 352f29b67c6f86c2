"""Memory that driver and library share: a ring of commands for the driver, and a receive ring for each endpoint.

The library writes a command, and the driver reads it at its doorbell. In memory that two processes share, the slots are
used in order, and there are twice as many slots as pending doorbells, so that a slot is not overwritten before the
driver has read it.

A receive ring is in memory that the library has pinned: a flag for each slot, which the driver sets and the library
clears; the results of the endpoint's pulls; and the slots, each an event with its data. The layouts are ours: Open-MX
uses unions of C structures.
"""

from __future__ import annotations

import struct
from typing import Final, Protocol

from protocols.openmx.mx_names import SMALL_MAX

COMMANDS: Final = 8192
"""Slots of commands in shared memory."""
DOORBELLS: Final = COMMANDS // 2
"""Maximum number of pending doorbells, and of pending completions, between two processes."""

_COMMAND: Final = struct.Struct("<BBBBHHHHBxxxIIxxxxQQQ")
COMMAND_SIZE: Final = 192
assert _COMMAND.size + SMALL_MAX <= COMMAND_SIZE

_EVENT: Final = struct.Struct("<BBBBHHHHIIIIQ")
EVENT_SIZE: Final = _EVENT.size
_pack_event: Final = _EVENT.pack_into
_unpack_event: Final = _EVENT.unpack_from

PULLS: Final = 64
"""Maximum number of an endpoint's pulls in progress."""
_RESULT: Final = struct.Struct("<HH")  # serial number, status

# Completions: (endpoint << 16) + code, where a code below PULL_DONE is a slot of the receive ring.
PULL_DONE: Final = 0x8000
ALARM: Final = 0xFFFF


class Op:
    """Codes of commands. Plain numbers, since each use of an enumeration's member looks the member up."""

    OPEN: Final = 1
    CLOSE: Final = 2
    SEND: Final = 3
    """A message of at most SMALL_MAX bytes, which follow the command."""
    SEND_MEDIUM: Final = 4
    RNDV: Final = 5
    NOTIFY: Final = 6
    ACK: Final = 7
    CONNECT: Final = 8
    REGISTER: Final = 9
    DEREGISTER: Final = 10
    PULL: Final = 11
    SET_ALARM: Final = 12
    CLOSE_PULL: Final = 13


class Command:
    """A command. endpoint: the local endpoint. peer, dst_endpoint: the partner. seqnum, ack, match, session: the
    message's fields of these names; match is the peer's region in a pull. length: bytes of the message, entries of a
    ring, or ns of an alarm. address: address of pinned memory. number: a region, a pull, a connection request, or the
    first fragment to send (modulo the number of fragments). turn: generation of the region, or the status in an answer to
    a connection request. word: the word of a connection frame, the number of an acknowledgement, or a pull's serial
    number. flag: 1 in an answer to a connection request."""

    __slots__ = (
        "ack", "address", "dst_endpoint", "endpoint", "flag", "length", "match", "number", "op", "peer", "seqnum",
        "session", "turn", "word",
    )  # fmt: skip

    def __init__(self, op: int, endpoint: int, dst_endpoint: int = 0, peer: int = 0) -> None:
        self.op = op
        self.endpoint = endpoint
        self.dst_endpoint = dst_endpoint
        self.flag = 0
        self.peer = peer
        self.seqnum = 0
        self.ack = 0
        self.number = 0
        self.turn = 0
        self.session = 0
        self.word = 0
        self.match = 0
        self.length = 0
        self.address = 0


class Commands(Protocol):
    """Queue of commands from the library to the driver."""

    __slots__ = ()

    def write(self, command: Command, data: bytes = b"") -> int:
        """Write a command; return its slot. data: data of a message of at most SMALL_MAX bytes."""
        ...

    def read(self, slot: int) -> tuple[Command, bytes]:
        """Read the command of a slot after its doorbell, and its data."""
        ...


class OwnCommands(Commands):
    """Commands within one process."""

    def __init__(self) -> None:
        self._written: dict[int, tuple[Command, bytes]] = {}
        self._next = 0

    def write(self, command: Command, data: bytes = b"") -> int:
        slot = self._next
        self._next = slot + 1
        self._written[slot] = command, data
        return slot

    def read(self, slot: int) -> tuple[Command, bytes]:
        return self._written.pop(slot)


class SharedCommands(Commands):
    """Commands in memory that two processes share."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._next = 0

    def write(self, command: Command, data: bytes = b"") -> int:
        slot = self._next
        self._next = (slot + 1) % COMMANDS
        offset = slot * COMMAND_SIZE
        _COMMAND.pack_into(
            self._memory, offset,
            command.op, command.endpoint, command.dst_endpoint, command.flag, command.peer, command.seqnum,
            command.ack, command.number, command.turn, command.session, command.word, command.match,
            command.length, command.address,
        )  # fmt: skip
        if data:
            offset += _COMMAND.size
            self._memory[offset : offset + len(data)] = data
        return slot

    def read(self, slot: int) -> tuple[Command, bytes]:
        offset = slot % COMMANDS * COMMAND_SIZE
        (
            op, endpoint, dst_endpoint, flag, peer, seqnum, ack, number, turn,
            session, word, match, length, address,
        ) = _COMMAND.unpack_from(self._memory, offset)  # fmt: skip
        command = Command(op, endpoint, dst_endpoint, peer)
        command.flag, command.turn, command.number = flag, turn, number
        command.seqnum, command.ack, command.session = seqnum, ack, session
        command.word, command.match = word, match
        command.length, command.address = length, address
        offset += _COMMAND.size
        return command, bytes(self._memory[offset : offset + min(command.length, SMALL_MAX)])


class Event:
    """A received frame, for the library. kind: the frame's type. endpoint, peer: endpoint and peer of the sender. session:
    session of the frame; in a connection frame, that of the requesting endpoint. length: bytes of data. total: bytes of the
    message, or the number of an acknowledgement. number: number of a fragment, a region, or a connection request. turn:
    generation of the region, or the status of an answer. word: the word of a connection frame, or the acknowledged session.
    flag: 1 for an answer to a connection request, or the type of a refusal."""

    __slots__ = (
        "ack", "endpoint", "flag", "kind", "length", "match", "number", "peer", "seqnum", "session", "total", "turn", "word",
    )  # fmt: skip

    def __init__(self, kind: int, endpoint: int, peer: int, seqnum: int = 0, ack: int = 0, session: int = 0) -> None:
        self.kind = kind
        self.endpoint = endpoint
        self.flag = 0
        self.turn = 0
        self.peer = peer
        self.seqnum = seqnum
        self.ack = ack
        self.number = 0
        self.length = 0
        self.total = 0
        self.session = session
        self.word = 0
        self.match = 0


class ReceiveRing:
    """An endpoint's receive ring, used by driver and library."""

    def __init__(self, memory: memoryview, entries: int, fragment_size: int) -> None:
        """memory: `ReceiveRing.size` bytes. fragment_size: data bytes in a slot."""
        self.entries: Final = entries
        self._flags = memory[:entries]
        self._results = memory[entries : entries + PULLS * _RESULT.size]
        self._slots = memory[entries + PULLS * _RESULT.size :]
        self._slot_size = EVENT_SIZE + fragment_size
        self._next = 0

    @staticmethod
    def size(entries: int, fragment_size: int) -> int:
        """Return the size of a ring in bytes."""
        return entries + PULLS * _RESULT.size + entries * (EVENT_SIZE + fragment_size)

    # Driver side.

    @property
    def is_full(self) -> bool:
        """Whether the library has not released the next slot yet."""
        return bool(self._flags[self._next])

    def take_slot(self) -> int:
        """Reserve the next slot and return it, or -1 if the library has not released it yet."""
        slot = self._next
        if self._flags[slot]:
            return -1
        self._flags[slot] = 1
        self._next = (slot + 1) % self.entries
        return slot

    def write(self, slot: int, event: Event) -> None:
        """Write an event without its data."""
        _pack_event(
            self._slots, slot * self._slot_size,
            event.kind, event.endpoint, event.flag, event.turn, event.peer, event.seqnum, event.ack, event.number,
            event.length, event.total, event.session, event.word, event.match,
        )  # fmt: skip

    def data(self, slot: int, length: int) -> memoryview:
        """Return a view of an event's data."""
        start = slot * self._slot_size + EVENT_SIZE
        return self._slots[start : start + length]

    def write_result(self, pull: int, serial: int, status: int) -> None:
        """Write the result of a pull. serial: serial number of the pull's command, which distinguishes pulls with the same
        number."""
        _RESULT.pack_into(self._results, pull * _RESULT.size, serial, status)

    # Library side.

    def read(self, slot: int) -> Event:
        """Read an event."""
        kind, endpoint, flag, turn, peer, seqnum, ack, number, length, total, session, word, match = _unpack_event(
            self._slots, slot * self._slot_size
        )
        event = Event(kind, endpoint, peer, seqnum, ack, session)
        event.flag, event.turn, event.number, event.length = flag, turn, number, length
        event.total, event.word, event.match = total, word, match
        return event

    def release(self, slot: int) -> None:
        """Release a slot."""
        self._flags[slot] = 0

    def result(self, pull: int) -> tuple[int, int]:
        """Read the serial number and status of the last pull with a number."""
        serial, status = _RESULT.unpack_from(self._results, pull * _RESULT.size)
        return serial, status
