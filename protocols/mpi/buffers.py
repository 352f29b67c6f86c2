"""Conversion of message arguments to bytes: a buffer, or mpi4py's [buffer, count, datatype].

Any object with the buffer protocol is accepted (bytes, bytearray, array, NumPy's arrays) if its bytes are contiguous in
C order; nothing is copied. A derived datatype can select some of the bytes; the message is then an `IoVec`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, SupportsIndex, TypeAlias

from protocols.mpi.datatypes import BY_TYPECODE, Datatype
from protocols.mpi.iovec import Data, IoVec
from protocols.mpi.mpi_errors import ERR_BUFFER, ERR_COUNT, ERR_TYPE, MPIError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Count: TypeAlias = SupportsIndex | tuple[SupportsIndex, SupportsIndex]
Message: TypeAlias = "ReadableBuffer | Sequence[ReadableBuffer | Count | Datatype | str | None] | None"
"""A buffer; [buffer, count], [buffer, datatype], [buffer, count, datatype], where a count may be (count, displacement)
and a datatype a typecode; None: no bytes. Without a datatype, counts are of the buffer's own items."""


def readable(message: Message) -> Data:
    """Return the bytes to be sent. Raises MPIError: ERR_BUFFER, ERR_COUNT or ERR_TYPE."""
    if type(message) is bytes or type(message) is bytearray:
        return memoryview(message)
    return _bytes(message, False)


def writable(message: Message) -> Data:
    """Return the bytes to be received into. Raises MPIError: ERR_BUFFER, ERR_COUNT or ERR_TYPE."""
    if type(message) is bytearray:
        return memoryview(message)
    return _bytes(message, True)


def _bytes(message: Message, write: bool) -> Data:
    if not isinstance(message, list | tuple):
        return _view(message, write)[0]
    if not 1 <= len(message) <= 3:
        raise MPIError(ERR_BUFFER, f"[buffer, count, datatype] has up to three parts, not {len(message)}")
    view, item = _view(message[0], write)
    parts = list(message[1:])
    datatype = None
    if parts and isinstance(parts[-1], Datatype | str):
        datatype = _datatype(parts.pop())
        item = datatype.extent
    if len(parts) > 1:
        raise MPIError(ERR_TYPE, f"{parts[-1]!r} is no datatype")
    if not parts or parts[0] is None:
        if datatype is None:
            return view
        if item <= 0 or len(view) % item:
            raise MPIError(ERR_COUNT, f"a buffer of {len(view)} bytes does not hold whole items of {item} bytes")
        parts = [len(view) // item]
    count, displacement = parts[0] if isinstance(parts[0], tuple) else (parts[0], 0)
    try:
        begin, length = index(displacement) * item, index(count) * item
    except TypeError:
        raise MPIError(ERR_COUNT, f"{parts[0]!r} is no count") from None
    if datatype is not None and not datatype.typecode and length >= 0:
        return _derived(view, datatype, index(count), begin)
    if length < 0 or begin < 0 or begin + length > len(view):
        raise MPIError(
            ERR_COUNT, f"{count} items of {item} bytes from item {displacement} on: the buffer has {len(view)} bytes"
        )
    return view[begin : begin + length]


def _derived(view: memoryview, datatype: Datatype, count: int, place: int) -> Data:
    """Return items of a derived datatype, the first one at byte `place`."""
    spans = datatype.at(place, count)
    if any(begin < 0 or begin + length > len(view) for begin, length in spans):
        last = max(begin + length for begin, length in spans)
        first = min(begin for begin, _ in spans)
        message = f"{count} items of {datatype.name} lie from byte {first} to {last}: the buffer has {len(view)} bytes"
        raise MPIError(ERR_COUNT, message)
    if len(spans) > 1:
        return IoVec(view, spans)
    return view[spans[0][0] : spans[0][0] + spans[0][1]] if spans else view[:0]


def _datatype(given: Datatype | str) -> Datatype:
    if isinstance(given, Datatype):
        if not given.committed:
            raise MPIError(ERR_TYPE, f"{given.name} is not committed")
        return given
    try:
        return BY_TYPECODE[given]
    except KeyError:
        raise MPIError(ERR_TYPE, f"no basic datatype has the typecode {given!r}") from None


def _view(buffer: object, write: bool) -> tuple[memoryview, int]:
    """Return a buffer's bytes, and the bytes of each item."""
    if buffer is None:
        return memoryview(bytearray()), 1
    try:
        view = memoryview(buffer)  # type: ignore[arg-type]  # whether it has a buffer is what is tried
    except (TypeError, ValueError) as error:
        raise MPIError(
            ERR_BUFFER,
            f"a {type(buffer).__name__} has no buffer that could be sent or received; send and recv take objects",
        ) from error
    if not view.c_contiguous:
        raise MPIError(ERR_BUFFER, "the buffer's bytes are not contiguous in C's order: copy it first")
    if write and view.readonly:
        raise MPIError(ERR_BUFFER, "a receive needs a buffer that can be written")
    # Bytes of items that are references are addresses, meaningless to other processes. Names of fields stand in colons.
    if "O" in view.format and "O" in re.sub(":[^:]*:", "", view.format):
        raise MPIError(ERR_TYPE, "the buffer's items are Python's objects; send and recv take those")
    # A view with a zero in its shape cannot be cast.
    return (view.cast("B") if view.nbytes else memoryview(bytearray())), view.itemsize or 1
