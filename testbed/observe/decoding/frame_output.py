"""Output of captured frames and messages: text lines for people, or JSON objects for programs."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from testbed.fates.header_fields import Field, Reader, locate
from testbed.fields import known_fields
from testbed.observe.decoding.capture_reader import Frame
from testbed.observe.decoding.message_timelines import Message, Names
from testbed.observe.format.frame_format import formatters
from testbed.observe.format.frame_labels import label

_SECOND: Final = 1_000_000_000
_MIN_WALL_CLOCK: Final = 100_000_000 * _SECOND
"""Earlier times (before 1973) are simulated times, which begin at 0; later times are of the wall clock."""
# By `Frame.bound`.
_ARROW: Final = {"outbound": ">", "inbound": "<", "": " "}
_WAY: Final = {"outbound": "out", "inbound": "in", "": ""}

Details = Callable[[bytes], Iterable[str]]
"""Returns further lines for a frame's bytes."""


class FrameLines:
    """Text output of frames: one line for each frame, with its details below."""

    def __init__(self, nics: Mapping[bytes, str], details: Details | None = None) -> None:
        """nics: names of NICs by hardware address."""
        self._nics = nics
        self._details = details
        self._width = 0  # of the longest interface name so far
        self._second = -1  # of the last formatted time
        self._clock_text = ""  # that second as text

    def lines(self, frames: Iterable[Frame]) -> str:
        """Format frames, with line ends."""
        lines: list[str] = []
        for frame in frames:
            interface = str(frame.interface)
            self._width = max(self._width, len(interface))
            fate_text = f"  [{frame.comment}]" if frame.comment else ""
            when, way = self._format_time(frame.when), _WAY[frame.bound]
            lines.append(f"{when} {interface:{self._width}} {way:3} {describe(frame, self._nics)}{fate_text}\n")
            if self._details is not None:
                lines += [f"    {line}\n" for line in self._details(frame.raw)]
        return "".join(lines)

    def _format_time(self, nanoseconds: int) -> str:
        """Format a time as `_format_clock` does; faster for frames of the same second."""
        seconds, fraction = divmod(nanoseconds, _SECOND)
        if seconds != self._second:
            self._second, self._clock_text = seconds, _format_clock(nanoseconds).partition(".")[0]
        return f"{self._clock_text}.{fraction:09}"


def _format_clock(nanoseconds: int) -> str:
    """Format a time as the time of day, or as seconds of a simulation."""
    seconds, fraction = divmod(nanoseconds, _SECOND)
    is_wall_clock = nanoseconds >= _MIN_WALL_CLOCK
    return f"{time.strftime('%H:%M:%S', time.localtime(seconds)) if is_wall_clock else seconds}.{fraction:09}"


def describe(frame: Frame, nics: Mapping[bytes, str]) -> str:
    """Format a frame, with a remark if the capture has truncated it."""
    text = label(frame.raw, nics)
    return text if len(frame.raw) == frame.length else f"{text} captured of {frame.length}"


class Timelines:
    """Text output of messages: one line for each message or for each of its frames, with times relative to the message's
    first frame."""

    def __init__(self, nics: Mapping[bytes, str]) -> None:
        self._names = Names(nics)

    def summaries(self, messages: Sequence[Message]) -> list[str]:
        """Format messages, one line for each, with aligned names."""
        names = [f"{message.capture} {self._names.of(message)}".lstrip() for message in messages]
        width = max(map(len, names), default=0)
        return [
            f"{_format_clock(message.begun)}  {name:{width}}  {summary(message)}"
            for name, message in zip(names, messages, strict=True)
        ]

    def details(self, message: Message) -> list[str]:
        """Format a message with all its frames."""
        (heading,) = self.summaries([message])
        width = max((len(sighting.frame.interface.name) for sighting in message.sightings), default=0)
        lines = []
        for sighting in message.sightings:
            frame = sighting.frame
            marks = [mark for mark, is_set in (("lost", sighting.lost), ("again", sighting.again)) if is_set]
            remarks = f"  {', '.join(marks)}" if marks else ""
            fate_text = f"  [{frame.comment}]" if frame.comment else ""
            elapsed = _format_clock(frame.when - message.begun)
            lines.append(
                f"  +{elapsed} {frame.interface.name:{width}} {_ARROW[frame.bound]} {sighting.what}{remarks}{fate_text}"
            )
        return [heading, *lines]

    def facts(self, message: Message, frames: bool) -> Mapping[str, object]:
        """Return a message as a JSON object. frames: include its frames."""
        frame_documents = [
            {
                "time": sighting.frame.when,
                "interface": sighting.frame.interface.name,
                "way": _WAY[sighting.frame.bound],
                "role": sighting.role,
                "what": sighting.what,
                "again": sighting.again,
                "lost": sighting.lost,
                "fate": sighting.frame.comment,
            }
            for sighting in message.sightings
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
            **({"frames": frame_documents} if frames else {}),
        }


def summary(message: Message) -> str:
    """Summarize a message in one line."""
    phrases = [message.protocol.upper()]
    if message.total >= 0:
        phrases.append(f"{message.total:,} bytes")
    phrases += [
        f"{number:,} {singular if number == 1 else plural}"
        for number, singular, plural in (
            (message.sent["data"], "frame", "frames"),
            (message.sent["control"], "other frame", "other frames"),
            (message.sent["ack"], "acknowledgement", "acknowledgements"),
            (message.sent["nack"], "refusal", "refusals"),
            (message.lost, "lost", "lost"),
            (message.again, "sent again", "sent again"),
        )
        if number
    ]
    return f"{', '.join(phrases)}, in {(message.ended - message.begun) / 1_000:,.3f} us"


class FrameDocuments:
    """JSON output of frames. Header fields have the names that filters and rules use."""

    def __init__(self, nics: Mapping[bytes, str]) -> None:
        fields = known_fields()
        self._nics = nics
        self._fields = [(fields[name], fields.reader(name)) for name in fields.names()]
        self._presence = {header: fields.presence(header) for header in fields.headers()}
        self._readers: dict[tuple[str, ...], list[tuple[Field, Reader]]] = {}  # by the headers of a frame

    def of(self, frame: Frame) -> Mapping[str, object]:
        """Return a frame as a JSON object."""
        raw = frame.raw
        located = locate(raw)
        headers = tuple([name for name, find in self._presence.items() if find(raw, located) >= 0])
        readers = self._readers.get(headers)
        if readers is None:
            readers = [(field, read) for field, read in self._fields if field.header.name in headers]
            self._readers[headers] = readers
        fields = {
            field.name: _format_value(field, value) for field, read in readers if (value := read(raw, located)) >= 0
        }
        shared = formatters().get(located[0])
        formatter = None if shared is None else shared.formatter_of(raw)
        return {
            "capture": frame.interface.capture,
            "time": frame.when,
            "interface": frame.interface.name,
            "link": frame.interface.link,
            "direction": frame.interface.direction_of(frame.bound),
            "way": _WAY[frame.bound],
            "bytes": frame.length,
            "what": describe(frame, self._nics),
            "protocol": formatter.name if formatter is not None else headers[-1] if headers else "",
            "fields": fields,
            "fate": frame.comment,
        }


def _format_value(field: Field, value: int) -> int | str:
    """Format a field's value as filters write it."""
    if field.kind == "mac":
        return value.to_bytes(6, "big").hex(":")
    if field.kind == "ipv4":
        return str(ipaddress.IPv4Address(value))
    return str(ipaddress.IPv6Address(value)) if field.kind == "ipv6" else value
