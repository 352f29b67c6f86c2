"""A protocol's codec, executed by Scapy on the layers that the generated codec is made from.

It is some hundred times slower than the generated codec. Tests use it to show that both agree, down to whole exchanges
on a wire. No production module imports it; tests load it by name.

Firmware that accepts a codec is given this one (`scapy_codec`). For other firmware, `by_scapy` builds NICs whose frames
Scapy dissects and rebuilds from their fields, with lengths and checksums of its own, between firmware and wire: any
disagreement between firmware and layers shows in the frames on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial, reduce
from operator import truediv
from types import ModuleType

from scapy.layers.l2 import Ether
from scapy.packet import NoPayload, Packet, Raw

from protocols.core.firmware import Adapter, Agent, Buffer, Firmware, Nic, Plug
from protocols.core.formats import Format, Part, Stack, Word
from protocols.core.frames import trailing
from protocols.core.malformed import MalformedError

Value = int | bytes
Made = Callable[[Buffer], bytes]

_ETHERNET = 14
_CHECK = 4


def scapy_codec(frames: ModuleType) -> ModuleType:
    """Build a module with the functions of the codec generated from `frames`: `pack_*`, `unpack_*`, and the `*_of`
    functions that select an `unpack_*`."""
    format_ = Format(frames)
    module = ModuleType(f"{frames.__name__}, by Scapy")
    if format_.prefix:
        vars(module)["PREFIX_SIZE"] = format_.prefix_size
    for stack in format_.stacks:
        setattr(module, f"pack_{stack.name}", partial(_pack, format_, stack))
        setattr(module, f"unpack_{stack.name}", partial(_unpack, format_, stack))
        if format_.prefix:
            setattr(module, f"pack_{stack.name}_behind", partial(_pack_behind, format_, stack))
            setattr(module, f"unpack_{stack.name}_behind", partial(_unpack_behind, format_, stack))
        for word, part in format_.selectors():
            if part in stack.parts:
                setattr(module, f"{part.field.name}_of", partial(_select, stack, word, part))
    return module


def _pack(format_: Format, stack: Stack, *arguments: Value | memoryview) -> bytes:
    """Build a frame. arguments: the free fields, then the payload, if any."""
    free = format_.free(stack)
    payload = bytes(*arguments[len(free) :])
    fixed = {part: part.allowed[0] for part in stack.parts if len(part.allowed) == 1}
    return _built(format_, stack, {**fixed, **dict(zip(free, arguments, strict=False))}, payload)


def _pack_behind(format_: Format, stack: Stack, prefix: bytes, *arguments: Value | memoryview) -> bytes:
    known = _dissected(stack, prefix.ljust(stack.size, b"\0"))
    return _pack(format_, stack, *[known[part] for part in _before(format_, stack)], *arguments)


def _unpack_behind(format_: Format, stack: Stack, raw: Buffer) -> tuple[Value | memoryview, ...]:
    return _unpack(format_, stack, raw)[len(_before(format_, stack)) :]


def _before(format_: Format, stack: Stack) -> list[Part]:
    """Return the free fields of a frame's first bytes, up to and including PREFIX."""
    behind = format_.free(stack, format_.prefix_size)
    return [part for part in format_.free(stack) if part not in behind]


def _built(format_: Format, stack: Stack, values: Mapping[Part, Value | memoryview], payload: bytes) -> bytes:
    headers = {layer: layer() for layer in format_.layers[stack.name]}
    for part, value in values.items():
        headers[part.layer].setfieldval(part.field.name, value.hex(":") if isinstance(value, bytes) else value)
    raw = bytes(reduce(truediv, [*headers.values(), Raw(payload)] if payload else headers.values()))
    return raw[: len(raw) - trailing(headers)]


def _unpack(format_: Format, stack: Stack, raw: Buffer) -> tuple[Value | memoryview, ...]:
    if len(raw) < stack.size:
        raise MalformedError("short")
    values = _dissected(stack, raw)
    for part, value in values.items():
        if (part.allowed and value not in part.allowed) or value in part.barred:
            raise MalformedError(part.name.strip("_"))
    end = len(raw)
    if length := format_.find_length(stack):
        end = stack.size + int(values[length[1]])
    elif format_.trailer:
        end = stack.size
    if end + (_CHECK if format_.trailer else 0) > len(raw):
        raise MalformedError(length[1].field.name if length else "short")
    if format_.trailer:
        whole = bytes(raw[: end + _CHECK])
        if _built(format_, stack, values, whole[stack.size : end]) != whole:
            raise MalformedError("check")
    if check := format_.find(stack, format_.check):
        unchecked = {part: value for part, value in values.items() if part != check[1]}
        if _built(format_, stack, unchecked, bytes(raw[stack.size : end])) != bytes(raw[:end]):
            raise MalformedError(format_.check)
    return (*(values[part] for part in format_.free(stack)), memoryview(raw)[stack.size : end])


def _dissected(stack: Stack, raw: Buffer) -> dict[Part, Value]:
    """Dissect the frame headers that are present into fields, without checking the values."""
    values: dict[Part, Value] = {}
    for word in stack.words:
        rest = bytes(raw[word.offset : word.offset + word.size])
        for part in word.parts:
            rest, value = part.field.getfield(part.layer(), rest)
            values[part] = bytes.fromhex(value.replace(":", "")) if isinstance(value, str) else int(value)
    return values


def _select(stack: Stack, word: Word, part: Part, raw: Buffer) -> int:
    if len(raw) < word.offset + word.size:
        raise MalformedError("short")
    return int(_dissected(stack, bytes(raw).ljust(stack.size, b"\0"))[part])


# NICs.


def by_scapy(plug: Plug, *frames: ModuleType) -> Plug:
    """Wrap a plug so that Scapy rebuilds every frame. frames: modules with the layers of all frames that its NICs
    send."""
    make = partial(made, {module.__name__ for module in frames})

    def build(adapter: Adapter, nic: Nic) -> Agent:
        agent = plug(adapter, _Sending(nic, make))
        return Agent(_Receiving(agent.firmware, make), agent.host)

    return build


def made(modules: Container[str], frame: Buffer) -> bytes:
    """Rebuild a frame with Scapy from its dissected fields; the layers of these modules compute their own fields
    anew."""
    raw = bytes(frame)
    if len(raw) < _ETHERNET:
        return raw
    packet: Packet = Ether(raw)
    layer = packet.payload
    while not isinstance(layer, NoPayload):
        layer.raw_packet_cache = None
        for field in layer.fields_desc if layer.__module__ in modules else ():
            if field.default is None:
                layer.fields.pop(field.name, None)
        layer = layer.payload
    return bytes(packet)


class _Sending:
    """A NIC that rebuilds with Scapy what the firmware sends."""

    __slots__ = ("_made", "_nic")

    def __init__(self, nic: Nic, made: Made) -> None:
        self._nic = nic
        self._made = made

    def dma_read(self, segments: Sequence[memoryview]) -> bytes:
        return self._nic.dma_read(segments)

    def send(self, frame: Buffer) -> bool | None:
        return self._nic.send(self._made(frame))

    def when_sent(self, then: Callable[[int], object]) -> None:
        self._nic.when_sent(then)

    def send_later(self, make: Callable[[], bytes]) -> None:
        self._nic.send_later(lambda: self._made(make()))

    def dma_write(self, target: memoryview, data: Buffer) -> None:
        self._nic.dma_write(target, data)

    def post_completion(self, index: int) -> None:
        self._nic.post_completion(index)

    def interrupt(self, index: int) -> None:
        self._nic.interrupt(index)

    def ring_doorbell(self, index: int, written: int, translated: int) -> None:
        self._nic.ring_doorbell(index, written, translated)


class _Receiving:
    """Firmware that receives frames as Scapy rebuilds them. A frame that Scapy would have built differently, because
    something in it is wrong, is passed unchanged."""

    __slots__ = ("_firmware", "_made")

    def __init__(self, firmware: Firmware, made: Made) -> None:
        self._firmware = firmware
        self._made = made

    @property
    def deadline(self) -> int | None:
        return self._firmware.deadline

    def receive(self, now: int, frame: bytes) -> None:
        read = self._made(frame)
        self._firmware.receive(now, read if read == frame else frame)

    def on_doorbell(self, now: int, index: int) -> None:
        self._firmware.on_doorbell(now, index)

    def on_timer(self, now: int) -> None:
        self._firmware.on_timer(now)

    def counted(self) -> Mapping[str, int]:
        return self._firmware.counted()

    def waiting(self) -> list[str]:
        return self._firmware.waiting()
