"""Timelines of the messages in a capture: the frames of each message, and which were lost, retransmitted or acknowledged.

A protocol's description (`protocols.core.frame_kinds`) defines which frames belong to one message; this module is
independent of protocols. A frame may be captured at several points of its path. It is counted at one of them: where it
leaves its NIC or, if that point is not captured, where frames of that NIC were captured first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from protocols.core.frame_kinds import Kind, Role
from testbed.fates.header_fields import ETHERNET_HEADER, locate
from testbed.observe.decoding.capture_reader import Frame
from testbed.observe.format.frame_format import FieldReader, FrameFormatter, formatters

_LOST_COMMENTS: Final = ("dropped", "queue full", "the cable is out")
"""Prefixes of the comments that report a lost frame."""

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Sighting:
    """A captured frame of a message. what: the frame as text. again: it is a retransmission. lost: it was lost at this
    point."""

    frame: Frame
    role: Role
    what: str
    again: bool
    lost: bool


@dataclass(slots=True)
class Message:
    """A message and its frame counts.

    id: the numbers by which the protocol identifies it. source, destination: hardware addresses. total: bytes of the
    message; -1: unknown. begun, ended: times of the first and the last frame, ns. sent: number of frames of each role, each
    counted once. again: number of retransmissions among them. lost: number of lost frames of any role. sightings: captured
    frames, if they are kept. parts: kind and part of each counted frame.
    """

    protocol: str
    capture: str
    id: tuple[int, ...]
    source: bytes
    destination: bytes
    begun: int
    ended: int
    total: int = -1
    sent: Counter[Role] = field(default_factory=Counter)
    again: int = 0
    lost: int = 0
    sightings: list[Sighting] = field(default_factory=list)
    parts: set[tuple[int, int]] = field(default_factory=set)


class Messages:
    """Assembler of messages from frames in order of time. assembled: the messages. unassigned: number of frames whose
    message is not in the capture or could not be identified. unnumbered: number of frames without the number of a
    message."""

    def __init__(self, nics: Mapping[bytes, str], keep: Callable[[Message], bool]) -> None:
        """nics: names of captured NICs by hardware address. keep: returns whether to keep a message's frames; called at its
        first frame."""
        self.assembled: Final[list[Message]] = []
        self.unassigned = 0
        self.unnumbered = 0
        self._nics = nics
        self._keep = keep
        self._frame_kinds = {
            formatter.name: {value: _FrameKind(formatter, kind) for value, kind in formatter.kinds.items()}
            for shared in formatters().values()
            for formatter in shared
        }
        self._by_key: dict[Key, Message] = {}  # by capture, protocol, both addresses, and id or handle
        self._kept_ids: set[int] = set()  # id() of the messages whose frames are kept
        # Interface and direction at which frames are counted, by capture and source address.
        self._count_points: dict[tuple[str, bytes], tuple[str, str]] = {}

    def add(self, frames: Iterable[Frame]) -> None:
        """Add the next frames."""
        for frame in frames:
            raw = frame.raw
            ethertype, network, _, _ = locate(raw)
            shared = formatters().get(ethertype)
            formatter = None if shared is None or network != ETHERNET_HEADER else shared.formatter_of(raw)
            if formatter is None or not formatter.kinds:
                self.unnumbered += 1
                continue
            raw, _, is_intact = formatter.strip(raw)
            value = formatter.kind_of(raw)
            frame_kind = self._frame_kinds[formatter.name].get(value)
            if frame_kind is not None and (frame_kind.message or frame_kind.handles):
                self._add_to_message(frame, raw, value, frame_kind, is_intact)
            else:
                self.unnumbered += 1

    def _add_to_message(self, frame: Frame, raw: bytes, value: int, frame_kind: _FrameKind, is_intact: bool) -> None:
        """Add a frame to its message. raw, is_intact: see `FrameFormatter.strip`. value: the frame's kind
        (`FrameFormatter.kind_of`)."""
        kind = frame_kind.kind
        is_malformed = not is_intact or bool(frame_kind.formatter.defect(raw))
        message = self._find_message(frame, raw, frame_kind, is_malformed)
        if message is None:
            self.unassigned += 1
            return
        message.ended = frame.when
        if frame_kind.total is not None and not is_malformed:
            message.total = frame_kind.total(raw)
        is_retransmission = False
        if self._is_at_count_point(frame):
            message.sent[kind.role] += 1
            if frame_kind.part is not None:
                part = value, frame_kind.part(raw)
                is_retransmission = part in message.parts
                message.again += is_retransmission
                message.parts.add(part)
        is_lost = any(f"; {comment}" in f"; {frame.comment}" for comment in _LOST_COMMENTS)
        message.lost += is_lost
        if id(message) in self._kept_ids:
            message.sightings.append(
                Sighting(frame, kind.role, frame_kind.formatter.format(frame.raw), is_retransmission, is_lost)
            )

    def _find_message(self, frame: Frame, raw: bytes, frame_kind: _FrameKind, is_malformed: bool) -> Message | None:
        """Find the frame's message, or create it, except for a malformed frame."""
        source, destination = raw[6:12], raw[:6]
        if frame_kind.kind.back:
            source, destination = destination, source
        path = frame.interface.capture, frame_kind.formatter.name, source, destination
        handles = [(*path, what, read(raw)) for what, read in frame_kind.handles]
        if not frame_kind.message:
            message = next((self._by_key[key] for key in handles if key in self._by_key), None)
        else:
            number = tuple([read(raw) for read in frame_kind.message])
            key = (*path, number, *[read(raw) for read in frame_kind.within])
            message = self._by_key.get(key)
            if message is None and not is_malformed:
                message = Message(
                    frame_kind.formatter.name, path[0], number, source, destination, frame.when, frame.when
                )
                self._by_key[key] = message
                self.assembled.append(message)
                if self._keep(message):
                    self._kept_ids.add(id(message))
        if message is not None and not is_malformed:
            self._by_key.update(dict.fromkeys(handles, message))
        return message

    def _is_at_count_point(self, frame: Frame) -> bool:
        """Whether the frame was captured at the point where frames of its NIC are counted."""
        point = frame.interface.name, frame.bound
        source = frame.interface.capture, frame.raw[6:12]
        if source not in self._count_points:
            nic = self._nics.get(frame.raw[6:12])
            self._count_points[source] = point if nic is None else (nic, "outbound")
        return self._count_points[source] == point


class _FrameKind:
    """A kind of frames with compiled readers of its fields (`protocols.core.frame_kinds.Kind`)."""

    __slots__ = ("formatter", "handles", "kind", "message", "part", "total", "within")

    def __init__(self, formatter: FrameFormatter, kind: Kind) -> None:
        self.formatter = formatter
        self.kind = kind
        self.message: list[FieldReader] = [formatter.read(name) for name in kind.message]
        self.within: list[FieldReader] = [formatter.read(name) for name in kind.within]
        self.handles: list[tuple[str, FieldReader]] = [(what, formatter.read(name)) for what, name in kind.handles]
        self.part: FieldReader | None = formatter.read(kind.part) if kind.part else None
        self.total: FieldReader | None = formatter.read(kind.total) if kind.total else None


class Names:
    """Names of messages: ``n1/n2/7`` consists of source node, destination node and the message's id.

    A NIC has its node's name, or `node:interface` if several NICs of the node are captured; a NIC that is not captured is
    named by its hardware address.
    """

    def __init__(self, nics: Mapping[bytes, str]) -> None:
        self._nics = nics

    def of(self, message: Message) -> str:
        """Return the name of a message."""
        number = ".".join(map(str, message.id))
        return f"{self._name_of(message.source)}/{self._name_of(message.destination)}/{number}"

    def matches(self, text: str, message: Message) -> bool:
        """Whether a text names the message; it may omit the destination and name a NIC: n1/7, n1:eth0/n2/7."""
        *ends, number = text.split("/")
        if number != ".".join(map(str, message.id)) or not 1 <= len(ends) <= 2:
            return False
        return all(
            end and end in self._names_of(mac)
            for end, mac in zip(ends, (message.source, message.destination), strict=False)
        )

    def _names_of(self, mac: bytes) -> tuple[str, ...]:
        name = self._nics.get(mac, "")
        return name, name.partition(":")[0], mac.hex(":")

    def _name_of(self, mac: bytes) -> str:
        name = self._nics.get(mac)
        if name is None:
            return mac.hex(":")
        node = name.partition(":")[0]
        has_several = sum(nic.partition(":")[0] == node for nic in self._nics.values()) > 1
        return name if has_several else node
