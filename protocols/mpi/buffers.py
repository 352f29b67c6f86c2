"""Conversion of message arguments to bytes: a buffer, or mpi4py's [buffer, count, datatype].

Any object with the buffer protocol is accepted (bytes, bytearray, array, NumPy's arrays) if its bytes are contiguous, in C's
or Fortran's order; they travel as they lie in memory, and nothing is copied. A derived datatype can select some of the
bytes; the message is then an `IoVec`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, TypeAlias

from protocols.mpi.datatypes import BY_TYPECODE, BYTE, Datatype
from protocols.mpi.iovec import Data, IoVec
from protocols.mpi.mpi_errors import ERR_BUFFER, ERR_COUNT, ERR_TYPE, MPIError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Count: TypeAlias = SupportsIndex | tuple[SupportsIndex, SupportsIndex]
Message: TypeAlias = "ReadableBuffer | Sequence[ReadableBuffer | Count | Datatype | str | None] | None"
"""A buffer; [buffer, count], [buffer, datatype], [buffer, count, datatype], where a count may be (count, displacement)
and a datatype a typecode; [buffer, count, displacement, datatype]; None: no bytes. Parts may be None. Without a datatype,
counts are of the buffer's own items."""


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


class _Parsed(NamedTuple):
    """A message argument's parts. item: bytes from one item to the next. counts, displacements: numbers, or of a vector
    one for each rank; None: not given."""

    view: memoryview
    item: int
    datatype: Datatype | None = None
    counts: Any = None
    displacements: Any = None


def _parsed(message: Message, write: bool, is_vector: bool = False) -> _Parsed:
    if not isinstance(message, list | tuple):
        return _Parsed(*_view(message, write))
    if not 1 <= len(message) <= 4:
        raise MPIError(ERR_BUFFER, f"[buffer, count, displacement, datatype] has up to four parts, not {len(message)}")
    view, item = _view(message[0], write)
    parts = list(message[1:])
    datatype = None
    if parts and isinstance(parts[-1], Datatype | str):
        datatype = _datatype(parts.pop())
        item = datatype.extent
    elif len(message) == 4 or (parts and parts[-1] is None):
        if parts[-1] is not None:
            raise MPIError(ERR_TYPE, f"{parts[-1]!r} is no datatype")
        parts.pop()
    elif len(parts) > 1 and not is_vector:
        raise MPIError(ERR_TYPE, f"{parts[-1]!r} is no datatype")
    if len(parts) == 1 and isinstance(parts[0], tuple):
        if len(parts[0]) != 2:
            raise MPIError(ERR_COUNT, f"{parts[0]!r} is no (count, displacement)")
        parts = list(parts[0])
    return _Parsed(view, item, datatype, *parts)


def _bytes(message: Message, write: bool) -> Data:
    parsed = _parsed(message, write)
    count, displacement = parsed.counts, parsed.displacements or 0
    if count is None:
        if parsed.datatype is None and not displacement:
            return parsed.view
        count = _whole(parsed) - displacement
    return _items(parsed, count, displacement)


def _whole(parsed: _Parsed) -> int:
    """Return the number of items in the buffer."""
    view, item = parsed.view, parsed.item
    if item <= 0 or len(view) % item:
        raise MPIError(ERR_COUNT, f"a buffer of {len(view)} bytes does not hold whole items of {item} bytes")
    return len(view) // item


def _items(parsed: _Parsed, count: SupportsIndex, displacement: SupportsIndex) -> Data:
    """Return the bytes of items, from item `displacement` on."""
    view, item, datatype = parsed.view, parsed.item, parsed.datatype
    for name, number in (("count", count), ("displacement", displacement)):
        if not _is_number(number):
            raise MPIError(ERR_COUNT, f"{number!r} is no {name}")
    begin, length = index(displacement) * item, index(count) * item
    if datatype is not None and not datatype.typecode and length >= 0:
        return _derived(view, datatype, index(count), begin)
    if length < 0 or begin < 0 or begin + length > len(view):
        raise MPIError(
            ERR_COUNT, f"{count} items of {item} bytes from item {displacement} on: the buffer has {len(view)} bytes"
        )
    return view[begin : begin + length]


def blocks(message: Message, number: int, write: bool) -> Data:
    """Return the bytes of `number` blocks of one size. A count in the message is that of one block's items. Raises
    MPIError: ERR_BUFFER, ERR_COUNT or ERR_TYPE."""
    parsed = _parsed(message, write)
    if parsed.counts is not None:
        return _items(parsed, index(parsed.counts) * number, parsed.displacements or 0)
    items = _whole(parsed) if len(parsed.view) else 0
    if items % number:
        raise MPIError(ERR_COUNT, f"a buffer of {items} items cannot be cut into {number} blocks of one size")
    return _items(parsed, items, 0)


def vector(message: Message, number: int, write: bool) -> list[Data]:
    """Return the bytes of each of `number` blocks of any sizes. message: [buffer, counts, displacements, datatype], or
    [buffer, (counts, displacements), datatype]. One number as counts is that of each block; one as displacements is the
    distance of blocks. Without displacements, blocks follow each other; without counts, they have one size.

    Raises MPIError: ERR_BUFFER, ERR_COUNT or ERR_TYPE.
    """
    parsed = _parsed(message, write, is_vector=True)
    counts, displacements = parsed.counts, parsed.displacements
    if counts is None:
        items = _whole(parsed) if len(parsed.view) else 0
        if items % number:
            raise MPIError(ERR_COUNT, f"a buffer of {items} items cannot be cut into {number} blocks of one size")
        counts = items // number  # of each
    each = [index(counts)] * number if _is_number(counts) else [index(count) for count in counts]
    if displacements is None:
        displacements = [sum(each[:place]) for place in range(number)]
    elif _is_number(displacements):
        displacements = [place * index(displacements) for place in range(number)]
    if len(each) != number or len(displacements) != number:
        raise MPIError(ERR_COUNT, f"{len(each)} counts and {len(displacements)} displacements for {number} ranks")
    return [_items(parsed, count, place) for count, place in zip(each, displacements, strict=True)]


def _is_number(numbers: Any) -> bool:
    return hasattr(numbers, "__index__") and not hasattr(numbers, "__len__")


def typed(message: Message, write: bool) -> tuple[memoryview, Datatype]:
    """Return the bytes of a message for a reduction, and its datatype. Raises MPIError: ERR_BUFFER, ERR_COUNT, ERR_TYPE."""
    parsed, data = _parsed(message, write), _bytes(message, write)
    datatype = parsed.datatype
    if datatype is None:
        buffer = message[0] if isinstance(message, list | tuple) else message
        datatype = _datatype_of(buffer)
    if not isinstance(data, memoryview):
        raise MPIError(ERR_TYPE, f"{datatype.name} is not contiguous: reductions combine contiguous items")
    return data, datatype


def _datatype_of(buffer: object) -> Datatype:
    """Return the basic datatype of a buffer's items."""
    if buffer is None:
        return BYTE
    form = memoryview(buffer).format.lstrip("@=<|")  # type: ignore[arg-type]  # `_view` has tried it
    code = {"Zf": "F", "Zd": "D"}.get(form, form)
    if code not in BY_TYPECODE:
        raise MPIError(ERR_TYPE, f"no basic datatype has items of the format {form!r}: name one")
    return BY_TYPECODE[code]


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
    if view.f_contiguous and not view.c_contiguous and hasattr(buffer, "T"):  # an array in Fortran's order
        view = memoryview(buffer.T)
    if not view.c_contiguous:
        raise MPIError(ERR_BUFFER, "the buffer's bytes are not contiguous: copy it first")
    if write and view.readonly:
        raise MPIError(ERR_BUFFER, "a receive needs a buffer that can be written")
    # Bytes of items that are references are addresses, meaningless to other processes. Names of fields stand in colons.
    if "O" in view.format and "O" in re.sub(":[^:]*:", "", view.format):
        raise MPIError(ERR_TYPE, "the buffer's items are Python's objects; send and recv take those")
    # A view with a zero in its shape cannot be cast.
    return (view.cast("B") if view.nbytes else memoryview(bytearray())), view.itemsize or 1
