"""Templates of netlink messages: pyroute2 encodes one message of each shape, whose bytes are patched for further messages.

pyroute2 takes about 0.4 ms to encode the message that makes a veth pair, and a cluster sends hundreds of them. A function
decorated with `shaped` builds a pyroute2 message from its arguments. For each *shape* (text lengths, IP versions, omitted
arguments and fixed values), it is called once with recognisable values, whose offsets in the encoded bytes are recorded.
Every value must occur exactly once (an `Mtu` twice), which is checked then. A test compares patched with encoded messages.
"""

from __future__ import annotations

import functools
import inspect
import ipaddress
import re
import struct
from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeAlias

P = ParamSpec("P")

# The types of the parameters of a shaped function; their names select how a value is patched in.
Text: TypeAlias = str  # NUL-terminated on the wire
Mac: TypeAlias = str  # "02:00:00:00:00:01"
U32: TypeAlias = int  # in native byte order, like netlink
Mtu: TypeAlias = int  # a U32 that occurs twice in the message, for both ends of a pair
Ip: TypeAlias = str  # of either version
Fixed: TypeAlias = int  # too short to be found in the bytes: every value makes another shape


class Message(Protocol):
    """The part of pyroute2's nlmsg that this module uses."""

    data: bytearray

    def encode(self) -> None: ...


def mac_bytes(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


_NATIVE_U32 = struct.Struct("=I")

# kind -> (a recognisable value for the i-th parameter, the bytes of a value)
_SAMPLE: dict[str, Callable[[int, object], object]] = {
    "Text": lambda i, value: "".join(chr(0x41 + (i * 7 + k) % 57) for k in range(len(str(value)))),
    "Mac": lambda i, _: f"5a:{0xC0 + i:02x}:3c:99:e7:{i + 1:02x}",
    "U32": lambda i, _: 0x3D5B_9700 + i,
    "Mtu": lambda i, _: 0x3D5B_9700 + i,
    "Ip": lambda i, value: (
        f"5a5b:{0xC0 + i:x}:e7d3:1122:9988:7f6e:4d5c:{0x10 + i:x}"
        if ":" in str(value)
        else f"211.{60 + i}.97.{140 + i}"
    ),
}
_BYTES: dict[str, Callable[[object], bytes]] = {
    "Text": lambda value: str(value).encode(),
    "Mac": lambda value: mac_bytes(str(value)),
    "U32": lambda value: _NATIVE_U32.pack(value),
    "Mtu": lambda value: _NATIVE_U32.pack(value),
    "Ip": lambda value: ipaddress.ip_address(str(value)).packed,
}


def shaped(build: Callable[P, Message]) -> Callable[P, bytes]:
    """Turn a function that builds a pyroute2 message into one that returns its bytes, encoding each shape once."""
    untyped: Callable[..., Message] = build  # the samples have the right types, which mypy cannot infer
    parameters = list(inspect.signature(build).parameters.values())
    names = [parameter.name for parameter in parameters]
    kinds = [str(parameter.annotation).removesuffix(" | None") for parameter in parameters]
    defaults = [parameter.default for parameter in parameters]
    converters = [_BYTES.get(kind) for kind in kinds]
    shapes: dict[tuple[object, ...], tuple[bytes, list[list[int]]]] = {}

    def encode_shape(values: list[object]) -> tuple[bytes, list[list[int]]]:
        samples = [
            value if value is None or kind == "Fixed" else _SAMPLE[kind](i, value)
            for i, (kind, value) in enumerate(zip(kinds, values, strict=True))
        ]
        message = untyped(*samples)
        message.encode()
        template = bytes(message.data)
        offsets: list[list[int]] = []
        for name, kind, sample, convert in zip(names, kinds, samples, converters, strict=True):
            if sample is None or convert is None:
                offsets.append([])
                continue
            positions = [match.start() for match in re.finditer(re.escape(convert(sample)), template)]
            if len(positions) != (2 if kind == "Mtu" else 1):
                raise AssertionError(f"{build.__name__}: {name} occurs {len(positions)} times in the message")
            offsets.append(positions)
        return template, offsets

    @functools.wraps(build)
    def encoded(*args: P.args, **kwargs: P.kwargs) -> bytes:
        values: list[object] = list(args)
        for i in range(len(values), len(names)):
            values.append(kwargs.get(names[i], defaults[i]))
        shape = tuple(
            value if value is None or kind == "Fixed" else len(str(value)) if kind == "Text" else ":" in str(value)
            for kind, value in zip(kinds, values, strict=True)
        )
        if shape not in shapes:
            shapes[shape] = encode_shape(values)
        template, offsets = shapes[shape]
        message = bytearray(template)
        for offset, value, convert in zip(offsets, values, converters, strict=True):
            if offset and convert is not None:
                data = convert(value)
                for position in offset:
                    message[position : position + len(data)] = data
        return bytes(message)

    return encoded
