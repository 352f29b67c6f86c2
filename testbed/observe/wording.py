"""The frames of registered protocols in words, as each protocol's codec says (`protocols.core.telling`), without Scapy.

A protocol whose codec says nothing of that is told of by its fields. A frame is checked by the codec itself, so that one
which its protocol would throw away is told as broken.

Of protocols that share an EtherType each is told of by its own codec. What is registered for all of them may have a function
`stripped`, which takes from a frame what codecs do not have: it gives the rest, the source route, and whether the CRC-8 is
right. Frames of that EtherType whose CRC-8 is wrong, and which nobody else claims, are left alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final

from protocols.core.malformed import MalformedError
from protocols.core.telling import Kind
from protocols.core.wording import spans
from testbed import registry
from testbed.errors import TestbedError
from testbed.fields import known_fields
from testbed.wire.fields import ETHERNET_HEADER, Fields, behind_route

Write = Callable[[bytes], str]
Read = Callable[[bytes], int]
Show = Callable[[tuple[int, ...], int], str]
"""Given all values and the place of one, what stands for it."""

Strip = Callable[[bytes], tuple[bytes, tuple[int, ...], bool]]

_WORDS: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}
_SHORT: Final = "short"
_FOREIGN: Final = "another protocol's"


class Told:
    """How one protocol's frames are told of. name: as it is registered. kinds: by the value of its field that tells the
    sorts of frames apart."""

    def __init__(self, name: str, codec: Any, fields: Fields, strip: Strip | None = None) -> None:
        """codec: a module as `protocols.core.codegen` writes it; it may be one without NAMES and KINDS. strip: see above."""
        self.name: Final = name
        self.ethertype: Final = int(codec.ETHERTYPE)
        self.begins: Final[bytes] = getattr(codec, "BEGINS", b"")
        self._strip = strip
        self._is_common = strip is not None and not self.begins
        self.kinds: Final[Mapping[int, Kind]] = getattr(codec, "KINDS", {})
        self._fields = fields
        self._routed = bool(getattr(codec, "ROUTED", False))
        self._own = [f"{name}.{field}" for field in codec.FIELDS]
        self._names: Mapping[str, Mapping[int, str]] = getattr(codec, "NAMES", {})
        self._unpack: list[Callable[[bytes], object]] = [
            function
            for what, function in vars(codec).items()
            if what.startswith("unpack_") and not what.endswith("_behind")
        ]
        # What every frame has says, where it is wrong, that the frame is somebody else's.
        self._fixed = {field for field in codec.FIELDS if isinstance(getattr(codec, field.upper(), None), int)}
        self._kind = self.read(codec.KIND) if self.kinds else None
        self._selects: str = getattr(codec, "KIND", "")
        self._words = {value: _Words(self, value, kind.words).write for value, kind in self.kinds.items()}
        self._likely: dict[int, Callable[[bytes], object]] = {}  # by sort, what has read the last frame of it

    def bare(self, frame: bytes) -> tuple[bytes, tuple[int, ...], bool]:
        """A frame without tags, as the codec has it; its source route, if that can be said; whether nothing is wrong with
        what the codec has not. All but `words` is asked of the first."""
        if self._strip is not None:
            return self._strip(frame)
        behind = behind_route(frame, ETHERNET_HEADER) if self._routed else ETHERNET_HEADER
        return frame if behind == ETHERNET_HEADER else frame[:ETHERNET_HEADER] + frame[behind:], (), True

    def read(self, field: str) -> Read:
        """Reads a field, by its name in the protocol; -1 where a frame does not have it."""
        reader = self._fields.reader(f"{self.name}.{field}")
        ethertype = self.ethertype

        def guarded(frame: bytes) -> int:
            return reader(frame, (ethertype, ETHERNET_HEADER, -1, -1))

        place = self._fields[f"{self.name}.{field}"]
        if place.guard or self._routed:
            return guarded
        begin, end = ETHERNET_HEADER + place.offset, ETHERNET_HEADER + place.offset + place.width
        mask, shift = place.mask, place.shift
        if mask:
            return lambda frame: (int.from_bytes(frame[begin:end], "big") & mask) >> shift if len(frame) >= end else -1
        return lambda frame: int.from_bytes(frame[begin:end], "big") if len(frame) >= end else -1

    def sort(self, frame: bytes) -> int:
        """Which sort of frames it is: a key of `kinds`, or -1."""
        value = self._kind(frame) if self._kind is not None else -1
        return value if value in self.kinds else -1

    def words(self, frame: bytes) -> str:
        """What the frame is, whatever it has of a route; empty for what is not the protocol's."""
        if self._strip is None and not self._routed:
            return self._said(frame)
        frame, route, intact = self.bare(frame)
        if not intact and self._is_common:
            return ""
        said = self._said(frame)
        if route and said:
            said += f", route {' '.join([f'{delta:+}' for delta in route])}"
        return said if intact or not said else f"{said}, wrong CRC-8"

    def _said(self, frame: bytes) -> str:
        sort = self.sort(frame)
        if reason := self._wrong(frame, sort):
            return "" if reason == _FOREIGN else f"{self.name.upper()}, broken ({reason})"
        write = self._words.get(sort)
        try:
            return write(frame) if write is not None else self._plain(frame)
        except struct.error:  # too short: the codec has not looked at it
            return self._plain(frame)

    def wrong(self, frame: bytes) -> str:
        """Why no sort of frame of the protocol can be read from it; empty where one can."""
        return self._wrong(frame, self.sort(frame))

    def _wrong(self, frame: bytes, sort: int) -> str:
        likely = self._likely.get(sort)
        if likely is not None:
            try:
                likely(frame)
            except MalformedError:
                pass
            else:
                return ""
        reasons = []
        for unpack in self._unpack:
            try:
                unpack(frame)
            except MalformedError as error:
                reasons.append(error.reason)
            else:
                self._likely[sort] = unpack
                return ""
        if not reasons:  # the codec reads no frames
            return ""
        if set(reasons) == {_SHORT}:
            return _SHORT if self.begins else _FOREIGN
        if not self._fixed.isdisjoint(reasons):
            return _FOREIGN
        if self.kinds and sort < 0:
            return self._selects
        # That it is of another sort than the one it was read as is not what is wrong with it.
        return next((reason for reason in reasons if reason != self._selects), reasons[0])

    def _plain(self, frame: bytes) -> str:
        """All fields that the frame has."""
        located = (self.ethertype, ETHERNET_HEADER, -1, -1)
        said = []
        for own in self._own:
            field = own.removeprefix(f"{self.name}.")
            value = self._fields.reader(own)(frame, located)
            if value >= 0 and field not in self._fixed and not self._flag(field):
                said.append(f"{field} {self._names.get(field, {}).get(value, value)}")
        return f"{self.name.upper()} {', '.join(said)}".rstrip()

    def _flag(self, field: str) -> bool:
        """It is one bit of a field that is told of by itself."""
        return f"{self.name}.{field.rpartition('.')[0]}" in self._fields

    def place(self, field: str, sort: int) -> tuple[int, int]:
        """Where a field begins in frames of that sort, and its bytes; (0, 0) for bits, and what not all of them have."""
        it = self._fields[f"{self.name}.{field}"]
        selects = f"{self.name}.{self._selects}", sort
        if it.mask or any(guard != selects for guard in it.guard):
            return 0, 0
        return ETHERNET_HEADER + it.offset, it.width

    def called(self, field: str) -> Callable[[int], str] | None:
        """What gives a name to the field's values, if they have names."""
        if flags := self._flags(field):
            return lambda value: "+".join([flag for bit, flag in flags if value & bit])
        names = self._names.get(field)
        if names is None:
            return None
        known = names
        return lambda value: known.get(value) or str(value)

    def _flags(self, name: str) -> list[tuple[int, str]]:
        """Bits of a field's value that have a name."""
        whole = self._fields[f"{self.name}.{name}"]
        found = []
        for own in self._own:
            prefix, _, flag = own.rpartition(".")
            if prefix == whole.name:
                found.append((self._fields[own].mask >> whole.shift, flag.upper()))
        return found


class _Words:
    """What writes frames of one sort: their fields are read, and put into a text."""

    __slots__ = ("_format", "_reads", "_shown", "_unpack")

    def __init__(self, one: Told, sort: int, words: str) -> None:
        names = {name: None for pieces, _ in spans(words) for _, name, _ in pieces if name}
        numbers = self._locate(one, sort, list(names))
        self._shown: list[tuple[int, Show | None]] = []
        texts = []
        for pieces, optional in spans(words):
            first, text = len(self._shown), ""
            for before, name, how in pieces:
                text += before.replace("%", "%%")
                if name:
                    called = one.called(name)
                    self._shown.append((numbers[name], None if called is None else _name(called)))
                    text += f"%{how or 'd'}" if called is None else "%s"
            if optional:
                self._shown[first:] = [(0, _unless_zero(text, self._shown[first:]))]
                text = "%s"
            texts.append(text)
        self._format = "".join(texts)

    def write(self, frame: bytes) -> str:
        values = self._unpack(frame)
        if self._reads:
            values += tuple([read(frame) for read in self._reads])
        return self._format % tuple([values[at] if show is None else show(values, at) for at, show in self._shown])

    def _locate(self, one: Told, sort: int, names: list[str]) -> dict[str, int]:
        """Most fields are unpacked together; those of bits, and those that not all frames have, are read one by one. Gives
        the numbers of their values."""
        end, format_, together, apart = 0, "!", list[str](), list[str]()
        for (begin, width), name in sorted((one.place(name, sort), name) for name in names):
            if begin < end or width not in _WORDS:
                apart.append(name)
                continue
            format_ += f"{begin - end}x{_WORDS[width]}"
            end = begin + width
            together.append(name)
        self._unpack: Callable[[bytes], tuple[int, ...]] = struct.Struct(format_).unpack_from
        self._reads = [one.read(name) for name in apart]
        return {name: number for number, name in enumerate([*together, *apart])}


def _name(called: Callable[[int], str]) -> Show:
    return lambda values, place: called(values[place])


def _unless_zero(text: str, inner: Sequence[tuple[int, Show | None]]) -> Show:
    """What may be left out."""

    def show(values: tuple[int, ...], _: int) -> str:
        for place, _name in inner:
            if values[place] > 0:
                return text % tuple([values[at] if show is None else show(values, at) for at, show in inner])
        return ""

    return show


class Sharers:
    """The protocols of one EtherType."""

    def __init__(self) -> None:
        self._by_begin: dict[bytes, Told] = {}
        self._size = 0
        self._routed = False
        self._common: Told | None = None

    def __iter__(self) -> Iterator[Told]:
        return iter(self._by_begin.values())

    def add(self, one: Told, routed: bool) -> None:
        self._by_begin[one.begins] = one
        self._size = max(self._size, len(one.begins))
        self._routed = routed
        self._common = self._by_begin.get(b"")

    def of(self, frame: bytes) -> Told | None:
        """Whose a frame without tags is."""
        if not self._size:
            return self._common
        at = behind_route(frame, ETHERNET_HEADER) if self._routed else ETHERNET_HEADER
        return self._by_begin.get(frame[at : at + self._size], self._common)


@cache
def told() -> Mapping[int, Sharers]:
    """The protocols by EtherType: those whose fields rules can name. One that cannot be imported is not among them."""
    codecs: dict[str, Any] = {}
    for name in registry.offered(registry.FIELDS):
        with suppress(TestbedError):
            codecs[name] = registry.load(registry.FIELDS, name)
    return tellers(codecs, known_fields())


def tellers(codecs: Mapping[str, Any], fields: Fields) -> Mapping[int, Sharers]:
    """Of these codecs, by name. One that is none, or is not among the fields, is left out."""
    strips: dict[int, Strip] = {}
    for codec in codecs.values():
        with suppress(AttributeError):
            strips[codec.ETHERTYPE] = codec.stripped
    found: dict[int, Sharers] = {}
    for name, codec in codecs.items():
        with suppress(AttributeError, LookupError, ValueError, TypeError):
            one = Told(name, codec, fields, strips.get(codec.ETHERTYPE))
            found.setdefault(one.ethertype, Sharers()).add(one, fields.is_routed(one.ethertype))
    return found
