"""Incremental reader of captures: pcapng (IETF draft-ietf-opsawg-pcapng) and the older pcap.

A `CaptureReader` is fed chunks of a file, of any size, and returns the complete frames; the rest waits for the next
chunk. So a file can be read while it grows. Blocks that do not describe frames are skipped.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NoReturn

from testbed.errors import TestbedError

_SECTION, _INTERFACE, _OLD_PACKET, _SIMPLE, _PACKET = 0x0A0D0D0A, 1, 2, 3, 6
_ORDERS: Final = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
_PCAP: Final = {  # first bytes -> byte order, and unit of a time's fraction in ns
    b"\xd4\xc3\xb2\xa1": ("<", 1_000),
    b"\xa1\xb2\xc3\xd4": (">", 1_000),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
    b"\xa1\xb2\x3c\x4d": (">", 1),
}
_ETHERNET: Final = 1
_LONGEST: Final = 1 << 24
"""Longest block in bytes that is not taken for damage; blocks of ours are far shorter."""
_END, _COMMENT, _NAME, _DESCRIPTION, _FLAGS, _MAC, _RESOLUTION, _OFFSET = 0, 1, 2, 3, 2, 6, 9, 14
_SECOND: Final = 1_000_000_000
_PLAIN: Final = 12
"""Length in bytes of options that hold only a frame's direction: equal for many frames, so their meaning is cached."""
_BOUND: Final = {1: "inbound", 2: "outbound"}


class BrokenCaptureError(TestbedError):
    """Not a capture, or a damaged one. Frames before the damage have been returned."""


@dataclass(frozen=True, slots=True)
class Interface:
    """Interface that captured frames. link: name of the link plugged in there. mac: of the NIC. capture: label of the
    capture, if several are read. All but the name may be empty."""

    name: str
    link: str = ""
    mac: str = ""
    capture: str = ""

    def __str__(self) -> str:
        return f"{self.capture} {self.name}" if self.capture else self.name

    def direction_of(self, bound: str) -> str:
        """The link's direction, forward or backward, of a frame; empty if unknown."""
        if not bound:
            return ""
        if self.link.startswith(f"{self.name}--"):
            return "forward" if bound == "outbound" else "backward"
        if self.link.endswith(f"--{self.name}"):
            return "backward" if bound == "outbound" else "forward"
        return ""


@dataclass(slots=True)
class Frame:
    """A captured frame. when: nanoseconds, of the epoch or of a simulation. bound: "outbound" leaves the end of a link
    that the interface stands for, "inbound" arrives there; empty if unknown. length: of the complete frame, which the
    capture may have truncated. comment: the frame's fate."""

    when: int
    interface: Interface
    bound: str
    raw: bytes
    length: int
    comment: str = ""


class CaptureReader:
    """Reader of one capture. name: for error messages. label: distinguishes its interfaces from other captures'. nics:
    names of NIC interfaces by hardware address; extended while reading."""

    def __init__(self, name: str, label: str = "", nics: dict[bytes, str] | None = None) -> None:
        self.name: Final = name
        self.nics: Final = {} if nics is None else nics
        self._label = label
        self.skipped = 0
        """Frames left out because they are not Ethernet's."""
        self._rest = b""
        self._begin = 0  # offset of the rest in the file
        self._order = ""
        self._pcap_units = 0  # unit of a pcap's time fraction in ns; 0: pcapng, or not known yet
        # Each with factor, divisor and offset of its times.
        self._interfaces: list[tuple[Interface | None, int, int, int]] = []
        self._packet = struct.Struct("<IIIII")
        self._tails: dict[bytes, tuple[str, str]] = {}
        self._error: BrokenCaptureError | None = None

    def feed(self, chunk: bytes) -> list[Frame]:
        """Return the frames that are complete now. Raises BrokenCaptureError, once all frames before the damage have
        been returned."""
        if self._error is not None:
            raise self._error
        self._rest += chunk
        frames: list[Frame] = []
        try:
            at = self._read(frames)
        except BrokenCaptureError as error:
            self._error = error
            if not frames:
                raise
            return frames
        self._begin += at
        self._rest = self._rest[at:]
        return frames

    def end(self) -> None:
        """Check that the capture ends with a complete block. Raises BrokenCaptureError."""
        if self._error is not None:
            raise self._error
        if self._rest:
            what = f"{self.name} is cut off within the block that begins at byte {self._begin:,}"
            raise BrokenCaptureError(
                f"{what}: {len(self._rest):,} bytes of it are there; all frames before it are shown"
            )
        if not self._order:
            raise BrokenCaptureError(f"{self.name} is empty: a capture has at least a header")

    def _read(self, frames: list[Frame]) -> int:
        """Read the complete records of the rest; return the number of bytes consumed."""
        at = self._read_header()
        if not self._order:
            return 0
        return self._pcap_records(frames, at) if self._pcap_units else self._blocks(frames, at)

    def _read_header(self) -> int:
        """Read the header with the file's type; return the number of bytes consumed."""
        if self._order or not self._rest:
            return 0
        first = self._rest[:4]
        if first in _PCAP:
            if len(self._rest) < 24:
                return 0
            order, self._pcap_units = _PCAP[first]
            kind = struct.unpack_from(f"{order}I", self._rest, 20)[0] & 0xFFFF
            if kind != _ETHERNET:
                raise BrokenCaptureError(f"{self.name} has frames of link type {kind}; only Ethernet (1) can be read")
            self._order = order
            self._interfaces = [(Interface("", capture=self._label), 1, 1, 0)]
            return 24
        if not b"\x0a\x0d\x0d\x0a".startswith(first) and not any(known.startswith(first) for known in _PCAP):
            raise BrokenCaptureError(
                f"{self.name} is no capture: it begins with {_shown(first)}, as no pcapng or pcap does"
            )
        if len(self._rest) >= 12:
            self._section(8)
        return 0

    def _section(self, at: int) -> None:
        """Begin a section. at: offset of its byte order mark."""
        order = _ORDERS.get(self._rest[at : at + 4])
        if order is None:
            self._broken(at, f"invalid byte order {_shown(self._rest[at : at + 4])}")
        self._order = order
        self._packet = struct.Struct(f"{order}IIIII")
        self._interfaces = []
        self._tails = {}

    def _blocks(self, frames: list[Frame], at: int) -> int:
        """Read blocks of pcapng."""
        rest = self._rest
        size = len(rest)
        head = struct.Struct(f"{self._order}II").unpack_from
        while size - at >= 12:
            kind, length = head(rest, at)
            if kind == _SECTION:
                self._section(at + 8)
                head = struct.Struct(f"{self._order}II").unpack_from
                kind, length = head(rest, at)
            if length & 3 or not 12 <= length <= _LONGEST:
                self._broken(at, f"invalid block length: {length:,} bytes")
            end = at + length
            if end > size:
                break
            if rest[end - 4 : end] != rest[at + 4 : at + 8]:
                self._broken(at, "the two length fields of a block differ")
            if kind == _PACKET:
                self._frame(frames, at, end - 4)
            elif kind == _INTERFACE:
                self._interfaces.append(self._interface(at, end - 4))
            elif kind in (_SIMPLE, _OLD_PACKET):
                self._other_frame(frames, kind, at, end - 4)
            at = end
        return at

    def _frame(self, frames: list[Frame], at: int, end: int) -> None:
        number, high, low, captured, length = self._packet.unpack_from(self._rest, at + 8)
        begin = at + 28
        if begin + captured > end or number >= len(self._interfaces):
            self._broken(at, "a frame exceeds its block, or names an unknown interface")
        interface, multiply, divide, add = self._interfaces[number]
        if interface is None:
            self.skipped += 1
            return
        when = (high << 32 | low) * multiply // divide + add
        option = begin + captured + (-captured & 3)
        tail = self._rest[option:end]
        options = self._tails.get(tail)
        if options is None:
            options = self._frame_options(option, end)
            if len(tail) <= _PLAIN:
                self._tails[tail] = options
        bound, comment = options
        frames.append(Frame(when, interface, bound, self._rest[begin : begin + captured], length, comment))

    def _frame_options(self, at: int, end: int) -> tuple[str, str]:
        """Read a frame's options: direction and comment."""
        bound = comment = ""
        for code, value in self._options(at, end):
            if code == _FLAGS and len(value) == 4:
                bound = _BOUND.get(int.from_bytes(value, "little" if self._order == "<" else "big") & 3, "")
            elif code == _COMMENT:
                comment += f"; {_text(value)}" if comment else _text(value)
        return bound, comment

    def _other_frame(self, frames: list[Frame], kind: int, at: int, end: int) -> None:
        """Read a simple or an obsolete packet block, which other programs write."""
        unpack = struct.Struct(f"{self._order}{'I' if kind == _SIMPLE else 'HHIIII'}").unpack_from
        fields = unpack(self._rest, at + 8)
        number, high, low = (0, 0, 0) if kind == _SIMPLE else (fields[0], fields[2], fields[3])
        length = fields[-1]
        begin = at + (12 if kind == _SIMPLE else 28)
        captured = min(length, end - begin) if kind == _SIMPLE else fields[4]
        if begin + captured > end or number >= len(self._interfaces):
            self._broken(at, "a frame exceeds its block, or names an unknown interface")
        interface, multiply, divide, add = self._interfaces[number]
        if interface is None:
            self.skipped += 1
            return
        when = (high << 32 | low) * multiply // divide + add
        frames.append(Frame(when, interface, "", self._rest[begin : begin + captured], length))

    def _interface(self, at: int, end: int) -> tuple[Interface | None, int, int, int]:
        if end - at < 16:
            self._broken(at, "an interface's block is too short")
        (kind,) = struct.unpack_from(f"{self._order}H", self._rest, at + 8)
        name, link, mac, resolution, offset = f"if{len(self._interfaces)}", "", "", 6, 0
        for code, value in self._options(at + 16, end):
            if code == _NAME:
                name = _text(value)
            elif code == _DESCRIPTION:
                link = _text(value)
            elif code == _MAC and len(value) == 6:
                mac = value.hex(":")
                self.nics[value] = name
            elif code == _RESOLUTION and value:
                resolution = value[0]
            elif code == _OFFSET and len(value) == 8:
                (offset,) = struct.unpack(f"{self._order}q", value)
        units = 1 << (resolution & 0x7F) if resolution & 0x80 else int(10**resolution)
        interface = Interface(name, link, mac, self._label) if kind == _ETHERNET else None
        return interface, _SECOND, units, offset * _SECOND

    def _options(self, at: int, end: int) -> list[tuple[int, bytes]]:
        options = []
        unpack = struct.Struct(f"{self._order}HH").unpack_from
        while at + 4 <= end:
            code, length = unpack(self._rest, at)
            if code == _END or at + 4 + length > end:
                break
            options.append((code, self._rest[at + 4 : at + 4 + length]))
            at += 4 + length + (-length & 3)
        return options

    def _pcap_records(self, frames: list[Frame], at: int) -> int:
        """Read records of pcap."""
        unpack = struct.Struct(f"{self._order}IIII").unpack_from
        rest = self._rest
        interface = self._interfaces[0][0]
        assert interface is not None  # other link types have been refused
        while len(rest) - at >= 16:
            seconds, fraction, captured, length = unpack(rest, at)
            if captured > _LONGEST:
                self._broken(at, f"invalid frame length: {captured:,} bytes")
            end = at + 16 + captured
            if end > len(rest):
                break
            when = seconds * _SECOND + fraction * self._pcap_units
            frames.append(Frame(when, interface, "", rest[at + 16 : end], length))
            at = end
        return at

    def _broken(self, at: int, reason: str) -> NoReturn:
        raise BrokenCaptureError(f"{self.name} is damaged at byte {self._begin + at:,}: {reason}")


def _text(value: bytes) -> str:
    """Decode text for a terminal: unprintable characters are replaced."""
    text = value.decode("utf-8", errors="replace").rstrip("\0")
    return (
        text
        if text.isprintable()
        else "".join(character if character.isprintable() else "\ufffd" for character in text)
    )


def _shown(first: bytes) -> str:
    text = first.decode("ascii", errors="replace")
    return repr(text) if text.isascii() and text.isprintable() else f"0x{first.hex()}"
