"""Frames through Myrinet switches: times, channels held while blocked, and no silent loss."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import UnsupportedError
from testbed.fabric.direction import LinkDirection
from testbed.fabric.myrinet.route import append_crc, is_intact, route_byte, strip_route_byte
from testbed.fabric.myrinet.settings import Settings
from testbed.fabric.myrinet.switch import CAUSES
from testbed.fabric.myrinet.worm import UNKNOWN, Hop, Worm, bytes_in, end_of, ends_of
from testbed.fates.headers import standard_fields
from testbed.fates.records import Record
from testbed.fates.rules import RuleSet
from testbed.fates.stage import FateOptions
from testbed.spec.layout import Impairment
from tests.unit.fabric.myrinet_networks import HEAD, HOP, TYPE, End, MyrinetNetwork, frame, mark_of, star, wire_time

TIMEOUT = Settings().timeout
SLACK = Settings().slack


def line(switches: int, cables: int = 1) -> list[tuple[End, End]]:
    """Return cables of switches s1, s2, ..., port 8 to port 7 of the next, with NICs n<switch><port> at ports 1 to 4."""
    trunk = [((f"s{index}", 8), (f"s{index + 1}", 7)) for index in range(1, switches)]
    nics = [((f"n{index}{port}", 0), (f"s{index}", port)) for index in range(1, switches + 1) for port in range(1, 5)]
    return nics + trunk[:cables] + trunk[cables:]


def route_along(source: int, destination: int, switches: int) -> list[int]:
    """Return the route from port `source` of the first switch to port `destination` of the last."""
    if switches == 1:
        return [destination - source]
    return [8 - source, *[1] * (switches - 2), destination - 7]


# Frames without contention


@pytest.mark.parametrize("switches", [1, 2, 3, 7])
@pytest.mark.parametrize("size", [4, 1000, 8192])
def test_cut_through_switches_add_their_hop_time_and_no_transmission_time(switches: int, size: int) -> None:
    net = MyrinetNetwork(line(switches))
    sent = frame(route_along(1, 2, switches), size)
    net.send(0, "n11", sent)
    net.run()
    ((time, _),) = net.arrivals[f"n{switches}2"]
    assert time == wire_time(sent) + switches * HOP


def test_every_cable_adds_its_delay_and_the_slowest_link_its_rate() -> None:
    slow = Impairment(delay=2_000, rate=100_000_000)
    net = MyrinetNetwork(line(3), {"s1:8--s2:7": slow})
    sent = frame(route_along(1, 2, 3), 1000)
    net.send(0, "n11", sent)
    net.run()
    ((time, _),) = net.arrivals["n32"]
    slowest = wire_time(sent[:-1], 100_000_000)  # one byte of the route has been consumed there
    assert 0 <= time - (slowest + 2_000 + 3 * HOP) < wire_time(HEAD + b"1") + 3


def test_a_switch_consumes_one_byte_of_the_route_and_corrects_the_crc() -> None:
    net = MyrinetNetwork(line(3))
    net.send(0, "n11", frame([7, 1, -6], 100, mark=9))
    net.run()
    ((_, arrived),) = net.arrivals["n31"]
    assert arrived == append_crc(HEAD, TYPE + bytes([0, 0, 0, 9]) + bytes(96))


def test_a_route_of_delta_0_returns_a_frame_to_its_sender() -> None:
    net = MyrinetNetwork(line(2))
    net.send(0, "n11", frame([7, 0, -7], mark=1), frame([0], mark=2))
    net.run()
    assert sorted(mark_of(arrived) for _, arrived in net.arrivals["n11"]) == [1, 2]


def test_an_unused_rest_of_a_route_arrives_at_the_nic() -> None:
    net = MyrinetNetwork(star(2))
    net.send(0, "n1", frame([1, 3]))
    net.run()
    assert [arrived[14] for _, arrived in net.arrivals["n2"]] == [route_byte(3)]


@pytest.mark.parametrize(
    ("steps", "cause"), [([], "route_used_up"), ([7], "no_port"), ([-2], "no_port"), ([5], "no_cable")]
)
def test_a_frame_to_an_unconnected_port_is_counted_and_does_not_block(steps: list[int], cause: str) -> None:
    net = MyrinetNetwork(star(4)[1:])
    net.send(0, "n2", frame(steps, 4000), frame([1], mark=1))
    net.run()
    assert [(name, port, reason) for _, name, port, reason in net.dropped] == [("s", 2, cause)]
    assert net.network.switch_counters["s"] == {**dict.fromkeys(CAUSES, 0), cause: 1}
    assert [mark_of(arrived) for _, arrived in net.arrivals["n3"]] == [1]


@pytest.mark.parametrize("size", range(len(HEAD) + 3))
def test_a_frame_that_is_cut_short_anywhere_is_dropped(size: int) -> None:
    net = MyrinetNetwork(star(2))
    net.send(0, "n1", frame([1])[:size])
    net.run()
    assert net.counter("route_used_up") == (size < 16)
    assert len(net.arrivals["n2"]) == (size >= 16)


# Blocking


@pytest.mark.parametrize(("size", "holds"), [(1000, True), (20, False)])
def test_a_blocked_frame_holds_its_links_until_its_end_fits_into_the_inputs_ahead(size: int, holds: bool) -> None:
    """The frame waits at s2 for the output to n21; the next frame of n11 leaves s1 by another port."""
    net = MyrinetNetwork(line(2))
    first = frame([-1], 8000)
    net.send(0, "n22", first)
    net.send(1_000, "n11", frame(route_along(1, 1, 2), size, mark=1), frame([2], 20, mark=2))
    net.run()
    ((time, _),) = net.arrivals["n13"]
    assert (time > wire_time(first)) == holds
    assert len(net.arrivals["n21"]) == 2


def test_a_link_holds_as_much_of_a_blocked_frame_as_the_input_and_the_cable() -> None:
    """A frame that just fits releases the link, and one that is a byte longer does not."""
    delay = 1_000
    window = SLACK + bytes_in(2 * delay, 1_280_000_000)
    overhead = 1 + len(TYPE) + 1
    for size, is_free in ((window - overhead, True), (window - overhead + 1, False)):
        net = MyrinetNetwork(star(4), {"n1:0--s:1": Impairment(delay=delay)})
        net.send(0, "n4", frame([-1], 60_000))
        net.send(10_000, "n1", frame([2], size))
        net.run(until=200_000)
        channel = net.channels[("n1", 0), ("s", 1)]
        assert (channel.free_at != UNKNOWN) == is_free
        net.run()
        assert len(net.arrivals["n3"]) == 2


def test_a_nic_is_notified_when_its_link_is_blocked_and_when_it_has_space_again() -> None:
    net = MyrinetNetwork(star(2))
    channel = net.channels[("n1", 0), ("s", 1)]
    notified: list[int] = []
    channel.on_space = notified.append
    first = frame([1], 1000)
    assert net.network.offer(0, channel, first)
    assert not net.network.offer(10, channel, frame([1], 1000))
    assert not net.network.offer(20, channel, frame([1], 1000))
    net.run()
    assert notified == [wire_time(first)]
    assert channel.entrance.counters.blocked == 2
    assert channel.entrance.counters.offered == 1


def test_four_senders_share_an_output_round_robin() -> None:
    net = MyrinetNetwork(star(5))
    for nic in (1, 2, 3, 4):
        net.send(0, f"n{nic}", *[frame([5 - nic], 1000, mark=nic)] * 50)
    net.run()
    order = [mark_of(arrived) for _, arrived in net.arrivals["n5"]]
    assert Counter(order) == dict.fromkeys((1, 2, 3, 4), 50)
    assert order == [1, 2, 3, 4] * 50
    assert not net.dropped
    assert sum(channel.entrance.counters.dropped for channel in net.channels.values()) == 0
    # The output is never idle: frames arrive at intervals of their transmission time.
    frame_time = wire_time(frame([1], 1000)[:-1])
    assert all(later - earlier <= frame_time + 1 for (earlier, _), (later, _) in pairwise(net.arrivals["n5"]))


def test_senders_of_different_sizes_get_as_many_frames_each() -> None:
    net = MyrinetNetwork(star(3))
    net.send(0, "n1", *[frame([2], 4000, mark=1)] * 20)
    net.send(0, "n2", *[frame([1], 40, mark=2)] * 20)
    net.run()
    order = [mark_of(arrived) for _, arrived in net.arrivals["n3"]]
    assert all(abs(order[:count].count(1) - order[:count].count(2)) <= 1 for count in range(40))


def test_traffic_without_contention_is_not_delayed() -> None:
    net = MyrinetNetwork(star(4))
    net.send(0, "n1", frame([1], 8000))
    net.send(0, "n3", frame([1], 8000))
    net.run()
    assert net.arrivals["n2"][0][0] == net.arrivals["n4"][0][0] == wire_time(frame([1], 8000)) + HOP


# Deadlock


def ring(switches: int = 4) -> list[tuple[End, End]]:
    """Return cables of a ring: port 2 of each switch to port 1 of the next, and a NIC at port 3 of each."""
    ring_cables = [((f"s{index}", 2), (f"s{index % switches + 1}", 1)) for index in range(1, switches + 1)]
    return ring_cables + [((f"n{index}", 0), (f"s{index}", 3)) for index in range(1, switches + 1)]


def test_frames_that_deadlock_a_ring_are_truncated_after_the_timeout() -> None:
    """Three frames are truncated, which frees the path of the fourth."""
    net = MyrinetNetwork(ring())
    for nic in (1, 2, 3, 4):
        net.send(0, f"n{nic}", frame([-1, 1, 2], 4000, mark=nic), frame([-1, 2], 1000, mark=10 + nic))
    net.run(until=TIMEOUT)
    assert not net.dropped
    assert not any(net.arrivals.values())
    end = net.run()
    assert [drop[1:] for drop in net.dropped] == [(f"s{number}", 1, "truncated") for number in (2, 3, 4)]
    assert {time for time, *_ in net.dropped} == {TIMEOUT + 2 * HOP}
    intact = {nic: [mark_of(arrived) for _, arrived in net.arrivals[nic] if is_intact(arrived)] for nic in net.arrivals}
    assert intact == {"n1": [14], "n2": [4, 11], "n3": [12], "n4": [13]}
    remnants = [arrived for nic in net.arrivals for _, arrived in net.arrivals[nic] if not is_intact(arrived)]
    assert [len(arrived) for arrived in remnants] == [
        len(HEAD) + SLACK // 2 - 2
    ] * 3  # two more switches have consumed their route bytes
    assert end < TIMEOUT + 50_000
    net.send(end, "n1", frame([-1, 1, 2], 4000, mark=99))
    net.run()
    assert mark_of(net.arrivals["n3"][-1][1]) == 99


def test_short_frames_that_deadlock_a_ring_are_dropped() -> None:
    """Frames this short hold no channel, so truncating them would free none."""
    net = MyrinetNetwork(ring(), settings=Settings(hop=100, slack=20))
    for nic in (1, 2, 3, 4):
        net.send(0, f"n{nic}", *[frame([-1, 1, 1, 1, 1, 1, 1, 2], 4, mark=nic)] * 200)
    net.run()
    causes = Counter(reason for *_, reason in net.dropped)
    delivered = sum(map(len, net.arrivals.values()))
    assert causes["swallowed"] > 0
    # The rest of some truncated frames ends within the route.
    assert delivered + causes["swallowed"] + causes["route_used_up"] == 800


# Impairments


def test_losses_equal_those_of_any_link_and_do_not_block() -> None:
    net = MyrinetNetwork(star(2), {"n2:0--s:2": Impairment(loss=0.3)})
    net.send(0, "n1", *[frame([1], 500, mark=number) for number in range(100)])
    net.run()
    channel = net.channels[("s", 2), ("n2", 0)]
    arrived = [mark_of(frame) for _, frame in net.arrivals["n2"]]
    assert arrived == [number for number in range(100) if number + 1 not in {record.n for record in net.log}]
    assert channel.entrance.counters.loss == len(net.log) == 100 - len(arrived) > 10
    plain_log: list[Record] = []
    direction = LinkDirection("n2:0--s:2", "backward", Impairment(loss=0.3), FateOptions(seed=7, log=plain_log.append))
    for number in range(100):
        direction.offer(number, strip_route_byte(frame([1], 500, mark=number)))
    assert net.log == plain_log


def test_a_frame_corrupted_on_one_link_stays_corrupted_over_three_switches() -> None:
    net = MyrinetNetwork(line(4), {"s1:8--s2:7": Impairment(corrupt=1.0)})
    net.send(0, "n11", *[frame(route_along(1, 1, 4), 500)] * 40)
    net.run()
    arrived = [frame for _, frame in net.arrivals["n41"]]
    covered = [
        frame_bytes for frame_bytes in arrived if frame_bytes[: len(HEAD)] == HEAD
    ]  # the CRC-8 covers no Ethernet header
    assert len(covered) > 30
    assert not any(map(is_intact, covered))
    assert len(net.log) == 40


def test_a_cut_cable_drops_arriving_frames_and_unblocks_those_behind_it() -> None:
    net = MyrinetNetwork(line(2))
    net.channels[("s1", 8), ("s2", 7)].entrance.is_cut = True
    net.send(0, "n11", frame(route_along(1, 1, 2), 4000), frame([1], 100, mark=5))
    net.run()
    assert net.channels[("s1", 8), ("s2", 7)].entrance.lost == 1
    assert [mark_of(frame) for _, frame in net.arrivals["n12"]] == [5]


def test_a_frame_delayed_by_a_rule_is_overtaken_and_arrives_at_its_time() -> None:
    rules = RuleSet(standard_fields())
    net = MyrinetNetwork(star(2), rules=rules)
    rules.add(0, "delay 1ms nth(1)")
    net.send(0, "n1", *[frame([1], 100, mark=number) for number in range(3)])
    net.run()
    marks = [mark_of(frame) for _, frame in net.arrivals["n2"]]
    assert sorted(marks) == [0, 1, 2]
    assert marks[-1] == 0
    assert net.arrivals["n2"][-1][0] >= 1_000_000
    assert all(channel.in_flight == 0 for channel in net.channels.values())


def test_a_duplicated_frame_arrives_twice_in_succession() -> None:
    net = MyrinetNetwork(star(2), {"n1:0--s:1": Impairment(duplicate=1.0)})
    net.send(0, "n1", frame([1], 100, mark=1), frame([1], 100, mark=2))
    net.run()
    assert Counter(mark_of(frame) for _, frame in net.arrivals["n2"]) == {1: 2, 2: 2}


@pytest.mark.parametrize("key", ["reorder", "jitter", "queue", "overhead"])
def test_an_ordered_link_without_a_queue_rejects_impairments_that_need_one(key: str) -> None:
    impairment = {"reorder": Impairment(delay=5, reorder=0.1), "jitter": Impairment(delay=5, jitter=1)}
    with pytest.raises(UnsupportedError, match=key):
        MyrinetNetwork(star(2), {"n1:0--s:1": impairment.get(key) or Impairment(**{key: 9000})})


# Random traffic


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[tuple[End, End]], dict[str, tuple[str, int]], dict[str, dict[str, int]]]:
    """Draw a tree of switches: cables, the port of each NIC, and the output ports of each switch towards the others."""
    count = draw(st.integers(1, 5))
    ports_used: Counter[str] = Counter()
    cables: list[tuple[End, End]] = []
    links: list[tuple[End, End]] = []

    def port(switch: int) -> End:
        ports_used[f"s{switch}"] += 1
        return f"s{switch}", ports_used[f"s{switch}"]

    for switch in range(1, count):
        links.append((port(draw(st.integers(0, switch - 1))), port(switch)))
    cables += links
    attachments: dict[str, tuple[str, int]] = {}
    for nic in range(draw(st.integers(2, 6))):
        end = port(draw(st.integers(0, count - 1)))
        attachments[f"n{nic}"] = end
        cables.append(((f"n{nic}", 0), end))
    return cables, attachments, _output_ports(links, count)


def _output_ports(links: list[tuple[End, End]], count: int) -> dict[str, dict[str, int]]:
    output_ports: dict[str, dict[str, int]] = {f"s{number}": {} for number in range(count)}
    for _ in range(count):
        for a, b in [*links, *[(b, a) for a, b in links]]:
            for destination in (b[0], *output_ports[b[0]]):
                if destination != a[0]:
                    output_ports[a[0]].setdefault(destination, a[1])
    return output_ports


Sending = list[tuple[int, int, int, int]]
"""Time, number of the sending NIC, number of the receiving NIC, bytes."""
sendings = st.lists(
    st.tuples(st.integers(0, 20_000), st.integers(0, 5), st.integers(0, 5), st.sampled_from([4, 30, 90, 300, 2000])),
    max_size=40,
)
delays = st.sampled_from([0, 0, 50, 3_000])


@given(trees(), sendings, delays, st.sampled_from([1_280_000_000, 100_000_000]), st.sampled_from([20, 80, 500]))
def test_in_any_tree_any_traffic_arrives_intact_and_in_order(
    tree: tuple[list[tuple[End, End]], dict[str, tuple[str, int]], dict[str, dict[str, int]]],
    sending: Sending,
    delay: int,
    rate: int,
    slack: int,
) -> None:
    cables, attachments, output_ports = tree
    a, b = cables[0]
    impaired = {f"{a[0]}:{a[1]}--{b[0]}:{b[1]}": Impairment(delay=delay, rate=rate)}
    net = MyrinetNetwork(cables, impaired, Settings(slack=slack, hop=HOP))
    names = list(attachments)
    expected: dict[tuple[str, str], list[int]] = {}
    sent_bytes = 0
    for number, (time, source, destination, size) in enumerate(sorted(sending), 1):
        sender, receiver = names[source % len(names)], names[destination % len(names)]
        at, route = attachments[sender], []
        while at[0] != attachments[receiver][0]:
            out = output_ports[at[0]][attachments[receiver][0]]
            route.append(out - at[1])
            (at,) = [b if a == (at[0], out) else a for a, b in cables if (at[0], out) in (a, b)]
        route.append(attachments[receiver][1] - at[1])
        net.run(until=time)
        net.send(time, sender, frame(route, size, mark=number))
        expected.setdefault((sender, receiver), []).append(number)
        sent_bytes += size
    net.run()
    assert not net.dropped
    arrived: dict[str, list[int]] = {nic: [mark_of(frame) for _, frame in net.arrivals[nic]] for nic in names}
    assert all(is_intact(frame) for nic in names for _, frame in net.arrivals[nic])
    assert sum(len(frame) - len(HEAD) - 3 for nic in names for _, frame in net.arrivals[nic]) == sent_bytes
    for (_, receiver), numbers in expected.items():
        assert [number for number in arrived[receiver] if number in set(numbers)] == numbers
    assert sum(map(len, arrived.values())) == len(sending)
    assert all(channel.in_flight == 0 and not channel.requests for channel in net.channels.values())


@given(
    st.integers(3, 5),
    st.lists(
        st.tuples(st.integers(0, 5_000), st.integers(1, 5), st.integers(0, 6), st.sampled_from([4, 60, 700])),
        max_size=40,
    ),
)
def test_around_a_ring_every_frame_arrives_or_is_counted(switches: int, sending: Sending) -> None:
    """Routes around the complete ring sometimes deadlock."""
    net = MyrinetNetwork(ring(switches))
    for number, (time, nic, turns, size) in enumerate(sorted(sending), 1):
        net.run(until=time)
        net.send(time, f"n{(nic - 1) % switches + 1}", frame([-1, *[1] * turns, 2], size, mark=number))
    net.run()
    arrivals = sum(map(len, net.arrivals.values()))
    # The rest of a truncated frame may end within the route.
    assert arrivals + net.counter("swallowed") + net.counter("route_used_up") == len(sending)
    intact_count = sum(is_intact(frame_bytes) for arrived in net.arrivals.values() for _, frame_bytes in arrived)
    assert intact_count >= len(sending) - net.counter("swallowed") - net.counter("truncated")
    assert all(channel.in_flight == 0 and not channel.requests for channel in net.channels.values())
    for channel in net.channels.values():
        counters = channel.entrance.counters
        assert counters.offered == counters.delivered


# The schedule of the bytes


@given(st.data())
def test_a_channel_is_free_when_the_last_byte_has_passed_byte_by_byte(data: st.DataObject) -> None:
    """Compare the closed form of `worm` with its inequalities solved byte by byte."""
    count = data.draw(st.integers(1, 4))
    size = data.draw(st.integers(2, 400))
    hop = data.draw(st.sampled_from([0, 100, 400]))
    slack = data.draw(st.integers(1, 120))
    rate_choices = st.sampled_from([1_280_000_000, 320_000_000, 10_000_000_000])
    rates = data.draw(
        st.one_of(rate_choices.map(lambda rate: [rate] * count), st.lists(rate_choices, min_size=count, max_size=count))
    )
    delays = [data.draw(st.sampled_from([0, 40, 900])) for _ in range(count)]
    windows = [
        max(slack, bytes_in(hop, rate)) + bytes_in(2 * delay, rate) for rate, delay in zip(rates, delays, strict=True)
    ]
    starts = [0]
    for index in range(1, count):
        starts.append(starts[-1] + delays[index - 1] + hop + data.draw(st.sampled_from([0, 0, 500, 5_000])))
    windows[-1] = 0  # the last channel ends at a NIC
    worm = Worm()
    for index in range(count):
        worm.add(Hop(worm, None, b"", size, starts[index], rates[index], delays[index], windows[index]))
    closed_form = ends_of(worm, hop)
    ends = []
    for index in range(count):
        ends.append(end_of(worm, hop))
        worm.hops[index].freed = ends[-1]
        worm.settled = index + 1
    expected = pass_times_of_bytes(size, starts, [8e9 / rate for rate in rates], delays, windows, hop)
    for first, second in zip(ends, expected, strict=True):
        assert abs(first - second) <= 8 * count + max(8e9 / rate for rate in rates) * count
    if closed_form is not None:
        assert len(set(rates)) == 1
        assert all(abs(first - second) <= count for first, second in zip(closed_form, ends, strict=True))


def pass_times_of_bytes(
    size: int, starts: list[int], times: list[float], delays: list[int], windows: list[int], hop: int
) -> list[float]:
    """Return when the last byte passes each channel, as the least fixed point of the inequalities."""
    count = len(starts)
    pass_times = [[starts[index] + times[index] * number for number in range(1, size + 1)] for index in range(count)]
    has_changed = True
    while has_changed:
        has_changed = False
        for index in range(count):
            for number in range(size):
                earliest = pass_times[index][number]
                if number:
                    earliest = max(earliest, pass_times[index][number - 1] + times[index])
                if index:
                    earliest = max(earliest, pass_times[index - 1][number] + delays[index - 1] + hop)
                if index + 1 < count and number - windows[index] >= 0:
                    earliest = max(earliest, pass_times[index + 1][number - windows[index]] + delays[index])
                if earliest > pass_times[index][number] + 1e-6:
                    pass_times[index][number] = earliest
                    has_changed = True
    return [pass_times[index][-1] for index in range(count)]
