"""Firmware of shared AM-II NICs under corrupted frames and, on each NIC, one host that writes random bytes.

It raises no exception and reports the host to detach; each request of the other hosts is handled once.
"""

from __future__ import annotations

import os
import random
import struct

import pytest

from protocols.am2 import page as layout
from protocols.am2.settings import MILLISECOND, Settings
from testbed.runtime.shared.functions import AttachedHost
from tests.unit.runtime.am2_shared_cluster import HEAP, Cluster
from tests.unit.runtime.attached_hosts import attached_host, take_all_completions

LONG = bool(os.environ.get("TESTBED_LONG"))
FIRST = random.SystemRandom().randrange(2**40) if LONG else 0
SEEDS = range(FIRST, FIRST + (400 if LONG else 20))
MISBEHAVING_SLOT = 1
"""Slot of the misbehaving host of a node."""
REQUESTS = 40
MIN_STEPS = 6_000


class MisbehavingHost:
    """Host process that writes random bytes. takes_completions: it empties its ring of completions."""

    def __init__(self, cluster: Cluster, node: int, *, takes_completions: bool) -> None:
        self.cluster = cluster
        self.node = node
        self.takes_completions = takes_completions
        self.frames = cluster.settings.frames
        self.first = MISBEHAVING_SLOT * cluster.settings.numbers_per_host
        self.attachment: AttachedHost
        self.attach()

    def attach(self) -> None:
        self.attachment = attached_host(self.cluster.split_driver, HEAP)
        self.cluster.functions[self.node].attach(self.cluster.now, self.attachment, MISBEHAVING_SLOT)

    def number(self) -> int:
        """Draw an endpoint's number, most often one of the host's own."""
        rng = self.cluster.rng
        if rng.randrange(8):
            return self.first + rng.randrange(8)
        return rng.choice([0, 1, rng.randrange(1 << 16), 0xFFFF])

    def act(self) -> None:
        rng, memory = self.cluster.rng, self.attachment.region.descriptors
        action = rng.randrange(60)
        if action < 25:
            self.write_entry(memory)
        elif action < 30:
            self.load(memory)
        elif action == 30:
            offset = rng.randrange(len(memory) - 200)
            memory[offset : offset + 200] = rng.randbytes(200)
        elif action < 33:
            self.bind(memory)
        elif action < 38:
            self.write_head(memory)
        elif action < 43:  # arbitrary states of the slots
            page = rng.randrange(self.frames) * layout.SIZE
            for slot in range(layout.SLOTS):
                memory[page + layout.SLOT_OFFSETS[slot]] = rng.choice([0, 0, 1, 2, 3, 4, 255])
        else:
            self.ring_doorbell()
        if self.takes_completions:
            take_all_completions(self.attachment)

    def ring_doorbell(self) -> None:
        rng = self.cluster.rng
        style = rng.randrange(8)
        if style == 0:
            index = rng.getrandbits(64)
        elif style == 1:
            region = self.number() << layout.SUBJECT_BITS | rng.choice([*range(8), 64, 65, 66])
            index = region << layout.SUBJECT_BITS | rng.choice([layout.MAPPED, layout.ABSENT])
        elif style < 4:
            index = self.number() << layout.SUBJECT_BITS | rng.choice(
                [layout.CREATE, layout.LOAD, layout.UNLOAD, layout.RELEASED, layout.RELEASED, layout.DESTROY]
            )
        else:
            index = self.number() << layout.SUBJECT_BITS | rng.randrange(layout.SUBJECT_MASK + 1 if style == 4 else 32)
        self.attachment.on_doorbell(self.cluster.now, index)

    def load(self, memory: memoryview) -> None:
        """Load an endpoint into a frame, as a library does."""
        frame, number = self.cluster.rng.randrange(self.frames), self.number()
        struct.pack_into("=I", memory, self.frames * layout.SIZE + 4 * frame, number)
        for subject in (layout.CREATE, layout.LOAD):
            self.attachment.on_doorbell(self.cluster.now, number << layout.SUBJECT_BITS | subject)

    def bind(self, memory: memoryview) -> None:
        """Enter any endpoint, also one that is in another frame, into the table of frames."""
        rng = self.cluster.rng
        offset = self.frames * layout.SIZE + 4 * rng.randrange(self.frames)
        memory[offset : offset + 4] = struct.pack("=I", rng.choice([self.number(), self.number(), rng.getrandbits(32)]))

    def write_head(self, memory: memoryview) -> None:
        rng = self.cluster.rng
        offset = rng.randrange(self.frames) * layout.SIZE
        page = memory[offset : offset + layout.SIZE]
        for subject in (layout.SEND_STAGING, layout.RECEIVE_STAGING, layout.SEGMENT):
            layout.set_address(page, subject, self.address())
        layout.set_segment_length(page, rng.choice([0, 1, 4_096, HEAP, rng.getrandbits(64)]))
        layout.set_tag(page, rng.choice([0, 1, (1 << 64) - 1, rng.getrandbits(64)]))
        page[layout.NOTIFY_OFFSET] = rng.randrange(2)

    def address(self) -> int:
        rng = self.cluster.rng
        return rng.choice([0, 1, 4_096, HEAP - 1, HEAP, rng.randrange(HEAP), rng.getrandbits(64)])

    def write_entry(self, memory: memoryview) -> None:
        """Write an arbitrary, a nearly valid or a valid entry for any endpoint, and mostly ring its doorbell."""
        rng = self.cluster.rng
        frame, slot = rng.randrange(self.frames), rng.randrange(32)
        page = memory[frame * layout.SIZE : (frame + 1) * layout.SIZE]
        table = memory[self.frames * layout.SIZE :].cast("I")
        bound = table[frame]
        origin = bound if bound < 1 << 16 and rng.randrange(8) else self.number()
        form = rng.choice([0, 0, 1, 2, 2, 3, rng.randrange(256)])
        if form == 2 and slot >= layout.REPLIES:
            form = 1  # a forged bulk reply needs no tag, and could write into another host's segment
        length = rng.choice([0, 1, 300, 512, 513, 3_000, 9_000, 100_000, rng.getrandbits(32)])
        count = rng.randrange(5)
        layout.WRITE_ENTRY[count](
            page, layout.SLOT_OFFSETS[slot], rng.choice([1, 1, 1, rng.randrange(6)]), 0,
            rng.choice([0, 1, 1, 2, 65_535]), length, self.address(), rng.choice([0, 0, 0, 1, 2]), form, slot >> 4,
            rng.randrange(256), count, origin, rng.choice([0, 1, self.number()]), rng.choice([1, 7]),
            rng.randrange(4), rng.choice([0, 0, 100, rng.getrandbits(32)]),
            rng.choice([0, length, rng.getrandbits(32)]), *rng.choices(range(1 << 32), k=count),
        )  # fmt: skip
        if rng.randrange(4):
            self.attachment.on_doorbell(self.cluster.now, (origin << layout.SUBJECT_BITS | slot) & ((1 << 64) - 1))


def replace_violators(cluster: Cluster, hosts: list[MisbehavingHost]) -> int:
    """Detach the hosts that the firmware reports, as the agent does, and attach new ones; return their number."""
    violators = cluster.violators.copy()
    cluster.violators.clear()
    for suspect in violators:
        (host,) = [misbehaving for misbehaving in hosts if misbehaving.attachment is suspect]
        cluster.functions[host.node].detach(cluster.now, suspect, 2)
        host.attach()
    return len(violators)


@pytest.mark.parametrize("seed", SEEDS)
def test_arbitrary_writes_of_a_host_neither_break_the_firmware_nor_disturb_others(seed: int) -> None:
    rng = random.Random(seed)
    settings = Settings(
        frames=rng.randrange(3, 8), medium=512, packet=1024, sequences=1 << 16,
        longest_timeout=20 * MILLISECOND, retries=10, endpoints=2,
    )  # fmt: skip
    cluster = Cluster(rng, settings, loss=rng.choice([0, 30]), corruption=rng.choice([0, 20]))
    for node in range(2):
        host = cluster.add_host(node, 0)
        for _ in range(2):
            host.add_endpoint()
        host.take_doorbells(10)
    hosts = [MisbehavingHost(cluster, node, takes_completions=seed % 4 > 0) for node in range(2)]
    for serial in range(REQUESTS):
        cluster.add_request(serial)
    pending, violations = list(range(REQUESTS)), 0
    for step in range(5 * MIN_STEPS):
        if (
            step % 3 == 0
            and pending
            and cluster.fates[pending[0]].source.try_send(pending[0], cluster.fates[pending[0]])
        ):
            del pending[0]
        rng.choice(hosts).act()
        cluster.step()
        violations += replace_violators(cluster, hosts)
        may_end = step >= MIN_STEPS and (violations or hosts[0].takes_completions)
        if may_end and not pending and not step % 50 and all(fate.handled for fate in cluster.fates.values()):
            break
    assert not pending
    for serial, fate in cluster.fates.items():
        assert (fate.handled, fate.replied <= (serial % 3 > 0), fate.returned) == (1, True, None), serial
    counts = [cluster.nic(node).firmware.counter_values() for node in range(2)]
    totals = {name: sum(count[name] for count in counts) for name in counts[0]}
    assert violations or hosts[0].takes_completions
    assert min(totals["invalid"], totals["loaded"], totals["returned"], totals["packets_sent"]) > 50, totals
    assert totals["corrupt"] or not cluster.corruption
    for host in hosts:
        host.attachment.close()
    for host in cluster.hosts.copy():
        host.attached.close()
