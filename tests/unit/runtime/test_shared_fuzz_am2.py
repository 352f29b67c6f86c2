"""Firmware of shared AM-II NICs under random frames and hosts that write random bytes, all but one on each NIC.

It raises nothing and reports which host to detach; the other hosts' requests are all handled once.
"""

from __future__ import annotations

import os
import random
import struct

import pytest

from protocols.am2 import page as layout
from protocols.am2.settings import MILLISECOND, Settings
from testbed.runtime.shared.functions import AttachedHost
from tests.unit.runtime.am2_shared_cluster import HEAP, Cluster, attached

LONG = bool(os.environ.get("TESTBED_LONG"))
FIRST = random.SystemRandom().randrange(2**40) if LONG else 0
SEEDS = range(FIRST, FIRST + (400 if LONG else 20))
MAD = 1
"""The place of the host that does."""
REQUESTS = 40
TURNS = 6_000


class Mad:
    """Host process that breaks the library's rules. obeys: it acts on completions."""

    def __init__(self, cluster: Cluster, node: int, *, obeys: bool) -> None:
        self.cluster = cluster
        self.node = node
        self.obeys = obeys
        self.frames = cluster.settings.frames
        self.first = MAD * cluster.settings.numbers_per_host
        self.own: AttachedHost
        self.begin()

    def begin(self) -> None:
        self.own = attached(self.cluster.split_driver)
        self.cluster.functions[self.node].attach(self.cluster.now, self.own, MAD)

    def number(self) -> int:
        """Draw an endpoint's number, most often one of the host's own."""
        chance = self.cluster.chance
        if chance.randrange(8):
            return self.first + chance.randrange(8)
        return chance.choice([0, 1, chance.randrange(1 << 16), 0xFFFF])

    def act(self) -> None:
        chance, memory = self.cluster.chance, self.own.region.descriptors
        what = chance.randrange(60)
        if what < 25:
            self.write_entry(memory)
        elif what < 30:
            self.load(memory)
        elif what == 30:
            at = chance.randrange(len(memory) - 200)
            memory[at : at + 200] = chance.randbytes(200)
        elif what < 33:
            self.bind(memory)
        elif what < 38:
            self.write_head(memory)
        elif what < 43:  # anything may have been taken
            page = chance.randrange(self.frames) * layout.SIZE
            for slot in range(layout.SLOTS):
                memory[page + layout.SLOT_OFFSETS[slot]] = chance.choice([0, 0, 1, 2, 3, 4, 255])
        else:
            self.ring()
        words = self.own.region.completions.words
        if self.obeys:
            words[16] = words[0]

    def ring(self) -> None:
        chance = self.cluster.chance
        style = chance.randrange(8)
        if style == 0:
            index = chance.getrandbits(64)
        elif style == 1:
            region = self.number() << layout.SUBJECT_BITS | chance.choice([*range(8), 64, 65, 66])
            index = region << layout.SUBJECT_BITS | chance.choice([layout.MAPPED, layout.ABSENT])
        elif style < 4:
            index = self.number() << layout.SUBJECT_BITS | chance.choice(
                [layout.CREATE, layout.LOAD, layout.UNLOAD, layout.RELEASED, layout.RELEASED, layout.DESTROY]
            )
        else:
            index = self.number() << layout.SUBJECT_BITS | chance.randrange(
                layout.SUBJECT_MASK + 1 if style == 4 else 32
            )
        self.own.on_doorbell(self.cluster.now, index)

    def load(self, memory: memoryview) -> None:
        """Perform a valid load."""
        frame, number = self.cluster.chance.randrange(self.frames), self.number()
        struct.pack_into("=I", memory, self.frames * layout.SIZE + 4 * frame, number)
        for subject in (layout.CREATE, layout.LOAD):
            self.own.on_doorbell(self.cluster.now, number << layout.SUBJECT_BITS | subject)

    def bind(self, memory: memoryview) -> None:
        """Any endpoint in any frame, or one in all."""
        chance = self.cluster.chance
        at = self.frames * layout.SIZE + 4 * chance.randrange(self.frames)
        memory[at : at + 4] = struct.pack("=I", chance.choice([self.number(), self.number(), chance.getrandbits(32)]))

    def write_head(self, memory: memoryview) -> None:
        chance = self.cluster.chance
        at = chance.randrange(self.frames) * layout.SIZE
        page = memory[at : at + layout.SIZE]
        for subject in (layout.SEND_STAGING, layout.RECEIVE_STAGING, layout.SEGMENT):
            layout.set_address(page, subject, self.address())
        layout.set_segment_length(page, chance.choice([0, 1, 4_096, HEAP, chance.getrandbits(64)]))
        layout.set_tag(page, chance.choice([0, 1, (1 << 64) - 1, chance.getrandbits(64)]))
        page[layout.NOTIFY_OFFSET] = chance.randrange(2)

    def address(self) -> int:
        chance = self.cluster.chance
        return chance.choice([0, 1, 4_096, HEAP - 1, HEAP, chance.randrange(HEAP), chance.getrandbits(64)])

    def write_entry(self, memory: memoryview) -> None:
        """Write an arbitrary, a nearly valid or a valid entry for any endpoint, and mostly ring its doorbell."""
        chance = self.cluster.chance
        frame, slot = chance.randrange(self.frames), chance.randrange(32)
        page = memory[frame * layout.SIZE : (frame + 1) * layout.SIZE]
        table = memory[self.frames * layout.SIZE :].cast("I")
        bound = table[frame]
        origin = bound if bound < 1 << 16 and chance.randrange(8) else self.number()
        form = chance.choice([0, 0, 1, 2, 2, 3, chance.randrange(256)])
        if form == 2 and slot >= layout.REPLIES:
            form = 1  # a bulk reply needs no tag to get into a segment: that is not prevented yet
        length = chance.choice([0, 1, 300, 512, 513, 3_000, 9_000, 100_000, chance.getrandbits(32)])
        count = chance.randrange(5)
        layout.WRITE_ENTRY[count](
            page, layout.SLOT_OFFSETS[slot], chance.choice([1, 1, 1, chance.randrange(6)]), 0,
            chance.choice([0, 1, 1, 2, 65_535]), length, self.address(), chance.choice([0, 0, 0, 1, 2]), form, slot >> 4,
            chance.randrange(256), count, origin, chance.choice([0, 1, self.number()]), chance.choice([1, 7]),
            chance.randrange(4), chance.choice([0, 0, 100, chance.getrandbits(32)]),
            chance.choice([0, length, chance.getrandbits(32)]), *chance.choices(range(1 << 32), k=count),
        )  # fmt: skip
        if chance.randrange(4):
            self.own.on_doorbell(self.cluster.now, (origin << layout.SUBJECT_BITS | slot) & ((1 << 64) - 1))


def refuse(cluster: Cluster, mads: list[Mad]) -> int:
    """Detach the hosts that the firmware reports, as the agent does, and attach new ones; return their number."""
    violators = cluster.violators.copy()
    cluster.violators.clear()
    for suspect in violators:
        (mad,) = [one for one in mads if one.own is suspect]
        cluster.functions[mad.node].detach(cluster.now, suspect, 2)
        mad.begin()
    return len(violators)


@pytest.mark.parametrize("seed", SEEDS)
def test_arbitrary_writes_of_a_host_neither_break_the_firmware_nor_disturb_others(seed: int) -> None:
    chance = random.Random(seed)
    settings = Settings(
        frames=chance.randrange(3, 8), medium=512, packet=1024, sequences=1 << 16,
        longest_timeout=20 * MILLISECOND, retries=10, endpoints=2,
    )  # fmt: skip
    cluster = Cluster(chance, settings, lost=chance.choice([0, 30]), bent=chance.choice([0, 20]))
    for node in range(2):
        host = cluster.begin(node, 0)
        for _ in range(2):
            host.talker()
        host.ring(10)
    mads = [Mad(cluster, node, obeys=seed % 4 > 0) for node in range(2)]
    for serial in range(REQUESTS):
        cluster.draw(serial)
    waiting, refused = list(range(REQUESTS)), 0
    for turn in range(5 * TURNS):
        if (
            turn % 3 == 0
            and waiting
            and cluster.courses[waiting[0]].source.ask(waiting[0], cluster.courses[waiting[0]])
        ):
            del waiting[0]
        chance.choice(mads).act()
        cluster.turn()
        refused += refuse(cluster, mads)
        is_through = turn >= TURNS and (refused or mads[0].obeys)
        if is_through and not waiting and not turn % 50 and all(course.handled for course in cluster.courses.values()):
            break
    assert not waiting
    for serial, course in cluster.courses.items():
        assert (course.handled, course.replied <= (serial % 3 > 0), course.returned) == (1, True, None), serial
    counts = [cluster.nic(node).firmware.counter_values() for node in range(2)]
    total = {name: sum(count[name] for count in counts) for name in counts[0]}
    assert refused or mads[0].obeys
    assert min(total["invalid"], total["loaded"], total["returned"], total["packets_sent"]) > 50, total
    assert total["corrupt"] or not cluster.bent
    for mad in mads:
        mad.own.close()
    for host in cluster.hosts.copy():
        host.attached.close()
