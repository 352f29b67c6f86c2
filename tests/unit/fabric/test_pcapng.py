"""Writer of pcapng captures, read back by Scapy and by the specification of the format."""

from __future__ import annotations

import struct
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st
from scapy.utils import RawPcapNgReader

from testbed.fabric import pcapng

FRAMES = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(0, 2**63),
        st.binary(min_size=1, max_size=100),
        st.sampled_from(["inbound", "outbound"]),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30),
    )
)

MAC = "02:00:00:00:00:01"


@given(FRAMES)
def test_written_values_are_read_back(frames: list[tuple[int, int, bytes, pcapng.Bound, str]]) -> None:
    blocks = [pcapng.section_header("a test"), pcapng.interface("n1:eth0", "a link", MAC), pcapng.interface("ü", "")]
    blocks += [pcapng.packet(*frame) for frame in frames]
    blocks += [pcapng.statistics(number, 5, 1 << 40, 7, 2) for number in (0, 1)]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.pcapng"
        path.write_bytes(b"".join(blocks))
        with RawPcapNgReader(str(path)) as reader:
            packets_read = [
                (
                    metadata.ifname.decode(),
                    (metadata.tshigh << 32) + metadata.tslow,
                    frame,
                    (metadata.comments or [b""])[0].decode(),
                )
                for frame, metadata in reader
            ]
    assert packets_read == [
        (("n1:eth0", "ü")[number], time, frame, comment) for number, time, frame, _, comment in frames
    ]


def test_an_interface_has_its_name_its_link_and_its_hardware_address() -> None:
    block = pcapng.interface("n1:eth0", "n1:eth0--s1:1", MAC)
    assert options_of(block, 16) == {2: b"n1:eth0", 3: b"n1:eth0--s1:1", 6: bytes.fromhex("020000000001"), 9: b"\x09"}
    assert options_of(pcapng.interface("s1:1"), 16) == {2: b"s1:1", 9: b"\x09"}


def options_of(block: bytes, offset: int) -> dict[int, bytes]:
    options = {}
    while (header := struct.unpack_from("<HH", block, offset)) != (0, 0):
        options[header[0]] = block[offset + 4 : offset + 4 + header[1]]
        offset += 4 + -(-header[1] // 4) * 4
    return options


def test_every_block_has_its_length_twice_and_is_aligned() -> None:
    blocks = [pcapng.section_header("a test"), pcapng.statistics(0, 1, 2, 3, 4)]
    blocks += [
        pcapng.interface("x" * length, "y" * comment_length) for length in range(5) for comment_length in range(5)
    ]
    for length in range(60, 70):
        blocks += [
            pcapng.packet(0, 1 << 33, bytes(length), "inbound", comment)
            for comment in ("", "a", "ab", "abc", "abcd", "µ")
        ]
    for block in blocks:
        assert len(block) % 4 == 0
        assert block[4:8] == block[-4:] == len(block).to_bytes(4, "little")


def test_the_statistics_block_has_the_times_and_the_drops() -> None:
    block = pcapng.statistics(3, 1 << 33, (1 << 33) + 5, 1000, 17)
    kind, _, number, high, low = struct.unpack_from("<5I", block)
    assert (kind, number, high << 32 | low) == (5, 3, (1 << 33) + 5)
    assert options_of(block, 20) == {
        2: struct.pack("<II", 2, 0),
        3: struct.pack("<II", 2, 5),
        4: struct.pack("<Q", 1000),
        5: struct.pack("<Q", 17),
    }
