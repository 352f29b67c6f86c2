"""Routes on a map, which are shortest up-down routes and free of deadlocks; route tables in parts; envelopes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.l2 import Ether

from protocols.core.malformed import MalformedError
from protocols.myrinet.envelope import add_envelope, crc8, remove_envelope, reverse_route, route_bytes, route_of
from protocols.myrinet.mapper import codec
from protocols.myrinet.mapper.frames import Mapping
from protocols.myrinet.mapper.network_map import Port, Topology
from protocols.myrinet.mapper.prober import Pacer
from protocols.myrinet.mapper.route_tables import PartialTable, Path, Table, paths_of, return_route_of, split_table
from protocols.myrinet.mapper.routes import Routing
from protocols.myrinet.mapper.settings import Settings
from tests.unit.protocols.mapper_networks import Cable, Myrinet, address, fat_tree, random_network

ROUTES = st.lists(st.integers(-32, 31), max_size=20).map(tuple)


def map_network(network: Myrinet) -> Topology:
    assert network.settle() is not None
    topology = network.mappers[0].topology
    assert topology is not None
    return topology


def test_routes_once_around_a_ring_would_deadlock() -> None:
    """Shows that the deadlock check of the other tests detects one."""
    ring_cables: list[Cable] = [((f"s{number}", 0), (f"s{(number + 1) % 4}", 1)) for number in range(4)]
    network = Myrinet([*ring_cables, *(((number, 0), (f"s{number}", 2)) for number in range(4))])
    map_network(network)
    assert not network.deadlock()
    for number in range(4):
        peer = (number + 2) % 4
        network.tables[number] = Table(9, 9, {peer: Path(route_bytes((-2, -1, 1)), address(peer))})
        assert network.leads_to(number, (-2, -1, 1))[0] == peer
    assert len(network.deadlock()) == 5


def build_topology(cables: Sequence[Cable]) -> Topology:
    """Return the map of these cables, made without exploration."""
    topology = Topology(0)
    numbers: dict[str | int, int] = {}
    for cable in cables:
        for name, _ in cable:
            if isinstance(name, str) and name not in numbers:
                numbers[name] = topology.add(())
    for (first, near_port), (second, far_port) in cables:
        port = Port(numbers[second], far_port)
        if isinstance(first, int):
            topology.attach(port, first)
        else:
            topology.connect(Port(numbers[first], near_port), port)
    return topology


@pytest.mark.parametrize("seeds", [range(first, first + 25) for first in range(0, 100, 25)])
def test_every_route_is_a_shortest_up_down_route(seeds: range) -> None:
    for seed in seeds:
        check_up_down_routes(build_topology(random_network(seed, max_nodes=24)))


def check_up_down_routes(topology: Topology) -> None:
    routing = Routing(topology)
    rank = routing.rank
    for source, (start, port) in topology.at.items():
        shortest = up_down_distances(topology, rank, start)
        for number, route in routing.routes(source).items():
            switches, entry = [start], Port(start, port)
            for delta in route[:-1]:
                end = topology.ends[entry.switch][entry.port + delta]
                assert isinstance(end, Port)
                entry = end
                switches.append(entry.switch)
            assert topology.ends[entry.switch][entry.port + route[-1]] == number
            ups = [rank[second] < rank[first] for first, second in pairwise(switches)]
            assert ups == sorted(ups, reverse=True)
            assert len(ups) == shortest[switches[-1]]


def up_down_distances(topology: Topology, rank: Sequence[int], start: int) -> dict[int, int]:
    """Return distances in cables by a forward search from one switch, unlike the code under test."""
    distances = {(start, False): 0}
    shortest = {start: 0}
    for state in (order := [(start, False)]):
        switch, is_down = state
        for end in topology.ends[switch].values():
            if isinstance(end, Port) and end.switch != switch:
                goes_down = rank[end.switch] > rank[switch]
                after = (end.switch, goes_down)
                if (goes_down or not is_down) and after not in distances:
                    distances[after] = distances[state] + 1
                    shortest.setdefault(end.switch, distances[after])
                    order.append(after)
    return shortest


def test_equally_short_routes_are_spread_over_the_cables() -> None:
    network = Myrinet(fat_tree())
    map_network(network)
    use_counts: Counter[tuple[str | int, int]] = Counter()
    for number, table in network.tables.items():
        for path in table.paths.values():
            use_counts.update(network.leads_to(number, route_of(path.route))[1][1:2])
    upward = [
        use_counts[port] for cable in network.cables for port in cable[:1] if str(cable[1][0]).startswith("spine")
    ]
    assert len(upward) == 16
    assert sum(upward) == 16 * 12
    assert min(upward) >= 4  # of 12 on average
    assert max(upward) <= 24


@given(ROUTES)
def test_a_route_is_decoded_as_encoded_and_reversing_twice_restores_it(route: tuple[int, ...]) -> None:
    assert route_of(route_bytes(route)) == route
    assert all(byte & 0xC0 == 0x80 for byte in route_bytes(route))
    if -32 not in route:
        assert reverse_route(reverse_route(route)) == route


def test_the_crc_has_polynomial_7() -> None:
    assert crc8(b"123456789") == 0xF4  # the check value of CRC-8/SMBUS in the catalogue of parametrised CRC algorithms


@given(st.binary(min_size=16, max_size=60).map(lambda rest: rest[:14] + b"\0\5" + rest[14:]), st.integers(0, 1 << 20))
def test_an_envelope_is_removed_and_a_flipped_bit_is_detected(frame: bytes, bit: int) -> None:
    assert remove_envelope(add_envelope(frame, b"")) == frame
    with pytest.raises(MalformedError, match="route"):
        remove_envelope(add_envelope(frame, b"\x81"))
    damaged_frame = bytearray(add_envelope(frame, b""))
    bit %= 8 * (len(damaged_frame) - 14)
    damaged_frame[14 + (bit >> 3)] ^= 1 << (bit & 7)
    with pytest.raises(MalformedError):
        remove_envelope(bytes(damaged_frame))


@given(
    st.dictionaries(
        st.integers(0, 0xFFFE), st.builds(Path, ROUTES.map(route_bytes), st.binary(min_size=6, max_size=6))
    ),
    ROUTES,
    st.integers(600, 1200),
    st.randoms(),
)
def test_a_table_is_restored_from_its_parts_in_any_order(
    paths: dict[int, Path], return_route: tuple[int, ...], max_size: int, rng: Random
) -> None:
    table = Table(7, 3, paths)
    numbered_parts = list(enumerate(split_table(table, return_route, max_size)))
    assert all(len(part) <= max_size for _, part in numbered_parts)
    assert all(return_route_of(part)[0] == route_bytes(return_route) for _, part in numbered_parts)
    rng.shuffle(numbered_parts)
    collected = PartialTable(table.version, len(numbered_parts))
    *incomplete, last = [collected.add(number, paths_of(part)) for number, part in numbered_parts]
    assert last == table
    assert not any(incomplete)


def test_a_probe_byte_by_byte() -> None:
    frame = add_envelope(
        codec.pack_frame(b"\xff" * 6, address(2), codec.KIND_PROBE, 2, 2, 7, 9, 0, 0, 0, 0, b"\x83"), b"\x83"
    )
    ethernet_header = "ffffffffffff 020000000002 88b6"
    header = "0005 01 0002 0002 00000007 00000009 00000000 0000 0000 0000 0001"
    check = codec.unpack_frame(bytes.fromhex(ethernet_header) + frame[15:-1])[-1]
    assert bytes(check) == b"\x83"
    assert frame[:42] == bytes.fromhex(ethernet_header + "83" + header)
    assert frame[46:47] == b"\x83"
    assert crc8(frame[14:]) == 0
    assert Ether(frame)[Mapping].number == 9


def test_scapy_decodes_only_mapping_packets_as_mapping() -> None:
    frame = remove_envelope(
        add_envelope(codec.pack_frame(address(1), address(2), codec.KIND_HINT, 2, 2, 7, 9, 0, 0, 0, 0), b"")
    )
    assert Ether(add_envelope(frame, b"\x81")).summary() == "Ether / Myrinet / Mapping HINT 9 of node 2"
    assert Mapping not in Ether(add_envelope(frame[:14] + b"\0\6" + frame[16:], b""))


@given(st.lists(st.integers(0, 500), min_size=1, max_size=60), st.integers(1, 100), st.integers(1, 10))
def test_a_pacer_passes_a_burst_and_then_the_mean_rate(steps: list[int], interval: int, burst: int) -> None:
    pacer = Pacer(interval, burst)
    now, passed_times = 0, []
    for step in steps:
        now += step
        free_at = pacer.next_send_time
        while pacer.take(now):
            assert now >= free_at
            passed_times.append(now)
            free_at = pacer.next_send_time
        assert now < pacer.next_send_time <= now + interval
    assert len(passed_times) >= burst
    for first in range(len(passed_times)):
        for last in range(first, len(passed_times)):
            assert passed_times[last] - passed_times[first] >= (last - first + 1 - burst) * interval


@pytest.mark.parametrize(
    "settings",
    [{"ports": 1}, {"ports": 33}, {"min_tries": 0}, {"min_tries": 5, "max_tries": 4}, {"window": 0}, {"chunk": 500}],
)
def test_an_invalid_setting_is_an_error(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"more|to"):
        Settings(**settings)
