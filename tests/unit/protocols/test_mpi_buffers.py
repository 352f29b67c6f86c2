"""Forms of MPI's message arguments, and the bytes that each denotes."""

from __future__ import annotations

import re
from array import array

import numpy as np
import pytest

from protocols.mpi import BYTE, DOUBLE, ERR_BUFFER, ERR_COUNT, ERR_TYPE, INT
from protocols.mpi.buffers import as_receive_buffer, as_send_data
from protocols.mpi.mpi_errors import MPIError


def id_of(value: object) -> str:
    """Return repr without addresses: the processes of a distributed test run must have equal ids."""
    return re.sub(r" (object )?at 0x[0-9a-f]+", "", repr(value))


@pytest.mark.parametrize(
    "message",
    [
        b"\1\0\0\0\2\0\0\0",
        bytearray(b"\1\0\0\0\2\0\0\0"),
        memoryview(b"\1\0\0\0\2\0\0\0"),
        array("i", [1, 2]),
        np.array([1, 2], dtype=np.int32),
        np.array([[1], [2]], dtype="<i4"),
        [array("i", [1, 2]), INT],
        [array("i", [1, 2]), 2],
        [array("i", [1, 2, 3]), 2],
        [array("i", [0, 1, 2]), (2, 1)],
        (array("i", [0, 1, 2, 3]), (2, 1), INT),
        [array("i", [1, 2]), 8, BYTE],
        [array("i", [1, 2]), "i"],
        [array("i", [1, 2]), None, "i"],
        [array("i", [1, 2]), 2, None],
        [array("i", [1, 2]), (2, None), None],
        [array("i", [0, 1, 2]), 2, 1, INT],
        [array("i", [0, 1, 2]), (None, 1), INT],
        [np.array([1, 2, 3], dtype=np.int32), np.int64(2), INT],
        [b"\1\0\0\0\2\0\0\0zz", 8],
    ],
    ids=id_of,
)
def test_all_forms_of_a_message_argument_give_its_bytes(message: object) -> None:
    assert bytes(as_send_data(message)) == b"\1\0\0\0\2\0\0\0"


@pytest.mark.parametrize(
    "message",
    [None, b"", bytearray(), array("d"), np.zeros(0), np.zeros((3, 0)), [None, 0], [b"abc", 0, INT]],
    ids=id_of,
)
def test_all_forms_of_an_empty_message_argument_give_no_bytes(message: object) -> None:
    assert len(as_send_data(message)) == 0


def test_a_buffer_is_not_copied() -> None:
    numbers = np.zeros((2, 3), dtype=np.complex128)
    view = as_receive_buffer([numbers, (1, 5)])
    view[:] = np.array([1 + 2j]).tobytes()
    assert numbers[1, 2] == 1 + 2j


def test_an_array_in_fortran_order_is_sent_in_memory_order() -> None:
    numbers = np.array([[0, 1, 2], [3, 4, 5]], dtype=np.uint8, order="F")
    view = as_receive_buffer(numbers)
    assert bytes(view) == bytes([0, 3, 1, 4, 2, 5])
    view[1] = 9
    assert numbers[1, 0] == 9


@pytest.mark.parametrize(
    ("message", "error_class", "pattern"),
    [
        ("text", ERR_BUFFER, "a str does not support the buffer protocol"),
        ({"a": 1}, ERR_BUFFER, "use send and recv for objects"),
        (np.zeros((4, 4))[:, 1], ERR_BUFFER, "not contiguous"),
        (np.array([object()]), ERR_TYPE, "references to Python objects"),
        (np.zeros(2, dtype=[("Odd", "i4"), ("who", "O")]), ERR_TYPE, "references to Python objects"),
        ([], ERR_BUFFER, "has 1 to 4 parts"),
        ([b"", 0, 0, BYTE, 1], ERR_BUFFER, "has 1 to 4 parts"),
        ([b"1234", (1, 1, 2)], ERR_COUNT, r"expected \(count, displacement\), got \(1, 1, 2\)"),
        ([b"1234", 1, 2, 3], ERR_TYPE, "a typecode, got 3"),
        ([b"1234567", INT], ERR_COUNT, "7 bytes does not hold whole items of 4"),
        ([b"1234567", 2, INT], ERR_COUNT, "do not fit the buffer of 7 bytes"),
        ([b"12345678", (1, 1), DOUBLE], ERR_COUNT, "1 items of 8 bytes from item 1 on"),
        ([b"1234", -1], ERR_COUNT, "-1 items"),
        ([b"1234", (1, -1)], ERR_COUNT, "from item -1"),
        ([b"1234", 1.5], ERR_COUNT, "count must be an integer, got 1.5"),
        ([b"1234", (1, 0.5)], ERR_COUNT, "displacement must be an integer, got 0.5"),
        ([b"1234", "x"], ERR_TYPE, "typecode 'x'"),
        ([b"1234", 1, 2], ERR_TYPE, "a typecode, got 2"),
    ],
    ids=id_of,
)
def test_invalid_message_arguments_are_rejected(message: object, error_class: int, pattern: str) -> None:
    with pytest.raises(MPIError, match=pattern) as raised:
        as_send_data(message)
    assert raised.value.Get_error_class() == error_class


def test_a_field_name_with_an_o_is_not_taken_for_an_object_field() -> None:
    assert len(as_send_data(np.zeros(2, dtype=[("Odd", "i4")]))) == 8


@pytest.mark.parametrize(
    "message", [b"abc", memoryview(b"abc"), [b"abc", 3], np.broadcast_to(np.zeros(1), 1)], ids=id_of
)
def test_a_receive_into_a_read_only_buffer_is_rejected(message: object) -> None:
    with pytest.raises(MPIError, match="writable buffer") as raised:
        as_receive_buffer(message)
    assert raised.value.Get_error_class() == ERR_BUFFER
