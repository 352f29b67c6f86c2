"""EMP's firmware of two shared functions under hosts that write random bytes, and under damaged frames: it raises no
exception, and reports the host to detach."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import cast

import pytest

from protocols.core.firmware import Adapter
from protocols.emp.descriptors import SIZE, pack_head
from protocols.emp.firmware import Firmware
from protocols.emp.settings import Settings
from protocols.emp.split_driver import split_driver
from testbed.kernel.frame_socket import FrameSocket
from testbed.runtime.nodes.veth_port import VethPort
from testbed.runtime.shared.functions import AttachedHost, Function, Wire
from testbed.spec.placement import address_of
from tests.unit.runtime.attached_hosts import NullWire, attached_host, take_all_completions

DESCRIPTORS = 16
HEAP = 8_192
ENTRIES = 64
"""Entries of each ring of a host."""
MILLISECOND = 1_000_000
ADDRESSES = tuple(address_of(b"\x02\0\0\0\0\1", function) for function in range(2))
SPLIT_DRIVER = split_driver(Settings(descriptors=DESCRIPTORS, give_up=50 * MILLISECOND))


def write_descriptor(rng: random.Random, memory: memoryview, index: int) -> None:
    """Write a random, a nearly valid or a valid descriptor."""
    style = rng.randrange(4)
    if style == 0:
        memory[index * SIZE : (index + 1) * SIZE] = rng.randbytes(SIZE)
    elif style == 1:
        address = rng.choice([0, 1, HEAP - 1, HEAP, rng.randrange(HEAP), rng.getrandbits(64)])
        pack_head(
            memory, index * SIZE, 1, rng.randrange(256), rng.choice([0, 1, 100, 65_535]), address,
            rng.choice([0, 1, 2, 0xFFFF]), rng.choice([1, rng.getrandbits(32)]),
            rng.choice([0, 1, 2, 7, 300, 65_535]),
        )  # fmt: skip
    else:
        length, address = rng.randrange(2_000), rng.randrange(HEAP - 2_000)
        pack_head(memory, index * SIZE, 1, rng.randrange(2), length, address, rng.randrange(2), 1, 1)


@pytest.mark.parametrize("seed", range(20))
def test_arbitrary_writes_of_hosts_do_not_make_the_firmware_fail(seed: int) -> None:
    rng = random.Random(seed)
    wire = Wire(VethPort(cast("FrameSocket", NullWire())), frozenset(ADDRESSES))
    violators: list[AttachedHost] = []
    functions = [Function(Adapter(number, ADDRESSES), wire, SPLIT_DRIVER, violators) for number in range(2)]
    by_address = dict(zip(ADDRESSES, functions, strict=True))
    hosts = [attached_host(SPLIT_DRIVER, HEAP, ENTRIES) for _ in functions]
    for function, host in zip(functions, hosts, strict=True):
        function.attach(0, host, 0)
    now, violations, counts = 0, 0, list[Mapping[str, int]]()
    for _ in range(3_000):
        host_index = rng.randrange(2)
        function, host = functions[host_index], hosts[host_index]
        firmware = function.nic.firmware
        assert isinstance(firmware, Firmware)
        index = rng.randrange(DESCRIPTORS)
        write_descriptor(rng, host.region.descriptors, index)
        if not rng.randrange(8):  # perhaps a list of pages
            host.region.heap[: 30 * 10] = rng.randbytes(300)
        host.on_doorbell(now, index)
        host.on_doorbell(
            now,
            rng.choice([DESCRIPTORS + rng.randrange(DESCRIPTORS), rng.getrandbits(64)]),
        )
        wire.flush()
        for _ in range(min(len(wire.local), 40)):
            frame = bytes(wire.local.popleft())
            if not rng.randrange(10):  # the wire corrupts frames, too
                position = rng.randrange(len(frame))
                frame = frame[:position] + rng.randbytes(1) + frame[position + 1 :]
            destination = by_address.get(frame[:6])
            if destination is not None:
                destination.nic.firmware.receive(now, frame)
        if not rng.randrange(5):
            now += rng.randrange(10) * MILLISECOND
            firmware.on_timer(now)
        if not seed % 2 and rng.randrange(3):  # hosts of even seeds mostly take their completions, others never
            take_all_completions(host)
        for suspect in violators:
            violations += 1
            host_index = hosts.index(suspect)
            function = functions[host_index]
            counts.append(function.nic.firmware.counter_values())
            function.detach(now, suspect, function.nic.adapter.incarnation + 1)
            hosts[host_index] = attached_host(SPLIT_DRIVER, HEAP, ENTRIES)
            function.attach(now, hosts[host_index], 0)
        violators.clear()
    assert violations or not seed % 2
    counts += [function.nic.firmware.counter_values() for function in functions]
    totals = {name: sum(count[name] for count in counts) for name in counts[0]}
    assert min(totals["invalid"], totals["frames_sent"], totals["headers_admitted"], totals["frames_resent"]) > 50, (
        totals
    )
    for host in hosts:
        host.close()


def test_a_self_send_of_any_length_is_fragmented() -> None:
    """The list of pages repeats two pages, for a message far larger than the heap."""
    wire = Wire(VethPort(cast("FrameSocket", NullWire())), frozenset(ADDRESSES))
    function, host = Function(Adapter(0, ADDRESSES), wire, SPLIT_DRIVER, []), attached_host(SPLIT_DRIVER, HEAP, ENTRIES)
    function.attach(0, host, 0)
    count = HEAP // 20  # entries of ten bytes
    host.region.heap[: 10 * count] = b"".join(
        (64 * (entry % 2)).to_bytes(8, "big") + (4_000).to_bytes(2, "big") for entry in range(count)
    )
    pack_head(host.region.descriptors, 0, 1, 2 << 1, 0, 0, 0, 1, count)
    host.on_doorbell(0, 0)
    assert 10 < len(wire.local) <= 64
    assert function.nic.firmware.counter_values()["frames_sent"] == len(wire.local)
    host.close()


def test_a_message_of_too_many_fragments_is_rejected() -> None:
    """A fragment costs the agent more memory than the host, so that their number is limited."""
    wire = Wire(VethPort(cast("FrameSocket", NullWire())), frozenset(ADDRESSES))
    host = attached_host(SPLIT_DRIVER, 1 << 16, ENTRIES)
    function = Function(Adapter(0, ADDRESSES), wire, SPLIT_DRIVER, [])
    function.attach(0, host, 0)
    for count, invalid in ((2_048, 0), (2_049, 1)):
        entries = ((2 * (entry % 2)).to_bytes(8, "big") + (1).to_bytes(2, "big") for entry in range(count))
        host.region.heap[: 10 * count] = b"".join(entries)
        pack_head(host.region.descriptors, SIZE * (count % 16), 1, 2 << 1 | 1, 0, 0, 1, 1, count)
        host.on_doorbell(0, count % 16)
        assert function.nic.firmware.counter_values()["invalid"] == invalid
    host.close()
