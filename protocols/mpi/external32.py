"""Portable data representation external32: big-endian numbers without padding. MPI 4.1, section 15.5.2.

Conversion works on packed items (`Datatype.Pack`), whose basic types follow each other in the order of the type map.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from ctypes import c_longdouble
from typing import Final

from protocols.mpi.mpi_errors import ERR_CONVERSION, ERR_UNSUPPORTED_DATAREP, MPIError

NAME: Final = "external32"

_LONG: Final = "q" if struct.calcsize("l") == 8 else "i"  # the native long as a struct code of standard size
_LONG_DOUBLE: Final = "16s"
_FORMATS: Final[Mapping[str, tuple[str, str]]] = {
    **{code: (code, code) for code in "bBhHiIqQ"},
    "c": ("B", "B"), "?": ("B", "B"), "l": (_LONG, "i"), "L": (_LONG.upper(), "I"),
    "f": ("I", "I"), "d": ("Q", "Q"), "F": ("2I", "2I"), "D": ("2Q", "2Q"),
    "g": (_LONG_DOUBLE, _LONG_DOUBLE), "G": (2 * _LONG_DOUBLE, 2 * _LONG_DOUBLE),
    "ii": ("2i", "2i"), "fi": ("Ii", "Ii"), "di": ("Qi4x", "Qi"), "hi": ("h2xi", "hi"),
    "li": (f"{_LONG}{'i4x' if _LONG == 'q' else 'i'}", "2i"), "gi": (f"{_LONG_DOUBLE}i12x", f"{_LONG_DOUBLE}i"),
}  # fmt: skip
"""Formats of struct by typecode: in memory, with padding, and in external32. Floating-point numbers are copied as bits."""
_FORMATS_BY_NAME: Final = {
    "MPI_WCHAR": ("I", "H"), "MPI_AINT": (_LONG, "q"), "MPI_OFFSET": (_LONG, "q"), "MPI_COUNT": (_LONG, "q"),
}  # fmt: skip
"""Formats of datatypes that have a typecode in common with another one."""

_IS_X87: Final = bytes(c_longdouble(1.0))[7] == 0x80
"""Whether a long double is that of the x87, whose 64 bits of significand include the leading bit."""
_X87_SIZE: Final = 10  # bytes


class Run:
    """Consecutive packed items of one basic datatype. count: number of items."""

    __slots__ = ("_external", "_native", "count")

    def __init__(self, typecode: str, name: str, count: int) -> None:
        """typecode, name: the datatype's."""
        native, external = _FORMATS_BY_NAME.get(name) or _FORMATS[typecode]
        self._native = struct.Struct(f"={native}")
        self._external = struct.Struct(f">{external}")
        self.count = count

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return self._native.size * self.count

    @property
    def external_size(self) -> int:
        """Bytes in external32."""
        return self._external.size * self.count

    def to_external(self, items: memoryview) -> bytes:
        return _convert(items, self._native, self._external, _to_binary128)

    def from_external(self, items: memoryview) -> bytes:
        return _convert(items, self._external, self._native, _from_binary128)


def encode(items: bytes, runs: Sequence[Run]) -> bytes:
    """Convert packed items to external32. Raises MPIError (ERR_CONVERSION) for a number that it cannot represent."""
    begin, converted, view = 0, list[bytes](), memoryview(items)
    for run in runs:
        converted.append(run.to_external(view[begin : begin + run.size]))
        begin += run.size
    return b"".join(converted)


def decode(data: memoryview, runs: Sequence[Run]) -> bytes:
    """Convert external32 to packed items."""
    begin, converted = 0, list[bytes]()
    for run in runs:
        converted.append(run.from_external(data[begin : begin + run.external_size]))
        begin += run.external_size
    return b"".join(converted)


def repeat(runs: list[Run], count: int) -> list[Run]:
    """Return the runs of `count` items. runs: of one item."""
    if len(runs) != 1:
        return runs * count
    repeated = copy(runs[0])
    repeated.count *= count
    return [repeated]


def check_name(datarep: str) -> None:
    """Raise MPIError (ERR_UNSUPPORTED_DATAREP) for another representation."""
    if datarep != NAME:
        raise MPIError(ERR_UNSUPPORTED_DATAREP, f"datarep must be {NAME!r}, got {datarep!r}")


def _convert(
    items: memoryview, source: struct.Struct, target: struct.Struct, convert_bytes: Callable[[bytes], bytes]
) -> bytes:
    def values() -> Iterator[list[int | bytes]]:
        for fields in source.iter_unpack(items):
            yield [convert_bytes(field) if isinstance(field, bytes) else field for field in fields]

    try:
        return b"".join([target.pack(*fields) for fields in values()])
    except struct.error as error:
        raise MPIError(
            ERR_CONVERSION, f"a number is too large for its {target.size} bytes in this representation: {error}"
        ) from error


def _to_binary128(number: bytes) -> bytes:
    """Convert a long double to big-endian IEEE binary128. An x87 number has an equal exponent and a shorter significand."""
    if not _IS_X87:
        return number[::-1]
    bits = int.from_bytes(number[:_X87_SIZE], "little")
    fraction = bits & (1 << 63) - 1
    return (bits >> 64 << 112 | fraction << 49).to_bytes(16, "big")


def _from_binary128(number: bytes) -> bytes:
    """Convert big-endian IEEE binary128 to a long double; bits for which an x87 number has no room are cut off."""
    if not _IS_X87:
        return number[::-1]
    bits = int.from_bytes(number, "big")
    sign_and_exponent, fraction = bits >> 112, bits >> 49 & (1 << 63) - 1
    leading_bit = 1 if sign_and_exponent & 0x7FFF else 0  # 0 in a subnormal number
    return (sign_and_exponent << 64 | leading_bit << 63 | fraction).to_bytes(_X87_SIZE, "little").ljust(16, b"\0")
