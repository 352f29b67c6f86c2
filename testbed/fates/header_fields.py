"""Positions of header fields in a frame: name -> header, offset, width, mask, guard.

A header begins at the frame's first byte (layer "link"), after the outermost tag's TPID ("tag"), after the frame's EtherType
("network"; tags shift it), or after an IP header ("transport"). The EtherType or the IP protocol number identifies the
network or transport header. Another protocol registers its fields as plain data, so that its code does not depend on this
package:

    fields.register("emp", ethertype=0x88B5, fields={"type": (0, 1), "id": (2, 4, 0x00FFFFFF, [("type", 3)])},
                    flow=["type"])

A protocol of a source-routed network is registered with routed=True: its header follows the remaining route on the link. The
bytes of a route have their top bit set; the header's first byte does not (Myrinet, ANSI/VITA 26-1998).

Several protocols may share an EtherType. Each then declares the first bytes of its header, such as a Myrinet packet's type;
all have the same number of them. One more protocol without first bytes may describe the common fields. A protocol that is
identified not by its frames but by the configuration of the network (ATM's circuits) names the header below it. The offsets
of its fields are relative to the first byte of that header, and its frames have the flows of that header.

A protocol whose frames have a check (a CRC, a checksum) declares the check's field and the function that recomputes it, so
that a rule can change a frame and leave it valid.

offset: bytes from the header's first byte. width: bytes, big-endian. mask: bits of the field; the value is shifted down to
bit 0. guard: other fields of the header, with the values that they must have for this field to be present.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal

Located = tuple[int, int, int, int]
"""Result of `locate`: EtherType, offset of the network header, IP protocol number, offset of the transport header; -1 for
each that is absent."""

Layer = Literal["link", "tag", "network", "transport"]
Kind = Literal["number", "mac", "ipv4", "ipv6"]
Reader = Callable[[bytes, Located], int]
"""Returns a field's value in a located frame, or -1 if the frame does not have the field."""
Mender = Callable[[bytes, int], bytes]
"""Recomputes the checks of a header in a frame without tags, and returns the frame. Arguments: the frame, and the offset of
the header, which a source route may have shifted. A frame too short for the checks is returned unchanged."""
FlowReader = Callable[[bytes, Located], tuple[int, ...]]
"""Returns the values of a frame's flow key, which distinguish its flow from others with its EtherType and addresses."""

NOT_LOCATED: Final[Located] = (-1, -1, -1, -1)
ETHERNET_HEADER: Final = 14
IPV4: Final = 0x0800
IPV6: Final = 0x86DD
TAGS: Final = (0x8100, 0x88A8)
"""IEEE 802.1Q and 802.1ad."""
MAX_TAGS: Final = 2
ROUTE_BYTE: Final = 0x80
"""The bit that is set in each byte of a source route, and not in the first byte after it."""
MAX_HOPS: Final = 64
"""Maximum bytes of a source route that are skipped."""
MIN_ETHERTYPE: Final = 0x0600
"""Smaller values in the EtherType's place are a length (IEEE 802.3, 3.2.6)."""
_IPV4_HEADER: Final = 20
_IPV6_HEADER: Final = 40
MAX_WIDTH: Final = 16
"""Maximum bytes of a field."""


def locate(frame: bytes) -> Located:
    """Find the offsets of a frame's headers. A frame has no transport header if its IP header is truncated or invalid, or if
    it is a fragment other than the first. After IPv6 extension headers none is found: the protocol number is that of the
    first extension header."""
    size = len(frame)
    if size < ETHERNET_HEADER:
        return NOT_LOCATED
    ethertype = frame[12] << 8 | frame[13]
    offset = ETHERNET_HEADER
    while ethertype in TAGS and offset < ETHERNET_HEADER + 4 * MAX_TAGS and size >= offset + 4:
        ethertype = frame[offset + 2] << 8 | frame[offset + 3]
        offset += 4
    if ethertype == IPV4:
        if size < offset + _IPV4_HEADER or frame[offset] >> 4 != 4:
            return (ethertype, offset, -1, -1)
        header_size = (frame[offset] & 15) * 4
        is_later_fragment = frame[offset + 7] or frame[offset + 6] & 0x1F
        return (
            ethertype,
            offset,
            frame[offset + 9],
            -1 if header_size < _IPV4_HEADER or is_later_fragment else offset + header_size,
        )
    if ethertype == IPV6:
        if size < offset + _IPV6_HEADER or frame[offset] >> 4 != 6:
            return (ethertype, offset, -1, -1)
        return (ethertype, offset, frame[offset + 6], offset + _IPV6_HEADER)
    return (ethertype, offset, -1, -1)


def skip_route(frame: bytes, begin: int) -> int:
    """Return the offset after a source route that begins at `begin`; without a route, `begin`."""
    offset = begin
    end = min(len(frame), begin + MAX_HOPS)
    while offset < end and frame[offset] & ROUTE_BYTE:
        offset += 1
    return offset


@dataclass(frozen=True, slots=True)
class Header:
    """A header. number: the EtherType or IP protocol number that identifies it. routed: it follows a source route. begins:
    its first bytes, if protocols share the EtherType. above: name of the header below it, if first bytes do not distinguish
    the two."""

    name: str
    layer: Layer
    number: int = 0
    routed: bool = False
    begins: bytes = b""
    above: str = ""

    def finder(self) -> Reader:
        """Make a reader of the header's offset in a frame; it returns -1 if the frame does not have the header."""
        number, layer = self.number, self.layer
        if self.routed or self.begins:
            routed, begins = self.routed, self.begins

            def find_shared(frame: bytes, located: Located) -> int:
                if located[0] != number:
                    return -1
                offset = skip_route(frame, located[1]) if routed else located[1]
                return offset if frame.startswith(begins, offset) else -1

            return find_shared

        def find(frame: bytes, located: Located) -> int:
            if layer == "network":
                return located[1] if located[0] == number else -1
            if layer == "transport":
                return located[3] if located[2] == number else -1
            if layer == "link":
                return 0 if located[0] >= 0 else -1
            tagged = located[1] > ETHERNET_HEADER and frame[12] << 8 | frame[13] in TAGS
            return ETHERNET_HEADER if tagged else -1

        return find


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a header; see the module. guard: pairs of a field's full name and the value that it must have. names: pairs
    of a value's name and the value."""

    name: str
    header: Header
    offset: int
    width: int
    mask: int = 0
    kind: Kind = "number"
    guard: tuple[tuple[str, int], ...] = ()
    names: tuple[tuple[str, int], ...] = ()

    @property
    def max_value(self) -> int:
        """The largest value of the field."""
        mask = self.mask or (1 << 8 * self.width) - 1
        return mask >> self.shift

    @property
    def shift(self) -> int:
        """Number of bits below the field's lowest bit."""
        return (self.mask & -self.mask).bit_length() - 1 if self.mask else 0


class UnknownFieldError(LookupError):
    """Unknown name of a field or header. nearest: the closest known name, or an empty string."""

    def __init__(self, name: str, nearest: str) -> None:
        self.name = name
        self.nearest = nearest
        super().__init__(f"no field is called {name!r}" + (f" — did you mean {nearest!r}?" if nearest else ""))


class Fields:
    """The headers and fields that rules and flow keys can name."""

    __slots__ = ("_checks", "_fields", "_flows", "_headers", "_menders", "_positions")

    def __init__(
        self,
        headers: Iterable[Header] = (),
        fields: Iterable[Field] = (),
        checks: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """checks: name of a field that is computed from the rest of the frame -> its header's name."""
        self._headers: dict[str, Header] = {}
        self._fields: dict[str, Field] = {}
        self._flows: dict[tuple[int, bytes], tuple[str, ...]] = {}
        self._checks = dict(checks)
        self._menders: dict[str, Mender] = {}  # by header
        self._positions: dict[str, Reader] = {}
        for header in headers:
            self._add_header(header)
        for field in fields:
            self._add_field(field)

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def __getitem__(self, name: str) -> Field:
        if name not in self._fields:
            raise UnknownFieldError(name, self.nearest(name))
        return self._fields[name]

    def names(self) -> list[str]:
        """List the names of all fields."""
        return list(self._fields)

    def headers(self) -> list[str]:
        """List the names of all headers; a rule may use each as a condition."""
        return list(self._headers)

    def nearest(self, name: str) -> str:
        """Return the closest name of a field or header, or an empty string."""
        close = difflib.get_close_matches(name.lower(), [*self._fields, *self._headers], n=1)
        return close[0] if close else ""

    def register(
        self,
        protocol: str,
        ethertype: int,
        fields: Mapping[str, Sequence[object]],
        flow: Sequence[str] = (),
        *,
        routed: bool = False,
        begins: bytes = b"",
        above: str = "",
        names: Mapping[str, Mapping[int, str]] = MappingProxyType({}),
        check: str = "",
        mended: Mender | None = None,
    ) -> None:
        """Add a protocol directly above Ethernet.

        fields: name -> offset, width and optionally mask and guard, see the module. flow: names of the fields of the
        protocol's flow key. routed: a source route may precede the header. begins: the header's first bytes, if protocols
        share the EtherType. above: the header below it, see the module. names: field -> value -> the value's name.
        check: name of the field that is computed from the rest of the frame. mended: computes that field. Raises ValueError
        for an invalid name, EtherType or field; nothing has been added then.
        """
        updated = self.copy()
        header = Header(protocol, "network", ethertype, routed, begins, above)
        updated._add_header(header)
        for name, layout in fields.items():
            field = _make_field(header, name, layout)
            value_names = tuple([(text, value) for value, text in names.get(name, {}).items()])
            updated._add_field(replace(field, names=value_names))
        for field in updated._fields.values():
            for guard_name, _ in field.guard:
                if guard_name not in updated._fields:
                    raise ValueError(f"{field.name}: its guard names {guard_name!r}, which is not a field")
        for name in flow:
            if f"{protocol}.{name}" not in updated._fields:
                raise ValueError(f"{protocol}: its flow key names {name!r}, which is not one of its fields")
        if above and flow:
            raise ValueError(
                f"{protocol}: its flows are those of {above}, the header below it: it must have no flow key"
            )
        if not above:
            updated._flows[ethertype, begins] = tuple(f"{protocol}.{name}" for name in flow)
        if check and (f"{protocol}.{check}" not in updated._fields or mended is None):
            raise ValueError(
                f"{protocol}: its check {check!r} must be one of its fields, and needs a function `mended`"
            )
        self._headers, self._fields, self._flows = updated._headers, updated._fields, updated._flows
        if check:
            self._checks[f"{protocol}.{check}"] = protocol
        if mended is not None:
            self._menders[protocol] = mended

    def copy(self) -> Fields:
        """Return a copy, to which more fields can be added."""
        copied = Fields()
        copied._headers, copied._fields = dict(self._headers), dict(self._fields)
        copied._flows = dict(self._flows)
        copied._checks, copied._menders = dict(self._checks), dict(self._menders)
        return copied

    def checks(self) -> Mapping[str, str]:
        """Return the fields that are computed from the rest of the frame, each with its header's name."""
        return self._checks

    def is_checked(self, header: Header) -> bool:
        """Whether a check covers a header, or the whole frame."""
        return header.layer in ("link", "tag") or header.name in {*self._menders, *self._checks.values(), *_CHECKED}

    def mend(self, frame: bytes, located: Located) -> bytes:
        """Recompute the checks of the protocol above Ethernet in a frame. The check of a protocol with first bytes comes
        before that of the common fields, which covers it."""
        network = located[1]
        headers = [header for header in self._headers.values() if header.name in self._menders]
        for header in sorted(headers, key=lambda header: not header.begins):
            begin = header.finder()(frame, located) if header.layer == "network" else -1
            if begin >= 0:
                tags = network - ETHERNET_HEADER
                bare = frame[:12] + frame[network - 2 :]
                bare = self._menders[header.name](bare, begin - tags)
                frame = frame[: network - 2] + bare[12:]
        return frame

    def flow_readers(self) -> dict[int, FlowReader]:
        """Make the readers of flow keys, by EtherType. If protocols share an EtherType, the first value of the key is the
        number in the first bytes of the header."""
        return {ethertype: self._flow_reader(ethertype) for ethertype in self.flow_ethertypes()}

    def _flow_reader(self, ethertype: int) -> FlowReader:
        readers = {
            begins: tuple([self.reader(name) for name in names])
            for (number, begins), names in self._flows.items()
            if number == ethertype
        }
        default_readers = readers.pop(b"", ())
        if not readers:
            return lambda frame, located: tuple([max(read(frame, located), 0) for read in default_readers])
        size, routed = len(next(iter(readers))), self.is_routed(ethertype)

        def read_shared(frame: bytes, located: Located) -> tuple[int, ...]:
            offset = skip_route(frame, located[1]) if routed else located[1]
            begins = frame[offset : offset + size]
            own_readers = readers.get(begins)
            if own_readers is None:
                return tuple([max(read(frame, located), 0) for read in default_readers])
            return int.from_bytes(begins, "big"), *[max(read(frame, located), 0) for read in own_readers]

        return read_shared

    def flow_ethertypes(self) -> set[int]:
        """Return the EtherTypes with a flow key."""
        return {ethertype for (ethertype, begins), names in self._flows.items() if names or begins}

    def flow_spans(self, ethertype: int) -> dict[bytes, tuple[slice, ...]]:
        """Return the slices of a frame that contain the flow key, by the first bytes of the EtherType's headers; empty if a
        field of a key has a guard. They apply to frames without tags and without a source route."""
        spans = {}
        for (number, begins), names in self._flows.items():
            if number == ethertype:
                fields = [self._fields[name] for name in names]
                if any(field.guard for field in fields):
                    return {}
                offsets = [(ETHERNET_HEADER + field.offset, field.width) for field in fields]
                spans[begins] = tuple([slice(begin, begin + width) for begin, width in offsets])
        return spans

    def is_routed(self, ethertype: int) -> bool:
        """Whether a source route may precede a header of an EtherType."""
        return ethertype in self.routed_ethertypes()

    def routed_ethertypes(self) -> set[int]:
        """Return the EtherTypes whose headers a source route may precede."""
        return {header.number for header in self._headers.values() if header.routed}

    def flow_fields(self) -> dict[tuple[int, bytes], tuple[str, ...]]:
        """Return the names of the fields of each registered flow key, by EtherType and the header's first bytes."""
        return dict(self._flows)

    def presence(self, header: str) -> Reader:
        """Make a reader of a header's offset; it returns -1 if the frame does not have the header."""
        return self._headers[header].finder()

    def position(self, name: str) -> Reader:
        """Return a reader of the offset of a field's first byte; it returns -1 if the frame does not have the field. Raises
        UnknownFieldError."""
        reader = self._positions.get(name)
        if reader is None:
            field = self[name]
            find, read, offset = field.header.finder(), self.reader(name), field.offset

            def position(frame: bytes, located: Located) -> int:
                return find(frame, located) + offset if read(frame, located) >= 0 else -1

            reader = self._positions[name] = position
        return reader

    def reader(self, name: str) -> Reader:
        """Make a reader of a field. Raises UnknownFieldError."""
        field = self[name]
        find, offset, width = field.header.finder(), field.offset, field.width
        mask, shift = field.mask or (1 << 8 * width) - 1, field.shift
        if name == FRAME_LENGTH:
            return _length

        def read(frame: bytes, located: Located) -> int:
            begin = find(frame, located)
            if begin < 0:
                return -1
            begin += offset
            raw = frame[begin : begin + width]
            return (int.from_bytes(raw, "big") & mask) >> shift if len(raw) == width else -1

        guards = [(self.reader(guard_name), value) for guard_name, value in field.guard]
        if not guards:
            return read

        def guarded(frame: bytes, located: Located) -> int:
            for read_guard, value in guards:
                if read_guard(frame, located) != value:
                    return -1
            return read(frame, located)

        return guarded

    def _add_header(self, header: Header) -> None:
        if header.name in self._headers:
            raise ValueError(f"a header {header.name!r} is already registered")
        if not header.name.isidentifier():
            raise ValueError(f"the name of a header must have letters, digits and '_' only, got {header.name!r}")
        for peer in self._headers.values():
            is_same_number = (peer.layer, peer.number) == (header.layer, header.number)
            if header.layer in ("network", "transport") and is_same_number:
                _check_shared(header, peer)
        if header.layer == "network" and not MIN_ETHERTYPE <= header.number <= 0xFFFF:
            raise ValueError(f"{header.name}: 0x{header.number:x} is not an EtherType")
        self._headers[header.name] = header

    def _add_field(self, field: Field) -> None:
        if not all(part.isidentifier() for part in field.name.split(".")):
            raise ValueError(f"the name of a field must have letters, digits and '_' only, got {field.name!r}")
        if field.name in self._fields:
            raise ValueError(f"a field {field.name!r} is already registered")
        if not 0 < field.width <= MAX_WIDTH or field.offset < 0 or not 0 <= field.mask < 1 << 8 * field.width:
            raise ValueError(
                f"{field.name}: the offset must be 0 or more, the width 1 to {MAX_WIDTH} bytes, and the mask within the "
                f"width, got {field.offset}, {field.width} and 0x{field.mask:x}"
            )
        self._fields[field.name] = field


class SharedNumberError(ValueError):
    """Two headers have the same number and cannot be distinguished. peer: name of the header that was registered first.
    reason: a phrase."""

    def __init__(self, header: Header, peer: Header, reason: str) -> None:
        super().__init__(f"{header.name}: {peer.name} has the number 0x{header.number:04x}, too: {reason}")
        self.peer = peer.name
        self.reason = reason


def _check_shared(header: Header, peer: Header) -> None:
    """Check that two headers with one number can be distinguished, or are layered. Raises SharedNumberError."""
    if header.above == peer.name or peer.above == header.name:
        return
    if header.begins == peer.begins:
        reason = f"both begin with 0x{header.begins.hex()}" if header.begins else "neither has BEGINS"
        raise SharedNumberError(header, peer, reason)
    if header.routed != peer.routed:
        raise SharedNumberError(header, peer, "one follows a source route, the other does not")
    if header.begins and peer.begins and len(header.begins) != len(peer.begins):
        sizes = f"{len(header.begins)} and {len(peer.begins)} bytes"
        raise SharedNumberError(header, peer, f"their BEGINS must have equal lengths, got {sizes}")


_CHECKED: Final = ("ipv6",)
"""Headers that have no check, but are covered by the check of a following header."""

FRAME_LENGTH: Final = "frame.len"
"""Name of a field outside any header: the frame's length, without a frame check sequence."""


def _length(frame: bytes, _: Located) -> int:
    return len(frame)


def _make_field(header: Header, name: str, layout: Sequence[object]) -> Field:
    """Make a field from a protocol's plain data. Raises ValueError."""
    error = ValueError(
        f"{header.name}.{name}: must be offset, width, mask and guard (pairs of a field and its value), got {layout!r}"
    )
    defaults: tuple[object, ...] = (0, 0, 0, ())
    if len(layout) > len(defaults):
        raise error
    offset, width, mask, guard = (*layout, *defaults[len(layout) :])
    if not isinstance(offset, int) or not isinstance(width, int) or not isinstance(mask, int):
        raise error
    pairs = []
    for pair in guard if isinstance(guard, (list, tuple)) else (guard,):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not isinstance(pair[1], int):
            raise error
        pairs.append((f"{header.name}.{pair[0]}", pair[1]))
    return Field(f"{header.name}.{name}", header, offset, width, mask, "number", tuple(pairs))
