"""Classification of frames into flows, and the frames' numbers in them.

A flow is an EtherType, a pair of MAC addresses, and the values of the fields that a protocol names as its flow key. IP
names its protocol number, TCP and UDP the lower of the two ports beside it (the same for both directions of a
connection, and the server's as a rule); the key of IP is thus always two numbers, the second 0 where there are no
ports, as in a later fragment. Protocols on Ethernet name theirs when they register their fields.

A source route is skipped and is no part of the flow: a frame belongs to one flow on every link that it crosses. Where
protocols share an EtherType, the first bytes of their headers, which distinguish them, are the key's first value.

VLAN tags are skipped and are no part of the flow: a kernel may carry the tag beside the frame, so that a program would see
it on one datapath and not on another. An IEEE 802.3 length field is no EtherType and counts as 0. No other bytes of a frame
matter.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple, TypeVar

from testbed.fates import fate_hash
from testbed.fates.fate_counters import Cell, Tallies
from testbed.fates.header_fields import (
    ETHERNET_HEADER,
    IPV4,
    IPV6,
    MAX_HOPS,
    NOT_LOCATED,
    ROUTE_BYTE,
    SMALLEST_ETHERTYPE,
    TAGS,
    Fields,
    FlowReader,
    Located,
    locate,
)

MAX_CACHED: Final = 1 << 18
"""Entries in each cache from bytes to a flow; a full cache is emptied. Flows themselves are never forgotten."""

_GAP: Final = 4
"""Maximum of bytes between the Ethernet header and the end of a flow key for a cache by the frame's first bytes: two slices
take longer than one."""

_TCP: Final = 6
_UDP: Final = 17
_WITH_PORTS: Final = frozenset({_TCP, _UDP})
# Of an ordinary IPv4 frame: Ethernet header, version and header length, fragment, protocol, both ports.
_ORDINARY: Final = struct.Struct("!14sB5xHxB10xI")
_ORDINARY_SIZE: Final = _ORDINARY.size
_ORDINARY_BYTE: Final = IPV4 >> 8  # the EtherType's first
_NO_OPTIONS: Final = 0x45  # version 4, a header of 20 bytes: then the ports stand at 34
_IPV4: Final = IPV4.to_bytes(2, "big")
_read_ordinary: Final[Callable[[bytes], Ordinary]] = _ORDINARY.unpack_from
_ETHERTYPE: Final = 12  # where it stands, at the end of the Ethernet header


class Flow(NamedTuple):
    """A flow of one direction. destination, source: MACs as 48-bit numbers. key: the values of the flow key."""

    ethertype: int
    destination: int
    source: int
    key: tuple[int, ...] = ()

    def __str__(self) -> str:
        key = "".join(f" {value}" for value in self.key)
        return f"0x{self.ethertype:04x} {_mac(self.source)} > {_mac(self.destination)}{key}"


class Kind(NamedTuple):
    """The common part of flows that differ only in their addresses.

    located: result of `locate` for their frames, at least for those that a cache finds. words: those absorbed behind the
    addresses for the first draw for losses. tail: for flows identified by a frame's first bytes, the bytes behind the
    addresses; other tails may mean the same flow.
    """

    ethertype: int
    key: tuple[int, ...]
    located: Located
    words: tuple[int, ...]
    tail: bytes = b""


class Known:
    """A flow in its classifier: one object for all its frames, so that a direction's look-up compares identities only.

    destination, source: the MACs, as bytes that all flows share. path: the directions that its first frame will cross, in
    this order, as far as known; None: not looked up yet. drawn: the draws for that frame there. walked: how many of them it
    has crossed, which takes a fraction of the memory here that it would take in the directions.
    """

    __slots__ = ("_flow", "destination", "drawn", "kind", "path", "source", "walked")
    path: Sequence[Flows] | None
    drawn: Sequence[int]

    def __init__(self, destination: bytes, source: bytes, kind: Kind) -> None:
        self.path = None
        self.walked = 0
        self.destination: Final = destination
        self.source: Final = source
        self.kind: Final = kind
        self._flow: Flow | None = None

    @property
    def flow(self) -> Flow:
        """The flow, made when it is first read."""
        if self._flow is None:
            kind = self.kind
            self._flow = Flow(kind.ethertype, _number(self.destination), _number(self.source), kind.key)
        return self._flow

    @property
    def first(self) -> tuple[int, ...]:
        """The words whose absorption gives its first draw for losses."""
        kind = self.kind
        destination, source = _number(self.destination), _number(self.source)
        return (destination << 16 | kind.ethertype, source << 16 | len(kind.key), *kind.words)


class Counted:
    """A flow of a direction, the number n of its frames so far, and the starts of its streams of draws.

    A start is computed when it is first read: most directions read one of the six, or none. cell: where n is kept, if it
    is.
    """

    __slots__ = ("_key", "_known", "_loss", "_starts", "cell", "epoch", "n")

    cell: Cell

    def __init__(self, known: Known, key: int, epoch: int, n: int) -> None:
        self.epoch = epoch
        self.n = n
        self._key = key
        self._known = known
        self._loss = -1  # start of the draws for losses, which most directions read alone; -1: not read yet
        self._starts: dict[int, int] | None = None  # of the other streams

    @property
    def flow(self) -> Flow:
        return self._known.flow

    def start_of_loss(self) -> int:
        """Return the start of the draws for losses."""
        if self._loss < 0:
            self._loss = fate_hash.chain(self._key, self._known.first[:-1])
        return self._loss

    def start(self, stream: int) -> int:
        """Return the start of another stream of draws, such as `fate_hash.CORRUPT`."""
        starts = self._starts
        if starts is None:
            starts = self._starts = {}
        start = starts.get(stream)
        if start is None:
            start = starts[stream] = fate_hash.chain(self._key, (*self._known.first[:-2], stream))
        return start


_NO_FLOW: Final = Known(b"", b"", Kind(0, (), NOT_LOCATED, (fate_hash.LOSS, 0)))
_ONCE: Final = Counted(_NO_FLOW, 0, 0, 1)  # stands for a flow of which there was one frame

_MIN_AHEAD: Final = 3  # directions of a path; for fewer, drawing one by one is as fast
MAX_AHEAD: Final = 16
"""Maximum of directions of a path, for `look_ahead`."""

Ordinary = tuple[bytes, int, int, int, int]
"""Fields of an ordinary IPv4 frame, equal for all frames of a flow, but for the bit "don't fragment"."""

Key = TypeVar("Key")


class Classifier:
    """Classifier of frames into flows, with caches. Directions with the same fields may share one."""

    __slots__ = (
        "_finer", "_kinds", "_known", "_macs", "_others", "_readers", "_short", "_tails", "_takers", "behind_route",
        "by_head", "by_key", "by_port", "head",
    )  # fmt: skip

    def __init__(self, fields: Fields) -> None:
        """fields: which protocols name a flow key."""
        self._readers = fields.flow_readers()
        self._known: dict[Flow, Known] = {}
        # Values that many flows have in common, each stored once.
        self._macs: dict[bytes, bytes] = {}
        self._others: dict[tuple[int, tuple[int, ...], Located], Kind] = {}
        self.by_port: dict[Ordinary, Known] = {}
        """Cache of ordinary frames."""
        self.by_head: dict[bytes, Known] = {}
        """Cache of frames whose flow is identified by their first bytes (`head`), which also holds all such flows, each by
        its addresses and its kind's tail."""
        self._tails: dict[bytes, Kind] = {}  # of those flows
        self._kinds: dict[tuple[int, tuple[int, ...]], Kind] = {}  # the same, by EtherType and key
        self.by_key: dict[object, Known] = {}
        """Cache of frames by Ethernet header, and the bytes of the flow key, wherever they stand."""
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
        # One slice serves all of these. A longer one would hold bytes that change from frame to frame of the others.
        end = min([ETHERNET_HEADER + _GAP, *ends.values()])
        self._short = frozenset(ethertype for ethertype, own in ends.items() if own == end)
        self.head: Final = end if self._short else ETHERNET_HEADER
        self._takers: dict[int, Callable[[bytes], object]] = {
            ethertype: itemgetter(slice(0, ETHERNET_HEADER), *plain[ethertype])
            if ethertype in plain
            else _taker(by_begin, fields.is_routed(ethertype))
            for ethertype, by_begin in spans.items()
            if ethertype not in self._short
        }
        self.behind_route: Final = {
            ethertype.to_bytes(2, "big"): take
            for ethertype, take in self._takers.items()
            if fields.is_routed(ethertype)
        }
        """Makers of the keys of `by_key`, by EtherType as in a frame, where a source route may be in front of the header."""
        self._finer = {IPV4, IPV6, *TAGS, *self._readers}

    def mac(self, address: bytes) -> bytes:
        """Return the one object for an address, which a dictionary finds without comparing bytes."""
        return self._macs.setdefault(address, address)

    def of(self, frame: bytes) -> tuple[Flow, Located]:
        """Return the frame's flow, and the result of `locate`."""
        known, located = self.find(frame)
        return known.flow, located

    def find(self, frame: bytes) -> tuple[Known, Located]:
        """Return the frame's flow in this classifier, and the result of `locate`."""
        if len(frame) >= _ORDINARY_SIZE and frame[12] == _ORDINARY_BYTE:
            ordinary = _read_ordinary(frame)
            known = self.by_port.get(ordinary)
            if known is not None:
                return known, known.kind.located
            head, version, fragment, protocol, _ = ordinary
            # Ports, if any, are behind a header without options; a later fragment has none.
            if version == _NO_OPTIONS and not fragment & 0x1FFF and head[12:] == _IPV4:
                if protocol not in _WITH_PORTS:
                    ordinary = (head, version, fragment, protocol, 0)
                return self._look_up(self.by_port, ordinary, frame)
        ethertype = int.from_bytes(frame[12:14], "big")
        if ethertype in self._short:
            head = frame[: self.head]
            known = self.by_head.get(head) or self.meet(head, frame)
            return known, known.kind.located
        take = self._takers.get(ethertype)
        if take is not None:
            return self._look_up(self.by_key, take(frame), frame)
        if ethertype in self._finer:
            return self._find(frame)
        return self._look_up(self.by_key, frame[:14], frame)

    def _look_up(self, shortcut: dict[Key, Known], key: Key, frame: bytes) -> tuple[Known, Located]:
        known = shortcut.get(key)
        if known is not None:
            return known, known.kind.located
        known, located = self._find(frame)
        if known.kind.located == located:  # else the flow has frames with and without tags, or options
            if len(shortcut) >= MAX_CACHED:
                shortcut.clear()
            shortcut[key] = known
        return known, located

    def _find(self, frame: bytes) -> tuple[Known, Located]:
        located = locate(frame)
        flow = flow_of(frame, self._readers, located)
        if flow.ethertype in self._short:  # behind tags, without which it has a shortcut
            return self.find(frame[:12] + frame[located[1] - 2 :])[0], located
        known = self._known.get(flow)
        if known is None:
            ethertype, key = flow.ethertype, flow.key
            kind = self._others.get((ethertype, key, located))
            if kind is None:
                words = tuple([value & fate_hash.MASK for value in key])
                kind = Kind(ethertype, key, located, (*words, fate_hash.LOSS, 0))
                self._others[ethertype, key, located] = kind
            known = self._known[flow] = Known(self.mac(frame[:6]), self.mac(frame[6:12]), kind)
        return known, located

    def meet(self, head: bytes, frame: bytes) -> Known:
        """Return the flow of a frame whose first bytes, `head`, are not cached. In all-to-all traffic there are as many
        flows as frames: their common part is worked out once."""
        tail = head[12:]
        kind = self._tails.get(tail)
        if kind is None:
            if int.from_bytes(frame[12:14], "big") not in self._short:
                return self.find(frame)[0]
            kind = self._kind(tail, frame)
        shortcuts = self.by_head
        own = head if tail == kind.tail else head[:12] + kind.tail
        known = shortcuts.get(own)
        if known is None:
            mac = self._macs.setdefault
            destination, source = head[:6], head[6:12]
            shortcuts[own] = known = Known(mac(destination, destination), mac(source, source), kind)
        if own is not head and len(shortcuts) < MAX_CACHED:
            shortcuts[head] = known
        return known

    def _kind(self, tail: bytes, frame: bytes) -> Kind:
        located = locate(frame)
        flow = flow_of(frame, self._readers, located)
        kind = self._kinds.get((flow.ethertype, flow.key))
        if kind is None:
            kind = Kind(flow.ethertype, flow.key, located, (*flow.key, fate_hash.LOSS, 0), tail)
            self._kinds[flow.ethertype, flow.key] = kind
        if len(self._tails) < MAX_CACHED:
            self._tails[tail] = kind
        return kind


class Flows:
    """The flows of one direction since its impairment was set.

    In all-to-all traffic there are nearly as many flows as frames. So of a flow's first frame only a mark is kept, in the
    flow itself where its path was known.
    """

    __slots__ = (
        "_behind_route", "_by_head", "_by_key", "_by_port", "_counted", "_epoch", "_find", "_head", "_kept", "_key", "_lane",
        "_meet", "_within",
    )  # fmt: skip

    def __init__(
        self, key: int, classifier: Classifier, epoch: int = 0, kept: Tallies | None = None, within: int = 0
    ) -> None:
        """key: the direction's, see `fate_hash.direction_key`. epoch: how often the direction has counted from 1 again.
        kept: where flows' counts are kept, as parts of the count at that place, if they are."""
        self._kept = kept
        self._within = within
        self._key = key
        self._lane = key.to_bytes(fate_hash.LANE, "little")
        self._epoch = epoch
        self._find = classifier.find
        self._meet = classifier.meet
        self._by_port = classifier.by_port
        self._by_head = classifier.by_head
        self._by_key = classifier.by_key
        self._behind_route = classifier.behind_route
        self._head = classifier.head
        self._counted: dict[Known, Counted] = {}

    def count(self, frame: bytes) -> tuple[Counted, Located]:
        """Count a frame; return its flow with its n, this frame included, and the result of `locate`. The flow is valid
        until the next call."""
        if len(frame) >= _ORDINARY_SIZE and frame[12] == _ORDINARY_BYTE:  # saves a call for ordinary frames
            known = self._by_port.get(_read_ordinary(frame))
        else:
            known = self._by_head.get(frame[: self._head])
        if known is not None:
            located = known.kind.located
        else:
            known, located = self._find(frame)
        counted = self._counted.get(known)
        if counted is None:
            if self._kept is not None:
                counted = self._go_on(known, self._kept)
            elif not known.walked or not self._was_walked(known):
                self._counted[known] = _ONCE
                return Counted(known, self._key, self._epoch, 1), located
            else:
                counted = _ONCE
        if counted is _ONCE:
            counted = self._counted[known] = Counted(known, self._key, self._epoch, 1)
        counted.n += 1
        if self._kept is not None:
            numbers, place = counted.cell
            numbers[place] = counted.n
        return counted, located

    def count_more(self, counted: Counted, frames: int) -> None:
        """Count further frames of a flow, which come with one already counted."""
        counted.n += frames
        if self._kept is not None:
            numbers, place = counted.cell
            numbers[place] = counted.n

    def known(self, frame: bytes) -> Known:
        """Return the frame's flow, for `lost`."""
        if len(frame) >= _ORDINARY_SIZE and frame[12] == _ORDINARY_BYTE:  # as in `count`
            return self._by_port.get(_read_ordinary(frame)) or self._find(frame)[0]
        head = frame[: self._head]
        known = self._by_head.get(head)
        if known is not None:
            return known
        take = self._behind_route.get(frame[_ETHERTYPE:ETHERNET_HEADER])
        if take is not None and (known := self._by_key.get(take(frame))) is not None:
            return known
        return self._meet(head, frame)

    def lost(self, known: Known, limit: int) -> Counted | None:
        """Count a frame to which only an independent loss can happen; return its flow if it is lost, that is if its draw is
        below the limit, see `fate_hash.threshold`."""
        counted = self._counted.get(known)
        if counted is None and self._kept is not None:
            counted = self._go_on(known, self._kept)
        if counted is None:
            path, walked = known.path, known.walked
            if path and walked < len(path) and path[walked] is self:
                drawn = known.drawn[walked]
                known.walked = walked = walked + 1
                if walked == len(path):
                    known.drawn = ()
                return None if drawn >> 11 >= limit else Counted(known, self._key, self._epoch, 1)
            if not walked or not self._was_walked(known):
                self._counted[known] = _ONCE
                drawn = fate_hash.chain(self._key, known.first)
                return None if drawn >> 11 >= limit else Counted(known, self._key, self._epoch, 1)
            counted = _ONCE
        if counted is _ONCE:
            counted = self._counted[known] = Counted(known, self._key, self._epoch, 1)
        counted.n = n = counted.n + 1
        if self._kept is not None:
            numbers, place = counted.cell
            numbers[place] = n
        return counted if fate_hash.draw(counted.start_of_loss(), n) >> 11 < limit else None

    def _go_on(self, known: Known, kept: Tallies) -> Counted:
        """A flow whose first frame in this process is about to be counted."""
        numbers, place = cell = kept.cell(tuple(known.flow), self._within)
        counted = self._counted[known] = Counted(known, self._key, self._epoch, numbers[place])
        counted.cell = cell
        return counted

    def _was_walked(self, known: Known) -> bool:
        """Whether the flow's first frame has crossed this direction on its path."""
        path = known.path
        return path is not None and self in path[: known.walked]


def look_ahead(known: Known, path: Sequence[Flows]) -> None:
    """Compute at once the draws of a flow's first frame for the directions that it will cross, in this order. Where it takes
    another path, draws are computed one by one."""
    if len(path) < _MIN_AHEAD:
        known.path = ()
        return
    known.drawn = fate_hash.chains(b"".join([flows._lane for flows in path]), known.first)
    known.path = path


def flow_of(frame: bytes, readers: Mapping[int, FlowReader], located: Located | None = None) -> Flow:
    """Determine the flow of a frame from its bytes. readers: of `Fields.flow_readers`; a field that is not in the frame
    counts as 0. A frame shorter than its Ethernet header is read as if zeros followed. located: the result of `locate`, if
    it is known."""
    located = located or locate(frame)
    ethertype = located[0]
    destination = int.from_bytes(frame[:6].ljust(6, b"\0"), "big")
    source = int.from_bytes(frame[6:12].ljust(6, b"\0"), "big")
    if ethertype < SMALLEST_ETHERTYPE:
        return Flow(0, destination, source)
    if ethertype in (IPV4, IPV6):
        protocol, begin = located[2], located[3]
        port = 0
        if protocol in _WITH_PORTS and begin >= 0 and len(frame) >= begin + 4:
            port = min(frame[begin] << 8 | frame[begin + 1], frame[begin + 2] << 8 | frame[begin + 3])
        return Flow(ethertype, destination, source, (max(protocol, 0), port))
    read = readers.get(ethertype)
    return Flow(ethertype, destination, source, () if read is None else read(frame, located))


def _taker(spans: Mapping[bytes, tuple[slice, ...]], routed: bool) -> Callable[[bytes], object]:
    """Make a function that extracts a cache key from a frame: its Ethernet header, and of the header behind it the first
    bytes, if a protocol claims those, and the bytes of its spans, without a source route."""
    size = max(map(len, spans))
    behind = {begins: _getter(len(begins), found) for begins, found in spans.items()}
    others = behind.get(b"", _nothing)
    most = max([size, *[span.stop - ETHERNET_HEADER for found in spans.values() for span in found]])
    end = ETHERNET_HEADER + MAX_HOPS if routed else ETHERNET_HEADER

    def take(frame: bytes) -> object:
        at, last = ETHERNET_HEADER, min(end, len(frame))
        while at < last and frame[at] >= ROUTE_BYTE:
            at += 1
        header = frame[at : at + most]
        return frame[:ETHERNET_HEADER], behind.get(header[:size], others)(header)

    return take


def _getter(begins: int, spans: tuple[slice, ...]) -> Callable[[bytes], object]:
    """Make a function that extracts the first bytes of a header and those of its spans."""
    moved = [slice(span.start - ETHERNET_HEADER, span.stop - ETHERNET_HEADER) for span in spans]
    return itemgetter(slice(0, begins), *moved)


def _nothing(_: bytes) -> object:
    return None


def _number(address: bytes) -> int:
    return int.from_bytes(address if len(address) == 6 else address.ljust(6, b"\0"), "big")


def _mac(number: int) -> str:
    return number.to_bytes(6, "big").hex(":")
