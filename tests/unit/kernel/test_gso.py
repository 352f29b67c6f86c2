"""GSO segmentation and checksum offload in software: every frame equals Scapy's, byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet, Raw

from testbed.kernel import gso
from testbed.kernel.gso import HEADER, GsoFrame

ADDRESSES = {4: IP(src="10.0.0.1", dst="10.0.0.2", id=0xFFFE, flags="DF"), 6: IPv6(src="fd00::1", dst="fd00::2")}
ETHERNET = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
OPTIONS = [("NOP", None), ("NOP", None), ("Timestamp", (1_234_567, 7_654_321))]
KINDS = {4: gso.TCP_OVER_IPV4, 6: gso.TCP_OVER_IPV6}


def offloaded_frame(packet: Packet, layer: type[Packet], kind: int = 0, size: int = 0, tag: bytes = b"") -> GsoFrame:
    """Return the frame as the kernel offloads it: its checksum field covers only the pseudo-header."""
    frame = bytearray(bytes(packet))
    layer_start = len(frame) - len(bytes(packet[layer]))
    checksum_offset = layer_start + (16 if layer is TCP else 6)
    network = packet[IP] if IP in packet else packet[IPv6]
    addresses = bytes(network)[12:20] if IP in packet else bytes(network)[8:40]
    pseudo = int.from_bytes(addresses, "big") + (6 if layer is TCP else 17) + len(frame) - layer_start
    frame[checksum_offset : checksum_offset + 2] = (pseudo % 0xFFFF).to_bytes(2, "big")
    header = HEADER.pack(gso.NEEDS_CHECKSUM, kind, 0, size, layer_start, checksum_offset - layer_start)
    gso_frame = gso.gso_frame(header, bytes(frame), tag)
    assert gso_frame is not None
    return gso_frame


def with_checksums(packet: Packet) -> Packet:
    """Return the packet with lengths and checksums filled in."""
    return Ether(bytes(packet))


data = st.binary(min_size=1, max_size=4000)
sizes = st.integers(1, 1500)


@given(version=st.sampled_from([4, 6]), data=data, layer=st.sampled_from([TCP, UDP]), tags=st.integers(0, 2))
@example(version=4, data=b"\0", layer=UDP, tags=0)
def test_an_offloaded_checksum_is_filled_in(version: int, data: bytes, layer: type[Packet], tags: int) -> None:
    packet = ETHERNET / (Dot1Q(vlan=5) / Dot1Q(vlan=6) if tags == 2 else Dot1Q(vlan=5) if tags else ADDRESSES[version])
    packet = with_checksums(packet / ADDRESSES[version] / layer() / data if tags else packet / layer() / data)
    offloaded = offloaded_frame(packet, layer)
    assert (offloaded.segments, offloaded.extra_bytes, offloaded.max_segment_size) == (1, 0, len(packet))
    assert offloaded.segment() == [bytes(packet)]


def test_a_checksum_of_zero_is_sent_as_all_ones() -> None:
    """0 would mean that there is no checksum."""
    base = with_checksums(ETHERNET / ADDRESSES[4] / UDP(sport=1, dport=2) / b"\0\0")
    checksum_of_rest = 0xFFFF - base[UDP].chksum
    packet = with_checksums(
        ETHERNET / ADDRESSES[4] / UDP(sport=1, dport=2) / (0xFFFF - checksum_of_rest).to_bytes(2, "big")
    )
    assert offloaded_frame(packet, UDP).segment() == [bytes(packet)]
    assert packet[UDP].chksum == 0xFFFF


@given(version=st.sampled_from([4, 6]), data=data, size=sizes, tagged=st.booleans(), seq=st.integers(0, 2**32 - 1))
@example(version=4, data=bytes(3000), size=1500, tagged=False, seq=2**32 - 1)
@example(version=6, data=bytes(3001), size=1500, tagged=True, seq=0)
def test_a_tcp_gso_frame_is_segmented_as_scapy_builds_the_segments(
    version: int, data: bytes, size: int, tagged: bool, seq: int
) -> None:
    head = ETHERNET / Dot1Q(vlan=7, prio=3) / ADDRESSES[version] if tagged else ETHERNET / ADDRESSES[version]

    def segment(begin: int, payload: bytes, flags: str) -> bytes:
        packet = head / TCP(sport=5001, dport=40_000, seq=(seq + begin) % 2**32, ack=9, flags=flags, options=OPTIONS)
        if version == 4:
            packet[IP].id = (0xFFFE + begin // size) & 0xFFFF
        return bytes(packet / Raw(payload))

    complete_packet = Ether(segment(0, data, "FPACE"))
    offloaded = offloaded_frame(complete_packet, TCP, KINDS[version], size)
    begins = range(0, len(data), size)
    expected = [
        segment(begin, data[begin : begin + size],
                ("FP" if begin + size >= len(data) else "") + "AE" + ("C" if not begin else ""))
        for begin in begins
    ]  # fmt: skip
    assert offloaded.segment() == expected
    assert offloaded.segments == len(expected)
    assert len(offloaded) + offloaded.extra_bytes == sum(map(len, expected))
    assert offloaded.max_segment_size == max(map(len, expected))


@given(version=st.sampled_from([4, 6]), data=data, size=sizes)
def test_a_udp_gso_frame_is_segmented_as_scapy_builds_the_datagrams(version: int, data: bytes, size: int) -> None:
    def datagram(number: int, payload: bytes) -> bytes:
        packet = ETHERNET / ADDRESSES[version] / UDP(sport=5001, dport=40_000) / Raw(payload)
        if version == 4:
            packet[IP].id = (0xFFFE + number) & 0xFFFF
        return bytes(packet)

    offloaded = offloaded_frame(Ether(datagram(0, data)), UDP, gso.UDP, size)
    expected = [datagram(number, data[begin : begin + size]) for number, begin in enumerate(range(0, len(data), size))]
    assert offloaded.segment() == expected
    assert len(offloaded) + offloaded.extra_bytes == sum(map(len, expected))


def test_headers_between_the_network_and_the_transport_count_in_every_length() -> None:
    head = ETHERNET / ADDRESSES[6] / IPv6ExtHdrDestOpt()
    packet = Ether(bytes(head / TCP(seq=1, flags="A") / Raw(bytes(100))))
    segments = offloaded_frame(packet, TCP, gso.TCP_OVER_IPV6, 60).segment()
    expected = [bytes(head / TCP(seq=1 + begin, flags="A") / Raw(bytes(size))) for begin, size in ((0, 60), (60, 40))]
    assert segments == expected


def test_a_tag_stripped_by_the_kernel_is_restored_and_the_pending_offloads_follow_it() -> None:
    packet = ETHERNET / ADDRESSES[4] / TCP(flags="A") / Raw(bytes(range(200)))
    tagged = ETHERNET / Dot1Q(vlan=7, prio=3) / ADDRESSES[4] / TCP(flags="A") / Raw(bytes(range(200)))
    assert offloaded_frame(with_checksums(packet), TCP, tag=b"\x81\x00\x60\x07").segment() == [bytes(tagged)]
    offloaded = offloaded_frame(with_checksums(packet), TCP, gso.TCP_OVER_IPV4, 150, tag=b"\x81\x00\x60\x07")
    assert [frame[12:18] for frame in offloaded.segment()] == [b"\x81\x00\x60\x07\x08\x00"] * 2
    assert offloaded.max_segment_size == 18 + 20 + 20 + 150


@pytest.mark.parametrize(
    "header",
    [
        HEADER.pack(0, gso.TCP_OVER_IPV4, 54, 100, 34, 16),  # no checksum offload
        HEADER.pack(gso.NEEDS_CHECKSUM, 3, 54, 100, 34, 6),  # UDP fragmentation offload, removed from the kernel
        HEADER.pack(gso.NEEDS_CHECKSUM, gso.TCP_OVER_IPV4, 54, 0, 34, 16),
        HEADER.pack(gso.NEEDS_CHECKSUM, gso.TCP_OVER_IPV4, 54, 100, 250, 16),  # beyond the end
        HEADER.pack(gso.NEEDS_CHECKSUM, 0, 54, 0, 253, 0),
    ],
)
def test_an_invalid_offload_header_gives_no_frame(header: bytes) -> None:
    frame = bytes(ETHERNET / ADDRESSES[4] / TCP() / Raw(bytes(200)))
    assert gso.gso_frame(header, frame) is None


@given(
    frame=st.binary(min_size=14, max_size=300), kind=st.sampled_from([0, 1, 4, 5, 0x81, 0x84, 2]),
    size=st.integers(0, 400), start=st.integers(0, 400), offset=st.integers(0, 400),
)  # fmt: skip
def test_no_offload_header_raises_an_error(frame: bytes, kind: int, size: int, start: int, offset: int) -> None:
    gso_frame = gso.gso_frame(HEADER.pack(gso.NEEDS_CHECKSUM, kind, 0, size, start, offset), frame)
    if gso_frame is not None:
        assert len(gso_frame.segment()) == gso_frame.segments


def test_a_header_length_beyond_the_frame_is_not_trusted() -> None:
    frame = bytes(ETHERNET / ADDRESSES[4] / TCP(dataofs=15) / Raw(b""))
    assert gso.gso_frame(HEADER.pack(1, gso.TCP_OVER_IPV4, 54, 100, 34, 16), frame) is None
