"""Netem options are encoded as the kernel's header defines them, and read back unchanged."""

from __future__ import annotations

import itertools
import struct
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import UnsupportedError
from testbed.fates.jitter import SCALE, normal_table, pareto_table
from testbed.fates.text_files import BrokenFileError
from testbed.kernel import netem, netlink, netlink_messages, qdiscs, shapers
from testbed.kernel.netem import Options
from testbed.kernel.netlink import attributes
from testbed.spec.layout import Impairment

MTU = 1500
HEADERS = 16 + 20  # of netlink and of traffic control
MILLISECOND = 10**6


def payload(request: bytes, attribute: int = netlink.TCA_OPTIONS) -> bytes:
    return bytes(attributes(memoryview(request)[HEADERS:])[attribute])


def options(impairment: Impairment, **settings: object) -> Options:
    return netem.options_of(impairment, mtu=MTU, **settings)  # type: ignore[arg-type]


# The encoding


def test_a_request_has_the_layout_of_the_kernels_header() -> None:
    request = netem.request(
        7, Options(latency=640, jitter=128, limit=5, loss=6, gap=1, duplicate=8, reorder=9, seed=10)
    )
    length, kind, flags = struct.unpack_from("=IHH", request)
    assert (length, kind, flags) == (len(request), 36, 0x1 | 0x100 | 0x400)  # RTM_NEWQDISC; REQUEST, REPLACE, CREATE
    assert struct.unpack_from("=BxxxiII", request, 16) == (0, 7, 0x1_0000, 0xFFFF_FFFF)
    assert payload(request, netlink.TCA_KIND) == b"netem\0"
    raw = payload(request)
    assert struct.unpack_from("=6I", raw) == (10, 5, 6, 1, 8, 2)
    options_sent = {kind: bytes(value) for kind, value in attributes(memoryview(raw)[24:]).items()}
    assert options_sent == {
        1: struct.pack("=3I", 0, 0, 0),
        3: struct.pack("=2I", 9, 0),
        4: struct.pack("=2I", 0, 0),
        6: struct.pack("=IiIi", 0, 0, 0, 0),
        7: struct.pack("=I", 0),
        10: struct.pack("=q", 640),
        11: struct.pack("=q", 128),
        12: struct.pack("=qqiiqq", 0, 0, 0, 0, 0, 0),
        14: struct.pack("=Q", 10),
    }


def test_models_of_loss_are_nested_with_their_parameters_in_the_kernels_order() -> None:
    def model(netem_options: Options) -> dict[int, bytes]:
        return {kind: bytes(value) for kind, value in attributes(memoryview(loss_of(netem_options))).items()}

    def loss_of(netem_options: Options) -> bytes:
        return bytes(attributes(memoryview(payload(netem.request(7, netem_options)))[24:])[netem.TCA_NETEM_LOSS])

    assert model(Options(gemodel=(1, 2, 3, 4))) == {2: struct.pack("=4I", 1, 2, 3, 4)}


def test_encoding_does_not_depend_on_earlier_requests() -> None:
    """pyroute2 keeps encoding state in its message classes, which subclasses inherit."""
    earlier_options = Options(latency=640, seed=10, sizes=qdiscs.size_table(lambda size: size, MTU))
    netlink_messages.remove_qdisc(7)
    shapers.requests(7, shapers.Options(1000, 3000, 7, in_frames=True))
    request = netem.request(7, earlier_options)
    assert netem.decode(payload(request)) == replace(earlier_options, sizes=None)
    assert len(payload(request, netlink.TCA_STAB)) == 4 + 24 + 4 + 2 * (MTU + 14 + 4 + 1) + 2


U32 = st.integers(0, 2**32 - 1)
OPTIONS = st.builds(
    Options,
    latency=st.integers(0, 2**62),
    jitter=st.integers(0, 2**31 - 1),
    limit=U32,
    loss=U32,
    duplicate=U32,
    reorder=U32,
    gap=U32,
    corrupt=U32,
    rate=st.one_of(U32, st.integers(0, 2**63)),
    packet_overhead=st.integers(-(2**31), 2**31 - 1),
    cell_size=U32,
    cell_overhead=st.integers(-(2**31), 2**31 - 1),
    gemodel=st.one_of(st.just(()), st.tuples(U32, U32, U32, U32)),
    seed=st.one_of(st.none(), st.integers(0, 2**64 - 1)),
    table=st.lists(st.integers(-(2**15), 2**15 - 1), max_size=9).map(tuple),
)


@given(OPTIONS)
def test_encoded_options_are_decoded(sent: Options) -> None:
    assert netem.decode(payload(netem.request(7, sent))) == sent


def test_the_kernels_report_is_compared_without_the_attributes_that_it_omits() -> None:
    requested = options(Impairment(delay=1, jitter=1, rate=8, minimum_frame=60))
    assert requested.table
    assert requested.sizes is not None
    assert requested.reportable == netem.decode(payload(netem.request(7, requested.reportable)))


# Probabilities


@given(st.floats(0, 1))
def test_a_probability_is_rounded_to_the_nearest_share_but_never_to_0_or_1(probability: float) -> None:
    share = netem.share(probability)
    assert abs(Fraction(share, 2**32 - 1) - Fraction(probability)) <= Fraction(1, 2**32 - 1)
    assert (share == 0) is (probability == 0)
    assert (share == 2**32 - 1) is (probability == 1)
    if 2**-32 < probability < 1 - 2**-32:
        assert abs(share - Fraction(probability) * (2**32 - 1)) <= Fraction(1, 2) + Fraction(1, 2**16)


@pytest.mark.parametrize(
    ("probability", "expected"),
    [(0.0, 0), (1e-30, 1), (2**-32, 1), (0.5, 2**31), (1 - 1e-12, 2**32 - 2), (1.0, 2**32 - 1)],
)
def test_only_the_probabilities_0_and_1_are_encoded_as_never_and_always(probability: float, expected: int) -> None:
    assert netem.share(probability) == expected


def test_gilbert_elliotts_third_parameter_is_complemented() -> None:
    """The kernel takes the probability that the bad state passes a frame; a description gives that of a loss."""
    assert options(Impairment(gemodel=(0.25, 0.75, 1.0, 0.0))).gemodel == (2**30, 3 * 2**30 - 1, 0, 0)
    assert options(Impairment(gemodel=(0.0, 1.0, 0.25, 0.5))).gemodel == (0, 2**32 - 1, 3 * 2**30 - 1, 2**31)


# Options of an impairment


def test_an_impairment_is_converted_to_netems_units() -> None:
    impairment = Impairment(
        delay=5 * MILLISECOND + 1,
        jitter=MILLISECOND + 1,
        distribution="normal",
        rate=400 * 10**9 + 8,
        queue_frames=10,
        loss=0.5,
        corrupt=0.25,
        duplicate=0.125,
        reorder=0.0625,
        minimum_frame=60,
        overhead=24,
        cell_size=48,
        cell_overhead=5,
    )
    encoded = options(impairment, seed=7)
    wire = -(-(1514 + 24) // 48) * 53
    assert replace(encoded, table=(), sizes=None) == Options(
        latency=5_000_001,
        jitter=1_000_001,
        limit=10 + 1 + -(-impairment.rate * 6_000_002 // (8 * 10**9 * wire)),
        loss=2**31,
        duplicate=2**29,
        reorder=2**28,
        gap=1,
        corrupt=2**30,
        rate=50_000_000_001,
        packet_overhead=24,
        cell_size=48,
        cell_overhead=5,
        seed=7,
    )
    assert encoded.table == normal_table()
    assert encoded.sizes is not None
    assert [encoded.sizes.sizes[size] for size in (14, 59, 60, 61, 1514)] == [60, 60, 60, 61, 1514]


def test_netem_gets_only_the_requested_options() -> None:
    assert options(Impairment()) == Options(limit=1000)
    without_rate = options(Impairment(delay=1, minimum_frame=60, overhead=24, cell_size=48, cell_overhead=5))
    assert without_rate == Options(latency=1, limit=1000)


@pytest.mark.parametrize(("rate", "expected"), [(1, 1), (7, 1), (8, 1), (20, 2), (21, 3), (10**9, 125_000_000)])
def test_a_rate_is_the_nearest_in_bytes_and_never_unlimited(rate: int, expected: int) -> None:
    assert options(Impairment(rate=rate)).rate == expected


# The limit


@pytest.mark.parametrize("delay", [MILLISECOND, 100 * MILLISECOND, 10**9])
def test_without_a_rate_the_limit_exceeds_the_frames_that_an_interface_sends_during_the_delay(delay: int) -> None:
    fastest = 20_000_000  # frames/s
    assert options(Impairment(delay=delay, jitter=delay)).limit > 2 * delay * fastest // 10**9


def test_with_a_rate_the_limit_is_the_queue_the_frame_on_the_wire_and_those_in_flight() -> None:
    rate, frame = 1514 * 8 * 1000, 1514  # a full frame a millisecond
    assert options(Impairment(rate=rate, queue_frames=7)).limit == 7 + 1
    assert options(Impairment(rate=rate, queue_frames=7, delay=5 * MILLISECOND)).limit == 7 + 1 + 5
    assert options(Impairment(rate=rate, queue=9 * frame + 1, delay=5 * MILLISECOND)).limit == 9 + 1 + 5
    assert options(Impairment(rate=rate, queue=frame - 1)).limit == 1 + 1


def test_the_default_queue_is_the_round_trips_bandwidth_delay_product_in_full_frames() -> None:
    rate, delay = 10**9, 10 * MILLISECOND
    product = rate * 2 * delay // (8 * 10**9)
    assert options(Impairment(rate=rate, delay=delay)).limit == product // 1514 + 1 + -(-product // 2 // 1514)
    assert options(Impairment(rate=10**6)).limit == 131_072 // 1514 + 1


def test_the_limit_stays_within_its_32_bits() -> None:
    assert options(Impairment(delay=10**12)).limit == 2**31 - 1
    assert options(Impairment(rate=10**15, delay=10**12)).limit == 2**31 - 1


# Tables


def test_the_tables_are_those_of_the_link_model() -> None:
    assert netem.distribution_table("pareto") == pareto_table()
    assert netem.distribution_table("table", "t.dist", "# two\n-8192 8192") == (-SCALE, SCALE)


def test_the_uniform_table_is_linear() -> None:
    table = netem.distribution_table("uniform")
    assert (len(table), sum(table), table[0], table[-1]) == (netem.MAX_TABLE_ENTRIES, 0, -SCALE, SCALE)
    assert {second - first for first, second in itertools.pairwise(table)} == {1, 2}
    assert options(Impairment(delay=1, jitter=1)).table == table


def test_a_distribution_table_that_is_too_long_or_damaged_is_rejected_with_its_name() -> None:
    long_table = "1 " * (netem.MAX_TABLE_ENTRIES + 1)
    impairment = Impairment(delay=1, jitter=1, distribution="table", jitter_file="mine.dist")
    with pytest.raises(UnsupportedError, match=r"^mine\.dist has 16,385 entries, and netem takes at most 16,384$"):
        options(impairment, table=long_table)
    with pytest.raises(BrokenFileError, match=r"mine\.dist, line 2"):
        options(impairment, table="1\nx")


# Unsupported options


@pytest.mark.parametrize(
    ("impairment", "reason"),
    [
        (Impairment(rules=("drop udp",)), "it has no fault rules"),
        (Impairment(loss_pattern="5"), "it loses frames at random only, not by a pattern"),
        (Impairment(rate_trace="t"), "its rate is a number, not a trace"),
        (Impairment(distribution="trace", jitter_file="t"), "its jitter is drawn, not read from a trace"),
        (Impairment(corrupt=0.1, corrupt_bits=2), "it flips one bit of a corrupted frame, not several"),
        (Impairment(loss=0.1, gemodel=(0.1, 1, 1, 0)), "it has one model of loss at a time"),
        (Impairment(delay=1, jitter=2**31), "its jitter is 2,147,483,647 ns at most"),
    ],
)
def test_options_that_netem_lacks_are_rejected(impairment: Impairment, reason: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        options(impairment)
    assert str(caught.value) == f"netem cannot do this: {reason}"


def test_all_unsupported_keys_are_reported_at_once() -> None:
    assert netem.unsupported(Impairment(rules=("drop udp",), loss_pattern="5")) == [
        "it has no fault rules",
        "it loses frames at random only, not by a pattern",
    ]


# Sizes


def test_the_size_table_covers_the_largest_tagged_frame() -> None:
    table = qdiscs.size_table(lambda size: 2 * size, MTU)
    assert table.sizes == tuple(range(0, 2 * (MTU + 14 + 4) + 1, 2))


def test_sizes_beyond_the_kernels_table_are_rejected() -> None:
    with pytest.raises(UnsupportedError, match=r"MTU of at most 32,729 bytes, got 65,535"):
        qdiscs.size_table(lambda size: size, 65_535)
    assert len(netem.request(7, Options(sizes=qdiscs.size_table(lambda size: size, 32_729)))) > 65_000
    with pytest.raises(UnsupportedError, match=r"up to 70,000 bytes, and .* allows at most 65,535"):
        qdiscs.size_table(lambda _: 70_000, MTU)
