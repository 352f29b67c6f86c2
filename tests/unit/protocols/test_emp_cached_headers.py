"""Frames that begin like an already validated one are not validated again, and no invalid frame is accepted for it."""

from __future__ import annotations

import pytest

from protocols.emp.firmware import Firmware
from protocols.emp.host import Endpoint
from tests.unit.protocols.emp_dialogue import content, counter_of, data, header, joined_nics
from tests.unit.protocols.list_wires import Wires


def nics_with_cached_headers() -> tuple[Wires, list[Endpoint]]:
    """Return two NICs that have received a message of one frame, one of several, and acknowledgements from each other."""
    wires, hosts = joined_nics()
    for sender, receiver in ((0, 1), (1, 0)):
        for size in (4, 10_000):
            hosts[receiver].post_receive(sender, 1, bytearray(size))
            hosts[sender].post_send(receiver, 1, content(size))
            wires.exchange()
    assert hosts[0].free_descriptors == hosts[1].free_descriptors == 640
    return wires, hosts


def cached_header_count(wires: Wires, number: int) -> int:
    firmware = wires.agents[number].firmware
    assert isinstance(firmware, Firmware)
    return len(firmware._cached_headers)


@pytest.mark.parametrize("size", [5, 3000])
def test_a_flipped_bit_after_a_cached_header_drops_the_frame(size: int) -> None:
    wires, (sender, receiver) = nics_with_cached_headers()
    cached = cached_header_count(wires, 1)
    receive = receiver.post_receive(0, 1, bytearray(size))
    sender.post_send(1, 1, content(size))
    frames, dropped = wires.take(0), 0
    for frame in frames:
        for position in range(26, len(frame), 7):
            wires.deliver(frame[:position] + bytes([frame[position] ^ 0x10]) + frame[position + 1 :])
            dropped += 1
    assert counter_of(wires, 1, "corrupt") + counter_of(wires, 1, "malformed") == dropped
    assert counter_of(wires, 1, "corrupt") > counter_of(wires, 1, "malformed")
    assert not receive.done
    assert cached_header_count(wires, 1) == cached
    for frame in frames:
        wires.deliver(frame)
    assert receive.done


def test_a_truncated_frame_with_a_cached_header_is_dropped() -> None:
    wires, (sender, receiver) = nics_with_cached_headers()
    receive = receiver.post_receive(0, 1, bytearray(9))
    sender.post_send(1, 1, content(9))
    (frame,) = wires.take(0)
    for size in range(6, len(frame)):
        wires.deliver(frame[:size])
    assert counter_of(wires, 1, "malformed") == len(frame) - 6
    assert not receive.done


def test_frames_of_an_earlier_incarnation_are_dropped_once_the_next_is_known() -> None:
    wires, (sender, receiver) = nics_with_cached_headers()
    receive = receiver.post_receive(0, 1, bytearray(4))
    sender.post_send(1, 1, content(4))
    late_frames = wires.take(0)
    wires.restart(0)
    restarted_host = wires.agents[0].host
    assert isinstance(restarted_host, Endpoint)
    restarted_host.post_send(1, 2, b"")
    wires.exchange()
    assert counter_of(wires, 1, "restarts") == 1
    stale_count = counter_of(wires, 1, "stale")
    for frame in late_frames:
        wires.deliver(frame)
    assert counter_of(wires, 1, "stale") == stale_count + 1
    assert not receive.done


def test_the_cache_of_headers_is_bounded() -> None:
    """Frames of every unit and flag are accepted, and their headers cached up to the cache's size."""
    wires, _ = nics_with_cached_headers()
    before = counter_of(wires, 1, "early")
    for unit in range(1, 256):
        wires.deliver(header(wires, 1, 0, 100 + unit, unit=unit, oldest=2))
        wires.deliver(data(wires, 1, 0, 100 + unit, 1, b"x", unit=unit))
    assert counter_of(wires, 1, "early") == before + 2 * 255
    assert cached_header_count(wires, 1) <= 64


def test_a_first_frame_with_a_cached_header_must_be_the_first_of_its_message() -> None:
    wires, _ = nics_with_cached_headers()
    wires.deliver(header(wires, 1, 0, 2, frame=1, oldest=2))
    wires.deliver(data(wires, 1, 0, 2, 0, b""))
    assert counter_of(wires, 1, "malformed") == 2
