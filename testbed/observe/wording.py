"""The frames of registered protocols in words, as each protocol's codec says (`protocols.core.telling`), without Scapy.

A protocol whose codec says nothing of that is told of by its fields. A frame is checked by the codec itself, so that one
which its protocol would throw away is told as broken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Final

from protocols.core.malformed import MalformedError
from protocols.core.telling import Kind
from protocols.core.wording import spans
from testbed import registry
from testbed.errors import TestbedError
from testbed.fields import known_fields
from testbed.wire.fields import ETHERNET_HEADER, Fields

Write = Callable[[bytes], str]
Read = Callable[[bytes], int]

_SHORT: Final = "short"
_FOREIGN: Final = "another protocol's"


class Told:
    """How one protocol's frames are told of. name: as it is registered. kinds: by the value of its field that tells the
    sorts of frames apart."""

    def __init__(self, name: str, codec: Any, fields: Fields) -> None:
        """codec: a module as `protocols.core.codegen` writes it; it may be one without NAMES and KINDS."""
        self.name: Final = name
        self.ethertype: Final = int(codec.ETHERTYPE)
        self.kinds: Final[Mapping[int, Kind]] = getattr(codec, "KINDS", {})
        self._fields = fields
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
        self._words = {value: self._compile(kind.words) for value, kind in self.kinds.items()}

    def read(self, field: str) -> Read:
        """Reads a field, by its name in the protocol, of a frame without tags; -1 where the frame does not have it."""
        reader = self._fields.reader(f"{self.name}.{field}")
        ethertype = self.ethertype

        def guarded(frame: bytes) -> int:
            return reader(frame, (ethertype, ETHERNET_HEADER, -1, -1))

        place = self._fields[f"{self.name}.{field}"]
        if place.guard:
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
        """What the frame is; empty for what is not the protocol's."""
        if reason := self.wrong(frame):
            return "" if reason == _FOREIGN else f"{self.name.upper()}, broken ({reason})"
        write = self._words.get(self._kind(frame)) if self._kind is not None else None
        return write(frame) if write is not None else self._plain(frame)

    def wrong(self, frame: bytes) -> str:
        """Why no sort of frame of the protocol can be read from it; empty where one can."""
        reasons = []
        for unpack in self._unpack:
            try:
                unpack(frame)
            except MalformedError as error:
                reasons.append(error.reason)
            else:
                return ""
        if not reasons:  # the codec reads no frames
            return ""
        if set(reasons) == {_SHORT} or not self._fixed.isdisjoint(reasons):
            return _FOREIGN
        if self.kinds and self.sort(frame) < 0:
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

    def _compile(self, words: str) -> Write:
        """What writes a kind's words."""
        parts: list[Write] = []
        for pieces, optional in spans(words):
            write = _joined([self._piece(*piece) for piece in pieces])
            if optional:
                write = _unless_zero(write, [self.read(name) for _, name, _ in pieces if name])
            parts.append(write)
        return _joined(parts)

    def _piece(self, text: str, name: str, how: str) -> Write:
        if not name:
            return lambda _: text
        read = self.read(name)
        if flags := self._flags(name):

            def set_flags(frame: bytes) -> str:
                value = read(frame)
                return text + "+".join(flag for bit, flag in flags if value & bit)

            return set_flags
        names = self._names.get(name)
        if names is not None:
            known = names

            def named(frame: bytes) -> str:
                value = read(frame)
                return text + known.get(value, str(value))

            return named
        if how:
            return lambda frame: text + format(read(frame), how)
        return lambda frame: f"{text}{read(frame)}"

    def _flags(self, name: str) -> list[tuple[int, str]]:
        """Bits of a field's value that have a name."""
        whole = self._fields[f"{self.name}.{name}"]
        found = []
        for own in self._own:
            prefix, _, flag = own.rpartition(".")
            if prefix == whole.name:
                found.append((self._fields[own].mask >> whole.shift, flag.upper()))
        return found


def _joined(parts: list[Write]) -> Write:
    if len(parts) == 1:
        return parts[0]
    return lambda frame: "".join([part(frame) for part in parts])


def _unless_zero(write: Write, reads: list[Read]) -> Write:
    return lambda frame: write(frame) if any(read(frame) > 0 for read in reads) else ""


@cache
def told() -> Mapping[int, Told]:
    """The protocols by EtherType: those whose fields rules can name. One that cannot be imported is not among them."""
    fields = known_fields()
    found: dict[int, Told] = {}
    for name in registry.offered(registry.FIELDS):
        with suppress(TestbedError, AttributeError, LookupError, ValueError, TypeError):
            one = Told(name, registry.load(registry.FIELDS, name), fields)
            found.setdefault(one.ethertype, one)
    return found
