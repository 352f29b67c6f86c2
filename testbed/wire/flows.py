"""Which flow a frame belongs to, and which of its frames it is.

A flow is an EtherType, a pair of MAC addresses, and the values of the fields that a protocol names as its flow key. IP
names its protocol number, TCP and UDP the lower of the two ports beside it (the same for both directions of a
connection, and the server's as a rule); the key of IP is thus always two numbers, the second 0 where there are no
ports, as in a later fragment. Protocols on Ethernet name theirs when they register their fields.

VLAN tags are looked through and do not tell flows apart: a kernel may carry the tag beside the frame, so that a program
on one datapath would see it and on another not. An IEEE 802.3 length field is no EtherType and counts as 0. What a
frame carries beyond its flow key never enters.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import itemgetter
from typing import Final, NamedTuple, TypeVar

from testbed.wire import hashing
from testbed.wire.fields import ETHERNET_HEADER, IPV4, IPV6, SMALLEST_ETHERTYPE, TAGS, Fields, Located, Reader, locate

MOST_CACHED: Final = 32_768
"""Entries in each shortcut from bytes to a flow; then it is emptied. Flows themselves are never forgotten."""

_TCP: Final = 6
_UDP: Final = 17
_WITH_PORTS: Final = frozenset({_TCP, _UDP})
# Of an IPv4 frame that is as usual: Ethernet header, version and header length, fragment, protocol, both ports.
_ORDINARY: Final = struct.Struct("!14sB5xHxB10xI")
_ORDINARY_SIZE: Final = _ORDINARY.size
_ORDINARY_BYTE: Final = IPV4 >> 8  # the EtherType's first
_NO_OPTIONS: Final = 0x45  # version 4, a header of 20 bytes: then the ports stand at 34
_IPV4: Final = IPV4.to_bytes(2, "big")
_read_ordinary: Final[Callable[[bytes], Ordinary]] = _ORDINARY.unpack_from
_HEADER: Final = slice(0, ETHERNET_HEADER)


class Flow(NamedTuple):
    """Of one direction. The MACs are the 48-bit numbers that are written; key: the values of the flow key."""

    ethertype: int
    destination: int
    source: int
    key: tuple[int, ...] = ()

    def __str__(self) -> str:
        key = "".join(f" {value}" for value in self.key)
        return f"0x{self.ethertype:04x} {_mac(self.source)} > {_mac(self.destination)}{key}"


_STREAMS: Final = {
    "loss": hashing.LOSS,
    "corrupt": hashing.CORRUPT,
    "duplicate": hashing.DUPLICATE,
    "reorder": hashing.REORDER,
    "jitter": hashing.JITTER,
    "bits": hashing.BITS,
}


class Counted:
    """A flow, how many of its frames there were, and where each of its streams of draws starts.

    A start is computed when it is first asked for: most directions ask for one of the six, or none.
    """

    __slots__ = ("_key", "bits", "corrupt", "duplicate", "epoch", "flow", "jitter", "loss", "n", "reorder")

    loss: int
    corrupt: int
    duplicate: int
    reorder: int
    jitter: int
    bits: int

    def __init__(self, flow: Flow, key: int, epoch: int, n: int) -> None:
        self.flow = flow
        self.epoch = epoch
        self.n = n
        self._key = key

    def __getattr__(self, name: str) -> int:
        """Called for a slot that is still empty, and fills it."""
        if name not in _STREAMS:
            raise AttributeError(name)
        start = hashing.chain(self._key, (*hashing.flow_words(*self.flow), _STREAMS[name]))
        setattr(self, name, start)
        return start


Known = tuple[Flow, Located, tuple[int, ...]]
"""A flow, what `locate` says of its frames, and the words that lead to its first draw for losses."""

Ordinary = tuple[bytes, int, int, int, int]
"""What is read of a frame as usual; the same for all frames of a flow, but for the bit that says "don't fragment"."""

Key = TypeVar("Key")


class Classifier:
    """From a frame's bytes to its flow, with shortcuts: the same for all directions that know the same fields, which may
    share it. All that it remembers can be found again."""

    __slots__ = ("_by_mac", "_finer", "_places", "_readers", "_takers", "by_port")

    def __init__(self, fields: Fields) -> None:
        """fields: which protocols name a flow key."""
        self._readers: dict[int, tuple[Reader, ...]] = {
            ethertype: fields.flow_readers(ethertype) for ethertype, names in fields.flow_fields().items() if names
        }
        self.by_port: dict[Ordinary, Known] = {}
        """The shortcut of ordinary frames."""
        self._by_mac: dict[object, Known] = {}  # by Ethernet header, and the bytes of the flow key where there is one
        # What takes those out of a frame without tags.
        self._takers: dict[bytes, Callable[[bytes], object]] = {
            ethertype.to_bytes(2, "big"): itemgetter(_HEADER, *spans)
            for ethertype in self._readers
            if ethertype not in (IPV4, IPV6, *TAGS) and (spans := fields.flow_spans(ethertype))
        }
        self._places: dict[Located, Located] = {}  # few different ones, of many flows
        self._finer = {IPV4, IPV6, *TAGS, *self._readers}

    def of(self, frame: bytes) -> Known:
        """The frame's flow, and what else is known of it."""
        if len(frame) >= _ORDINARY_SIZE and frame[12] == _ORDINARY_BYTE:
            ordinary = _read_ordinary(frame)
            known = self.by_port.get(ordinary)
            if known is not None:
                return known
            head, version, fragment, protocol, _ = ordinary
            # Its ports, if it has any, stand behind a header without options; a later fragment has none.
            if version == _NO_OPTIONS and not fragment & 0x1FFF and head[12:] == _IPV4:
                if protocol not in _WITH_PORTS:
                    ordinary = (head, version, fragment, protocol, 0)
                return self.by_port.get(ordinary) or self._remember(self.by_port, ordinary, frame)
        take = self._takers.get(frame[12:14])
        key = frame[:14] if take is None else take(frame)
        known = self._by_mac.get(key)
        if known is not None:
            return known
        if take is None and int.from_bytes(frame[12:14], "big") in self._finer:
            return self._find(frame)
        return self._remember(self._by_mac, key, frame)

    def _remember(self, shortcut: dict[Key, Known], key: Key, frame: bytes) -> Known:
        if len(shortcut) >= MOST_CACHED:
            shortcut.clear()
            self._places.clear()
        flow, located, first = self._find(frame)
        known = shortcut[key] = flow, self._places.setdefault(located, located), first
        return known

    def _find(self, frame: bytes) -> Known:
        located = locate(frame)
        flow = flow_of(frame, self._readers, located)
        return flow, located, (*hashing.flow_words(*flow), hashing.LOSS, 0)


class Flows:
    """The flows of one direction since its impairment was set.

    Where many nodes talk to many there are nearly as many flows as frames. So of a flow's first frame nothing is kept but
    that there was one.
    """

    __slots__ = ("_by_port", "_classify", "_counted", "_epoch", "_key", "_once")

    def __init__(self, key: int, classifier: Classifier, epoch: int = 0) -> None:
        """key: the direction's, see `hashing.direction_key`. epoch: how often the direction has counted from 1 again."""
        self._key = key
        self._epoch = epoch
        self._classify = classifier.of
        self._by_port = classifier.by_port
        self._once: set[Flow] = set()  # those of which there was one frame
        self._counted: dict[Flow, Counted] = {}  # those of which there were more

    def __len__(self) -> int:
        return len(self._once) + len(self._counted)

    def count(self, frame: bytes) -> tuple[Counted, Located]:
        """The frame's flow with its n, this frame included, and what `locate` says. The flow is good until the next call."""
        known = None
        if len(frame) >= _ORDINARY_SIZE and frame[12] == _ORDINARY_BYTE:
            known = self._by_port.get(_read_ordinary(frame))  # the relay's usual frame is worth a call less
        flow, located, _ = known or self._classify(frame)
        counted = self._counted.get(flow)
        if counted is None:
            if flow not in self._once:
                self._once.add(flow)
                return self._begun(flow), located
            counted = self._again(flow)
        counted.n += 1
        return counted, located

    def lost(self, frame: bytes, limit: int) -> Counted | None:
        """Count a frame that nothing but an independent loss can happen to: its flow, as above, if its draw is below the
        limit, see `hashing.threshold`."""
        flow, _, first = self._classify(frame)
        counted = self._counted.get(flow)
        if counted is None:
            once = self._once
            flows = len(once)
            once.add(flow)
            if len(once) > flows:
                return None if hashing.chain(self._key, first) >> 11 >= limit else self._begun(flow)
            counted = self._again(flow)
        counted.n = n = counted.n + 1
        return counted if hashing.draw(counted.loss, n) >> 11 < limit else None

    def _again(self, flow: Flow) -> Counted:
        """A flow of which there was one frame, and comes another."""
        self._once.remove(flow)
        counted = self._counted[flow] = self._begun(flow)
        return counted

    def _begun(self, flow: Flow) -> Counted:
        """A flow of which there was one frame."""
        return Counted(flow, self._key, self._epoch, 1)


def flow_of(frame: bytes, readers: dict[int, tuple[Reader, ...]], located: Located | None = None) -> Flow:
    """The flow of a frame, from nothing but its bytes. readers: EtherType -> the fields that a protocol names; a field
    that is not in the frame counts as 0. A frame shorter than its Ethernet header is taken as if zeros followed. located:
    what `locate` says, if that is known."""
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
    values = tuple([max(read(frame, located), 0) for read in readers.get(ethertype, ())])
    return Flow(ethertype, destination, source, values)


def _mac(number: int) -> str:
    return number.to_bytes(6, "big").hex(":")
