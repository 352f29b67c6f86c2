"""Objects as messages: pickled, and sent in one message or two.

The receiver of a pickled object does not know its size, and EMP has no probe that would tell. So an object's message
has at most FIRST bytes, for which every receive of an object has room: a head (magic, tag of the continuation, bytes of
the pickle) and the beginning of the pickle. The rest is a second message, the continuation. It uses a context of the
library's own, under a tag that the sender uses for nothing else, so only the receive that follows the first one can
take it: matching and order are those of the first message alone, wildcards included. The continuation is sent when the
first message is complete. On EMP that means that it has been received, so the continuation usually finds its receive.
FIRST is a page: one descriptor, and at 1500 bytes a frame one collection of EMP's. As always with pickle, the receiver
must trust the sender.
"""

from __future__ import annotations

import pickle
from functools import partial
from struct import Struct
from typing import Final

from protocols.core.completion import Completion
from protocols.mpi.device import Device
from protocols.mpi.mpi_errors import CANCELLED, ERR_COUNT, ERR_NO_MEM, ERR_TRUNCATE, ERR_TYPE, Envelope, MPIError
from protocols.mpi.mpi_transfers import Dispatch, Found

FIRST: Final = 4096
_HEAD: Final = Struct("!4sIQ")
_MAGIC: Final = b"\x80PY\x01"  # 0x80: no text begins so; 1: version of the layout
_ROOM: Final = FIRST - _HEAD.size


def send_object(
    device: Device, destination: int, contexts: tuple[int, int], tag: int, obj: object, synchronous: bool = False
) -> Dispatch:
    """Pickle an object and begin to send it, as `send_pickled`. Also raises the exceptions of pickling."""
    return send_pickled(device, destination, contexts, tag, pickled(obj), synchronous)


def pickled(obj: object) -> bytes:
    return pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)


def send_pickled(
    device: Device, destination: int, contexts: tuple[int, int], tag: int, data: bytes, synchronous: bool = False
) -> Dispatch:
    """Begin to send an object. contexts: the communicator's, and its continuations'. synchronous: it does not complete
    before it is matched. Raises MPIError (ERR_COUNT) if it is too large."""
    size = len(data)
    if size <= _ROOM:
        return device.send(destination, contexts[0], tag, memoryview(_HEAD.pack(_MAGIC, 0, size) + data), synchronous)
    if size - _ROOM > device.max_message_size:
        raise MPIError(ERR_COUNT, f"a pickled object of {size} bytes: at most {device.max_message_size + _ROOM}")
    view = memoryview(data)
    continuation = device.next_continuation()
    what = "a send of an object to rank %s, tag %s, %s bytes"
    whole = Dispatch(what, destination, tag, size, contexts[0], device.losses)
    head = memoryview(_HEAD.pack(_MAGIC, continuation, size) + view[:_ROOM])
    send_rest = partial(_send_rest, device, destination, contexts[1], continuation, view[_ROOM:], whole)
    first = device.send(destination, contexts[0], tag, head, synchronous)
    first.whole = whole
    first.add_callback(send_rest)
    return whole


def _send_rest(
    device: Device,
    destination: int,
    context: int,
    continuation: int,
    rest: memoryview,
    whole: Dispatch,
    first: Completion[Envelope],
) -> None:
    try:
        first.result()
    except MPIError as error:
        whole.fail(error)
        return
    if first.result() is CANCELLED:
        whole.complete(CANCELLED)
    else:
        last = device.send(destination, context, continuation, rest)
        last.whole = whole
        last.add_callback(partial(_hand_on, whole))


def _hand_on(whole: Dispatch, last: Completion[Envelope]) -> None:
    if whole.done:
        return  # its first message is lost
    try:
        whole.complete(last.result())
    except MPIError as error:
        whole.fail(error)


class Incoming:
    """An incoming object. over: done when it is complete; fails as a receive does, and with ERR_TYPE if the message is
    not an object's. The envelope's length is the pickle's. first: the receive of its first message."""

    __slots__ = ("_contexts", "_data", "_device", "_envelope", "first", "over")

    def __init__(
        self, device: Device, source: int, contexts: tuple[int, int], tag: int, claimed: Found | None = None
    ) -> None:
        """claimed: the message, if a probe has claimed it."""
        self._device = device
        self._contexts = contexts
        self._data = memoryview(bytearray(FIRST))
        self._envelope: Envelope
        if claimed is None:
            self.first = device.receive(source, contexts[0], tag, self._data)
        else:
            self.first = device.receive_claimed(claimed, contexts[0], self._data)
        self.over: Completion[Envelope] = Completion("%s", self.first)
        self.first.add_callback(self._first)

    def load(self) -> object:
        """Return the object, once it is complete. Raises the exceptions of unpickling."""
        return pickle.loads(self._data)

    def _first(self, first: Completion[Envelope]) -> None:
        try:
            source, tag, length = envelope = first.result()
        except MPIError as error:
            self.over.fail(_no_object(error.envelope) if error.error_class == ERR_TRUNCATE else error)
            return
        if envelope is CANCELLED:
            self.over.complete(envelope)
            return
        if length < _HEAD.size:
            self.over.fail(_no_object(first.result()))
            return
        magic, continuation, size = _HEAD.unpack_from(self._data)
        if magic != _MAGIC or length != _HEAD.size + min(size, _ROOM):
            self.over.fail(_no_object(first.result()))
            return
        self._envelope = Envelope(source, tag, size)
        begin = self._data[_HEAD.size : length]
        if size <= _ROOM:
            self._data = begin
            self.over.complete(self._envelope)
            return
        try:
            self._data = memoryview(bytearray(size))
        except (MemoryError, OverflowError):
            self.over.fail(MPIError(ERR_NO_MEM, f"no memory for an object of {size} bytes", self._envelope))
            return
        self._data[:_ROOM] = begin
        rest = self._device.receive(source, self._contexts[1], continuation, self._data[_ROOM:])
        rest.add_callback(self._rest)

    def _rest(self, rest: Completion[Envelope]) -> None:
        try:
            rest.result()
        except MPIError as error:
            self.over.fail(error)
        else:
            self.over.complete(self._envelope)


def _no_object(envelope: Envelope | None) -> MPIError:
    who = f" from rank {envelope.source}, tag {envelope.tag}," if envelope else ""
    return MPIError(ERR_TYPE, f"the message{who} is no object: what Send sends, Recv receives", envelope)
