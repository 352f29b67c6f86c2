"""Incremental reader of captures: pcapng (IETF draft-ietf-opsawg-pcapng) and the older pcap.

A `CaptureReader` takes chunks of a file, of any size, and returns the frames that they complete; incomplete data is kept
until the next chunk. So a file can be read while it grows. Blocks that describe neither frames nor interfaces are skipped.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NoReturn

from testbed.errors import TestbedError

# Types of blocks: section header, interface description, obsolete packet, simple packet, enhanced packet.
_SECTION, _INTERFACE, _OLD_PACKET, _SIMPLE, _PACKET = 0x0A0D0D0A, 1, 2, 3, 6
_ORDERS: Final = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
_PCAP: Final = {  # magic -> byte order, and unit of the time's fraction in ns
    b"\xd4\xc3\xb2\xa1": ("<", 1_000),
    b"\xa1\xb2\xc3\xd4": (">", 1_000),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
    b"\xa1\xb2\x3c\x4d": (">", 1),
}
_ETHERNET: Final = 1  # link type
_MAX_BLOCK: Final = 1 << 24
"""Maximum block length in bytes; a longer block is treated as damage. The testbed writes far shorter blocks."""
# Codes of options: of all blocks (_END, _COMMENT), of packets (_FLAGS), and of interfaces (the others).
_END, _COMMENT, _NAME, _DESCRIPTION, _FLAGS, _MAC, _RESOLUTION, _OFFSET = 0, 1, 2, 3, 2, 6, 9, 14
_SECOND: Final = 1_000_000_000  # ns
_MAX_TIME: Final = (1 << 63) - 1  # ns since 1970
_TOO_SHORT: Final = "the block of a frame is too short"
_TOO_LATE: Final = "a frame's time is after the year 2262"
_FLAGS_ONLY: Final = 12
"""Length in bytes of options that contain only a frame's direction. Many frames have equal ones, so they are cached."""
_BOUND_OF_FLAGS: Final = {1: "inbound", 2: "outbound"}


class BrokenCaptureError(TestbedError):
    """A file is not a capture, or is a damaged one. Frames before the damage have been returned."""


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface of a capture. link: name of the attached link. mac: MAC address of the NIC. capture: label of the
    capture, if several are read. All fields except the name may be empty."""

    name: str
    link: str = ""
    mac: str = ""
    capture: str = ""

    def __str__(self) -> str:
        return f"{self.capture} {self.name}" if self.capture else self.name

    def direction_of(self, bound: str) -> str:
        """Return the link direction of a frame, forward or backward; empty if unknown. bound: see `Frame`."""
        if not bound:
            return ""
        if self.link.startswith(f"{self.name}--"):
            return "forward" if bound == "outbound" else "backward"
        if self.link.endswith(f"--{self.name}"):
            return "backward" if bound == "outbound" else "forward"
        return ""


@dataclass(slots=True)
class Frame:
    """A captured frame. when: nanoseconds since the epoch or since the start of a simulation. bound: "outbound" if the frame
    leaves the end of the link that the interface represents, "inbound" if it arrives there; empty if unknown. length: bytes
    of the complete frame, which the capture may have truncated. comment: the frame's fate."""

    when: int
    interface: Interface
    bound: str
    raw: bytes
    length: int
    comment: str = ""


class CaptureReader:
    """Reader of one capture. name: for error messages. label: label of its interfaces if several captures are read. nics:
    names of NIC interfaces by hardware address; interfaces are added as they are read."""

    def __init__(self, name: str, label: str = "", nics: dict[bytes, str] | None = None) -> None:
        self.name: Final = name
        self.nics: Final = {} if nics is None else nics
        self._label = label
        self.skipped = 0
        """Number of frames left out because they are not Ethernet frames."""
        self._buffer = b""
        self._buffer_offset = 0  # offset of the buffer in the file
        self._byte_order = ""
        self._pcap_unit = 0  # unit of a pcap's time fraction in ns; 0: pcapng, or not known yet
        # By interface number: interface (None: not Ethernet), and multiplier, divisor and offset in ns of its timestamps.
        self._interfaces: list[tuple[Interface | None, int, int, int]] = []
        self._packet = struct.Struct("<IIIII")
        self._option_cache: dict[bytes, tuple[str, str]] = {}
        self._error: BrokenCaptureError | None = None

    def feed(self, chunk: bytes) -> list[Frame]:
        """Return the frames that the chunk completes. Raises BrokenCaptureError after all frames before the damage have
        been returned."""
        if self._error is not None:
            raise self._error
        self._buffer += chunk
        frames: list[Frame] = []
        try:
            offset = self._read(frames)
        except BrokenCaptureError as error:
            self._error = error
            if not frames:
                raise
            return frames
        self._buffer_offset += offset
        self._buffer = self._buffer[offset:]
        return frames

    def end(self) -> None:
        """Check that the capture ends with a complete block. Raises BrokenCaptureError."""
        if self._error is not None:
            raise self._error
        if self._buffer:
            raise BrokenCaptureError(
                f"{self.name} is cut off within the block that begins at byte {self._buffer_offset:,}: only "
                f"{len(self._buffer):,} bytes of it exist; all frames before it are shown"
            )
        if not self._byte_order:
            raise BrokenCaptureError(f"{self.name} is empty: a capture has at least a header")

    def _read(self, frames: list[Frame]) -> int:
        """Read the complete records in the buffer; return the number of bytes consumed."""
        offset = self._read_header()
        if not self._byte_order:
            return 0
        return self._read_pcap_records(frames, offset) if self._pcap_unit else self._read_blocks(frames, offset)

    def _read_header(self) -> int:
        """Read the header with the file's type; return the number of bytes consumed."""
        if self._byte_order or not self._buffer:
            return 0
        first = self._buffer[:4]
        if first in _PCAP:
            if len(self._buffer) < 24:
                return 0
            byte_order, self._pcap_unit = _PCAP[first]
            link_type = struct.unpack_from(f"{byte_order}I", self._buffer, 20)[0] & 0xFFFF
            if link_type != _ETHERNET:
                raise BrokenCaptureError(
                    f"{self.name} has frames of link type {link_type}; only Ethernet (1) can be read"
                )
            self._byte_order = byte_order
            self._interfaces = [(Interface("", capture=self._label), 1, 1, 0)]
            return 24
        if not b"\x0a\x0d\x0d\x0a".startswith(first) and not any(magic.startswith(first) for magic in _PCAP):
            raise BrokenCaptureError(
                f"{self.name} is not a capture: it begins with {_format_magic(first)}, which is neither pcapng nor pcap"
            )
        if len(self._buffer) >= 12:
            self._begin_section(8)
        return 0

    def _begin_section(self, offset: int) -> None:
        """Begin a section. offset: offset of its byte order mark."""
        byte_order = _ORDERS.get(self._buffer[offset : offset + 4])
        if byte_order is None:
            self._fail(offset, f"invalid byte order {_format_magic(self._buffer[offset : offset + 4])}")
        self._byte_order = byte_order
        self._packet = struct.Struct(f"{byte_order}IIIII")
        self._interfaces = []
        self._option_cache = {}

    def _read_blocks(self, frames: list[Frame], offset: int) -> int:
        """Read the complete blocks of a pcapng file; return the offset after them."""
        buffer = self._buffer
        size = len(buffer)
        unpack_header = struct.Struct(f"{self._byte_order}II").unpack_from
        while size - offset >= 12:
            kind, length = unpack_header(buffer, offset)
            if kind == _SECTION:
                self._begin_section(offset + 8)
                unpack_header = struct.Struct(f"{self._byte_order}II").unpack_from
                kind, length = unpack_header(buffer, offset)
            if length & 3 or not 12 <= length <= _MAX_BLOCK:
                self._fail(offset, f"invalid block length: {length:,} bytes")
            end = offset + length
            if end > size:
                break
            if buffer[end - 4 : end] != buffer[offset + 4 : offset + 8]:
                self._fail(offset, "the two length fields of a block differ")
            if kind == _PACKET:
                self._read_packet(frames, offset, end - 4)
            elif kind == _INTERFACE:
                self._interfaces.append(self._read_interface(offset, end - 4))
            elif kind in (_SIMPLE, _OLD_PACKET):
                self._read_legacy_packet(frames, kind, offset, end - 4)
            offset = end
        return offset

    def _read_packet(self, frames: list[Frame], offset: int, end: int) -> None:
        data_offset = offset + 28
        if data_offset > end:
            self._fail(offset, _TOO_SHORT)
        number, high, low, captured, length = self._packet.unpack_from(self._buffer, offset + 8)
        if data_offset + captured > end or number >= len(self._interfaces):
            self._fail(offset, "a frame exceeds its block, or names an unknown interface")
        interface, multiplier, divisor, time_offset = self._interfaces[number]
        if interface is None:
            self.skipped += 1
            return
        when = (high << 32 | low) * multiplier // divisor + time_offset
        if when > _MAX_TIME:
            self._fail(offset, _TOO_LATE)
        options_offset = data_offset + captured + (-captured & 3)
        raw_options = self._buffer[options_offset:end]
        options = self._option_cache.get(raw_options)
        if options is None:
            options = self._read_packet_options(options_offset, end)
            if len(raw_options) <= _FLAGS_ONLY:
                self._option_cache[raw_options] = options
        bound, comment = options
        frames.append(
            Frame(when, interface, bound, self._buffer[data_offset : data_offset + captured], length, comment)
        )

    def _read_packet_options(self, offset: int, end: int) -> tuple[str, str]:
        """Read the options of a packet block; return direction and comment."""
        bound = comment = ""
        for code, value in self._read_options(offset, end):
            if code == _FLAGS and len(value) == 4:
                bound = _BOUND_OF_FLAGS.get(
                    int.from_bytes(value, "little" if self._byte_order == "<" else "big") & 3, ""
                )
            elif code == _COMMENT:
                comment += f"; {_decode(value)}" if comment else _decode(value)
        return bound, comment

    def _read_legacy_packet(self, frames: list[Frame], kind: int, offset: int, end: int) -> None:
        """Read a simple or obsolete packet block, which only other programs write."""
        unpack = struct.Struct(f"{self._byte_order}{'I' if kind == _SIMPLE else 'HHIIII'}").unpack_from
        data_offset = offset + (12 if kind == _SIMPLE else 28)
        if data_offset > end:
            self._fail(offset, _TOO_SHORT)
        fields = unpack(self._buffer, offset + 8)
        number, high, low = (0, 0, 0) if kind == _SIMPLE else (fields[0], fields[2], fields[3])
        length = fields[-1]
        captured = min(length, end - data_offset) if kind == _SIMPLE else fields[4]
        if data_offset + captured > end or number >= len(self._interfaces):
            self._fail(offset, "a frame exceeds its block, or names an unknown interface")
        interface, multiplier, divisor, time_offset = self._interfaces[number]
        if interface is None:
            self.skipped += 1
            return
        when = (high << 32 | low) * multiplier // divisor + time_offset
        if when > _MAX_TIME:
            self._fail(offset, _TOO_LATE)
        frames.append(Frame(when, interface, "", self._buffer[data_offset : data_offset + captured], length))

    def _read_interface(self, offset: int, end: int) -> tuple[Interface | None, int, int, int]:
        if end - offset < 16:
            self._fail(offset, "the block of an interface is too short")
        (link_type,) = struct.unpack_from(f"{self._byte_order}H", self._buffer, offset + 8)
        name, link, mac, resolution, time_offset = f"if{len(self._interfaces)}", "", "", 6, 0
        for code, value in self._read_options(offset + 16, end):
            if code == _NAME:
                name = _decode(value)
            elif code == _DESCRIPTION:
                link = _decode(value)
            elif code == _MAC and len(value) == 6:
                mac = value.hex(":")
                self.nics[value] = name
            elif code == _RESOLUTION and value:
                resolution = value[0]
            elif code == _OFFSET and len(value) == 8:
                (time_offset,) = struct.unpack(f"{self._byte_order}q", value)
        units = 1 << (resolution & 0x7F) if resolution & 0x80 else int(10**resolution)
        interface = Interface(name, link, mac, self._label) if link_type == _ETHERNET else None
        return interface, _SECOND, units, time_offset * _SECOND

    def _read_options(self, offset: int, end: int) -> list[tuple[int, bytes]]:
        options = []
        unpack = struct.Struct(f"{self._byte_order}HH").unpack_from
        while offset + 4 <= end:
            code, length = unpack(self._buffer, offset)
            if code == _END or offset + 4 + length > end:
                break
            options.append((code, self._buffer[offset + 4 : offset + 4 + length]))
            offset += 4 + length + (-length & 3)
        return options

    def _read_pcap_records(self, frames: list[Frame], offset: int) -> int:
        """Read the complete records of a pcap file; return the offset after them."""
        unpack = struct.Struct(f"{self._byte_order}IIII").unpack_from
        buffer = self._buffer
        interface = self._interfaces[0][0]
        assert interface is not None  # other link types were rejected
        while len(buffer) - offset >= 16:
            seconds, fraction, captured, length = unpack(buffer, offset)
            if captured > _MAX_BLOCK:
                self._fail(offset, f"invalid frame length: {captured:,} bytes")
            end = offset + 16 + captured
            if end > len(buffer):
                break
            when = seconds * _SECOND + fraction * self._pcap_unit
            frames.append(Frame(when, interface, "", buffer[offset + 16 : end], length))
            offset = end
        return offset

    def _fail(self, offset: int, reason: str) -> NoReturn:
        raise BrokenCaptureError(f"{self.name} is damaged at byte {self._buffer_offset + offset:,}: {reason}")


def _decode(value: bytes) -> str:
    """Decode text for a terminal; unprintable characters are replaced."""
    text = value.decode("utf-8", errors="replace").rstrip("\0")
    return (
        text
        if text.isprintable()
        else "".join(character if character.isprintable() else "\ufffd" for character in text)
    )


def _format_magic(first: bytes) -> str:
    text = first.decode("ascii", errors="replace")
    return repr(text) if text.isascii() and text.isprintable() else f"0x{first.hex()}"
