"""Captures are read in chunks of any size; damaged, missing and foreign files give a clear error."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.l2 import Ether
from scapy.utils import PcapNgWriter, PcapWriter

from testbed.fabric import pcapng
from testbed.observe.decoding.capture_files import CaptureSource
from testbed.observe.decoding.capture_reader import BrokenCaptureError, CaptureReader, Frame, Interface
from tests.unit.observe.emp_captures import LINK, A, capture

TEXTS = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=20)
FRAMES = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(0, 2**62),
        st.binary(min_size=1, max_size=80),
        st.sampled_from(["inbound", "outbound"]),
        TEXTS,
    ),
    max_size=12,
)


def read(chunks: list[bytes]) -> list[Frame]:
    reader = CaptureReader("test")
    frames = [frame for chunk in chunks for frame in reader.feed(chunk)]
    reader.end()
    return frames


@given(FRAMES, st.lists(st.integers(0, 3000), max_size=6))
def test_written_captures_are_read_in_chunks_of_any_size(
    frames: list[tuple[int, int, bytes, pcapng.Bound, str]], cuts: list[int]
) -> None:
    content = capture(frames)
    bounds = sorted({0, len(content), *(cut % (len(content) + 1) for cut in cuts)})
    frames_read = read([content[begin:end] for begin, end in pairwise(bounds)])
    names = ("n1:eth0", "n2:eth0")
    assert [(frame.interface.name, frame.when, frame.raw, frame.bound, frame.comment) for frame in frames_read] == [
        (names[number], *values) for number, *values in frames
    ]
    assert all(frame.length == len(frame.raw) and frame.interface.link == LINK for frame in frames_read)
    assert {frame.interface.mac for frame in frames_read if frame.interface.name == "n1:eth0"} <= {A}


@given(FRAMES)
def test_a_capture_truncated_anywhere_gives_its_complete_frames_and_reports_the_rest(
    frames: list[tuple[int, int, bytes, pcapng.Bound, str]],
) -> None:
    content = capture(frames)
    ends = [len(capture(frames[:count])) for count in range(len(frames) + 1)]
    for size in range(1, len(content), 7):
        reader = CaptureReader("test")
        frames_read = reader.feed(content[:size])
        assert len(frames_read) == max(0, sum(end <= size for end in ends) - 1)
        if size in ends:
            reader.end()
        elif size > ends[0]:
            with pytest.raises(BrokenCaptureError, match="test is cut off within the block that begins at byte"):
                reader.end()


@given(st.binary(max_size=60), FRAMES, st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 255)), max_size=5))
def test_arbitrary_bytes_are_read_or_reported_as_a_damaged_capture(
    arbitrary: bytes, frames: list[tuple[int, int, bytes, pcapng.Bound, str]], flips: list[tuple[int, int]]
) -> None:
    damaged_bytes = bytearray(capture(frames))
    for offset, bits in flips:
        damaged_bytes[offset % len(damaged_bytes)] ^= bits
    for text in (arbitrary, bytes(damaged_bytes), capture(frames) + arbitrary):
        reader = CaptureReader("test")
        try:
            for begin in range(0, len(text), 50):
                reader.feed(text[begin : begin + 50])
            reader.end()
        except BrokenCaptureError:
            continue


def test_frames_before_the_damage_are_returned_first() -> None:
    intact = capture([(0, 5, b"x" * 60, "inbound", "")])
    reader = CaptureReader("test")
    assert len(reader.feed(intact + struct.pack("<II", 6, 13) + bytes(40))) == 1
    with pytest.raises(
        BrokenCaptureError, match=f"test is damaged at byte {len(intact)}: invalid block length: 13 bytes"
    ):
        reader.end()


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nano", [False, True])
def test_pcap_of_other_programs_is_read_in_both_byte_orders(tmp_path: Path, order: str, nano: bool) -> None:
    path = tmp_path / "x.pcap"
    frame = Ether(dst=A, src=A, type=0x88B5) / b"hello"
    frame.time = 1_700_000_000.25
    with PcapWriter(str(path), linktype=1, endianness=order, nano=nano) as writer:
        writer.write(frame)
    (frame_read,) = read([path.read_bytes()])
    assert (frame_read.when, frame_read.raw, frame_read.bound) == (1_700_000_000_250_000_000, bytes(frame), "")
    assert frame_read.interface == Interface("")
    with pytest.raises(BrokenCaptureError, match="cut off"):
        read([path.read_bytes()[:-1]])


def test_pcapng_of_another_program_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    frame = Ether(dst=A, src=A, type=0x88B5) / b"hello"
    frame.time, frame.sniffed_on, frame.comment = 1_700_000_000.25, "eth7", b"a comment"
    with PcapNgWriter(str(path)) as writer:
        writer.write(frame)
    (frame_read,) = read([path.read_bytes()])
    assert (frame_read.when, frame_read.raw, frame_read.comment) == (
        1_700_000_000_250_000_000,
        bytes(frame),
        "a comment",
    )
    assert frame_read.interface.name == "eth7"


def block(order: str, kind: int, body: bytes) -> bytes:
    size = len(body) + 12
    return struct.pack(f"{order}II", kind, size) + body + struct.pack(f"{order}I", size)


@pytest.mark.parametrize("order", ["<", ">"])
def test_both_byte_orders_simple_and_obsolete_blocks_resolutions_and_offsets_are_read(order: str) -> None:
    section = block(order, 0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1))
    # Resolution 1/1024 s, offset 1000 s.
    options = struct.pack(f"{order}HHBxxxHHqHH", 9, 1, 0x80 | 10, 14, 8, 1000, 0, 0)
    interface = block(order, 1, struct.pack(f"{order}HHI", 1, 0, 0) + options)
    simple_packet = struct.pack(f"{order}IIIII", 0, 0, 512, 4, 9) + b"abcd"
    simple = block(order, 3, struct.pack(f"{order}I", 4) + b"efgh")
    old = block(order, 2, struct.pack(f"{order}HHIIII", 0, 0, 0, 1024, 4, 4) + b"ijkl")
    unknown_block = block(order, 0x0BAD, b"1234")
    frames_read = read(
        [
            section + interface + block(order, 6, simple_packet) + unknown_block + simple + old,
            capture([(0, 5, b"x", "inbound", "")]),
        ]
    )
    assert [(frame.when, frame.raw, frame.length) for frame in frames_read] == [
        (1_000_500_000_000, b"abcd", 9),
        (1_000_000_000_000, b"efgh", 4),
        (1_001_000_000_000, b"ijkl", 4),
        (5, b"x", 1),
    ]
    assert [frame.interface.name for frame in frames_read] == ["if0", "if0", "if0", "n1:eth0"]


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        (6, b"", "the block of a frame is too short"),
        (2, b"", "the block of a frame is too short"),
        (3, b"", "the block of a frame is too short"),
        (6, struct.pack("<IIIII", 0, 1 << 31, 0, 0, 0), "a frame's time is after the year 2262"),
    ],
)
def test_an_invalid_frame_block_is_reported(kind: int, body: bytes, message: str) -> None:
    intact = capture([(0, 5, b"x", "inbound", "")])
    with pytest.raises(BrokenCaptureError, match=f"test is damaged at byte {len(intact):,}: {message}"):
        read([intact, block("<", kind, body)])


def test_frames_that_are_not_ethernet_are_skipped_and_counted() -> None:
    section = pcapng.section_header("a test")
    other_block = block("<", 1, struct.pack("<HHI", 113, 0, 0))
    reader = CaptureReader("test")
    frames = reader.feed(section + other_block + pcapng.interface("n1:eth0"))
    frames += reader.feed(pcapng.packet(0, 1, b"cooked", "inbound") + pcapng.packet(1, 2, b"frame", "inbound"))
    assert [frame.raw for frame in frames] == [b"frame"]
    assert reader.skipped == 1
    with pytest.raises(BrokenCaptureError, match="link type 113; only Ethernet"):
        CaptureReader("test").feed(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 113))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "x is empty: a capture has at least a header"),
        (b"\x0a\x0d", "x is cut off within the block that begins at byte 0: only 2 bytes of it exist"),
        (b"root:x:0:0", "x is not a capture: it begins with 'root', which is neither pcapng nor pcap"),
        (b"\x1f\x8b\x08\x00\x00", "x is not a capture: it begins with 0x1f8b0800"),
        (b"\x0a\x0d\x0d\x0a\x1c\x00\x00\x00abcdefgh", "x is damaged at byte 8: invalid byte order 'abcd'"),
    ],
)
def test_a_file_of_another_format_is_reported(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(BrokenCaptureError) as raised:
        list(CaptureSource(str(path)).batches())
    assert str(raised.value).replace(f"{tmp_path}/", "").startswith(message)


@pytest.mark.parametrize(
    ("interface", "bound", "direction"),
    [
        (Interface("n1:eth0", "n1:eth0--s1:1"), "outbound", "forward"),
        (Interface("n1:eth0", "n1:eth0--s1:1"), "inbound", "backward"),
        (Interface("s1:1", "n1:eth0--s1:1"), "outbound", "backward"),
        (Interface("s1:1", "n1:eth0--s1:1"), "inbound", "forward"),
        (Interface("s1:1", "n1:eth0--s1:1"), "", ""),
        (Interface("eth0"), "inbound", ""),
    ],
)
def test_an_interface_knows_the_direction_of_a_frame_on_its_link(
    interface: Interface, bound: str, direction: str
) -> None:
    assert interface.direction_of(bound) == direction


def test_the_captures_of_a_folder_are_merged_by_time_up_to_the_damage_of_one() -> None:
    with TemporaryDirectory() as folder:
        capture_folder = Path(folder)
        for number, times in ((1, (5, 9)), (2, (1, 7, 11))):
            (capture_folder / f"repeat-{number}").mkdir()
            frames = [(0, time, bytes(60), "inbound", "") for time in times]
            (capture_folder / f"repeat-{number}" / "capture.pcapng").write_bytes(capture(frames))  # type: ignore[arg-type]
        broken = capture_folder / "repeat-2" / "capture.pcapng"
        broken.write_bytes(broken.read_bytes()[:-3])
        batches = CaptureSource(folder).batches()
        frames_read = [(frame.when, str(frame.interface)) for frame in next(batches)]
        with pytest.raises(BrokenCaptureError, match=r"repeat-2/capture\.pcapng is cut off within"):
            next(batches)
    assert frames_read == [
        (1, "repeat-2 n1:eth0"),
        (5, "repeat-1 n1:eth0"),
        (7, "repeat-2 n1:eth0"),
        (9, "repeat-1 n1:eth0"),
    ]
