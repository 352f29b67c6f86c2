"""Messages between two endpoints of one node: events that the sender's driver writes, without a frame (`omx_shared.c`).

The events have the fields of the frames that they replace. The library orders and acknowledges these messages as it does
those between nodes. `pulls` copies the data of messages above the eager limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protocols.core.memory import UnpinnedError
from protocols.openmx.codec import (
    TYPE_CONNECT,
    TYPE_MEDIUM,
    TYPE_NOTIFY,
    TYPE_RNDV,
    TYPE_SMALL,
    TYPE_TINY,
    TYPE_TRUC,
)
from protocols.openmx.driver_endpoint import Driver
from protocols.openmx.endpoint_memory import Command, Event, Op
from protocols.openmx.mx_names import MAX_LENGTH, MEDIUM_MAX, SMALL_MAX, TINY_MAX

Operation = Callable[[Driver, Driver, Command, bytes], None]
"""Function that carries out a command: sending driver, receiving driver, command, and the data that followed the command."""


def _make_event(sender: Driver, kind: int, command: Command) -> Event:
    event = Event(kind, command.endpoint, sender.number, command.seqnum, command.ack, command.session)
    event.match = command.match
    return event


def _share_small(sender: Driver, receiver: Driver, command: Command, data: bytes) -> None:
    if command.length > SMALL_MAX:
        sender.counters.invalid += 1
        return
    is_tiny = command.length <= TINY_MAX
    if is_tiny:
        sender.counters.shared_tiny += 1
    else:
        sender.counters.shared_small += 1
    event = _make_event(sender, TYPE_TINY if is_tiny else TYPE_SMALL, command)
    event.length = event.total = len(data)
    receiver.receive_message(sender, command.dst_endpoint, event, data)


def _share_medium(sender: Driver, receiver: Driver, command: Command, _data: bytes) -> None:
    length, fragment_size = command.length, sender.fragment_size
    if not 0 < length <= MEDIUM_MAX:
        sender.counters.invalid += 1
        return
    try:
        data = sender.memory.view(command.address, length)
    except UnpinnedError:
        sender.counters.invalid += 1
        return
    count = -(-length // fragment_size)
    for step in range(count):
        event = _make_event(sender, TYPE_MEDIUM, command)
        event.number = (command.number + step) % count
        fragment = data[event.number * fragment_size :][:fragment_size]
        event.length, event.total = len(fragment), length
        sender.counters.shared_mediumsq_frag += 1
        receiver.receive_message(sender, command.dst_endpoint, event, fragment)


def _share_rndv(sender: Driver, receiver: Driver, command: Command, _data: bytes) -> None:
    if command.length > MAX_LENGTH:
        sender.counters.invalid += 1
        return
    sender.counters.shared_rndv += 1
    event = _make_event(sender, TYPE_RNDV, command)
    event.number, event.turn, event.total = command.number, command.turn, command.length
    receiver.receive_message(sender, command.dst_endpoint, event)


def _share_notify(sender: Driver, receiver: Driver, command: Command, _data: bytes) -> None:
    if command.length > MAX_LENGTH:
        sender.counters.invalid += 1
        return
    sender.counters.shared_notify += 1
    event = _make_event(sender, TYPE_NOTIFY, command)
    event.number, event.turn, event.total = command.number, command.turn, command.length
    receiver.receive_message(sender, command.dst_endpoint, event)


def _share_ack(sender: Driver, receiver: Driver, command: Command, _data: bytes) -> None:
    sender.counters.shared_truc += 1
    event = _make_event(sender, TYPE_TRUC, command)
    event.total, event.word = command.word, command.session
    receiver.receive_message(sender, command.dst_endpoint, event)


def _share_connect(sender: Driver, receiver: Driver, command: Command, _data: bytes) -> None:
    sender.counters.shared_connect += 1
    event = _make_event(sender, TYPE_CONNECT, command)
    event.flag, event.turn, event.number, event.word = command.flag, command.turn, command.number & 0xFF, command.word
    receiver.receive_message(sender, command.dst_endpoint, event)


OPERATIONS: Final[dict[int, Operation]] = {
    Op.SEND: _share_small,
    Op.SEND_MEDIUM: _share_medium,
    Op.RNDV: _share_rndv,
    Op.NOTIFY: _share_notify,
    Op.ACK: _share_ack,
    Op.CONNECT: _share_connect,
}
"""The operations of the commands that become events."""
