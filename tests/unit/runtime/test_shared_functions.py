"""Functions of a shared NIC: their addresses, and frames between them."""

from __future__ import annotations

from typing import cast

import pytest

from testbed.errors import UnsupportedError
from testbed.kernel.frame_socket import FrameSocket
from testbed.runtime.nodes.veth_port import VethPort
from testbed.runtime.shared.functions import MAX_FUNCTIONS, Wire
from testbed.runtime.shared.workers import make_inboxes
from testbed.spec.placement import address_of, require_distinct_addresses

ETHERNET = bytes(8)


class RecordingWire:
    """Wire that records sent frames."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    @property
    def socket(self) -> RecordingWire:
        return self

    def send(self, frame: bytes) -> None:
        self.frames.append(frame)


@pytest.mark.parametrize(
    "own_address", [b"\x02\xc3\x11\x22\x33\x44", b"\x00\x1b\x21\x00\x00\x01", b"\xfe\xff\xff\xff\xff\xff"]
)
def test_functions_have_distinct_addresses(own_address: bytes) -> None:
    addresses = [address_of(own_address, function) for function in range(MAX_FUNCTIONS)]
    assert addresses[0] == own_address
    assert len(set(addresses)) == MAX_FUNCTIONS
    for address in addresses[1:]:
        assert address[0] & 1 == 0  # unicast
        assert address[0] & 2  # locally administered
        assert address[1:] == own_address[1:]


def test_ranks_of_the_same_address_are_named() -> None:
    address = b"\x02\0\0\0\0\1"
    addresses = [address, address_of(address, 1), address_of(address, 1), bytes(6), bytes(6)]
    with pytest.raises(UnsupportedError, match=r"ranks n1.1 and n2 would both have MAC 06:00:00:00:00:01; choose"):
        require_distinct_addresses(["n1.0", "n1.1", "n2", "n3", "n4"], addresses)
    require_distinct_addresses(["n1.0", "n1.1", "n3", "n4"], [*addresses[:2], *addresses[3:]])


def test_frames_between_functions_are_delivered_locally_and_all_others_leave() -> None:
    own_addresses = [address_of(b"\x02\0\0\0\0\1", function) for function in range(2)]
    sent = RecordingWire()
    wire = Wire(VethPort(cast("FrameSocket", sent)), frozenset(own_addresses))
    to_function, to_outside = own_addresses[1] + ETHERNET, b"\x02\0\0\0\0\2" + ETHERNET
    wire.send(to_function)
    wire.deferred.append(to_outside)
    wire.send(to_outside)
    assert (list(wire.local), sent.frames) == ([to_function], [to_outside])
    wire.flush()
    assert sent.frames == [to_outside, to_outside]
    assert not wire.deferred


def test_frames_between_functions_are_dropped_when_too_many_wait() -> None:
    own_address = address_of(b"\x02\0\0\0\0\1", 1)
    wire = Wire(VethPort(cast("FrameSocket", RecordingWire())), frozenset([own_address]))
    for _ in range(5_000):
        wire.send(own_address + ETHERNET)
    assert len(wire.local) + wire.overflowed == 5_000
    assert wire.overflowed > 0


def test_frames_for_a_worker_are_handed_over_and_lost_once_it_has_ended() -> None:
    address = address_of(b"\x02\0\0\0\0\1", 1)
    [(writing, reading)] = make_inboxes(1)
    with writing:
        wire = Wire(VethPort(cast("FrameSocket", RecordingWire())), frozenset(), {address: writing})
        wire.send(address + ETHERNET)
        assert wire.hand_over(address + ETHERNET)
        assert [reading.recv(100) for _ in range(2)] == [address + ETHERNET] * 2
        assert not wire.hand_over(b"\x02\0\0\0\0\2" + ETHERNET)
        reading.close()
        wire.send(address + ETHERNET)
        assert wire.hand_over(address + ETHERNET)
    assert (wire.handed_over, wire.overflowed) == (2, 2)
