"""MPI's basic and derived datatypes. MPI 4.1, chapter 5. Transfers do not convert data, since all nodes of a cluster
have one architecture."""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from operator import index
from struct import calcsize
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

from protocols.mpi import external32
from protocols.mpi.constants import ORDER_C
from protocols.mpi.datatype_constructors import COMBINERS, Constructor
from protocols.mpi.iovec import Span, merge_adjacent
from protocols.mpi.mpi_errors import (
    ERR_ARG,
    ERR_BUFFER,
    ERR_COUNT,
    ERR_TRUNCATE,
    ERR_TYPE,
    ArgumentBufferError,
    ArgumentKeyError,
    ArgumentTypeError,
    ArgumentValueError,
    Handle,
    MPIError,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_NULL: Final = "MPI_DATATYPE_NULL"
_NULL_ERROR: Final = "the datatype is DATATYPE_NULL, or was freed"
_OTHER_BYTE_ORDER: Final = (">", "!") if sys.byteorder == "little" else ("<",)
"""Prefixes of the formats of buffers whose items are not in the machine's byte order."""
_KINDS: Final = {
    "c": "S", "?": "b", **dict.fromkeys("bhilq", "i"), **dict.fromkeys("BHILQ", "u"), **dict.fromkeys("fdg", "f"),
    **dict.fromkeys("FDG", "c"),
}  # fmt: skip
"""NumPy's kinds of data, by typecode."""


class Datatype(Handle):
    """A datatype.

    size: bytes of one item. extent: bytes from one item to the next. lb: lower bound, in bytes from the item's address.
    typecode: as in `array`, `struct` and NumPy; empty for derived types. spans: offsets and lengths of an item's bytes,
    in the order of the type map.

    A derived type must be committed before it is used (`Commit`).
    """

    __slots__ = (
        "__weakref__",
        "_base",
        "_constructor",
        "_is_freed",
        "extent",
        "is_committed",
        "lb",
        "name",
        "size",
        "spans",
        "typecode",
    )

    def __init__(
        self,
        name: str | Datatype | None = None,
        typecode: str = "",
        spans: Iterable[Span] = (),
        lb: int = 0,
        extent: int = 0,
    ) -> None:
        """name: for a datatype, this becomes another handle of it, which a later Commit or Free of the other handle does not
        change; None: DATATYPE_NULL."""
        self._base: Datatype | None = None  # the datatype from which this one was made
        self._constructor: Constructor | None = None
        self._is_freed = False  # transfers in progress still use its spans
        self.is_committed = bool(typecode)
        if isinstance(name, Datatype):
            self._base, self._constructor = name._base, name._constructor
            self._is_freed, self.is_committed = name._is_freed, name.is_committed
            typecode, spans, lb, extent, name = name.typecode, name.spans, name.lb, name.extent, name.name
        elif name is not None and not isinstance(name, str):
            raise TypeError(f"a Datatype is expected, not {type(name).__name__}")
        self.name: str = name or _NULL
        self.typecode: str = typecode
        self.spans: Sequence[Span] = tuple(merge_adjacent(spans))
        self.size = sum(length for _, length in self.spans)
        self.lb: int = lb
        self.extent: int = extent

    def __repr__(self) -> str:
        return f"<Datatype {self.name}>"

    def __bool__(self) -> bool:
        """Whether it is neither DATATYPE_NULL nor freed."""
        return self.name != _NULL and not self._is_freed

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Datatype):
            return False
        if not self or not other:
            return not self and not other
        return (self.name, self.spans, self.lb, self.extent) == (other.name, other.spans, other.lb, other.extent)

    def __hash__(self) -> int:
        return hash((self.name, self.lb, self.extent)) if self else hash(_NULL)

    @classmethod
    def fromcode(cls, code: str) -> Datatype:
        """Return a basic datatype. code: a key of `BY_TYPECODE`. Raises ValueError for another code."""
        if code not in BY_TYPECODE:
            raise ValueError(f"no basic datatype has the code {code!r}")
        return BY_TYPECODE[code]

    def tocode(self) -> str:
        """Return the typecode of a basic datatype, for `fromcode`. Raises ValueError for another datatype."""
        if self.typecode not in BY_TYPECODE:
            raise ValueError(f"the datatype {self.name} has no typecode")
        return self.typecode

    @property
    def typechar(self) -> str:
        """The typecode; V for a datatype without one, as in NumPy, and empty for DATATYPE_NULL."""
        return self.typecode if self.typecode in BY_TYPECODE else "V" if self else ""

    @property
    def typestr(self) -> str:
        """NumPy's kind and size; V and the extent for a datatype without a typecode, and empty for DATATYPE_NULL."""
        return f"{_KINDS.get(self.typecode, 'V')}{self.extent}" if self else ""

    @property
    def ub(self) -> int:
        """Upper bound, in bytes from the item's address."""
        return self.lb + self.extent

    @property
    def is_predefined(self) -> bool:
        """Whether no constructor made it; a duplicate is not predefined."""
        return self._constructor is None

    @property
    def true_lb(self) -> int:
        """Offset of an item's first byte."""
        return min((begin for begin, _ in self.spans), default=0)

    @property
    def true_ub(self) -> int:
        """Offset of the end of an item's last byte."""
        return max((begin + length for begin, length in self.spans), default=0)

    @property
    def true_extent(self) -> int:
        """Bytes from an item's first byte to its last."""
        return self.true_ub - self.true_lb

    def Get_size(self) -> int:
        return self.size

    def Get_true_extent(self) -> tuple[int, int]:
        """Return true lower bound and true extent."""
        return self.true_lb, self.true_extent

    def Set_name(self, name: str) -> None:
        self.name = name

    def Get_extent(self) -> tuple[int, int]:
        """Return lower bound and extent."""
        return self.lb, self.extent

    def Get_name(self) -> str:
        return self.name

    def Commit(self) -> Datatype:
        """Commit the type: transfers may use it. Returns the type. Raises MPIError (ERR_TYPE) for DATATYPE_NULL."""
        if not self:
            raise MPIError(ERR_TYPE, _NULL_ERROR)
        self.is_committed = True
        return self

    def Free(self) -> None:
        """Free a derived type or a duplicate: it then equals DATATYPE_NULL. Transfers in progress continue, and types that
        were made from it remain. Raises MPIError (ERR_TYPE) for a predefined datatype and for DATATYPE_NULL."""
        if not self:
            raise MPIError(ERR_TYPE, _NULL_ERROR)
        if self._constructor is None:
            raise MPIError(ERR_TYPE, f"the predefined datatype {self.name} cannot be freed")
        self._is_freed, self.is_committed = True, False

    def Dup(self) -> Datatype:
        copy = Datatype(self.name, self.typecode, self.spans, self.lb, self.extent)
        copy.is_committed = self.is_committed
        return copy._record_constructor(self, "DUP")

    def Create_contiguous(self, count: int) -> Datatype:
        """Derive a type of `count` contiguous items. Raises MPIError, as do the other constructors: ERR_COUNT for a negative
        count, ERR_TYPE for DATATYPE_NULL."""
        return self._derive_blocks(f"{count} of {self.name}", [(0, count)])._record_constructor(
            self, "CONTIGUOUS", count=count
        )

    def Create_vector(self, count: int, blocklength: int, stride: int) -> Datatype:
        """Derive a type of `count` blocks of items. stride: items from one block's beginning to the next one's."""
        name = f"{count} x {blocklength} of {self.name}, {stride} apart"
        _check_count(count)
        vector = self._derive_blocks(name, [(number * stride, blocklength) for number in range(count)])
        return vector._record_constructor(self, "VECTOR", count=count, blocklength=blocklength, stride=stride)

    def Create_indexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        """Derive a type of blocks. blocklengths, displacements: in items. Raises MPIError (ERR_ARG) if their numbers
        differ."""
        _check_equal_lengths(blocklengths, displacements)
        name = f"{len(blocklengths)} blocks of {self.name}"
        indexed = self._derive_blocks(name, list(zip(displacements, blocklengths, strict=True)))
        return indexed._record_constructor(
            self, "INDEXED", blocklengths=[*blocklengths], displacements=[*displacements]
        )

    def Create_indexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        """Derive a type of blocks of one length."""
        indexed = self.Create_indexed([blocklength] * len(displacements), displacements)
        return indexed._record_constructor(
            self, "INDEXED_BLOCK", blocklength=blocklength, displacements=[*displacements]
        )

    def Create_hvector(self, count: int, blocklength: int, stride: int) -> Datatype:
        """Derive as Create_vector does, with a stride in bytes."""
        _check_count(count)
        name = f"{count} x {blocklength} of {self.name}, {stride} bytes apart"
        vector = self._derive_blocks(name, [(number * stride, blocklength) for number in range(count)], 1)
        return vector._record_constructor(self, "HVECTOR", count=count, blocklength=blocklength, stride=stride)

    def Create_hindexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        """Derive as Create_indexed does, with displacements in bytes."""
        _check_equal_lengths(blocklengths, displacements)
        name = f"{len(blocklengths)} blocks of {self.name}"
        indexed = self._derive_blocks(name, list(zip(displacements, blocklengths, strict=True)), 1)
        return indexed._record_constructor(
            self, "HINDEXED", blocklengths=[*blocklengths], displacements=[*displacements]
        )

    def Create_hindexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        """Derive as Create_indexed_block does, with displacements in bytes."""
        indexed = self.Create_hindexed([blocklength] * len(displacements), displacements)
        return indexed._record_constructor(
            self, "HINDEXED_BLOCK", blocklength=blocklength, displacements=[*displacements]
        )

    @classmethod
    def Create_struct(
        cls, blocklengths: Sequence[int], displacements: Sequence[int], datatypes: Sequence[Datatype]
    ) -> Datatype:
        """Derive a type of blocks of several types; displacements in bytes. The type has no padding at its end, which MPI
        4.1, section 5.1.6, leaves to the implementation: resize it to the size of C's structure."""
        if not len(blocklengths) == len(displacements) == len(datatypes):
            raise MPIError(
                ERR_ARG,
                f"blocklengths, displacements and datatypes must be equally long, got {len(blocklengths)}, "
                f"{len(displacements)} and {len(datatypes)} elements",
            )
        for length in blocklengths:
            _check_count(length)
        blocks = [
            (offset, datatype, length)
            for offset, datatype, length in zip(displacements, datatypes, blocklengths, strict=True)
            if length
        ]
        spans = [span for offset, datatype, length in blocks for span in datatype.spans_at(offset, length)]
        lb = min((offset + datatype.lb for offset, datatype, _ in blocks), default=0)
        ub = max(
            (offset + (length - 1) * datatype.extent + datatype.ub for offset, datatype, length in blocks), default=0
        )
        return cls(f"a structure of {len(blocks)} blocks", "", spans, lb, ub - lb)._record_constructor(
            None,
            "STRUCT",
            blocklengths=[*blocklengths],
            displacements=[*displacements],
            datatypes=[datatype._other_handle() for datatype in datatypes],
        )

    def Create_subarray(
        self, sizes: Sequence[int], subsizes: Sequence[int], starts: Sequence[int], order: int = ORDER_C
    ) -> Datatype:
        """Derive a type of a subarray of an array of items; its extent is that of the whole array. order: ORDER_C or
        ORDER_FORTRAN. Raises MPIError (ERR_ARG) for a subarray outside of the array, and for arguments of unequal
        lengths."""
        if not len(sizes) == len(subsizes) == len(starts):
            raise ArgumentValueError(
                ERR_ARG,
                f"sizes, subsizes and starts must be equally long, got {len(sizes)}, {len(subsizes)} and {len(starts)} "
                "elements",
            )
        dimensions = list(zip(sizes, subsizes, starts, strict=True))
        if not dimensions or any(
            not 0 <= start <= size - subsize or subsize < 1 for size, subsize, start in dimensions
        ):
            raise MPIError(
                ERR_ARG, f"a subarray of {list(subsizes)} at {list(starts)} is not inside an array of {list(sizes)}"
            )
        if order == ORDER_C:
            dimensions.reverse()
        offsets, step = [0], 1
        for size, subsize, start in dimensions:  # the fastest-varying dimension first
            offsets = [offset + (start + number) * step for number in range(subsize) for offset in offsets]
            step *= size
        spans = [span for offset in offsets for span in self.spans_at(offset * self.extent, 1)]
        subarray = Datatype(f"a subarray of {list(sizes)} of {self.name}", "", spans, 0, step * self.extent)
        return subarray._record_constructor(
            self, "SUBARRAY", sizes=[*sizes], subsizes=[*subsizes], starts=[*starts], order=order
        )

    def Create_resized(self, lb: int, extent: int) -> Datatype:
        """Derive a type with other bounds, and so with another distance between items: for the columns of a matrix, for
        example."""
        resized = Datatype(f"{self.name}, resized", "", self.spans, lb, extent)
        return resized._record_constructor(self, "RESIZED", lb=lb, extent=extent)

    def decode(self) -> tuple[Datatype, str, dict[str, Any]]:
        """Return the datatype from which this one was made (DATATYPE_NULL for a structure, itself for a predefined
        datatype), the name of its constructor in capitals (NAMED for a predefined datatype), and the constructor's
        arguments. Raises MPIError (ERR_TYPE) for DATATYPE_NULL, as do Get_contents and Get_envelope."""
        if not self:
            raise MPIError(ERR_TYPE, _NULL_ERROR)
        if self._constructor is None:
            return self, "NAMED", {}
        combiner, arguments = self._constructor
        # A copy, since the program may change it.
        arguments = {name: [*value] if isinstance(value, list) else value for name, value in arguments.items()}
        if self._base is None:
            arguments["datatypes"] = [datatype._other_handle() for datatype in arguments["datatypes"]]
            return DATATYPE_NULL, combiner, arguments
        return self._base._other_handle(), combiner, arguments

    def Get_contents(self) -> tuple[list[int], list[int], list[int], list[Datatype]]:
        """Return the constructor's arguments: integers, addresses, counts (none), datatypes. MPI 4.1, section 5.1.13. Raises
        MPIError (ERR_TYPE) for a predefined datatype, too."""
        if self._constructor is None:
            raise MPIError(ERR_TYPE, f"the predefined datatype {self.name} has no contents")
        integers, addresses = self._constructor.integers_and_addresses()
        datatypes = self._constructor.arguments["datatypes"] if self._base is None else [self._base]
        return integers, addresses, [], [datatype._other_handle() for datatype in datatypes]

    def Get_envelope(self) -> tuple[int, int, int, int, int]:
        """Return the numbers of integers, addresses, counts and datatypes in the contents, and the combiner."""
        combiner = COMBINERS[self.decode()[1]]
        if combiner == COMBINERS["NAMED"]:
            return 0, 0, 0, 0, combiner
        integers, addresses, counts, datatypes = self.Get_contents()
        return len(integers), len(addresses), len(counts), len(datatypes), combiner

    envelope = property(Get_envelope)
    contents = property(Get_contents)

    @property
    def combiner(self) -> int:
        return self.Get_envelope()[-1]

    @property
    def is_named(self) -> bool:
        return self._constructor is None

    def _record_constructor(self, base: Datatype | None, combiner: str, **arguments: Any) -> Datatype:
        """Record how this datatype was made; return it. base: None for a structure. Raises MPIError (ERR_TYPE) if a datatype
        from which it was made is DATATYPE_NULL, or was freed."""
        if not all([base] if base is not None else arguments["datatypes"]):
            raise MPIError(ERR_TYPE, _NULL_ERROR)
        self._base = base and base._other_handle()
        self._constructor = Constructor(combiner, arguments)
        return self

    def _other_handle(self) -> Datatype:
        """Return another handle of a derived type, which remains valid when this one is freed; a predefined type itself."""
        if self._constructor is None:
            return self
        return Datatype(self)

    Create_dup = Dup
    Resized = Create_resized

    def Pack_size(self, count: int, comm: object) -> int:  # noqa: ARG002  for mpi4py's signature
        """Return the bytes that `count` items take when they are packed."""
        _check_count(count)
        return count * self.size

    def Pack(self, inbuf: ReadableBuffer, outbuf: WriteableBuffer, position: SupportsIndex, comm: object) -> int:  # noqa: ARG002
        """Copy all items of inbuf to outbuf without gaps, from byte `position` of outbuf on; return the position after them.
        comm: for mpi4py's signature. Raises MPIError: ERR_TYPE for a type that is not committed, ERR_ARG for an invalid
        position, ERR_TRUNCATE if outbuf has no room, ERR_COUNT if items extend beyond inbuf, ERR_BUFFER."""
        items, packed = self._spans_of(inbuf, False), view_bytes(outbuf, True)[0]
        view, spans = items
        begin, end = self._packed_range(position, sum(length for _, length in spans), len(packed))
        packed[begin:end] = b"".join(view[first : first + length] for first, length in spans)
        return end

    def Unpack(self, inbuf: ReadableBuffer, position: SupportsIndex, outbuf: WriteableBuffer, comm: object) -> int:  # noqa: ARG002
        """Copy packed bytes of inbuf, from byte `position` on, to all items of outbuf; return the position after them.
        Raises as Pack."""
        packed, (view, spans) = view_bytes(inbuf, False)[0], self._spans_of(outbuf, True)
        begin, end = self._packed_range(position, sum(length for _, length in spans), len(packed))
        for first, length in spans:
            view[first : first + length] = packed[begin : begin + length]
            begin += length
        return end

    def Pack_external_size(self, datarep: str, count: int) -> int:
        """Return the bytes that `count` items take in the representation "external32". Raises MPIError
        (ERR_UNSUPPORTED_DATAREP) for another representation, as do Pack_external and Unpack_external."""
        external32.check_name(datarep)
        _check_count(count)
        return sum(run.external_size for run in self._runs(count))

    def Pack_external(
        self, datarep: str, inbuf: ReadableBuffer, outbuf: WriteableBuffer, position: SupportsIndex
    ) -> int:
        """Pack as Pack does, in external32. Raises MPIError as Pack does, and ERR_CONVERSION for a LONG of more than 32 bits
        or a WCHAR of more than 16."""
        external32.check_name(datarep)
        view, spans = self._spans_of(inbuf, False)
        items = b"".join(view[first : first + length] for first, length in spans)
        converted = external32.encode(items, self._runs(len(items) // (self.size or 1)))
        packed = view_bytes(outbuf, True)[0]
        begin, end = self._packed_range(position, len(converted), len(packed))
        packed[begin:end] = converted
        return end

    def Unpack_external(
        self, datarep: str, inbuf: ReadableBuffer, position: SupportsIndex, outbuf: WriteableBuffer
    ) -> int:
        """Unpack as Unpack does, from external32. Raises MPIError as Pack does."""
        external32.check_name(datarep)
        spans = self._spans_of(outbuf, True)[1]
        runs = self._runs(sum(length for _, length in spans) // (self.size or 1))
        packed = view_bytes(inbuf, False)[0]
        begin, end = self._packed_range(position, sum(run.external_size for run in runs), len(packed))
        self.Unpack(external32.decode(packed[begin:end], runs), 0, outbuf, None)
        return end

    def _runs(self, count: int) -> list[external32.Run]:
        """Return the basic items of `count` items, in the order of the type map."""
        if self._constructor is None:
            return [external32.Run(self.typecode, self.name, count)]
        if self._base is not None:
            runs = self._base._runs(self.size // (self._base.size or 1))
        else:
            arguments = self._constructor.arguments
            blocks = zip(arguments["datatypes"], arguments["blocklengths"], strict=True)
            runs = [run for datatype, length in blocks for run in datatype._runs(length)]
        return external32.repeat(runs, count)

    def _spans_of(self, buffer: object, write: bool) -> tuple[memoryview, list[Span]]:
        """Return a buffer's bytes, and the spans of all items in it. write: whether the buffer must be writable."""
        if not self.is_committed:
            raise MPIError(ERR_TYPE, f"the datatype {self.name} is not committed: call Commit")
        view = view_bytes(buffer, write)[0]
        spans = self.spans_at(0, len(view) // self.extent if self.extent > 0 else 0)
        if any(first < 0 or first + length > len(view) for first, length in spans):
            raise MPIError(ERR_COUNT, f"items of {self.name} do not fit into the buffer of {len(view)} bytes")
        return view, spans

    def _packed_range(self, position: SupportsIndex, length: int, size: int) -> tuple[int, int]:
        """Return where packed items begin and end. length: bytes of the items. size: bytes of the packed buffer."""
        begin = index(position)
        end = begin + length
        if not 0 <= begin <= size:
            raise MPIError(ERR_ARG, f"position must be 0 to {size}, got {begin}")
        if end > size:
            raise MPIError(
                ERR_TRUNCATE, f"{self.name}: {end - begin} bytes at {begin} exceed the buffer of {size} bytes"
            )
        return begin, end

    def spans_at(self, offset: int, count: int) -> list[Span]:
        """Return the spans of `count` consecutive items, the first at byte `offset`."""
        extent = self.extent
        if len(self.spans) == 1 and self.size == extent:
            begin = self.spans[0][0] + offset
            return [(begin, count * extent)] if count and extent else []
        return merge_adjacent(
            (offset + number * extent + begin, length) for number in range(count) for begin, length in self.spans
        )

    def _derive_blocks(self, name: str, blocks: Sequence[tuple[int, int]], unit: int = 0) -> Datatype:
        """Derive a type of blocks. blocks: displacement and length (in items) of each. unit: bytes per unit of a
        displacement; 0: the extent of an item. MPI 4.1, section 5.1.2: the lower bound is the least of any item, the upper
        bound the greatest; without items both are 0."""
        unit = unit or self.extent
        for _, length in blocks:
            _check_count(length)
        filled = [(first, length) for first, length in blocks if length]
        spans = [span for first, length in filled for span in self.spans_at(first * unit, length)]
        offsets = [
            offset for first, length in filled for offset in (first * unit, first * unit + (length - 1) * self.extent)
        ]
        if not offsets:
            return Datatype(name, "", (), 0, 0)
        return Datatype(name, "", spans, min(offsets) + self.lb, max(offsets) - min(offsets) + self.extent)


def view_bytes(buffer: object, write: bool, is_typed: bool = True) -> tuple[memoryview, int]:
    """Return a view of a buffer's bytes, and the bytes per item. write: whether the buffer must be writable. is_typed:
    whether the program names a datatype; otherwise items in another byte order raise MPIError (ERR_BUFFER), since the
    receiver would take them for items in the machine's order."""
    if buffer is None:
        return memoryview(bytearray()), 1
    try:
        view = memoryview(buffer)  # type: ignore[arg-type]  # objects without a buffer raise TypeError
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(
            ERR_BUFFER,
            f"a {type(buffer).__name__} does not support the buffer protocol: use send and recv for objects",
        ) from error
    if view.f_contiguous and not view.c_contiguous and hasattr(buffer, "T"):  # an array in Fortran order
        view = memoryview(buffer.T)
    if not view.c_contiguous:
        raise ArgumentBufferError(ERR_BUFFER, "the buffer's bytes are not contiguous: copy it first")
    if write and view.readonly:
        raise ArgumentBufferError(ERR_BUFFER, "a receive needs a writable buffer, got a read-only one")
    # References are addresses, which are meaningless in other processes. In a format, colons enclose the names of fields.
    if "O" in view.format and "O" in re.sub(":[^:]*:", "", view.format):
        raise ArgumentKeyError(
            ERR_TYPE, "the buffer's items are references to Python objects: use send and recv for objects"
        )
    if not is_typed and view.itemsize > 1 and view.format.startswith(_OTHER_BYTE_ORDER):
        raise ArgumentBufferError(
            ERR_BUFFER,
            f"the buffer's items are {'big' if sys.byteorder == 'little' else 'little'}-endian: convert them, or name their "
            "datatype, [buffer, datatype], to transfer their bytes",
        )
    # memoryview cannot cast a view with a zero in its shape.
    return (view.cast("B") if view.nbytes else memoryview(bytearray())), view.itemsize or 1


def _check_equal_lengths(blocklengths: Sequence[int], displacements: Sequence[int]) -> None:
    if len(blocklengths) != len(displacements):
        raise MPIError(
            ERR_ARG,
            f"blocklengths and displacements must be equally long, got {len(blocklengths)} and {len(displacements)} "
            "elements",
        )


def _check_count(count: int) -> None:
    if count < 0:
        raise MPIError(ERR_COUNT, f"count must be 0 or more, got {count}")


def _basic(name: str, typecode: str, size: int) -> Datatype:
    return Datatype(f"MPI_{name}", typecode, [(0, size)], 0, size)


def _native(name: str, typecode: str) -> Datatype:
    return _basic(name, typecode, calcsize(typecode))


BYTE: Final = _native("BYTE", "B")
CHAR: Final = _native("CHAR", "c")
SIGNED_CHAR: Final = _native("SIGNED_CHAR", "b")
UNSIGNED_CHAR: Final = _native("UNSIGNED_CHAR", "B")
SHORT: Final = _native("SHORT", "h")
UNSIGNED_SHORT: Final = _native("UNSIGNED_SHORT", "H")
INT: Final = _native("INT", "i")
UNSIGNED: Final = _native("UNSIGNED", "I")
LONG: Final = _native("LONG", "l")
UNSIGNED_LONG: Final = _native("UNSIGNED_LONG", "L")
LONG_LONG: Final = _native("LONG_LONG", "q")
UNSIGNED_LONG_LONG: Final = _native("UNSIGNED_LONG_LONG", "Q")
FLOAT: Final = _native("FLOAT", "f")
DOUBLE: Final = _native("DOUBLE", "d")
C_BOOL: Final = _native("C_BOOL", "?")
INT8_T: Final = _native("INT8_T", "b")
INT16_T: Final = _native("INT16_T", "h")
INT32_T: Final = _native("INT32_T", "i")
INT64_T: Final = _native("INT64_T", "q")
UINT8_T: Final = _native("UINT8_T", "B")
UINT16_T: Final = _native("UINT16_T", "H")
UINT32_T: Final = _native("UINT32_T", "I")
UINT64_T: Final = _native("UINT64_T", "Q")
C_FLOAT_COMPLEX: Final = _basic("C_FLOAT_COMPLEX", "F", 8)
C_DOUBLE_COMPLEX: Final = _basic("C_DOUBLE_COMPLEX", "D", 16)
LONG_DOUBLE: Final = _basic("LONG_DOUBLE", "g", 16)
C_LONG_DOUBLE_COMPLEX: Final = _basic("C_LONG_DOUBLE_COMPLEX", "G", 32)
PACKED: Final = _native("PACKED", "B")
WCHAR: Final = _basic("WCHAR", "i", calcsize("i"))
AINT: Final = _native("AINT", "l")
OFFSET: Final = _native("OFFSET", "l")
COUNT: Final = _native("COUNT", "l")
CHARACTER: Final = _native("CHARACTER", "c")
LOGICAL: Final = _native("LOGICAL", "i")
INTEGER: Final = _native("INTEGER", "i")
REAL: Final = _native("REAL", "f")
DOUBLE_PRECISION: Final = _native("DOUBLE_PRECISION", "d")
COMPLEX: Final = _basic("COMPLEX", "F", 8)
DOUBLE_COMPLEX: Final = _basic("DOUBLE_COMPLEX", "D", 16)
INTEGER1: Final = _native("INTEGER1", "b")
INTEGER2: Final = _native("INTEGER2", "h")
INTEGER4: Final = _native("INTEGER4", "i")
INTEGER8: Final = _native("INTEGER8", "q")
REAL4: Final = _native("REAL4", "f")
REAL8: Final = _native("REAL8", "d")
COMPLEX8: Final = _basic("COMPLEX8", "F", 8)
COMPLEX16: Final = _basic("COMPLEX16", "D", 16)
DATATYPE_NULL: Final = Datatype()

FLOAT_INT: Final = _basic("FLOAT_INT", "fi", 8)
DOUBLE_INT: Final = _basic("DOUBLE_INT", "di", 16)
LONG_INT: Final = _basic("LONG_INT", "li", 16)
SHORT_INT: Final = _basic("SHORT_INT", "hi", 8)
LONG_DOUBLE_INT: Final = _basic("LONG_DOUBLE_INT", "gi", 32)
TWOINT: Final = _basic("2INT", "ii", 8)
PAIRS: Final = frozenset(("fi", "di", "li", "hi", "ii", "gi"))
"""Typecodes of pairs of a value and an index, for MAXLOC and MINLOC, laid out as C's structures."""

BY_TYPECODE: Final[Mapping[str, Datatype]] = {
    datatype.typecode: datatype
    for datatype in (
        CHAR, SIGNED_CHAR, BYTE, SHORT, UNSIGNED_SHORT, INT, UNSIGNED, LONG, UNSIGNED_LONG, LONG_LONG,
        UNSIGNED_LONG_LONG, FLOAT, DOUBLE, C_BOOL, C_FLOAT_COMPLEX, C_DOUBLE_COMPLEX, LONG_DOUBLE,
        C_LONG_DOUBLE_COMPLEX,
    )
} | {
    "b1": C_BOOL, "i1": INT8_T, "i2": INT16_T, "i4": INT32_T, "i8": INT64_T, "u1": UINT8_T, "u2": UINT16_T,
    "u4": UINT32_T, "u8": UINT64_T, "f4": FLOAT, "f8": DOUBLE, "f16": LONG_DOUBLE, "c8": C_FLOAT_COMPLEX,
    "c16": C_DOUBLE_COMPLEX, "c32": C_LONG_DOUBLE_COMPLEX,
}  # fmt: skip
"""Basic datatypes by typecode, and by NumPy's kind and size."""
