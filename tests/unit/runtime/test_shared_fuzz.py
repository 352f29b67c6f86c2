"""Firmware of two shared functions under hosts that write random bytes and random frames: it raises no exception, and
reports the host to detach."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Mapping
from typing import cast

import pytest

from protocols.core.firmware import Adapter
from protocols.emp.descriptors import SIZE, pack_head
from protocols.emp.firmware import Firmware
from protocols.emp.settings import Settings
from protocols.emp.split_driver import split_driver
from testbed.kernel.filesystem import make_sealed
from testbed.kernel.frame_socket import FrameSocket
from testbed.runtime.nodes.veth_port import VethPort
from testbed.runtime.shared.functions import AttachedHost, Function, Wire
from testbed.runtime.shared.region import Layout, Region
from testbed.spec.placement import address_of

DESCRIPTORS = 16
HEAP = 8_192
MILLISECOND = 1_000_000
ADDRESSES = tuple(address_of(b"\x02\0\0\0\0\1", function) for function in range(2))
SPLIT_DRIVER = split_driver(Settings(descriptors=DESCRIPTORS, give_up=50 * MILLISECOND))


class NullWire:
    """A wire that takes everything."""

    @staticmethod
    def send(_frame: bytes) -> None: ...


def attach_host() -> AttachedHost:
    """Return an attachment as a host process's."""
    layout = Layout(64, SPLIT_DRIVER.descriptors, HEAP)
    memory = make_sealed("fuzz", layout.size)
    region = Region(memory, layout)
    os.close(memory)
    first, second = socket.socketpair()
    second.close()
    bell, pipe = os.eventfd(0), os.eventfd(0, os.EFD_NONBLOCK)
    return AttachedHost(region, first, os.getpid(), os.pidfd_open(os.getpid()), bell, pipe)


def a_descriptor(rng: random.Random, memory: memoryview, index: int) -> None:
    """Anything, something that is nearly right, or a good one."""
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
    hosts = [attach_host() for _ in functions]
    for function, host in zip(functions, hosts, strict=True):
        function.attach(0, host, 0)
    now, refused_count, counts = 0, 0, list[Mapping[str, int]]()
    for _ in range(3_000):
        host_index = rng.randrange(2)
        function, host = functions[host_index], hosts[host_index]
        firmware = function.nic.firmware
        assert isinstance(firmware, Firmware)
        index = rng.randrange(DESCRIPTORS)
        a_descriptor(rng, host.region.descriptors, index)
        if not rng.randrange(8):  # a list of pages, or what may be one
            host.region.heap[: 30 * 10] = rng.randbytes(300)
        host.on_doorbell(now, index)
        host.on_doorbell(
            now,
            rng.choice([DESCRIPTORS + rng.randrange(DESCRIPTORS), rng.getrandbits(64)]),
        )
        wire.flush()
        for _ in range(min(len(wire.local), 40)):
            frame = bytes(wire.local.popleft())
            if not rng.randrange(10):  # and the wire is no better
                position = rng.randrange(len(frame))
                frame = frame[:position] + rng.randbytes(1) + frame[position + 1 :]
            destination = by_address.get(frame[:6])
            if destination is not None:
                destination.nic.firmware.receive(now, frame)
        if not rng.randrange(5):
            now += rng.randrange(10) * MILLISECOND
            firmware.on_timer(now)
        if not seed % 2 and rng.randrange(3):  # a host that takes its completions, most of the time, or never
            host.region.completions.words[16] = host.region.completions.words[0]
        for suspect in violators:
            refused_count += 1
            host_index = hosts.index(suspect)
            function = functions[host_index]
            counts.append(function.nic.firmware.counter_values())
            function.detach(now, suspect, function.nic.adapter.incarnation + 1)
            hosts[host_index] = attach_host()
            function.attach(now, hosts[host_index], 0)
        violators.clear()
    assert refused_count or not seed % 2
    counts += [function.nic.firmware.counter_values() for function in functions]
    totals = {name: sum(count[name] for count in counts) for name in counts[0]}
    assert min(totals["invalid"], totals["frames_sent"], totals["headers_admitted"], totals["frames_resent"]) > 50, (
        totals
    )
    for host in hosts:
        host.close()


def test_a_self_send_of_any_length_is_fragmented() -> None:
    """The list names the same pages repeatedly: far more bytes than the heap has."""
    wire = Wire(VethPort(cast("FrameSocket", NullWire())), frozenset(ADDRESSES))
    function, host = Function(Adapter(0, ADDRESSES), wire, SPLIT_DRIVER, []), attach_host()
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
    """Each piece costs the agent more memory than it costs the host."""
    wire = Wire(VethPort(cast("FrameSocket", NullWire())), frozenset(ADDRESSES))
    layout = Layout(64, SPLIT_DRIVER.descriptors, 1 << 16)
    memory = make_sealed("fuzz", layout.size)
    host = attach_host()
    host.region = Region(memory, layout)
    os.close(memory)
    function = Function(Adapter(0, ADDRESSES), wire, SPLIT_DRIVER, [])
    function.attach(0, host, 0)
    for count, invalid in ((2_048, 0), (2_049, 1)):
        entries = ((2 * (entry % 2)).to_bytes(8, "big") + (1).to_bytes(2, "big") for entry in range(count))
        host.region.heap[: 10 * count] = b"".join(entries)
        pack_head(host.region.descriptors, SIZE * (count % 16), 1, 2 << 1 | 1, 0, 0, 1, 1, count)
        host.on_doorbell(0, count % 16)
        assert function.nic.firmware.counter_values()["invalid"] == invalid
    host.close()
