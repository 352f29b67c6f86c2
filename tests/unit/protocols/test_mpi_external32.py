"""Packing in external32. The expected bytes are those of IEEE 754's formats and of two's complement, MPI 4.1, table 15.2."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest

from protocols import mpi as MPI  # noqa: N812  as programs name it
from protocols.mpi import Datatype
from protocols.mpi.mpi_errors import ERR_CONVERSION, ERR_TRUNCATE, ERR_UNSUPPORTED_DATAREP, MPIError

EXTERNAL32 = "external32"


def pack(datatype: Datatype, buffer: Any) -> str:
    """Pack a buffer; return the bytes in hexadecimal."""
    out = bytearray(64)
    return out[: datatype.Pack_external(EXTERNAL32, buffer, out, 0)].hex()


@pytest.mark.parametrize(
    ("datatype", "buffer", "expected"),
    [
        (MPI.SHORT, array("h", [1, -2]), "0001fffe"),
        (MPI.INT, array("i", [-3]), "fffffffd"),
        (MPI.LONG, array("l", [-3]), "fffffffd"),
        (MPI.UNSIGNED_LONG, array("L", [0xFFFFFFFE]), "fffffffe"),
        (MPI.LONG_LONG, array("q", [-3]), "fffffffffffffffd"),
        (MPI.AINT, array("l", [1 << 40]), "0000010000000000"),
        (MPI.WCHAR, array("i", [0x20AC]), "20ac"),
        (MPI.CHAR, b"word", b"word".hex()),
        (MPI.C_BOOL, np.array([True, False]), "0100"),
        (MPI.FLOAT, array("f", [1.0, -0.0]), "3f80000080000000"),
        (MPI.DOUBLE, array("d", [-2.0]), "c000000000000000"),
        (MPI.C_DOUBLE_COMPLEX, np.array([1 - 2j]), "3ff0000000000000c000000000000000"),
        (MPI.LONG_DOUBLE, np.array([-1.5], "g"), "bfff8" + 27 * "0"),
        (MPI.LONG_DOUBLE, np.array([np.inf], "g"), "7fff" + 28 * "0"),
        (MPI.SHORT_INT, np.array([(1, 2)], np.dtype("h,i", align=True)).view("B"), "000100000002"),
        (MPI.DOUBLE_INT, np.array([(1, 2)], np.dtype("d,i", align=True)).view("B"), "3ff000000000000000000002"),
        (MPI.INT.Create_vector(2, 1, 2).Commit(), array("i", [1, 9, 2]), "0000000100000002"),
        (MPI.LONG.Dup(), array("l", [5]), "00000005"),
    ],
)
def test_numbers_are_packed_big_endian_without_padding(datatype: Datatype, buffer: Any, expected: str) -> None:
    assert pack(datatype, buffer) == expected
    raw = memoryview(buffer).cast("B")
    count = len(raw) // datatype.extent
    assert datatype.Pack_external_size(EXTERNAL32, count) == len(expected) // 2
    unpacked = bytearray(len(raw))
    assert datatype.Unpack_external(EXTERNAL32, bytes.fromhex(expected), 0, unpacked) == len(expected) // 2
    assert pack(datatype, unpacked) == expected


def test_structures_are_packed_from_a_position_on() -> None:
    struct = MPI.Datatype.Create_struct([2, 1], [0, 16], [MPI.LONG, MPI.DOUBLE]).Create_resized(0, 24).Commit()
    items = np.array([([1, 2], 1.0), ([3, 4], -2.0)], "2l,d")
    out = bytearray(3 + 2 * 16)
    assert struct.Pack_external(EXTERNAL32, items.view("B"), out, 3) == len(out)
    assert out[3:].hex() == "00000001000000023ff00000000000000000000300000004c000000000000000"
    unpacked = np.zeros(2, "2l,d")
    assert struct.Unpack_external(EXTERNAL32, out, 3, unpacked.view("B")) == len(out)
    assert unpacked.tobytes() == items.tobytes()


def test_long_doubles_keep_every_bit() -> None:
    limits = np.finfo("g")
    values = np.array([limits.max, limits.tiny, 3 * limits.smallest_subnormal, np.nan, np.longdouble(1) / 3], "g")
    out, unpacked = bytearray(16 * len(values)), np.zeros_like(values)
    MPI.LONG_DOUBLE.Pack_external(EXTERNAL32, values, out, 0)
    MPI.LONG_DOUBLE.Unpack_external(EXTERNAL32, out, 0, unpacked)
    np.testing.assert_array_equal(unpacked, values)


def test_unsupported_packing_is_rejected() -> None:
    out = bytearray(4)
    for error_class, call in (
        (ERR_CONVERSION, lambda: MPI.LONG.Pack_external(EXTERNAL32, array("l", [1 << 31]), out, 0)),
        (ERR_CONVERSION, lambda: MPI.WCHAR.Pack_external(EXTERNAL32, array("i", [0x1F600]), out, 0)),
        (ERR_TRUNCATE, lambda: MPI.INT.Pack_external(EXTERNAL32, array("i", [1]), out, 1)),
        (ERR_TRUNCATE, lambda: MPI.DOUBLE.Unpack_external(EXTERNAL32, out, 0, array("d", [0]))),
        (ERR_UNSUPPORTED_DATAREP, lambda: MPI.INT.Pack_external_size("native", 1)),
    ):
        with pytest.raises(MPIError) as caught:
            call()
        assert caught.value.error_class == error_class
    assert out == bytes(4)
