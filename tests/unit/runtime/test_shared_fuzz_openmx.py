"""Open-MX's drivers of two shared functions under hosts that write random commands, doorbells and flags of their receive
rings, and under damaged frames: they raise no exception, and touch only memory that a host has named in a command."""

from __future__ import annotations

import random
from collections import Counter
from typing import cast

from protocols.core.firmware import Adapter
from protocols.openmx.endpoint_memory import COMMAND_SIZE, COMMANDS, Command, Op, ReceiveRing, SharedCommands
from protocols.openmx.settings import MIN_ENTRIES, Settings
from protocols.openmx.split_driver import split_driver
from testbed.kernel.frame_socket import FrameSocket
from testbed.runtime.nodes.veth_port import VethPort
from testbed.runtime.shared.functions import AttachedHost, Function, Wire
from testbed.spec.placement import address_of
from tests.unit.protocols.openmx_commands import OPS, command
from tests.unit.protocols.openmx_pair import with_checksum
from tests.unit.runtime.attached_hosts import NullWire, attached_host, take_all_completions
from tests.unit.runtime.damaged_frames import maybe_damaged

SEEDS = 8
MAX_FRAME_DATA = 1_462
"""Data of a frame of 1,500 bytes."""
RING = ReceiveRing.size(MIN_ENTRIES, MAX_FRAME_DATA)
USED_HEAP = RING + 70_000
"""Bytes of receive ring and messages at the begin of the heap: no valid command refers to memory beyond them."""
HEAP = USED_HEAP + 4_096
SECRET = 0xA7
MILLISECOND = 1_000_000
SESSION = 77
ADDRESSES = tuple(address_of(b"\x02\0\0\0\0\1", function) for function in range(2))
DRIVER = split_driver(Settings(tick=MILLISECOND, resends=4, pull_timeout=MILLISECOND, entries=MIN_ENTRIES))
FREQUENT_OPS = [op for op in OPS if op not in (Op.CLOSE, Op.OPEN)]


class Host:
    """Host process of a function, the only writer of its command ring."""

    def __init__(self, rng: random.Random, peer: int) -> None:
        self.rng = rng
        self.peer = peer
        self.attached = attached_host(DRIVER, HEAP)
        self.heap = self.attached.region.heap
        self.heap[:] = bytes(USED_HEAP) + bytes([SECRET]) * (HEAP - USED_HEAP)
        self.commands = SharedCommands(self.attached.region.descriptors)

    def open(self, now: int) -> None:
        """Open an endpoint whose ring is at the heap's beginning."""
        self.ring(now, command(Op.OPEN, session=SESSION, length=MIN_ENTRIES, address=0))
        for number in range(3):
            self.ring(now, command(Op.REGISTER, number=number, turn=1, length=50_000, address=RING))

    def ring(self, now: int, written: Command, data: bytes = b"") -> None:
        self.attached.on_doorbell(now, self.commands.write(written, data))

    def act(self, now: int) -> None:
        """Write a valid or an arbitrary command, and ring a doorbell."""
        rng, style = self.rng, self.rng.randrange(12)
        if not style:
            memory = self.attached.region.descriptors
            slot = rng.randrange(COMMANDS)
            memory[slot * COMMAND_SIZE : (slot + 1) * COMMAND_SIZE] = rng.randbytes(COMMAND_SIZE)
            self.attached.on_doorbell(now, rng.choice([slot, rng.getrandbits(64)]))
        elif style < 4:
            self.open(now)
        else:
            self.ring(now, self.random_command(), rng.randbytes(40))
        for _ in range(4):  # as when it reads events, or fakes full slots
            self.heap[rng.randrange(MIN_ENTRIES)] = rng.randrange(4) == 0

    def random_command(self) -> Command:
        """Return a command with few distinct numbers, so that they match each other; some are invalid."""
        rng = self.rng
        op = rng.choice(FREQUENT_OPS) if rng.randrange(80) else rng.choice([Op.CLOSE, Op.OPEN, 0, 99])
        address = rng.choice([RING, RING, RING + 1_000, HEAP, rng.getrandbits(64)])
        length = rng.choice([0, 1, 100, 1_500, 20_000, 50_000, HEAP, rng.getrandbits(40)])
        if op in (Op.PULL, Op.SEND_MEDIUM):
            length = min(length, USED_HEAP - address) if RING <= address < USED_HEAP else length
        seqnum = rng.choice([0, 1, 0x3FFF, rng.getrandbits(16)])
        number = rng.choice([0, 1, 2, 70])
        return command(
            op,
            dst_endpoint=rng.choice([0, 0, 1]),
            flag=rng.randrange(2),
            peer=rng.choice([self.peer, self.peer, 1 - self.peer, 9]),
            seqnum=seqnum,
            ack=rng.getrandbits(16),
            number=number,
            turn=1,
            session=rng.choice([SESSION, SESSION, 3]),
            word=rng.getrandbits(32),
            match=number,
            length=length,
            address=address,
        )


def run_fuzz(seed: int) -> Counter[str]:
    """Run two hosts; return the counters of both drivers."""
    rng = random.Random(seed)
    wire = Wire(VethPort(cast("FrameSocket", NullWire())), frozenset(ADDRESSES))
    violators: list[AttachedHost] = []
    functions = [Function(Adapter(number, ADDRESSES), wire, DRIVER, violators) for number in range(2)]
    by_address = dict(zip(ADDRESSES, functions, strict=True))
    now = 0

    def attach(host_index: int) -> Host:
        host = Host(rng, 1 - host_index)
        functions[host_index].attach(now, host.attached, 0)
        host.open(now)
        return host

    hosts = [attach(0), attach(1)]
    for _ in range(4_000):
        host_index = rng.randrange(2)
        function, host = functions[host_index], hosts[host_index]
        host.act(now)
        wire.flush()
        for _ in range(min(len(wire.local), 40)):
            frame = maybe_damaged(rng, bytes(wire.local.popleft()), with_checksum)
            if (destination := by_address.get(frame[:6])) is not None:
                destination.nic.firmware.receive(now, frame)
        if not rng.randrange(5):
            now += rng.randrange(4) * MILLISECOND
            function.nic.firmware.on_timer(now)
        take_all_completions(host.attached)
        if not rng.randrange(300):
            violators.append(host.attached)  # its process dies
        for suspect in violators:
            host_index = [host.attached for host in hosts].index(suspect)
            assert bytes(suspect.region.heap[USED_HEAP:]).count(SECRET) == HEAP - USED_HEAP
            functions[host_index].detach(now, suspect, functions[host_index].nic.adapter.incarnation + 1)
            hosts[host_index] = attach(host_index)
        violators.clear()
    totals = Counter[str]()
    for function, host in zip(functions, hosts, strict=True):
        totals.update(function.nic.firmware.counter_values())
        assert bytes(host.heap[USED_HEAP:]).count(SECRET) == HEAP - USED_HEAP
        host.attached.close()
    return totals


def test_no_input_of_hosts_and_peers_makes_the_driver_fail_or_touch_other_memory() -> None:
    totals = Counter[str]()
    for seed in range(SEEDS):
        totals.update(run_fuzz(seed))
    exercised_counters = (
        "invalid", "recv_messages", "recv_pull_reply", "drop_bad_session", "unexp_eventq_full", "send_nack_lib",
        "send_nack_mcp", "drop_bad_check",
    )  # fmt: skip
    assert min(totals[name] for name in exercised_counters) > 50, {name: totals[name] for name in exercised_counters}
