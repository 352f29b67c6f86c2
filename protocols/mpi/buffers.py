"""Conversion of message arguments to bytes: a buffer, or mpi4py's [buffer, count, datatype].

Any object with the buffer protocol is accepted (bytes, bytearray, array, NumPy's arrays) if its bytes are contiguous, in C's
or Fortran's order; they are sent in memory order, without a copy. A derived datatype can select some of the bytes; the
message is then an `IoVec`.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, TypeAlias

from protocols.mpi.datatypes import BY_TYPECODE, BYTE, Datatype, view_bytes
from protocols.mpi.iovec import Data, IoVec
from protocols.mpi.mpi_errors import ERR_BUFFER, ERR_COUNT, ERR_TYPE, ArgumentKeyError, ArgumentValueError, MPIError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Count: TypeAlias = SupportsIndex | tuple[SupportsIndex, SupportsIndex]
Message: TypeAlias = "ReadableBuffer | Sequence[ReadableBuffer | Count | Datatype | str | None] | None"
"""A buffer; [buffer, count], [buffer, datatype] or [buffer, count, datatype], where a count may be (count, displacement)
and a datatype may be a typecode; [buffer, count, displacement, datatype]; None for no bytes. Parts may be None. Without a
datatype, counts are of the items of the buffer."""


def as_send_data(message: Message) -> Data:
    """Convert a message argument to the bytes to send. Raises MPIError: ERR_BUFFER, ERR_COUNT or ERR_TYPE."""
    if type(message) is bytes or type(message) is bytearray:
        return memoryview(message)
    return _parse_bytes(message, False)


def as_receive_buffer(message: Message) -> Data:
    """Convert a message argument to writable memory to receive into. Raises MPIError: ERR_BUFFER, ERR_COUNT or ERR_TYPE."""
    if type(message) is bytearray:
        return memoryview(message)
    return _parse_bytes(message, True)


class _MessageParts(NamedTuple):
    """Parts of a message argument. view: the buffer's bytes. item_size: bytes from one item to the next. counts,
    displacements: numbers, or for a vector one number per rank; None: omitted."""

    view: memoryview
    item_size: int
    datatype: Datatype | None = None
    counts: Any = None
    displacements: Any = None


def _parse(message: Message, write: bool, is_vector: bool = False) -> _MessageParts:
    if not isinstance(message, list | tuple):
        return _MessageParts(*view_bytes(message, write, is_typed=False))
    if not 1 <= len(message) <= 4:
        raise MPIError(
            ERR_BUFFER, f"a message has 1 to 4 parts [buffer, count, displacement, datatype], got {len(message)}"
        )
    view, item_size = view_bytes(message[0], write, any(isinstance(part, Datatype | str) for part in message[1:]))
    parts = list(message[1:])
    datatype = None
    if parts and isinstance(parts[-1], Datatype | str):
        datatype = _check_datatype(parts.pop())
        item_size = datatype.extent
    elif len(message) == 4 or (parts and parts[-1] is None):
        if parts[-1] is not None:
            raise MPIError(ERR_TYPE, f"expected a Datatype or a typecode, got {parts[-1]!r}")
        parts.pop()
    elif len(parts) > 1 and not is_vector:
        raise MPIError(ERR_TYPE, f"expected a Datatype or a typecode, got {parts[-1]!r}")
    if len(parts) == 1 and isinstance(parts[0], tuple):
        if len(parts[0]) != 2:
            raise MPIError(ERR_COUNT, f"expected (count, displacement), got {parts[0]!r}")
        parts = list(parts[0])
    return _MessageParts(view, item_size, datatype, *parts)


def _parse_bytes(message: Message, write: bool) -> Data:
    parsed = _parse(message, write)
    count, displacement = parsed.counts, parsed.displacements or 0
    if count is None:
        if parsed.datatype is None and not displacement:
            return parsed.view
        count = _count_items(parsed) - displacement
    return _slice_items(parsed, count, displacement)


def _count_items(parsed: _MessageParts) -> int:
    """Return the number of items in the buffer. Raises MPIError (ERR_COUNT) if the last one is incomplete."""
    view, item_size = parsed.view, parsed.item_size
    if item_size <= 0 or len(view) % item_size:
        raise ArgumentValueError(
            ERR_COUNT, f"a buffer of {len(view)} bytes does not hold whole items of {item_size} bytes"
        )
    return len(view) // item_size


def _slice_items(parsed: _MessageParts, count: SupportsIndex, displacement: SupportsIndex) -> Data:
    """Return the bytes of `count` items, from item `displacement` on."""
    view, item_size, datatype = parsed.view, parsed.item_size, parsed.datatype
    for name, number in (("count", count), ("displacement", displacement)):
        if not _is_number(number):
            raise MPIError(ERR_COUNT, f"{name} must be an integer, got {number!r}")
    begin, length = index(displacement) * item_size, index(count) * item_size
    if datatype is not None and not datatype.typecode and length >= 0:
        return _derived_items(view, datatype, index(count), begin)
    if length < 0 or begin < 0 or begin + length > len(view):
        raise MPIError(
            ERR_COUNT,
            f"{count} items of {item_size} bytes from item {displacement} on do not fit the buffer of {len(view)} bytes",
        )
    return view[begin : begin + length]


def equal_blocks(message: Message, block_count: int, write: bool) -> Data:
    """Convert a message argument to the bytes of several blocks of equal size. The count in the message is the number of
    items per block. write: whether the buffer must be writable. Raises MPIError: ERR_BUFFER, ERR_COUNT or ERR_TYPE."""
    parsed = _parse(message, write)
    if parsed.counts is not None:
        return _slice_items(parsed, index(parsed.counts) * block_count, parsed.displacements or 0)
    if not block_count:
        return parsed.view[:0]
    item_count = _count_items(parsed) if len(parsed.view) else 0
    if item_count % block_count:
        raise ArgumentValueError(
            ERR_COUNT, f"a buffer of {item_count} items cannot be divided into {block_count} equal blocks"
        )
    return _slice_items(parsed, item_count, 0)


def vector_blocks(message: Message, block_count: int, write: bool) -> list[Data]:
    """Convert a message argument to the bytes of each of several blocks of any sizes. message: [buffer, counts,
    displacements, datatype], or [buffer, (counts, displacements), datatype]. A single number as counts is the count of
    each block; as displacements it is the distance between blocks. Without displacements, blocks are adjacent; without
    counts, they have equal sizes. write: whether the buffer must be writable.

    Raises MPIError: ERR_BUFFER, ERR_COUNT or ERR_TYPE.
    """
    parsed = _parse(message, write, is_vector=True)
    counts, displacements = parsed.counts, parsed.displacements
    if counts is None and not block_count:
        return []
    if counts is None:
        item_count = _count_items(parsed) if len(parsed.view) else 0
        if item_count % block_count:
            raise ArgumentValueError(
                ERR_COUNT, f"a buffer of {item_count} items cannot be divided into {block_count} equal blocks"
            )
        counts = item_count // block_count
    counts_by_rank = [index(counts)] * block_count if _is_number(counts) else [index(count) for count in counts]
    if displacements is None:
        displacements = [sum(counts_by_rank[:rank]) for rank in range(block_count)]
    elif _is_number(displacements):
        displacements = [rank * index(displacements) for rank in range(block_count)]
    if len(counts_by_rank) != block_count or len(displacements) != block_count:
        raise ArgumentValueError(
            ERR_COUNT, f"{len(counts_by_rank)} counts and {len(displacements)} displacements for {block_count} ranks"
        )
    return [_slice_items(parsed, count, offset) for count, offset in zip(counts_by_rank, displacements, strict=True)]


def _is_number(number: Any) -> bool:
    return hasattr(number, "__index__") and not hasattr(number, "__len__")


def reduction_operand(message: Message, write: bool) -> tuple[memoryview, Datatype]:
    """Convert the message argument of a reduction to its bytes and datatype. Raises MPIError: ERR_BUFFER, ERR_COUNT or
    ERR_TYPE."""
    parsed, data = _parse(message, write), _parse_bytes(message, write)
    datatype = parsed.datatype
    if datatype is None:
        buffer = message[0] if isinstance(message, list | tuple) else message
        datatype = _datatype_of(buffer)
    if not isinstance(data, memoryview):
        raise MPIError(ERR_TYPE, f"reductions need a contiguous datatype, got {datatype.name}")
    return data, datatype


def _datatype_of(buffer: object) -> Datatype:
    """Return the basic datatype of a buffer's items."""
    if buffer is None:
        return BYTE
    item_format = memoryview(buffer).format.lstrip("@=<|")  # type: ignore[arg-type]  # `view_bytes` has checked it
    code = {"Zf": "F", "Zd": "D"}.get(item_format, item_format)
    if code not in BY_TYPECODE:
        raise ArgumentKeyError(
            ERR_TYPE, f"no basic datatype has the item format {item_format!r}: pass [buffer, datatype]"
        )
    return BY_TYPECODE[code]


def _derived_items(view: memoryview, datatype: Datatype, count: int, offset: int) -> Data:
    """Return the bytes of `count` items of a derived datatype, the first at byte `offset`."""
    spans = datatype.spans_at(offset, count)
    if any(begin < 0 or begin + length > len(view) for begin, length in spans):
        last = max(begin + length for begin, length in spans)
        first = min(begin for begin, _ in spans)
        message = (
            f"{count} items of {datatype.name} extend from byte {first} to {last} of a buffer of {len(view)} bytes"
        )
        raise MPIError(ERR_COUNT, message)
    if len(spans) > 1:
        return IoVec(view, spans)
    return view[spans[0][0] : spans[0][0] + spans[0][1]] if spans else view[:0]


def _check_datatype(datatype: Datatype | str) -> Datatype:
    if isinstance(datatype, Datatype):
        if not datatype.is_committed:
            raise MPIError(ERR_TYPE, f"the datatype {datatype.name} is not committed: call Commit")
        return datatype
    try:
        return BY_TYPECODE[datatype]
    except KeyError:
        raise ArgumentKeyError(ERR_TYPE, f"no basic datatype has the typecode {datatype!r}") from None
