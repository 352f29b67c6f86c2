"""MPI's datatypes: basic and derived. Nothing is converted, since all of a cluster's nodes have one architecture. MPI
4.1, chapter 5."""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from struct import calcsize
from typing import Final

from protocols.mpi.iovec import Span, joined
from protocols.mpi.mpi_errors import ERR_ARG, ERR_COUNT, ERR_TYPE, MPIError


class Datatype:
    """A datatype.

    size: bytes of one item. extent: bytes from one item to the next. lb: offset of an item's first byte from its
    nominal place. typecode: as in `array`, `struct` and NumPy; empty for derived types. spans: locations of an item's
    bytes, in the order of sending.

    A derived type must be committed before it is used (`Commit`).
    """

    __slots__ = ("committed", "extent", "lb", "name", "size", "spans", "typecode")

    def __init__(self, name: str, typecode: str, spans: Iterable[Span], lb: int, extent: int) -> None:
        self.name = name
        self.typecode = typecode
        self.spans: Sequence[Span] = tuple(joined(spans))
        self.size = sum(length for _, length in self.spans)
        self.lb = lb
        self.extent = extent
        self.committed = bool(typecode)

    def __repr__(self) -> str:
        return f"<Datatype {self.name}>"

    def __bool__(self) -> bool:
        """Whether it is not DATATYPE_NULL."""
        return self is not DATATYPE_NULL

    @property
    def ub(self) -> int:
        """Upper bound: offset of the end of an item from its nominal place."""
        return self.lb + self.extent

    @property
    def is_predefined(self) -> bool:
        return bool(self.typecode)

    def Get_size(self) -> int:
        return self.size

    def Get_extent(self) -> tuple[int, int]:
        """Return lower bound and extent."""
        return self.lb, self.extent

    def Get_name(self) -> str:
        return self.name

    def Commit(self) -> Datatype:
        """Allow its use, and return itself."""
        self.committed = True
        return self

    def Free(self) -> None:
        """Forbid its use; transfers in progress continue. Raises MPIError (ERR_TYPE) for a basic type."""
        if self.typecode:
            raise MPIError(ERR_TYPE, f"{self.name} is MPI's own and cannot be freed")
        self.committed = False

    def Dup(self) -> Datatype:
        copy = Datatype(self.name, self.typecode, self.spans, self.lb, self.extent)
        copy.committed = self.committed
        return copy

    def Create_contiguous(self, count: int) -> Datatype:
        """Derive a type of `count` contiguous items. Raises MPIError (ERR_COUNT), as do all that follow."""
        return self._blocks(f"{count} of {self.name}", [(0, count)])

    def Create_vector(self, count: int, blocklength: int, stride: int) -> Datatype:
        """Derive a type of `count` blocks of items. stride: items from one block's beginning to the next one's."""
        name = f"{count} x {blocklength} of {self.name}, {stride} apart"
        _check(count)
        return self._blocks(name, [(number * stride, blocklength) for number in range(count)])

    def Create_indexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        """Derive a type of blocks of given lengths and beginnings, in items. Raises MPIError (ERR_ARG) if the numbers
        of these differ."""
        if len(blocklengths) != len(displacements):
            raise MPIError(ERR_ARG, f"{len(blocklengths)} lengths of blocks, and {len(displacements)} displacements")
        name = f"{len(blocklengths)} blocks of {self.name}"
        return self._blocks(name, list(zip(displacements, blocklengths, strict=True)))

    def Create_indexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        """Derive a type of blocks of one length."""
        return self.Create_indexed([blocklength] * len(displacements), displacements)

    def Create_resized(self, lb: int, extent: int) -> Datatype:
        """Derive a type with other bounds, and so another distance between items; for a matrix's columns, for
        example."""
        return Datatype(f"{self.name}, resized", "", self.spans, lb, extent)

    def at(self, place: int, count: int) -> list[Span]:
        """Return the locations of `count` items' bytes, the first item's place being byte `place`."""
        extent = self.extent
        if len(self.spans) == 1 and self.size == extent:
            begin = self.spans[0][0] + place
            return [(begin, count * extent)] if count and extent else []
        return joined(
            (place + number * extent + begin, length) for number in range(count) for begin, length in self.spans
        )

    def _blocks(self, name: str, blocks: Sequence[tuple[int, int]]) -> Datatype:
        """Derive a type of blocks. blocks: beginning and length of each, in items. MPI 4.1, section 5.1.2: the bounds
        are the least and the greatest of any item; without items both are 0."""
        for _, length in blocks:
            _check(length)
        filled = [(first, length) for first, length in blocks if length]
        spans = [span for first, length in filled for span in self.at(first * self.extent, length)]
        places = [place * self.extent for first, length in filled for place in (first, first + length - 1)]
        if not places:
            return Datatype(name, "", (), 0, 0)
        return Datatype(name, "", spans, min(places) + self.lb, max(places) - min(places) + self.extent)


def _check(count: int) -> None:
    if count < 0:
        raise MPIError(ERR_COUNT, f"a count of {count}: 0 or more")


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
DATATYPE_NULL: Final = Datatype("MPI_DATATYPE_NULL", "", (), 0, 0)

FLOAT_INT: Final = _basic("FLOAT_INT", "fi", 8)
DOUBLE_INT: Final = _basic("DOUBLE_INT", "di", 16)
LONG_INT: Final = _basic("LONG_INT", "li", 16)
SHORT_INT: Final = _basic("SHORT_INT", "hi", 8)
TWOINT: Final = _basic("2INT", "ii", 8)
PAIRS: Final = frozenset(("fi", "di", "li", "hi", "ii"))
"""Typecodes of the pairs of a value and an index, for MAXLOC and MINLOC, as C's structures."""

BY_TYPECODE: Final[Mapping[str, Datatype]] = {
    datatype.typecode: datatype
    for datatype in (
        CHAR, SIGNED_CHAR, BYTE, SHORT, UNSIGNED_SHORT, INT, UNSIGNED, LONG, UNSIGNED_LONG, LONG_LONG,
        UNSIGNED_LONG_LONG, FLOAT, DOUBLE, C_BOOL, C_FLOAT_COMPLEX, C_DOUBLE_COMPLEX, LONG_DOUBLE,
        C_LONG_DOUBLE_COMPLEX,
    )
}  # fmt: skip
