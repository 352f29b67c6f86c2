"""MPI's basic datatypes: how many bytes an item takes. Nothing is converted: all of a cluster's nodes are alike."""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from struct import calcsize
from typing import Final


@dataclass(frozen=True, slots=True)
class Datatype:
    """size: bytes of one item. typecode: as in `array`, `struct` and NumPy."""

    name: str
    typecode: str
    size: int

    def Get_size(self) -> int:
        return self.size

    def Get_name(self) -> str:
        return self.name


def _native(name: str, typecode: str) -> Datatype:
    return Datatype(f"MPI_{name}", typecode, calcsize(typecode))


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
C_FLOAT_COMPLEX: Final = Datatype("MPI_C_FLOAT_COMPLEX", "F", 8)
C_DOUBLE_COMPLEX: Final = Datatype("MPI_C_DOUBLE_COMPLEX", "D", 16)

BY_TYPECODE: Final[Mapping[str, Datatype]] = {
    datatype.typecode: datatype
    for datatype in (
        CHAR, SIGNED_CHAR, BYTE, SHORT, UNSIGNED_SHORT, INT, UNSIGNED, LONG, UNSIGNED_LONG, LONG_LONG,
        UNSIGNED_LONG_LONG, FLOAT, DOUBLE, C_BOOL, C_FLOAT_COMPLEX, C_DOUBLE_COMPLEX,
    )
}  # fmt: skip
