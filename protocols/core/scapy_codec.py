"""A protocol's codec, executed by Scapy on the layers from which the generated codec is made.

It is about a hundred times slower than the generated codec. Tests use it to show that both agree, for single frames and
for complete exchanges on a wire. No production module imports it; a protocol's `by_scapy` loads it on demand.

Firmware may take the codec as a parameter (`scapy_codec`). Other firmware is wrapped (`by_scapy`): between firmware and
wire, Scapy dissects every frame and rebuilds it from its fields, with newly computed lengths and checksums. If firmware
and layers disagree, the frames on the wire differ.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import truediv
from types import ModuleType

from scapy.layers.l2 import Ether
from scapy.packet import NoPayload, Packet, Raw

from protocols.core.firmware import Adapter, Agent, Buffer, Firmware, Nic, Plug
from protocols.core.formats import Format, FrameField, Stack, Word
from protocols.core.frames import trailing_size
from protocols.core.malformed import MalformedError

Value = int | bytes
Rebuild = Callable[[Buffer], bytes]

_ETHERNET_SIZE = 14
_CHECK_SIZE = 4


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
        for word, field in format_.selectors():
            if field in stack.fields:
                setattr(module, f"{field.scapy_field.name}_of", partial(_select, stack, word, field))
    return module


def _pack(format_: Format, stack: Stack, *arguments: Value | Buffer) -> bytes:
    """Build a frame. arguments: the free fields, and the payload, if any."""
    free = format_.free_fields(stack)
    payload = bytes(*arguments[len(free) :])
    fixed = {field: field.allowed[0] for field in stack.fields if len(field.allowed) == 1}
    return _build(format_, stack, {**fixed, **dict(zip(free, arguments, strict=False))}, payload)


def _pack_behind(format_: Format, stack: Stack, prefix: bytes, *arguments: Value | Buffer) -> bytes:
    prefix_values = _dissect(stack, prefix.ljust(stack.size, b"\0"))
    return _pack(format_, stack, *[prefix_values[field] for field in _prefix_fields(format_, stack)], *arguments)


def _unpack_behind(format_: Format, stack: Stack, raw: Buffer) -> tuple[Value | Buffer, ...]:
    return _unpack(format_, stack, raw)[len(_prefix_fields(format_, stack)) :]


def _prefix_fields(format_: Format, stack: Stack) -> list[FrameField]:
    """Return the free fields up to and including PREFIX."""
    behind = format_.free_fields(stack, format_.prefix_size)
    return [field for field in format_.free_fields(stack) if field not in behind]


def _build(format_: Format, stack: Stack, values: Mapping[FrameField, Value | Buffer], payload: bytes) -> bytes:
    headers = {layer: layer() for layer in format_.layers[stack.name]}
    for field, value in values.items():
        headers[field.layer].setfieldval(field.scapy_field.name, value.hex(":") if isinstance(value, bytes) else value)
    raw = bytes(reduce(truediv, [*headers.values(), Raw(payload)] if payload else headers.values()))
    return raw[: len(raw) - trailing_size(headers)]


def _unpack(format_: Format, stack: Stack, raw: Buffer) -> tuple[Value | Buffer, ...]:
    if len(raw) < stack.size:
        raise MalformedError("short")
    values = _dissect(stack, raw)
    for field, value in values.items():
        if (field.allowed and value not in field.allowed) or value in field.barred:
            raise MalformedError(field.name.strip("_"))
    end = len(raw)
    if length := format_.find_length(stack):
        end = stack.size + int(values[length[1]])
    elif format_.has_trailing_check:
        end = stack.size
    if end + (_CHECK_SIZE if format_.has_trailing_check else 0) > len(raw):
        raise MalformedError(length[1].scapy_field.name if length else "short")
    if format_.has_trailing_check:
        expected = bytes(raw[: end + _CHECK_SIZE])
        if _build(format_, stack, values, expected[stack.size : end]) != expected:
            raise MalformedError("check")
    if check := format_.find(stack, format_.check):
        unchecked = {field: value for field, value in values.items() if field != check[1]}
        if _build(format_, stack, unchecked, bytes(raw[stack.size : end])) != bytes(raw[:end]):
            raise MalformedError(format_.check)
    return (*(values[field] for field in format_.free_fields(stack)), raw[stack.size : end])


def _dissect(stack: Stack, raw: Buffer) -> dict[FrameField, Value]:
    """Dissect the frame headers that are present into field values, without checking them."""
    values: dict[FrameField, Value] = {}
    for word in stack.words:
        rest = bytes(raw[word.offset : word.offset + word.size])
        for field in word.fields:
            rest, value = field.scapy_field.getfield(field.layer(), rest)
            values[field] = bytes.fromhex(value.replace(":", "")) if isinstance(value, str) else int(value)
    return values


def _select(stack: Stack, word: Word, field: FrameField, raw: Buffer) -> int:
    if len(raw) < word.offset + word.size:
        raise MalformedError("short")
    return int(_dissect(stack, bytes(raw).ljust(stack.size, b"\0"))[field])


# NICs.


def by_scapy(plug: Plug, *frames: ModuleType) -> Plug:
    """Wrap a plug such that Scapy rebuilds every frame that its NICs send or receive. frames: modules with the layers
    of these frames."""
    rebuild_frame = partial(rebuild, {module.__name__ for module in frames})

    def build(adapter: Adapter, nic: Nic) -> Agent:
        agent = plug(adapter, _RebuildingNic(nic, rebuild_frame))
        return replace(agent, firmware=_RebuildingFirmware(agent.firmware, rebuild_frame))

    return build


def rebuild(modules: Container[str], frame: Buffer) -> bytes:
    """Dissect a frame with Scapy and rebuild it from its fields. modules: names of the modules whose layers compute
    their lengths and checksums anew."""
    raw = bytes(frame)
    if len(raw) < _ETHERNET_SIZE:
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


class _RebuildingNic:
    """A NIC that rebuilds the frames sent by the firmware with Scapy."""

    __slots__ = ("_nic", "_rebuild")

    def __init__(self, nic: Nic, rebuild: Rebuild) -> None:
        self._nic = nic
        self._rebuild = rebuild

    def dma_read(self, segments: Sequence[memoryview]) -> bytes:
        return self._nic.dma_read(segments)

    def send(self, frame: Buffer) -> bool | None:
        return self._nic.send(self._rebuild(frame))

    def when_sent(self, then: Callable[[int], object]) -> None:
        self._nic.when_sent(then)

    def send_later(self, make: Callable[[], bytes]) -> None:
        self._nic.send_later(lambda: self._rebuild(make()))

    def dma_write(self, target: memoryview, data: Buffer) -> None:
        self._nic.dma_write(target, data)

    def post_completion(self, index: int) -> None:
        self._nic.post_completion(index)

    def interrupt(self, index: int) -> None:
        self._nic.interrupt(index)

    def ring_doorbell(self, index: int, written: int, translated: int) -> None:
        self._nic.ring_doorbell(index, written, translated)


class _RebuildingFirmware:
    """Firmware that receives frames as rebuilt by Scapy. A frame that Scapy builds differently is invalid, and is
    passed unchanged, so that the firmware rejects it."""

    __slots__ = ("_firmware", "_rebuild")

    def __init__(self, firmware: Firmware, rebuild: Rebuild) -> None:
        self._firmware = firmware
        self._rebuild = rebuild

    @property
    def deadline(self) -> int | None:
        return self._firmware.deadline

    def receive(self, now: int, frame: bytes) -> None:
        rebuilt = self._rebuild(frame)
        self._firmware.receive(now, rebuilt if rebuilt == frame else frame)

    def on_doorbell(self, now: int, index: int) -> None:
        self._firmware.on_doorbell(now, index)

    def on_timer(self, now: int) -> None:
        self._firmware.on_timer(now)

    def counter_values(self) -> Mapping[str, int]:
        return self._firmware.counter_values()

    def pending_work(self) -> list[str]:
        return self._firmware.pending_work()
