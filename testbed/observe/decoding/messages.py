"""What became of each message of a capture: its frames, what was lost of them, sent again and acknowledged.

Which frames are one message's is said by its protocol (`protocols.core.telling`): nothing here knows any. A frame may be
seen at several places of its way. It is counted at one of them: where it leaves its NIC, or, where that is not captured,
where frames of that NIC were seen first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from protocols.core.telling import Kind, Role
from testbed.observe.decoding.reading import Frame
from testbed.observe.wording import Read, Told, told
from testbed.wire.fields import ETHERNET_HEADER, locate

_LOST: Final = ("dropped", "queue full", "the cable is out")
"""With what the words begin which say that a frame was lost."""

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Sighting:
    """A frame of a message, where it was seen. again: its NIC sends what it has sent before. lost: it ends here."""

    frame: Frame
    role: Role
    what: str
    again: bool
    lost: bool


@dataclass(slots=True)
class Message:
    """id: as its protocol counts. source, destination: hardware addresses. total: its bytes; -1: no frame has said it.
    begun, ended: when its first frame was seen, and its last, nanoseconds. sent: how many frames of each role, counted
    where they leave; again: of these, what had been sent before. lost: frames of any role. sightings: where they are kept.
    pieces: what has been sent: sorts of frames, and parts."""

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
    pieces: set[tuple[int, int]] = field(default_factory=set)


class Messages:
    """Takes frames in the order of time. nics: by hardware address, the names of NICs that are captured. keep: whether the
    frames of a message are kept; asked when it begins. strays: frames that name a message, and could not be placed."""

    def __init__(self, nics: Mapping[bytes, str], keep: Callable[[Message], bool]) -> None:
        self.found: Final[list[Message]] = []
        self.strays = 0
        self._nics = nics
        self._keep = keep
        self._sorts = {
            one.name: {value: _Sort(one, kind) for value, kind in one.kinds.items()}
            for sharers in told().values()
            for one in sharers
        }
        self._named: dict[Key, Message] = {}
        self._kept: set[int] = set()
        self._places: dict[tuple[str, bytes], tuple[str, str]] = {}

    def take(self, frames: Iterable[Frame]) -> None:
        for frame in frames:
            raw = frame.raw
            ethertype, network, _, _ = locate(raw)
            sharers = told().get(ethertype)
            one = None if sharers is None or network != ETHERNET_HEADER else sharers.of(raw)
            if one is None or not one.kinds:
                continue
            raw, _, intact = one.bare(raw)
            value = one.sort(raw)
            sort = self._sorts[one.name].get(value)
            if sort is not None and (sort.message or sort.handles):
                self._place(frame, raw, value, sort, intact)

    def _place(self, frame: Frame, raw: bytes, value: int, sort: _Sort, intact: bool) -> None:
        """raw: it, as its codec has it. intact: nothing is wrong with what the codec has not."""
        kind = sort.kind
        broken = not intact or bool(sort.told.wrong(raw))
        message = self._message(frame, raw, sort, broken)
        if message is None:
            self.strays += 1
            return
        message.ended = frame.when
        if sort.total is not None and not broken:
            message.total = sort.total(raw)
        again = False
        if self._leaves(frame):
            message.sent[kind.role] += 1
            if sort.part is not None:
                piece = value, sort.part(raw)
                again = piece in message.pieces
                message.again += again
                message.pieces.add(piece)
        lost = frame.comment.startswith(_LOST) or any(f"; {word}" in frame.comment for word in _LOST)
        message.lost += lost
        if id(message) in self._kept:
            message.sightings.append(Sighting(frame, kind.role, sort.told.words(frame.raw), again, lost))

    def _message(self, frame: Frame, raw: bytes, sort: _Sort, broken: bool) -> Message | None:
        """The one that it belongs to, which may begin with it; a broken frame begins none."""
        source, destination = raw[6:12], raw[:6]
        if sort.kind.back:
            source, destination = destination, source
        ways = frame.interface.capture, sort.told.name, source, destination
        handles = [(*ways, what, read(raw)) for what, read in sort.handles]
        if not sort.message:
            message = next((self._named[key] for key in handles if key in self._named), None)
        else:
            number = tuple([read(raw) for read in sort.message])
            key = (*ways, number, *[read(raw) for read in sort.within])
            message = self._named.get(key)
            if message is None and not broken:
                message = Message(sort.told.name, ways[0], number, source, destination, frame.when, frame.when)
                self._named[key] = message
                self.found.append(message)
                if self._keep(message):
                    self._kept.add(id(message))
        if message is not None and not broken:
            self._named.update(dict.fromkeys(handles, message))
        return message

    def _leaves(self, frame: Frame) -> bool:
        """It is seen where frames of its NIC are counted."""
        place = frame.interface.name, frame.bound
        source = frame.interface.capture, frame.raw[6:12]
        if source not in self._places:
            nic = self._nics.get(frame.raw[6:12])
            self._places[source] = place if nic is None else (nic, "outbound")
        return self._places[source] == place


class _Sort:
    """A sort of frames, its fields compiled to what reads them."""

    __slots__ = ("handles", "kind", "message", "part", "told", "total", "within")

    def __init__(self, one: Told, kind: Kind) -> None:
        self.told = one
        self.kind = kind
        self.message: list[Read] = [one.read(name) for name in kind.message]
        self.within: list[Read] = [one.read(name) for name in kind.within]
        self.handles: list[tuple[str, Read]] = [(what, one.read(name)) for what, name in kind.handles]
        self.part: Read | None = one.read(kind.part) if kind.part else None
        self.total: Read | None = one.read(kind.total) if kind.total else None


class Names:
    """What messages are called: ``n1/n2/7``, from which node to which, and the protocol's id. A NIC is called by its node,
    or, if that has several that are captured, by its own name; one that is not captured by its hardware address."""

    def __init__(self, nics: Mapping[bytes, str]) -> None:
        self._nics = nics

    def of(self, message: Message) -> str:
        number = ".".join(map(str, message.id))
        return f"{self._called(message.source)}/{self._called(message.destination)}/{number}"

    def means(self, text: str, message: Message) -> bool:
        """Whether the text, such as n1/7 or n1:eth0/n2/7, can mean it."""
        *ends, number = text.split("/")
        if number != ".".join(map(str, message.id)) or not 1 <= len(ends) <= 2:
            return False
        return all(
            end and end in self._all(mac) for end, mac in zip(ends, (message.source, message.destination), strict=False)
        )

    def _all(self, mac: bytes) -> tuple[str, ...]:
        name = self._nics.get(mac, "")
        return name, name.partition(":")[0], mac.hex(":")

    def _called(self, mac: bytes) -> str:
        name = self._nics.get(mac)
        if name is None:
            return mac.hex(":")
        node = name.partition(":")[0]
        several = sum(other.partition(":")[0] == node for other in self._nics.values()) > 1
        return name if several else node
