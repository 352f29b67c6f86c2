"""Frames of a capture as lines for people, or as facts for programs."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from testbed.fields import known_fields
from testbed.observe.decoding.messages import Message, Names
from testbed.observe.decoding.reading import Frame
from testbed.observe.naming import named
from testbed.observe.wording import told
from testbed.wire.fields import Field, Reader, locate

_SECOND: Final = 1_000_000_000
_EPOCH: Final = 100_000_000 * _SECOND
"""A clock of the wall shows later times than 1973, a simulation's earlier ones: it begins with 0."""
_ARROW: Final = {"outbound": ">", "inbound": "<", "": " "}
_WAY: Final = {"outbound": "out", "inbound": "in", "": ""}

Details = Callable[[bytes], Iterable[str]]
"""More lines of a frame."""


class Lines:
    """A line for every frame, and under it its details."""

    def __init__(self, nics: Mapping[bytes, str], details: Details | None = None) -> None:
        """nics: what hardware addresses are called."""
        self._nics = nics
        self._details = details
        self._width = 0
        self._second = -1
        self._text = ""

    def lines(self, frames: Iterable[Frame]) -> str:
        """With their ends."""
        said: list[str] = []
        for frame in frames:
            place = str(frame.interface)
            self._width = max(self._width, len(place))
            met = f"  [{frame.comment}]" if frame.comment else ""
            way = _WAY[frame.bound]
            said.append(f"{self._time(frame.when)} {place:{self._width}} {way:3} {words(frame, self._nics)}{met}\n")
            if self._details is not None:
                said += [f"    {line}\n" for line in self._details(frame.raw)]
        return "".join(said)

    def _time(self, when: int) -> str:
        """As `_clock` has it, and quicker for frames of one second."""
        seconds, rest = divmod(when, _SECOND)
        if seconds != self._second:
            self._second, self._text = seconds, _clock(when).partition(".")[0]
        return f"{self._text}.{rest:09}"


def _clock(when: int) -> str:
    """The time of day, or seconds since a simulation's beginning."""
    seconds, rest = divmod(when, _SECOND)
    late = when >= _EPOCH
    return f"{time.strftime('%H:%M:%S', time.localtime(seconds)) if late else seconds}.{rest:09}"


def words(frame: Frame, nics: Mapping[bytes, str]) -> str:
    """The frame in words, and whether the capture has all of it."""
    what = named(frame.raw, nics)
    return what if len(frame.raw) == frame.length else f"{what} captured of {frame.length}"


class Timelines:
    """Messages in lines: one for each, or one for each of its frames, with times from its beginning."""

    def __init__(self, nics: Mapping[bytes, str]) -> None:
        self._names = Names(nics)

    def heads(self, messages: Sequence[Message]) -> list[str]:
        """A line each."""
        called = [f"{one.capture} {self._names.of(one)}".lstrip() for one in messages]
        width = max(map(len, called), default=0)
        return [
            f"{_clock(one.begun)}  {name:{width}}  {summary(one)}" for name, one in zip(called, messages, strict=True)
        ]

    def whole(self, message: Message) -> list[str]:
        """All that is known of it."""
        (head,) = self.heads([message])
        width = max((len(one.frame.interface.name) for one in message.sightings), default=0)
        lines = []
        for one in message.sightings:
            frame = one.frame
            marks = [mark for mark, there in (("lost", one.lost), ("again", one.again)) if there]
            said = f"  {', '.join(marks)}" if marks else ""
            met = f"  [{frame.comment}]" if frame.comment else ""
            after = _clock(frame.when - message.begun)
            lines.append(f"  +{after} {frame.interface.name:{width}} {_ARROW[frame.bound]} {one.what}{said}{met}")
        return [head, *lines]

    def facts(self, message: Message, frames: bool) -> Mapping[str, object]:
        """frames: each is told of, too."""
        seen = [
            {
                "time": one.frame.when,
                "interface": one.frame.interface.name,
                "way": _WAY[one.frame.bound],
                "role": one.role,
                "what": one.what,
                "again": one.again,
                "lost": one.lost,
                "met": one.frame.comment,
            }
            for one in message.sightings
        ]
        return {
            "capture": message.capture,
            "protocol": message.protocol,
            "message": self._names.of(message),
            "begun": message.begun,
            "ended": message.ended,
            "bytes": max(0, message.total),
            "sent": dict(message.sent),
            "again": message.again,
            "lost": message.lost,
            **({"frames": seen} if frames else {}),
        }


def summary(message: Message) -> str:
    """How a message fared, in a line."""
    said = [message.protocol.upper()]
    if message.total >= 0:
        said.append(f"{message.total:,} bytes")
    said += [
        f"{number:,} {one if number == 1 else many}"
        for number, one, many in (
            (message.sent["data"], "frame", "frames"),
            (message.sent["control"], "other frame", "other frames"),
            (message.sent["ack"], "acknowledgement", "acknowledgements"),
            (message.sent["nack"], "refusal", "refusals"),
            (message.lost, "lost", "lost"),
            (message.again, "sent again", "sent again"),
        )
        if number
    ]
    return f"{', '.join(said)}, in {(message.ended - message.begun) / 1_000:,.3f} us"


class Facts:
    """What is known of a frame, with its fields by the names that filters and rules use."""

    def __init__(self, nics: Mapping[bytes, str]) -> None:
        fields = known_fields()
        self._nics = nics
        self._fields = [(fields[name], fields.reader(name)) for name in fields.names()]
        self._presence = {header: fields.presence(header) for header in fields.headers()}
        self._of: dict[tuple[str, ...], list[tuple[Field, Reader]]] = {}

    def of(self, frame: Frame) -> Mapping[str, object]:
        raw = frame.raw
        located = locate(raw)
        headers = tuple([name for name, find in self._presence.items() if find(raw, located) >= 0])
        readers = self._of.get(headers)
        if readers is None:
            readers = [(field, read) for field, read in self._fields if field.header.name in headers]
            self._of[headers] = readers
        fields = {field.name: _value(field, value) for field, read in readers if (value := read(raw, located)) >= 0}
        sharers = told().get(located[0])
        one = None if sharers is None else sharers.of(raw)
        return {
            "capture": frame.interface.capture,
            "time": frame.when,
            "interface": frame.interface.name,
            "link": frame.interface.link,
            "direction": frame.interface.enters(frame.bound),
            "way": _WAY[frame.bound],
            "bytes": frame.length,
            "what": words(frame, self._nics),
            "protocol": one.name if one is not None else headers[-1] if headers else "",
            "fields": fields,
            "met": frame.comment,
        }


def _value(field: Field, value: int) -> int | str:
    """As people and filters write it."""
    if field.kind == "mac":
        return value.to_bytes(6, "big").hex(":")
    if field.kind == "ipv4":
        return str(ipaddress.IPv4Address(value))
    return str(ipaddress.IPv6Address(value)) if field.kind == "ipv6" else value
