"""Classification of frames into flows, and the frames' numbers in their flows.

A flow is an EtherType, a pair of MAC addresses, and the values of the protocol's flow key. The key of IP has two
numbers: the protocol number, and for TCP and UDP the lower of the two ports, otherwise 0 (also in later fragments). The
lower port is the same in both directions of a connection, and usually the server's. Protocols on Ethernet declare the
fields of their key when they register.

A source route is skipped, so that a frame belongs to the same flow on every link. If protocols share an EtherType, the first
bytes of their headers, which distinguish them, are the key's first value.

VLAN tags are skipped as well: the kernel may carry the tag beside the frame, so that a program would see it on some
datapaths only. An IEEE 802.3 length field counts as EtherType 0. No other bytes of a frame matter.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Final, NamedTuple, TypeVar

from testbed.fates import fate_hash
from testbed.fates.fate_counters import Cell, Tallies
from testbed.fates.header_fields import (
    ETHERNET_HEADER,
    IPV4,
    IPV6,
    MAX_HOPS,
    MIN_ETHERTYPE,
    ROUTE_BYTE,
    TAGS,
    Fields,
    FlowReader,
    Located,
    locate,
)

MAX_CACHED: Final = 1 << 18
"""Maximum number of entries of each cache from bytes to a flow; a full cache is cleared. Flows are never removed."""

_MAX_KEY_GAP: Final = 4
"""Maximum bytes between the Ethernet header and the end of a flow key for which `Classifier.by_head` is used: its key is
one slice of the frame, which is faster than the two slices of the other cache."""

_TCP: Final = 6
_UDP: Final = 17
_WITH_PORTS: Final = frozenset({_TCP, _UDP})
# A plain IPv4 frame, without tags and options: Ethernet header, version and header length, fragment, protocol, both ports.
_PLAIN_IPV4: Final = struct.Struct("!14sB5xHxB10xI")
_PLAIN_IPV4_SIZE: Final = _PLAIN_IPV4.size
_IPV4_FIRST_BYTE: Final = IPV4 >> 8  # of the EtherType
_NO_OPTIONS: Final = 0x45  # version 4, a header of 20 bytes: the ports are at offset 34
_IPV4: Final = IPV4.to_bytes(2, "big")
_read_plain_ipv4: Final[Callable[[bytes], PlainFields]] = _PLAIN_IPV4.unpack_from


class Flow(NamedTuple):
    """A flow of one direction. destination, source: MACs as 48-bit numbers. key: the values of the flow key."""

    ethertype: int
    destination: int
    source: int
    key: tuple[int, ...] = ()

    def __str__(self) -> str:
        key = "".join(f" {value}" for value in self.key)
        return f"0x{self.ethertype:04x} {_mac(self.source)} > {_mac(self.destination)}{key}"


class FlowKind(NamedTuple):
    """The common part of flows that differ only in their addresses.

    located: result of `locate` for their frames; frames with another result are not cached. tail: for flows in
    `Classifier.by_head`, the bytes of the head after the addresses; a flow may have frames with other tails, too.
    """

    ethertype: int
    key: tuple[int, ...]
    located: Located
    tail: bytes = b""


class FlowEntry:
    """A flow in its classifier: one object for all its frames, so that a direction looks it up by identity.

    destination, source: the MACs, as bytes objects shared by all flows. counted_once: marks of the directions that have
    counted exactly one frame of the flow (`Flows`).
    """

    __slots__ = ("_flow", "counted_once", "destination", "kind", "source")

    def __init__(self, destination: bytes, source: bytes, kind: FlowKind) -> None:
        self.destination: Final = destination
        self.source: Final = source
        self.kind: Final = kind
        self.counted_once: Final[list[object]] = []
        self._flow: Flow | None = None

    @property
    def flow(self) -> Flow:
        """The flow, created when it is first read."""
        if self._flow is None:
            kind = self.kind
            self._flow = Flow(kind.ethertype, _number(self.destination), _number(self.source), kind.key)
        return self._flow

    def start(self, key: int, stream: int) -> int:
        """Return the start of one of the flow's streams of draws. key: key of the direction. stream: such as
        `fate_hash.LOSS`."""
        kind = self.kind
        return fate_hash.flow_start(key, kind.ethertype, self.destination, self.source, kind.key, stream)


class FlowCount:
    """A flow of a direction, the number n of its frames so far, and the starts of its streams of draws.

    A start is computed when it is first read: most directions read at most one of the six. epoch: number of times that the
    direction has restarted its counts. cell: storage of n, if counts are persistent.
    """

    __slots__ = ("_entry", "_key", "_loss", "_starts", "cell", "epoch", "n")

    cell: Cell

    def __init__(self, entry: FlowEntry, key: int, epoch: int, n: int) -> None:
        self.epoch = epoch
        self.n = n
        self._key = key
        self._entry = entry
        self._loss = -1  # start of the stream for losses, often the only one that is read; -1: not computed yet
        self._starts: dict[int, int] | None = None  # of the other streams

    @property
    def flow(self) -> Flow:
        return self._entry.flow

    def loss_start(self) -> int:
        """Return the start of the draws for losses."""
        if self._loss < 0:
            self._loss = self._entry.start(self._key, fate_hash.LOSS)
        return self._loss

    def start(self, stream: int) -> int:
        """Return the start of another stream of draws, such as `fate_hash.CORRUPT`."""
        starts = self._starts
        if starts is None:
            starts = self._starts = {}
        start = starts.get(stream)
        if start is None:
            start = starts[stream] = self._entry.start(self._key, stream)
        return start


PlainFields = tuple[bytes, int, int, int, int]
"""Fields of a plain IPv4 frame, equal for all frames of a flow except for the bit "don't fragment"."""

Key = TypeVar("Key")


class Classifier:
    """Classifier of frames into flows, with caches. Directions that have the same fields may share a classifier."""

    __slots__ = (
        "_by_key", "_head_ethertypes", "_key_getters", "_kinds", "_known", "_macs", "_other_kinds", "_readers", "_tails",
        "_uncached", "by_head", "by_port", "head_size",
    )  # fmt: skip

    def __init__(self, fields: Fields) -> None:
        """fields: fields of the protocols, with their flow keys."""
        self._readers = fields.flow_readers()
        self._known: dict[Flow, FlowEntry] = {}
        # Values that many flows have in common, each stored once.
        self._macs: dict[bytes, bytes] = {}
        self._other_kinds: dict[tuple[int, tuple[int, ...], Located], FlowKind] = {}
        self.by_port: dict[PlainFields, FlowEntry] = {}
        """Cache of plain IPv4 frames."""
        self.by_head: dict[bytes, FlowEntry] = {}
        """Cache of frames whose first `head_size` bytes identify their flow. It also contains all such flows, by their
        addresses and the tail of their kind."""
        # Kinds of the flows in `by_head`, by their frames' tails, and by EtherType and key.
        self._tails: dict[bytes, FlowKind] = {}
        self._kinds: dict[tuple[int, tuple[int, ...]], FlowKind] = {}
        self._by_key: dict[object, FlowEntry] = {}  # cache of frames by Ethernet header and the bytes of the flow key
        spans = {
            ethertype: by_begin
            for ethertype in self._readers
            if ethertype not in {IPV4, IPV6, *TAGS} and (by_begin := fields.flow_spans(ethertype))
        }
        plain = {
            ethertype: by_begin[b""]
            for ethertype, by_begin in spans.items()
            if set(by_begin) == {b""} and not fields.is_routed(ethertype)
        }
        ends = {ethertype: max(span.stop for span in of_key) for ethertype, of_key in plain.items()}
        # All EtherTypes of this cache have keys that end there. A longer slice would include bytes that differ between
        # frames of one flow.
        head_end = min([ETHERNET_HEADER + _MAX_KEY_GAP, *ends.values()])
        self._head_ethertypes = frozenset(ethertype for ethertype, end in ends.items() if end == head_end)
        self.head_size: Final = head_end if self._head_ethertypes else ETHERNET_HEADER
        self._key_getters: dict[int, Callable[[bytes], object]] = {
            ethertype: itemgetter(slice(0, ETHERNET_HEADER), *plain[ethertype])
            if ethertype in plain
            else _key_getter(by_begin, fields.is_routed(ethertype))
            for ethertype, by_begin in spans.items()
            if ethertype not in self._head_ethertypes
        }
        self._uncached = {IPV4, IPV6, *TAGS, *self._readers}

    def mac(self, address: bytes) -> bytes:
        """Return the shared object of an address, which a dictionary looks up without comparing bytes."""
        return self._macs.setdefault(address, address)

    def of(self, frame: bytes) -> tuple[Flow, Located]:
        """Return the frame's flow, and the result of `locate`."""
        entry, located = self.find(frame)
        return entry.flow, located

    def find(self, frame: bytes) -> tuple[FlowEntry, Located]:
        """Return the frame's flow in this classifier, and the result of `locate`."""
        if len(frame) >= _PLAIN_IPV4_SIZE and frame[12] == _IPV4_FIRST_BYTE:
            plain_fields = _read_plain_ipv4(frame)
            entry = self.by_port.get(plain_fields)
            if entry is not None:
                return entry, entry.kind.located
            head, version, fragment, protocol, _ = plain_fields
            # Ports follow a header without options; a later fragment has no ports.
            if version == _NO_OPTIONS and not fragment & 0x1FFF and head[12:] == _IPV4:
                if protocol not in _WITH_PORTS:
                    plain_fields = (head, version, fragment, protocol, 0)
                return self._look_up(self.by_port, plain_fields, frame)
        ethertype = int.from_bytes(frame[12:14], "big")
        if ethertype in self._head_ethertypes:
            head = frame[: self.head_size]
            entry = self.by_head.get(head) or self._find_by_head(head, frame)
            return entry, entry.kind.located
        take = self._key_getters.get(ethertype)
        if take is not None:
            return self._look_up(self._by_key, take(frame), frame)
        if ethertype in self._uncached:
            return self._find(frame)
        return self._look_up(self._by_key, frame[:14], frame)

    def _look_up(self, shortcut: dict[Key, FlowEntry], key: Key, frame: bytes) -> tuple[FlowEntry, Located]:
        entry = shortcut.get(key)
        if entry is not None:
            return entry, entry.kind.located
        entry, located = self._find(frame)
        if entry.kind.located == located:  # not equal if the flow has frames with and without tags or options
            if len(shortcut) >= MAX_CACHED:
                shortcut.clear()
            shortcut[key] = entry
        return entry, located

    def _find(self, frame: bytes) -> tuple[FlowEntry, Located]:
        located = locate(frame)
        flow = flow_of(frame, self._readers, located)
        if flow.ethertype in self._head_ethertypes:  # tagged: the cache has the untagged frame
            return self.find(frame[:12] + frame[located[1] - 2 :])[0], located
        entry = self._known.get(flow)
        if entry is None:
            ethertype, key = flow.ethertype, flow.key
            kind = self._other_kinds.get((ethertype, key, located))
            if kind is None:
                kind = FlowKind(ethertype, key, located)
                self._other_kinds[ethertype, key, located] = kind
            entry = self._known[flow] = FlowEntry(self.mac(frame[:6]), self.mac(frame[6:12]), kind)
        return entry, located

    def _find_by_head(self, head: bytes, frame: bytes) -> FlowEntry:
        """Return the flow of a frame whose first bytes, `head`, are not cached.

        All-to-all traffic has nearly as many flows as frames. So the part that flows have in common is computed only once.
        """
        tail = head[12:]
        kind = self._tails.get(tail)
        if kind is None:
            if int.from_bytes(frame[12:14], "big") not in self._head_ethertypes:
                return self.find(frame)[0]
            kind = self._kind(tail, frame)
        shortcuts = self.by_head
        own_head = head if tail == kind.tail else head[:12] + kind.tail
        entry = shortcuts.get(own_head)
        if entry is None:
            mac = self._macs.setdefault
            destination, source = head[:6], head[6:12]
            shortcuts[own_head] = entry = FlowEntry(mac(destination, destination), mac(source, source), kind)
        if own_head is not head and len(shortcuts) < MAX_CACHED:
            shortcuts[head] = entry
        return entry

    def _kind(self, tail: bytes, frame: bytes) -> FlowKind:
        located = locate(frame)
        flow = flow_of(frame, self._readers, located)
        kind = self._kinds.get((flow.ethertype, flow.key))
        if kind is None:
            kind = FlowKind(flow.ethertype, flow.key, located, tail)
            self._kinds[flow.ethertype, flow.key] = kind
        if len(self._tails) < MAX_CACHED:
            self._tails[tail] = kind
        return kind


class Flows:
    """The flows of one direction since its impairment was set.

    All-to-all traffic has nearly as many flows as frames. So the first frame of a flow only adds the direction's mark to
    `FlowEntry.counted_once`, which takes less memory than an entry in each direction.
    """

    __slots__ = (
        "_by_head", "_by_port", "_counted", "_epoch", "_find", "_head_size", "_key", "_mark", "_tallies", "_within",
    )  # fmt: skip

    def __init__(
        self, key: int, classifier: Classifier, epoch: int = 0, tallies: Tallies | None = None, within: int = 0
    ) -> None:
        """key: key of the direction (`fate_hash.direction_key`). epoch: number of times that the direction has restarted its
        counts. tallies: persistent storage of the flows' counts, as parts of the count with index `within`; None: the counts
        are in memory."""
        self._tallies = tallies
        self._within = within
        self._key = key
        self._epoch = epoch
        self._find = classifier.find
        self._by_port = classifier.by_port
        self._by_head = classifier.by_head
        self._head_size = classifier.head_size
        self._counted: dict[FlowEntry, FlowCount] = {}
        self._mark: Final = object()

    def count(self, frame: bytes) -> tuple[FlowCount, Located]:
        """Count a frame; return its flow, whose n includes this frame, and the result of `locate`. The returned count is
        valid until the next call."""
        if len(frame) >= _PLAIN_IPV4_SIZE and frame[12] == _IPV4_FIRST_BYTE:  # saves a call for plain IPv4 frames
            entry = self._by_port.get(_read_plain_ipv4(frame))
        else:
            entry = self._by_head.get(frame[: self._head_size])
        if entry is not None:
            located = entry.kind.located
        else:
            entry, located = self._find(frame)
        count = self._counted.get(entry)
        if count is None:
            if self._tallies is not None:
                count = self._resume_count(entry, self._tallies)
            elif self._mark not in entry.counted_once:
                entry.counted_once.append(self._mark)
                return FlowCount(entry, self._key, self._epoch, 1), located
            else:
                entry.counted_once.remove(self._mark)
                count = self._counted[entry] = FlowCount(entry, self._key, self._epoch, 1)
        count.n += 1
        if self._tallies is not None:
            numbers, index = count.cell
            numbers[index] = count.n
        return count, located

    def count_more(self, count: FlowCount, frames: int) -> None:
        """Count further frames of a flow, after `count` has counted a frame of it. frames: their number."""
        count.n += frames
        if self._tallies is not None:
            numbers, index = count.cell
            numbers[index] = count.n

    def _resume_count(self, entry: FlowEntry, tallies: Tallies) -> FlowCount:
        """Return the stored count of a flow, before its first frame in this process."""
        numbers, index = cell = tallies.cell(tuple(entry.flow), self._within)
        count = self._counted[entry] = FlowCount(entry, self._key, self._epoch, numbers[index])
        count.cell = cell
        return count


def flow_of(frame: bytes, readers: Mapping[int, FlowReader], located: Located | None = None) -> Flow:
    """Determine the flow of a frame from its bytes. readers: result of `Fields.flow_readers`; a field that is not in the
    frame counts as 0. A frame shorter than its Ethernet header is read as if zeros followed. located: the result of
    `locate`, if it is known."""
    located = located or locate(frame)
    ethertype = located[0]
    destination, source = _number(frame[:6]), _number(frame[6:12])
    if ethertype < MIN_ETHERTYPE:
        return Flow(0, destination, source)
    if ethertype in (IPV4, IPV6):
        protocol, begin = located[2], located[3]
        port = 0
        if protocol in _WITH_PORTS and begin >= 0 and len(frame) >= begin + 4:
            port = min(frame[begin] << 8 | frame[begin + 1], frame[begin + 2] << 8 | frame[begin + 3])
        return Flow(ethertype, destination, source, (max(protocol, 0), port))
    read = readers.get(ethertype)
    return Flow(ethertype, destination, source, () if read is None else read(frame, located))


def _key_getter(spans: Mapping[bytes, tuple[slice, ...]], routed: bool) -> Callable[[bytes], object]:
    """Make a function that extracts a cache key from a frame: the Ethernet header and, after a source route, the first bytes
    of the next header, if they identify a protocol, and the bytes of that protocol's spans."""
    size = max(map(len, spans))
    getters = {begins: _getter(len(begins), slices) for begins, slices in spans.items()}
    default_getter = getters.get(b"", _nothing)
    header_size = max([size, *[span.stop - ETHERNET_HEADER for slices in spans.values() for span in slices]])
    end = ETHERNET_HEADER + MAX_HOPS if routed else ETHERNET_HEADER

    def take(frame: bytes) -> object:
        offset, end_offset = ETHERNET_HEADER, min(end, len(frame))
        while offset < end_offset and frame[offset] >= ROUTE_BYTE:
            offset += 1
        header = frame[offset : offset + header_size]
        return frame[:ETHERNET_HEADER], getters.get(header[:size], default_getter)(header)

    return take


def _getter(begins: int, spans: tuple[slice, ...]) -> Callable[[bytes], object]:
    """Make a function that extracts the first bytes of a header and the bytes of its spans. begins: number of first bytes.
    spans: slices of the frame."""
    header_spans = [slice(span.start - ETHERNET_HEADER, span.stop - ETHERNET_HEADER) for span in spans]
    return itemgetter(slice(0, begins), *header_spans)


def _nothing(_: bytes) -> object:
    return None


def _number(address: bytes) -> int:
    """Return a MAC as a number. A truncated one is read as if zeros followed."""
    return int.from_bytes(address.ljust(6, b"\0"), "big")


def _mac(number: int) -> str:
    return number.to_bytes(6, "big").hex(":")
