"""MPI's basic and derived datatypes. MPI 4.1, chapter 5. Data is not converted, since all nodes of a cluster have one
architecture."""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from struct import calcsize
from typing import Final

from protocols.mpi.constants import ORDER_C
from protocols.mpi.iovec import Span, merge_adjacent
from protocols.mpi.mpi_errors import ERR_ARG, ERR_COUNT, ERR_TYPE, Handle, MPIError

_NULL: Final = "MPI_DATATYPE_NULL"


class Datatype(Handle):
    """A datatype.

    size: bytes of one item. extent: bytes from one item to the next. lb: lower bound, in bytes from the item's address.
    typecode: as in `array`, `struct` and NumPy; empty for derived types. spans: offsets and lengths of an item's bytes,
    in the order of the type map.

    A derived type must be committed before it is used (`Commit`).
    """

    __slots__ = ("__weakref__", "committed", "extent", "lb", "name", "size", "spans", "typecode")

    def __init__(
        self,
        name: str | Datatype | None = None,
        typecode: str = "",
        spans: Iterable[Span] = (),
        lb: int = 0,
        extent: int = 0,
    ) -> None:
        """name: may also be a datatype, of which this becomes another handle; None: DATATYPE_NULL."""
        if isinstance(name, Datatype):
            typecode, spans, lb, extent, name = name.typecode, name.spans, name.lb, name.extent, name.name
        elif name is not None and not isinstance(name, str):
            raise TypeError(f"a Datatype is expected, not {type(name).__name__}")
        self.name: str = name or _NULL
        self.typecode: str = typecode
        self.spans: Sequence[Span] = tuple(merge_adjacent(spans))
        self.size = sum(length for _, length in self.spans)
        self.lb: int = lb
        self.extent: int = extent
        self.committed = bool(typecode)

    def __repr__(self) -> str:
        return f"<Datatype {self.name}>"

    def __bool__(self) -> bool:
        """Whether it is not DATATYPE_NULL."""
        return self.name != _NULL

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Datatype):
            return False
        return (self.name, self.spans, self.lb, self.extent) == (other.name, other.spans, other.lb, other.extent)

    def __hash__(self) -> int:
        return hash((self.name, self.lb, self.extent))

    @classmethod
    def fromcode(cls, code: str) -> Datatype:
        """Return a basic datatype. code: a key of `BY_TYPECODE`. Raises ValueError for another one."""
        if code not in BY_TYPECODE:
            raise ValueError(f"no basic datatype has the code {code!r}")
        return BY_TYPECODE[code]

    @property
    def ub(self) -> int:
        """Upper bound, in bytes from the item's address."""
        return self.lb + self.extent

    @property
    def is_predefined(self) -> bool:
        return bool(self.typecode)

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
            raise MPIError(ERR_TYPE, _NULL)
        self.committed = True
        return self

    def Free(self) -> None:
        """Free a derived type; transfers in progress continue. Raises MPIError (ERR_TYPE) for a basic type."""
        if self.typecode or not self:
            raise MPIError(ERR_TYPE, f"the predefined datatype {self.name} cannot be freed")
        self.committed = False

    def Dup(self) -> Datatype:
        if not self:
            raise MPIError(ERR_TYPE, _NULL)
        copy = Datatype(self.name, self.typecode, self.spans, self.lb, self.extent)
        copy.committed = self.committed
        return copy

    def Create_contiguous(self, count: int) -> Datatype:
        """Derive a type of `count` contiguous items. Raises MPIError (ERR_COUNT) for a negative count, as do the other
        constructors."""
        return self._blocks(f"{count} of {self.name}", [(0, count)])

    def Create_vector(self, count: int, blocklength: int, stride: int) -> Datatype:
        """Derive a type of `count` blocks of items. stride: items from one block's beginning to the next one's."""
        name = f"{count} x {blocklength} of {self.name}, {stride} apart"
        _check_count(count)
        return self._blocks(name, [(number * stride, blocklength) for number in range(count)])

    def Create_indexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        """Derive a type of blocks. blocklengths, displacements: in items. Raises MPIError (ERR_ARG) if they are not equally
        many."""
        if len(blocklengths) != len(displacements):
            raise MPIError(ERR_ARG, f"{len(blocklengths)} block lengths, but {len(displacements)} displacements")
        name = f"{len(blocklengths)} blocks of {self.name}"
        return self._blocks(name, list(zip(displacements, blocklengths, strict=True)))

    def Create_indexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        """Derive a type of blocks of one length."""
        return self.Create_indexed([blocklength] * len(displacements), displacements)

    def Create_hvector(self, count: int, blocklength: int, stride: int) -> Datatype:
        """Derive as Create_vector does, with a stride in bytes."""
        _check_count(count)
        name = f"{count} x {blocklength} of {self.name}, {stride} bytes apart"
        return self._blocks(name, [(number * stride, blocklength) for number in range(count)], 1)

    def Create_hindexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        """Derive as Create_indexed does, with displacements in bytes."""
        if len(blocklengths) != len(displacements):
            raise MPIError(ERR_ARG, f"{len(blocklengths)} block lengths, but {len(displacements)} displacements")
        name = f"{len(blocklengths)} blocks of {self.name}"
        return self._blocks(name, list(zip(displacements, blocklengths, strict=True)), 1)

    def Create_hindexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        """Derive as Create_indexed_block does, with displacements in bytes."""
        return self.Create_hindexed([blocklength] * len(displacements), displacements)

    @classmethod
    def Create_struct(
        cls, blocklengths: Sequence[int], displacements: Sequence[int], datatypes: Sequence[Datatype]
    ) -> Datatype:
        """Derive a type of blocks of several types; displacements in bytes. The type has no padding at its end, which MPI
        4.1, section 5.1.6, leaves to the implementation: resize it to the size of C's structure."""
        if not len(blocklengths) == len(displacements) == len(datatypes):
            raise MPIError(
                ERR_ARG, f"{len(blocklengths)} lengths, {len(displacements)} displacements, {len(datatypes)} types"
            )
        for length in blocklengths:
            _check_count(length)
        parts = [
            (offset, datatype, length)
            for offset, datatype, length in zip(displacements, datatypes, blocklengths, strict=True)
            if length
        ]
        spans = [span for offset, datatype, length in parts for span in datatype.spans_at(offset, length)]
        lb = min((offset + datatype.lb for offset, datatype, _ in parts), default=0)
        ub = max(
            (offset + (length - 1) * datatype.extent + datatype.ub for offset, datatype, length in parts), default=0
        )
        return cls(f"a structure of {len(parts)} blocks", "", spans, lb, ub - lb)

    def Create_subarray(
        self, sizes: Sequence[int], subsizes: Sequence[int], starts: Sequence[int], order: int = ORDER_C
    ) -> Datatype:
        """Derive a type of a subarray of an array of items; its extent is that of the whole array. order: ORDER_C or
        ORDER_FORTRAN. Raises MPIError (ERR_ARG) for a subarray outside of the array."""
        dimensions = list(zip(sizes, subsizes, starts, strict=True))
        if not dimensions or any(not 0 <= start <= size - part or part < 1 for size, part, start in dimensions):
            raise MPIError(
                ERR_ARG, f"a subarray of {list(subsizes)} at {list(starts)} is not inside of an array of {list(sizes)}"
            )
        if order == ORDER_C:
            dimensions.reverse()
        offsets, step = [0], 1
        for size, part, start in dimensions:  # the fastest-varying dimension first
            offsets = [offset + (start + number) * step for number in range(part) for offset in offsets]
            step *= size
        spans = [span for offset in offsets for span in self.spans_at(offset * self.extent, 1)]
        return Datatype(f"a subarray of {list(sizes)} of {self.name}", "", spans, 0, step * self.extent)

    def Create_resized(self, lb: int, extent: int) -> Datatype:
        """Derive a type with other bounds, and so with another distance between items (for the columns of a matrix, for
        example)."""
        return Datatype(f"{self.name}, resized", "", self.spans, lb, extent)

    def spans_at(self, offset: int, count: int) -> list[Span]:
        """Return the spans of `count` consecutive items, the first at byte `offset`."""
        extent = self.extent
        if len(self.spans) == 1 and self.size == extent:
            begin = self.spans[0][0] + offset
            return [(begin, count * extent)] if count and extent else []
        return merge_adjacent(
            (offset + number * extent + begin, length) for number in range(count) for begin, length in self.spans
        )

    def _blocks(self, name: str, blocks: Sequence[tuple[int, int]], unit: int = 0) -> Datatype:
        """Derive a type of blocks. blocks: displacement and length (in items) of each. unit: bytes per unit of a
        displacement; 0: the extent of an item. MPI 4.1, section 5.1.2: the bounds are the least and the greatest of any
        item; without items both are 0."""
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
