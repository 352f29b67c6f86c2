"""Route bytes and the CRC-8 of Myrinet packets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.fabric.myrinet.route import append_crc, crc8, is_intact, port_delta, route_byte, strip_route_byte, truncate

HEAD = bytes.fromhex("020000000002 020000000001 88b6")
routes = st.lists(st.integers(-32, 31).map(route_byte), min_size=1, max_size=7).map(bytes)


def crc_by_bits(data: bytes) -> int:
    """Compute the CRC bit by bit from its polynomial."""
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc << 1 ^ (0x07 if crc & 0x80 else 0)) & 0xFF
    return crc


def test_the_crc_has_the_check_value_of_its_catalogue() -> None:
    """CRC-8/SMBUS has the same polynomial and initial value."""
    assert crc8(b"123456789") == 0xF4


@given(st.one_of(st.binary(max_size=40), st.binary(min_size=120, max_size=600)))
def test_the_table_driven_crc_equals_the_bitwise_one(data: bytes) -> None:
    assert crc8(data) == crc_by_bits(data)


def test_every_encodable_step_is_decoded_as_written() -> None:
    assert [port_delta(route_byte(ports)) for ports in range(-32, 32)] == list(range(-32, 32))
    assert route_byte(0) == 0x80
    assert route_byte(-1) == 0xBF
    for ports in (-33, 32):
        with pytest.raises(ValueError, match="-32 to 31"):
            route_byte(ports)


@given(routes, st.binary(max_size=300))
def test_stripping_a_route_byte_keeps_the_crc_correct(route: bytes, rest: bytes) -> None:
    frame = append_crc(HEAD, route + b"\0\4" + rest)
    assert is_intact(frame)
    for removed in range(1, len(route) + 1):
        frame = strip_route_byte(frame)
        assert frame == append_crc(HEAD, route[removed:] + b"\0\4" + rest)


@given(routes, st.binary(max_size=300), st.data())
def test_a_corrupt_frame_stays_corrupt_when_route_bytes_are_stripped(
    route: bytes, rest: bytes, data: st.DataObject
) -> None:
    frame = bytearray(append_crc(HEAD, route + b"\0\4" + rest))
    bit = data.draw(st.integers(8 * len(HEAD), 8 * len(frame) - 1))
    frame[bit // 8] ^= 0x80 >> bit % 8
    broken = bytes(frame)
    for _ in route:
        assert not is_intact(broken)
        broken = strip_route_byte(broken)
    assert not is_intact(broken)


@given(routes, st.binary(max_size=100), st.data())
def test_a_truncated_frame_is_never_accepted_as_complete(route: bytes, rest: bytes, data: st.DataObject) -> None:
    frame = append_crc(HEAD, route + b"\0\4" + rest)
    size = data.draw(st.integers(1, len(frame) - len(HEAD) - 1))
    truncated = truncate(frame, size)
    assert len(truncated) == len(HEAD) + size
    assert truncated[:-1] == frame[: len(truncated) - 1]
    assert not is_intact(truncated)
    if size > 2:
        assert not is_intact(strip_route_byte(truncated))
