"""TBF parameters of a rate, and the kernel's report of them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import UnsupportedError
from testbed.kernel import netlink, shapers
from testbed.kernel.netlink import attributes
from testbed.kernel.shapers import Options
from testbed.spec.layout import Impairment

MTU = 1500
HEADERS = 16 + 20


def payload(request: bytes, attribute: int = netlink.TCA_OPTIONS) -> bytes:
    return bytes(attributes(memoryview(request)[HEADERS:])[attribute])


def test_a_request_has_the_layout_of_the_kernels_header() -> None:
    (request,) = shapers.requests(7, Options(rate=2**33, burst=3000, limit=9000))
    assert struct.unpack_from("=BxxxiII", request, 16) == (0, 7, 0x2_0000, 0xFFFF_FFFF)
    assert payload(request, netlink.TCA_KIND) == b"tbf\0"
    attributes_sent = {kind: bytes(value) for kind, value in attributes(memoryview(payload(request))).items()}
    ratespec = struct.pack("=BBHhHI", 0, 1, 0, 0, 0, 2**32 - 1)
    assert attributes_sent == {
        1: ratespec + bytes(12) + struct.pack("=III", 9000, 0, 0),
        4: struct.pack("=Q", 2**33),
        6: struct.pack("=I", 3000),
    }


def test_a_queue_in_frames_is_a_pfifo_below_the_tbf() -> None:
    tbf, fifo = shapers.requests(7, Options(1000, 3000, 7, in_frames=True))
    assert payload(tbf, netlink.TCA_KIND) == b"tbf\0"
    assert payload(fifo, netlink.TCA_KIND) == b"pfifo\0"
    assert struct.unpack_from("=BxxxiII", fifo, 16) == (0, 7, 0x3_0000, 0x2_0001)
    assert payload(fifo) == struct.pack("=I", 7)


def test_a_change_to_a_queue_in_bytes_replaces_the_pfifo() -> None:
    before = Options(1000, 3000, 7, in_frames=True)
    _, fifo = shapers.requests(7, Options(1000, 3000, 9000), before)
    assert payload(fifo, netlink.TCA_KIND) == b"bfifo\0"
    assert len(shapers.requests(7, Options(1000, 3000, 9000), Options(1000, 3000, 8000))) == 1


def test_the_bucket_holds_the_largest_frame_and_arrivals_during_a_late_timer() -> None:
    assert shapers.options_of(Impairment(rate=8 * 10**6), mtu=MTU).burst == 1518 + 1000
    cells = Impairment(rate=8, cell_size=48, cell_overhead=5)
    assert shapers.options_of(cells, mtu=MTU).burst == 32 * 53


def test_an_impairment_is_converted_to_tbf_options() -> None:
    impairment = Impairment(rate=8_000_004, queue=50_000, minimum_frame=64, overhead=20)
    options = shapers.options_of(impairment, mtu=MTU)
    assert (options.rate, options.limit, options.in_frames) == (1_000_000, 50_000, False)
    assert options.sizes is not None
    assert [options.sizes.sizes[size] for size in (14, 64, 1514)] == [84, 84, 1534]
    in_frames = shapers.options_of(Impairment(rate=8000, queue_frames=3), mtu=MTU)
    assert (in_frames.limit, in_frames.in_frames, in_frames.sizes) == (3, True, None)
    assert shapers.options_of(Impairment(rate=8000), mtu=MTU).limit == 131_072
    assert shapers.options_of(Impairment(rate=3), mtu=MTU).rate == 1


def test_a_shaper_without_a_rate_is_rejected() -> None:
    with pytest.raises(ValueError, match="without a rate"):
        shapers.options_of(Impairment(loss=0.5), mtu=MTU)


def test_a_bucket_beyond_32_bits_is_rejected() -> None:
    with pytest.raises(UnsupportedError, match="4,294,967,295 bytes at most"):
        shapers.options_of(Impairment(rate=10**14), mtu=MTU)


def report(rate: int, burst: int, limit: int) -> Options:
    """Return the options as the kernel reports them: the burst as a time in steps of 64 ns."""
    buffer = burst * 10**9 // rate >> 6 & 2**32 - 1
    ratespec = struct.pack("=BBHhHI", 0, 1, 0, 0, 0, min(rate, 2**32 - 1))
    parms = ratespec + bytes(12) + struct.pack("=III", limit, buffer, 0)
    raw = struct.pack("=HH", 4 + len(parms), 1) + parms + struct.pack("=HHQ", 12, 4, rate)
    return shapers.decode(raw)


@given(st.integers(1, 10**11), st.integers(10**6, 10**9), st.integers(1, 2**32 - 1))
def test_a_report_matches_only_its_own_request(rate: int, burst: int, limit: int) -> None:
    requested = Options(rate, burst, limit)
    reported = report(rate, burst, limit)
    assert requested.matches(reported)
    assert not requested.matches(report(rate + 1, burst, limit))
    assert not requested.matches(report(rate, burst, limit - 1))
    if burst * 10**9 // rate < 2**38:
        assert not requested.matches(report(rate, burst // 2 - rate // 10**6, limit))
