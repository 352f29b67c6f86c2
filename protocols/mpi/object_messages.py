"""Messages that carry pickled objects, over a `Device`.

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
from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Any, Final

from protocols.core.completion import Completion
from protocols.mpi.device import Device, Dispatch, ProbeResult
from protocols.mpi.mpi_errors import CANCELLED, ERR_COUNT, ERR_NO_MEM, ERR_TRUNCATE, ERR_TYPE, Envelope, MPIError

FIRST: Final = 4096
_MAGIC: Final = bytes.fromhex("80500059 9d1ce4a7 53f0b26e 4d8801c5")  # ours: no pickle begins so
_HEAD: Final = Struct("!16sIQ")
_ROOM: Final = FIRST - _HEAD.size


class Pickle:
    """The functions that convert objects, which a program may replace (mpi4py's MPI.pickle). PROTOCOL: of pickle."""

    def __init__(
        self,
        dumps: Callable[..., bytes] | None = None,
        loads: Callable[[Any], Any] | None = None,
        protocol: int | None = None,
    ) -> None:
        self._dumps = dumps or pickle.dumps
        self._loads = loads or pickle.loads
        self.PROTOCOL = pickle.HIGHEST_PROTOCOL if protocol is None and dumps is None else protocol

    def dumps(self, obj: object) -> bytes:
        return self._dumps(obj) if self.PROTOCOL is None else self._dumps(obj, self.PROTOCOL)

    def loads(self, data: bytes | memoryview) -> Any:
        return self._loads(data)


pickler: Final = Pickle()


def send_object(
    device: Device, destination: int, contexts: tuple[int, int], tag: int, obj: object, synchronous: bool = False
) -> Dispatch:
    """Pickle an object and begin to send it, as `send_pickled`. Also raises the exceptions of pickling."""
    return send_pickled(device, destination, contexts, tag, pickled(obj), synchronous)


def pickled(obj: object) -> bytes:
    return pickler.dumps(obj)


def send_pickled(
    device: Device, destination: int, contexts: tuple[int, int], tag: int, data: bytes, synchronous: bool = False
) -> Dispatch:
    """Begin to send an object. contexts: the communicator's, and its continuations'. synchronous: it does not complete
    before it is matched. Raises MPIError (ERR_COUNT) if it is too large."""
    size = len(data)
    if size <= FIRST:
        return device.send(destination, contexts[0], tag, memoryview(data), synchronous)
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
        self, device: Device, source: int, contexts: tuple[int, int], tag: int, claimed: ProbeResult | None = None
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
        """Return the object, once it is complete; None, as in mpi4py, of an empty message. Raises MPIError (ERR_TYPE) if
        it is no pickle, and the exceptions of unpickling."""
        if not self._data:
            return None
        try:
            return pickler.loads(self._data)
        except (pickle.UnpicklingError, EOFError) as error:
            raise _no_object(self._envelope) from error

    def _first(self, first: Completion[Envelope]) -> None:
        try:
            source, tag, length = envelope = first.result()
        except MPIError as error:
            self.over.fail(_no_object(error.envelope) if error.error_class == ERR_TRUNCATE else error)
            return
        if envelope is CANCELLED:
            self.over.complete(envelope)
            return
        if length != FIRST or self._data[: len(_MAGIC)] != _MAGIC:
            self._envelope = envelope
            self._data = self._data[:length]
            self.over.complete(envelope)
            return
        _, continuation, size = _HEAD.unpack_from(self._data)
        self._envelope = Envelope(source, tag, size)
        begin = self._data[_HEAD.size :]
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
    return MPIError(
        ERR_TYPE,
        f"the message{who} is no object: its bytes are no pickle, or more than {FIRST}; Recv receives it",
        envelope,
    )
