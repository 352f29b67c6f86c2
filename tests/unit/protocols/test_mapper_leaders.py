"""Election of the leading mapper: starts, crashes, partitions, hints, and invalid frames."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.myrinet.envelope import add_envelope
from protocols.myrinet.mapper import codec
from protocols.myrinet.mapper.mapper import BROADCAST, NOBODY, Mapper, MapperIdentity
from protocols.myrinet.mapper.route_tables import Table
from protocols.myrinet.mapper.settings import MILLISECOND, SECOND, Settings
from tests.unit.protocols.mapper_networks import Myrinet, address, plug_cables, ring, star


def leaders(network: Myrinet) -> list[int]:
    return [number for number, mapper in network.mappers.items() if mapper.is_leading]


def frame_of(kind: int, source: int, *, payload: bytes = b"", destination: bytes = BROADCAST, **fields: int) -> bytes:
    names = ("leader", "incarnation", "number", "epoch", "author", "part", "parts")
    values = {"leader": source, "incarnation": 1, **fields}
    return add_envelope(
        codec.pack_frame(destination, address(source), kind, source, *(values.get(name, 0) for name in names), payload),
        b"",
    )


class SingleMapper:
    """A mapper whose only peer is the test."""

    def __init__(self, number: int = 5, *, starts: bool = True, **settings: int | bool) -> None:
        self.sent: list[bytes] = []
        self.tables: list[object] = []
        self.mapper = Mapper(
            MapperIdentity(number, 1, address(number)), self.sent.append, self.tables.append, Settings(**settings)
        )
        if starts:
            self.mapper.start(0)

    def run(self, until: int) -> None:
        while (deadline := self.mapper.deadline) is not None and deadline <= until:
            self.mapper.on_timer(deadline)


def test_of_mappers_started_together_the_lowest_number_leads() -> None:
    network = Myrinet(ring(6, 2), settings=Settings(stagger=1))
    assert network.settle() is not None
    assert leaders(network) == [0]
    assert sum(mapper.counters.elections for mapper in network.mappers.values()) > 1


def test_a_mapper_with_a_lower_number_takes_over() -> None:
    cables = star(5)
    network = Myrinet(cables[1:], hosts=[0])
    assert network.settle() is not None
    assert leaders(network) == [0, 1]
    network.join(cables[0])
    assert network.settle() is not None
    assert leaders(network) == [0]
    assert network.mappers[1].counters.abdications == 1


def test_a_dead_leader_has_a_successor_whose_tables_are_later() -> None:
    network = Myrinet(ring(4, 2))
    assert network.settle() is not None
    before = network.tables[5].epoch
    network.kill(0)
    start_time = network.now
    assert network.settle() is not None
    assert leaders(network) == [1]
    assert network.tables[5].epoch > before
    assert network.now - start_time < 3 * Settings().patience


def test_a_partitioned_network_has_two_leaders_until_it_heals() -> None:
    cables = plug_cables([("a", "b"), *((number, "a" if number < 3 else "b") for number in range(6))])
    network = Myrinet(cables)
    assert network.settle() is not None
    network.cut(cables[0])
    assert network.settle() is not None
    assert leaders(network) == [0, 3]
    assert set(network.tables[1].paths) == {0, 2}
    network.join(cables[0])
    assert network.settle() is not None
    assert leaders(network) == [0]


def test_a_restarted_host_gets_its_routes_again_and_others_keep_theirs() -> None:
    network = Myrinet(star(6))
    assert network.settle() is not None
    epoch = network.tables[4].epoch
    network.boot(4)
    assert network.settle() is not None
    assert network.tables[4].epoch == epoch
    assert network.mappers[3].counters.tables_installed == 1


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_host_that_leaves_or_joins_is_removed_or_added_without_another_exploration(hosts: int) -> None:
    network = Myrinet(ring(4, hosts), loss=0.01, seed=5)
    assert network.settle() is not None
    leader = network.mappers[0]
    explorations = leader.counters.explorations
    network.kill(hosts + 1)
    assert network.settle() is not None
    network.boot(hosts + 1)
    assert network.settle() is not None
    assert leader.counters.explorations == explorations
    assert leader.counters.changes >= 2


def test_a_short_interruption_does_not_change_the_map() -> None:
    network = Myrinet(ring(4, 1))
    assert network.settle() is not None
    cable = next(cable for cable in network.cables if 2 in (cable[0][0], cable[1][0]))
    leader = network.mappers[0]
    for _ in range(12):  # at different phases of the checks, about 105 ms apart
        network.cut(cable)
        network.run(80 * MILLISECOND)
        network.join(cable)
        network.run(83 * MILLISECOND)
    assert leader.counters.silent
    assert leader.counters.changes == 0
    assert network.mappers[2].counters.tables_installed == 1


def test_a_mapper_that_is_cut_off_for_a_short_time_keeps_its_routes() -> None:
    network = Myrinet(ring(4, 1), settings=Settings(patience=200 * MILLISECOND, stagger=1))
    assert network.settle() is not None
    cable = next(cable for cable in network.cables if 2 in (cable[0][0], cable[1][0]))
    installed = network.mappers[2].counters.tables_installed
    network.cut(cable)
    network.run(300 * MILLISECOND)
    network.join(cable)
    assert network.settle() is not None
    assert network.mappers[2].counters.elections
    assert all(table.paths for table in network.tables.values())
    assert network.mappers[2].counters.tables_installed <= installed + 1


def test_a_vanished_switch_or_a_moved_host_triggers_another_exploration() -> None:
    network = Myrinet(ring(4, 1))
    assert network.settle() is not None
    leader = network.mappers[0]
    network.fail("s2")
    assert network.settle() is not None
    assert leader.counters.explorations == 2
    cable = next(cable for cable in network.cables if 3 in (cable[0][0], cable[1][0]))
    network.cut(cable)
    network.join(((3, 0), (cable[1][0], 7)))
    assert network.settle() is not None


def test_two_hosts_with_exchanged_cables_are_mapped_at_their_new_ports() -> None:
    network = Myrinet(star(6))
    assert network.settle() is not None
    (first, second) = cables = [network.cables[3], network.cables[4]]
    for cable in cables:
        network.cut(cable)
    network.join((first[0], second[1]))
    network.join((second[0], first[1]))
    assert network.settle() is not None


def test_a_leader_that_finds_later_tables_distributes_even_later_ones() -> None:
    network = Myrinet(star(4))
    assert network.settle() is not None
    network.mappers[2].table = network.tables[2] = Table(50, 7, {})
    assert network.settle() is not None
    assert {table.version for table in network.tables.values()} == {(51, 0)}


def test_lost_parts_of_tables_are_resent_without_another_exploration() -> None:
    lossy = Myrinet(star(8), loss=0.2, seed=3, settings=Settings(watch=20 * SECOND, patience=100 * SECOND, chunk=530))
    assert lossy.settle(2 * SECOND) is not None
    assert lossy.mappers[0].counters.parts_sent > 7
    assert not lossy.mappers[0].counters.tables_given_up


def test_mappers_that_may_not_lead_wait_for_one_that_may() -> None:
    network = Myrinet(star(4), leaders=[3])
    assert network.settle() is not None
    assert leaders(network) == [3]
    leaderless = Myrinet(star(4), leaders=[])
    leaderless.run(5 * SECOND)
    assert leaderless.probes_sent() == 0


def test_an_unconnected_nic_has_a_table_without_routes_until_it_is_connected() -> None:
    network = Myrinet([], hosts=[0, 1])
    assert network.settle() is not None
    assert network.tables[0].paths == {}
    network.join(((0, 0), (1, 0)))
    assert network.settle() is not None
    assert set(network.tables[1].paths) == {0}


@pytest.mark.parametrize("reporter", [0, 2])
def test_a_hint_from_a_transport_is_faster_than_the_next_check(reporter: int) -> None:
    cables = ring(4, 2)
    network = Myrinet(cables, settings=Settings(watch=20 * SECOND, patience=100 * SECOND))
    assert network.settle() is not None
    network.cut(cables[2])
    network.run(1 * SECOND)
    assert not network.is_mapped(network.mappers)
    network.hint(reporter, 5)
    assert network.settle(1 * SECOND) is not None


def test_a_hint_about_an_unknown_host_is_not_sent() -> None:
    network = Myrinet(star(3), settings=Settings(watch=20 * SECOND, patience=100 * SECOND))
    assert network.settle() is not None
    network.hint(2, 77)
    network.run(1 * SECOND)
    assert network.mappers[2].counters.hints_sent == network.mappers[0].counters.hints_received == 0


def test_a_network_is_explored_periodically() -> None:
    network = Myrinet(star(3), settings=Settings(refresh=1 * SECOND))
    network.run(5 * SECOND)
    leader = network.mappers[0].counters
    assert 4 <= leader.explorations <= 5
    assert leader.changes == 0
    assert network.tables[0].epoch == 1


def test_a_probe_of_another_nic_with_its_number_is_counted() -> None:
    single = SingleMapper(5)
    other_probe = add_envelope(codec.pack_frame(BROADCAST, address(6), codec.KIND_PROBE, 5, 5, 1, 1, 0, 0, 0, 0), b"")
    single.mapper.receive(0, other_probe)
    assert single.mapper.counters.strangers == 1
    assert not single.sent


def test_a_probe_is_answered_on_its_return_route_and_reports_the_routes() -> None:
    single = SingleMapper(5)
    single.mapper.receive(7, frame_of(codec.KIND_PROBE, 2, number=33, payload=bytes((0x83, 0xBF, 0x80))))
    frame = single.sent[0]
    assert frame[14:17] == bytes((0x80, 0x81, 0xBD))
    destination, source_address, kind, source, leader, incarnation, number, *_ = codec.unpack_frame(
        frame[:14] + frame[17:-1]
    )
    assert (destination, source_address) == (address(2), address(5))
    assert (kind, source, leader, incarnation, number) == (codec.KIND_ANSWER, 5, 2, 1, 33)
    assert single.mapper.leader == 2


def test_a_mapper_notifies_a_worse_leader_of_the_better_one_and_the_better_one_of_it() -> None:
    single = SingleMapper(5)
    single.mapper.receive(0, frame_of(codec.KIND_PROBE, 2))
    single.mapper.receive(50 * MILLISECOND, frame_of(codec.KIND_PROBE, 4))
    hint, answer = (codec.unpack_frame(frame[:-1]) for frame in single.sent[1:])
    _, _, kind, *_ = hint
    assert kind == codec.KIND_HINT
    _, _, kind, source, leader, *_ = answer
    assert (kind, source, leader) == (codec.KIND_ANSWER, 5, 2)
    assert single.mapper.leader == 2


def test_a_mapper_that_learns_of_a_worse_leader_leads_at_once() -> None:
    single = SingleMapper(5)
    single.mapper.receive(0, frame_of(codec.KIND_PROBE, 9))
    assert single.mapper.is_leading
    _, _, kind, source, leader, *_ = codec.unpack_frame(single.sent[0][:-1])
    assert (kind, source, leader) == (codec.KIND_ANSWER, 5, 5)


def test_a_mapper_that_leads_before_its_start_is_not_elected_again() -> None:
    mapper = SingleMapper(2, starts=False).mapper
    mapper.receive(0, frame_of(codec.KIND_PROBE, 9))
    mapper.start(1)
    assert mapper.is_leading
    for _ in range(100):  # while its probes are in flight
        assert mapper.deadline is not None
        now = mapper.deadline
        mapper.on_timer(now)
        assert mapper.deadline > now
    assert mapper.counters.elections == 1


def test_a_mapper_that_learns_of_a_better_leader_before_it_starts_follows_it() -> None:
    single = SingleMapper(2, starts=False)
    single.mapper.receive(0, frame_of(codec.KIND_PROBE, 1))
    single.mapper.start(1)
    single.run(single.mapper.settings.patience)
    assert single.mapper.leader == 1
    assert single.mapper.counters.elections == 0


def test_a_probe_of_another_incarnation_is_not_taken_for_an_answer() -> None:
    single = SingleMapper(5)
    single.run(5 * Settings().stagger)
    _, _, kind, _, _, _, number, *_ = codec.unpack_frame(single.sent[0][:-1])
    assert kind == codec.KIND_PROBE
    single.mapper.receive(1, frame_of(codec.KIND_PROBE, 5, incarnation=2, number=number))
    assert single.mapper.counters.strangers == 1
    assert not single.mapper.counters.answers_received
    single.mapper.receive(1, single.sent[0])
    assert single.mapper.counters.answers_received == 1


def test_contradictory_replies_restart_the_exploration() -> None:
    single = SingleMapper(0)
    single.run(0)
    while not single.mapper.counters.contradictions:
        for raw in list(single.sent):
            frame = raw[:14] + raw[14:].lstrip(bytes(range(0x80, 0x100)))
            _, _, kind, *_, number, _, _, _, _, payload = codec.unpack_frame(frame[:-1])
            single.sent.remove(raw)
            if kind == codec.KIND_PROBE and payload:  # every port leads to one host
                single.mapper.receive(1, frame_of(codec.KIND_ANSWER, 7, number=number))
            elif kind == codec.KIND_LOOP:
                single.mapper.receive(1, add_envelope(frame[:-1], b""))
        single.run(single.mapper.deadline or 0)
    single.run(1 * SECOND)
    assert single.mapper.counters.explorations == 2


def test_a_rumour_of_a_better_leader_is_believed_for_a_limited_time() -> None:
    single = SingleMapper(5)
    start_time = 5 * Settings().stagger
    single.run(start_time)
    assert single.mapper.is_leading
    single.mapper.receive(start_time, frame_of(codec.KIND_ANSWER, 9, leader=1, number=1))
    assert not single.mapper.is_leading
    single.run(start_time + Settings().rumour - 1)
    assert not single.mapper.is_leading
    single.run(2 * start_time + Settings().rumour)
    assert single.mapper.is_leading


def test_a_table_of_a_mapper_other_than_the_leader_is_rejected() -> None:
    single = SingleMapper(5)
    single.mapper.receive(0, frame_of(codec.KIND_PROBE, 2))
    fields = {"epoch": 9, "part": 0, "parts": 1, "payload": b"\0"}
    single.mapper.receive(1, frame_of(codec.KIND_TABLE, 3, author=3, **fields))
    assert single.mapper.table is None
    single.mapper.receive(2, frame_of(codec.KIND_TABLE, 2, author=2, **fields))
    assert single.mapper.table is not None
    assert single.mapper.table.version == (9, 2)


def test_a_table_is_installed_when_all_parts_have_arrived_in_any_order() -> None:
    single = SingleMapper(5)
    entries = [bytes((0, number)) + address(number) + bytes((1, 0x81)) for number in (1, 2, 3)]
    for part in (2, 0, 2, 0):
        single.mapper.receive(
            0, frame_of(codec.KIND_TABLE, 1, author=1, epoch=4, part=part, parts=3, payload=b"\0" + entries[part])
        )
    assert not single.tables
    single.mapper.receive(
        0, frame_of(codec.KIND_TABLE, 1, author=1, epoch=4, part=1, parts=3, payload=b"\0" + entries[1])
    )
    assert len(single.tables) == 1
    table = single.mapper.table
    assert table is not None
    assert sorted(table.paths) == [1, 2, 3]
    assert len(single.sent) == 5  # each arrival is acknowledged


def test_an_earlier_table_of_the_leader_is_acknowledged_and_not_installed() -> None:
    single = SingleMapper(5)
    entries = b"\0\0\2" + address(2) + b"\0"
    for epoch, payload in ((0xFFFF_FFFF, b"\0"), (1, entries), (0xFFFF_FFFF, b"\0")):
        single.mapper.receive(0, frame_of(codec.KIND_TABLE, 1, author=1, epoch=epoch, parts=1, payload=payload))
    assert len(single.tables) == 2
    assert single.mapper.table is not None
    assert list(single.mapper.table.paths) == [2]
    assert len(single.sent) == 3


def test_a_new_epoch_is_later_than_every_known_one() -> None:
    single = SingleMapper(5)
    for epoch in (3, 0xFFFF_FFF0, 0x7000_0000, 0xFFFF_FFFF):
        single.mapper.receive(0, frame_of(codec.KIND_ANSWER, 9, leader=9, epoch=epoch, author=9))
    single.run(1 * SECOND)
    assert single.mapper.table is not None
    assert single.mapper.table.version == (0x7000_0001, 5)


@pytest.mark.parametrize(
    ("frame", "counter"),
    [
        (b"", "malformed"),
        (frame_of(codec.KIND_PROBE, 2)[:-1], "corrupt"),
        (frame_of(codec.KIND_PROBE, 2)[:30] + b"?" + frame_of(codec.KIND_PROBE, 2)[31:], "corrupt"),
        (add_envelope(codec.pack_frame(BROADCAST, address(2), 1, 2, 2, 1, 1, 0, 0, 0, 0), b"\x81"), "malformed"),
        (frame_of(codec.KIND_PROBE, 2, payload=b"\x01"), "malformed"),
        (frame_of(codec.KIND_PROBE, 2, destination=address(3)), "strangers"),
        (frame_of(codec.KIND_PROBE, NOBODY), "strangers"),
        (frame_of(codec.KIND_LOOP, 2), "strangers"),
        (frame_of(codec.KIND_TABLE, 2, author=2, parts=1), "malformed"),
        (frame_of(codec.KIND_TABLE, 2, author=2, part=1, parts=1, payload=b"\0"), "malformed"),
        (frame_of(codec.KIND_TABLE, 2, author=3, parts=1, payload=b"\0"), "malformed"),
        (frame_of(codec.KIND_TABLE, 2, author=2, parts=1, payload=b"\0\0\1"), "malformed"),
        (frame_of(codec.KIND_TABLE, 2, author=2, parts=1, payload=b"\0\0\1" + bytes(6) + b"\2\x80"), "malformed"),
        (frame_of(codec.KIND_TABLE, 2, author=2, parts=1, payload=b"\0\0\1" + bytes(6) + b"\1\x00"), "malformed"),
    ],
)
def test_invalid_frames_are_dropped_and_counted(frame: bytes, counter: str) -> None:
    single = SingleMapper(5)
    single.mapper.receive(0, frame)
    assert single.mapper.counter_values()[counter] == 1
    assert not single.sent
    assert single.mapper.leader is None


@given(
    st.lists(
        st.tuples(
            st.integers(1, 6),
            st.sampled_from([2, 5, 9, NOBODY]),
            st.integers(0, 0xFFFF),
            st.sampled_from([0, 1, 0x7FFF_FFFF, 0xFFFF_FFFF]),
            st.integers(0, 3),
            st.integers(0, 3),
            st.binary(max_size=20),
        ),
        max_size=20,
    )
)
def test_no_frame_disturbs_a_mapper(frames: list[tuple[int, int, int, int, int, int, bytes]]) -> None:
    single = SingleMapper(5)
    for now, (kind, source, leader, epoch, part, parts, payload) in enumerate(frames):
        fields = {"leader": leader, "number": now, "epoch": epoch, "author": source, "part": part, "parts": parts}
        single.mapper.receive(now * MILLISECOND, frame_of(kind, source, payload=payload, **fields))
        single.run(now * MILLISECOND)
    single.run(5 * SECOND)
    assert single.mapper.is_leading
