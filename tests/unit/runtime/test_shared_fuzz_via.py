"""VIA's firmware of two shared functions under hosts that write random commands, descriptors and doorbells, and under random
frames: it raises no exception, and touches only memory that a host has registered."""

from __future__ import annotations

import random
from collections import Counter
from typing import cast

from protocols.core.firmware import Adapter
from protocols.via.codec import mended
from protocols.via.settings import Settings
from protocols.via.split_driver import split_driver
from protocols.via.vip_descriptors import SIZE, Command, Op, Queue, Segment, Slots, doorbell
from protocols.via.vipl_names import IMMEDIATE, OP_RDMAREAD, OP_RDMAWRITE, OP_SENDRECV, QFENCE
from testbed.kernel.frame_socket import FrameSocket
from testbed.runtime.nodes.veth_port import VethPort
from testbed.runtime.shared.functions import AttachedHost, Function, Wire
from testbed.spec.placement import address_of
from tests.unit.runtime.attached_hosts import NullWire, attached_host, take_all_completions
from tests.unit.runtime.damaged_frames import maybe_damaged

SEEDS = 12
SLOTS = 64
VALID_SLOTS = 16
"""Slots that a host uses only for valid descriptors."""
HEAP = 8_192
REGISTERED = 4_096
"""Bytes at the begin of the heap that are registered; memory beyond them never is."""
SECRET = 0xA7
MILLISECOND = 1_000_000
ADDRESSES = tuple(address_of(b"\x02\0\0\0\0\1", function) for function in range(2))
DRIVER = split_driver(Settings(slots=SLOTS, give_up=200 * MILLISECOND, timeout=MILLISECOND, requests=4))
OPS = [op for op in Op if op not in (Op.CLOSE, Op.OPEN)]
NAMES = (b"", b"x", b"y")


def connecting_commands(peer: int) -> list[Command]:
    """Return the first commands of a program: register memory, and create and connect a VI."""
    return [
        Command(Op.CREATE_PTAG, ptag=1),
        Command(Op.REGISTER, number=1, ptag=1, size=REGISTERED, value=7),
        Command(Op.CREATE_VI, vi=1, ptag=1, size=4_096, value=4 | 3 << 8),
        Command(Op.CONNECT_PEER, vi=1, number=peer, address=20 * MILLISECOND, name=b"x"),
    ]


def connect_vi(now: int, host: AttachedHost, peer: int) -> None:
    """Connect a VI and post receives, as a program does, in valid slots."""
    slots = Slots(SLOTS, host.region.descriptors)
    for slot, command in enumerate([Command(Op.DISCONNECT, vi=1), *connecting_commands(peer)]):
        slots.write_command(slot, command)
        host.on_doorbell(now, doorbell(Queue.COMMAND, 0, slot))
    for slot in range(VALID_SLOTS // 2, VALID_SLOTS):
        slots.write(slot, 0, 0, 2_048, None, (Segment(2_048, 1, 2_048),))
        host.on_doorbell(now, doorbell(Queue.RECEIVE, 1, slot))


def random_command(rng: random.Random) -> Command:
    """Return a command with few VIs, tags, handles and names, so that they match, and with a short timeout."""
    if rng.randrange(2):
        return rng.choice([*connecting_commands(rng.randrange(2)) * 2, Command(Op.DISCONNECT, vi=1)])
    op = rng.choice(OPS) if rng.randrange(60) else rng.choice([Op.CLOSE, Op.OPEN])
    address, size, value = (
        rng.choice([0, 0, 2_048]),
        rng.choice([1, 100, 2_048]),
        rng.randrange(8),
    )
    if op in (Op.CREATE_VI, Op.SET_VI):
        size, value = rng.choice([1, 4_096]), rng.choice([1, 2, 4]) | 3 << 8
    elif op in (Op.CONNECT, Op.CONNECT_PEER, Op.WAIT, Op.ALARM):
        address = rng.choice([1, 5 * MILLISECOND])
    number, ptag = rng.randrange(3), rng.randrange(1, 3)
    return Command(op, rng.randrange(3), number, ptag, address, size, value, rng.choice(NAMES))


def random_descriptor(rng: random.Random) -> tuple[int, int, int, Segment | None, tuple[Segment, ...]]:
    """Return random arguments of `Slots.write`."""

    def segment() -> Segment:
        if rng.randrange(4):
            return Segment(rng.choice([0, 8, 2_048]), 1, rng.choice([0, 8, 100, 2_040]))
        handle, address = (
            rng.randrange(3),
            rng.choice([0, REGISTERED - 8, REGISTERED, rng.getrandbits(64)]),
        )
        return Segment(address, handle, rng.choice([0, 16, 1_500, rng.getrandbits(32)]))

    operation = rng.choice([OP_SENDRECV, OP_SENDRECV, OP_RDMAWRITE, OP_RDMAREAD])
    data = tuple([segment() for _ in range(rng.randrange(3))])
    length = sum(part.length for part in data) & 0xFFFF_FFFF
    remote = segment() if operation != OP_SENDRECV else None
    return operation | rng.choice([0, IMMEDIATE, QFENCE]), 7, length, remote, data


def write_slot(rng: random.Random, host: AttachedHost, slots: Slots) -> int:
    """Write a random slot; return its doorbell, or a random one."""
    slot, style = rng.randrange(VALID_SLOTS, SLOTS), rng.randrange(12)
    queue = rng.choice([Queue.COMMAND, *[Queue.SEND, Queue.RECEIVE] * 4])
    if not style:
        host.region.descriptors[slot * SIZE : (slot + 1) * SIZE] = rng.randbytes(SIZE)
    elif queue == Queue.COMMAND:
        slots.write_command(slot, random_command(rng))
    else:
        slots.write(slot, *random_descriptor(rng))
    return doorbell(queue, rng.choice([1, 1, 1, 2]), slot) if style != 1 else rng.getrandbits(64)


def run_fuzz(seed: int) -> Counter[str]:
    """Run two hosts; return the summed counters of all their firmware."""
    rng = random.Random(seed)
    wire = Wire(VethPort(cast("FrameSocket", NullWire())), frozenset(ADDRESSES))
    violators: list[AttachedHost] = []
    functions = [Function(Adapter(number, ADDRESSES), wire, DRIVER, violators) for number in range(2)]
    by_address = dict(zip(ADDRESSES, functions, strict=True))
    hosts: list[AttachedHost] = []

    def attach(host_index: int) -> AttachedHost:
        host = attached_host(DRIVER, HEAP)
        host.region.heap[:] = bytes(REGISTERED) + bytes([SECRET]) * (HEAP - REGISTERED)
        functions[host_index].attach(now, host, 0)
        connect_vi(now, host, 1 - host_index)
        return host

    now, totals = 0, Counter[str]()
    hosts += [attach(0), attach(1)]
    for _ in range(4_000):
        host_index = rng.randrange(2)
        function, host = functions[host_index], hosts[host_index]
        if not rng.randrange(20):
            connect_vi(now, host, 1 - host_index)
        host.on_doorbell(now, write_slot(rng, host, Slots(SLOTS, host.region.descriptors)))
        wire.flush()
        for _ in range(min(len(wire.local), 40)):
            frame = maybe_damaged(rng, bytes(wire.local.popleft()), mended)
            if (destination := by_address.get(frame[:6])) is not None:
                destination.nic.firmware.receive(now, frame)
        if not rng.randrange(5):
            now += rng.randrange(10) * MILLISECOND
            function.nic.firmware.on_timer(now)
        take_all_completions(host)
        if not rng.randrange(300):
            violators.append(host)  # its process dies
        for suspect in violators:
            host_index = hosts.index(suspect)
            totals.update(functions[host_index].nic.firmware.counter_values())
            assert bytes(suspect.region.heap[REGISTERED:]).count(SECRET) == HEAP - REGISTERED
            functions[host_index].detach(now, suspect, functions[host_index].nic.adapter.incarnation + 1)
            hosts[host_index] = attach(host_index)
        violators.clear()
    for function, host in zip(functions, hosts, strict=True):
        totals.update(function.nic.firmware.counter_values())
        assert bytes(host.region.heap[REGISTERED:]).count(SECRET) == HEAP - REGISTERED
        host.close()
    return totals


def test_no_input_of_hosts_and_peers_makes_the_firmware_fail_or_touch_unregistered_memory() -> None:
    totals = Counter[str]()
    for seed in range(SEEDS):
        totals.update(run_fuzz(seed))
    exercised_counters = (
        "invalid",
        "connections_made",
        "frames_sent",
        "data_stored",
        "violations",
        "reads_served",
        "corrupt",
    )
    assert min(totals[name] for name in exercised_counters) > 50, {name: totals[name] for name in exercised_counters}
