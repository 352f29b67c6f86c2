"""Every codec agrees with the Scapy layers on every frame, in both directions, and refuses all others."""

from __future__ import annotations

import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.fields import ByteField, IntField, LEShortField, StrField, XShortField
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw, bind_layers

from protocols.core.codegen import generate, generate_codec
from protocols.core.malformed import MalformedError
from testbed.fates.header_fields import locate
from testbed.fates.headers import standard_fields
from tests.unit.protocols import synthetic_frames
from tests.unit.protocols.frame_strategies import (
    PACKAGES,
    PER_STACK,
    binding,
    dissect,
    drawn_frames,
    frames_of,
    lengths_of,
    own_layers,
    with_envelope,
)


def synthetic_codec() -> ModuleType:
    module = ModuleType("synthetic_codec")
    exec(generate(synthetic_frames, "the tests"), module.__dict__)
    return module


def checked_in(package: str) -> ModuleType:
    __import__(f"{package}.codec")
    return sys.modules[f"{package}.codec"]


MODULES = [(frames_of(package), checked_in(package)) for package in PACKAGES] + [(synthetic_frames, synthetic_codec())]
_STACKS = [
    pytest.param(frames, codec, stack, id=f"{frames.__name__}-{stack}")
    for frames, codec in MODULES
    for stack in frames.STACKS
]
EVERY_STACK = pytest.mark.parametrize(("frames", "codec", "stack"), _STACKS)
EVERY_STACK_WITH_A_PREFIX = pytest.mark.parametrize(
    ("frames", "codec", "stack"), [stack for stack in _STACKS if hasattr(stack.values[0], "PREFIX")]
)


def pack(codec: ModuleType, stack: str, *arguments: object) -> bytes:
    """Pack a frame. An empty payload is omitted, since not every frame can have one."""
    *leading, last = arguments
    is_empty = isinstance(last, bytes | memoryview) and not last
    return getattr(codec, f"pack_{stack}")(*leading, *([] if is_empty else [last]))


def unpack(codec: ModuleType, stack: str, frame: bytes | bytearray | memoryview) -> tuple[object, ...]:
    return getattr(codec, f"unpack_{stack}")(frame)


def values_or_reason(codec: ModuleType, stack: str, frame: bytes | bytearray) -> object:
    """Unpack a frame: the error's reason, or the values after the known prefix."""
    try:
        values = unpack(codec, stack, frame)
    except MalformedError as error:
        return error.reason
    if not stack.endswith("_behind") and hasattr(codec, "PREFIX_SIZE"):
        try:
            suffix_count = len(unpack(codec, f"{stack}_behind", frame))
        except MalformedError:
            suffix_count = 0
        values = values[len(values) - suffix_count :]
    return values


@pytest.mark.parametrize("package", PACKAGES)
def test_the_committed_codec_is_generated_from_its_frames(package: str) -> None:
    path, source = generate_codec(package)
    assert path.read_text() == source, f"run python -m protocols.core.codegen {package}"


@EVERY_STACK
@PER_STACK
@given(data=st.data())
def test_the_codec_packs_the_bytes_that_scapy_builds(
    frames: ModuleType, codec: ModuleType, stack: str, data: st.DataObject
) -> None:
    drawn = data.draw(drawn_frames(frames, stack))
    assert pack(codec, stack, *drawn.arguments, drawn.payload) == drawn.raw


@EVERY_STACK
@PER_STACK
@given(data=st.data(), padding=st.binary(max_size=60))
def test_scapy_dissects_the_frames_that_the_codec_packs(
    frames: ModuleType, codec: ModuleType, stack: str, data: st.DataObject, padding: bytes
) -> None:
    drawn = data.draw(drawn_frames(frames, stack))
    # A protocol without a length field cannot distinguish padding from payload.
    padding = padding if hasattr(frames, "LENGTH") else b""
    layers = frames.STACKS[stack]
    packet = Ether(with_envelope(layers, pack(codec, stack, *drawn.arguments, drawn.payload) + padding))
    *headers, last = dissect(layers, packet)
    assert last == {"payload": drawn.payload}
    built = Raw(drawn.payload) if drawn.payload else None
    for layer, values in zip(reversed(layers), reversed(headers), strict=True):
        texts = {name: value.hex(":") if isinstance(value, bytes) else value for name, value in values.items()}
        built = layer(**texts) / built if built else layer(**texts)
    assert bytes(built) == bytes(drawn.packet)


@EVERY_STACK
@PER_STACK
@given(data=st.data(), padding=st.binary(max_size=60))
def test_the_codec_unpacks_the_frames_that_scapy_builds(
    frames: ModuleType, codec: ModuleType, stack: str, data: st.DataObject, padding: bytes
) -> None:
    drawn = data.draw(drawn_frames(frames, stack))
    padding = padding if hasattr(frames, "LENGTH") else b""
    frame = drawn.raw + padding
    for form in (frame, bytearray(frame), memoryview(frame)):
        assert unpack(codec, stack, form) == (*drawn.arguments, drawn.payload)


@EVERY_STACK_WITH_A_PREFIX
@PER_STACK
@given(data=st.data(), padding=st.binary(max_size=60))
def test_fields_after_the_prefix_are_packed_and_unpacked_as_in_the_complete_frame(
    frames: ModuleType, codec: ModuleType, stack: str, data: st.DataObject, padding: bytes
) -> None:
    drawn = data.draw(drawn_frames(frames, stack))
    frame = drawn.raw
    prefix_size = codec.PREFIX_SIZE
    for form in (frame + padding, bytearray(frame + padding), memoryview(frame + padding)):
        payload = drawn.payload if hasattr(frames, "LENGTH") else drawn.payload + padding
        values = unpack(codec, f"{stack}_behind", form)
        assert values == (*drawn.arguments, payload)[len(drawn.arguments) + 1 - len(values) :]
    suffix = unpack(codec, f"{stack}_behind", frame)
    assert pack(codec, f"{stack}_behind", frame[:prefix_size], *suffix) == frame
    other_prefix = bytes(byte ^ 0xFF for byte in frame[:prefix_size])
    assert pack(codec, f"{stack}_behind", other_prefix, *suffix)[:prefix_size] == other_prefix


@EVERY_STACK_WITH_A_PREFIX
@PER_STACK
@given(data=st.data(), flips=st.lists(st.integers(0, 799), min_size=1))
def test_functions_for_the_suffix_reject_the_same_frames_as_those_for_complete_frames(
    frames: ModuleType, codec: ModuleType, stack: str, data: st.DataObject, flips: list[int]
) -> None:
    frame = bytearray(data.draw(drawn_frames(frames, stack, max_payload=20)).raw)
    prefix_size = codec.PREFIX_SIZE
    for size in range(prefix_size, len(frame)):
        assert values_or_reason(codec, f"{stack}_behind", frame[:size]) == values_or_reason(codec, stack, frame[:size])
    for bit in flips:
        frame[prefix_size + (bit >> 3) % (len(frame) - prefix_size)] ^= 1 << (bit & 7)
    assert values_or_reason(codec, f"{stack}_behind", bytes(frame)) == values_or_reason(codec, stack, bytes(frame))


@EVERY_STACK
@PER_STACK
@given(data=st.data())
def test_a_truncated_frame_is_malformed(frames: ModuleType, codec: ModuleType, stack: str, data: st.DataObject) -> None:
    drawn = data.draw(drawn_frames(frames, stack, max_payload=20))
    frame = drawn.raw
    for size in range(drawn.headers):
        with pytest.raises(MalformedError, match="short"):
            unpack(codec, stack, frame[:size])
    header = drawn.headers
    has_length = any(field.name in lengths_of(frames) for layer in drawn.layers for field in layer.fields_desc)
    for size in range(header, len(frame)):
        if hasattr(frames, "LENGTH"):
            with pytest.raises(MalformedError, match="length" if has_length else "short"):
                unpack(codec, stack, frame[:size])
        else:
            assert unpack(codec, stack, frame[:size])[-1] == drawn.payload[: size - header]


@EVERY_STACK
@PER_STACK
@given(data=st.data(), rest=st.binary(max_size=120))
def test_random_bytes_are_malformed_or_unpacked_as_by_scapy(
    frames: ModuleType, codec: ModuleType, stack: str, data: st.DataObject, rest: bytes
) -> None:
    prefix = data.draw(drawn_frames(frames, stack, max_payload=0)).raw
    frame = prefix[: data.draw(st.integers(0, len(prefix)))] + rest
    try:
        values = unpack(codec, stack, frame)
    except MalformedError:
        return
    assert frame.startswith(pack(codec, stack, *values))
    layers = frames.STACKS[stack]
    assert dissect(layers, Ether(with_envelope(layers, frame)))[-1] == {"payload": values[-1]}


@EVERY_STACK
@PER_STACK
@given(data=st.data())
def test_a_frame_is_unpacked_by_the_functions_of_its_stack_only(
    frames: ModuleType, codec: ModuleType, stack: str, data: st.DataObject
) -> None:
    frame = data.draw(drawn_frames(frames, stack)).raw
    for lower, upper in pairwise(own_layers(frames, stack)):
        for field, value in binding(lower, upper).items():
            assert getattr(codec, f"{field}_of")(frame) == value
    for other_stack in frames.STACKS:
        if other_stack != stack:
            with pytest.raises(MalformedError):
                unpack(codec, other_stack, frame)


@EVERY_STACK
@PER_STACK
@given(data=st.data())
def test_rule_fields_have_the_locations_of_the_fields(
    frames: ModuleType, codec: ModuleType, stack: str, data: st.DataObject
) -> None:
    fields = standard_fields()
    routed, begins = getattr(codec, "ROUTED", False), getattr(codec, "BEGINS", b"")
    fields.register("proto", codec.ETHERTYPE, codec.FIELDS, codec.FLOW, routed=routed, begins=begins)
    frame = data.draw(drawn_frames(frames, stack)).raw
    located = locate(frame)
    layers = frames.STACKS[stack]
    for layer, values in zip(layers, dissect(layers, Ether(with_envelope(layers, frame))), strict=False):
        if layer not in own_layers(frames, stack):
            continue
        for name, value in values.items():
            rule_field = f"proto.{name}" if f"proto.{name}" in fields else f"proto.{layer.__name__.lower()}.{name}"
            expected = int.from_bytes(value, "big") if isinstance(value, bytes) else value
            assert fields.reader(rule_field)(frame, located) == expected
    for other_layer in {layer for stack_name in frames.STACKS for layer in own_layers(frames, stack_name)} - set(
        layers
    ):
        for field in other_layer.fields_desc:
            rule_field = (
                f"proto.{field.name}"
                if f"proto.{field.name}" in fields
                else f"proto.{other_layer.__name__.lower()}.{field.name}"
            )
            assert fields.reader(rule_field)(frame, located) == -1


def test_each_flag_is_a_field_of_rules() -> None:
    fields = standard_fields()
    codec = synthetic_codec()
    fields.register("proto", codec.ETHERTYPE, codec.FIELDS, codec.FLOW)
    frame = codec.pack_order(bytes(6), bytes(6), 0xFFF, codec.FLAGS_LAST, 0xFF, 0xFFFF)
    located = locate(frame)
    assert [fields.reader(f"proto.flags.{flag}")(frame, located) for flag in ("first", "last")] == [0, 1]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_codec_does_not_import_scapy(package: str) -> None:
    program = f"import sys, {package}.codec; sys.exit('scapy' in sys.modules)"
    root = Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", program], cwd=root, check=False).returncode == 0


def test_a_number_too_large_for_its_field_is_not_packed() -> None:
    codec = synthetic_codec()
    with pytest.raises(struct.error):
        codec.pack_order(bytes(6), bytes(6), 0, 0, 0x100, 0)


def generation_error(name: str, *layers: type[Packet], **texts: str) -> str:
    frames = ModuleType(name)
    frames.__dict__.update(ETHERTYPE=0x88B6, STACKS={"frame": (Ether, *layers)}, FLOW=(), **texts)
    with pytest.raises(TypeError) as raised:
        generate(frames, "the tests")
    return str(raised.value)


def test_the_error_for_an_unsupported_layer_names_the_field() -> None:
    class Text(Packet):
        fields_desc = [ByteField("size", 0), StrField("text", b"")]  # noqa: RUF012

    class Little(Packet):
        fields_desc = [LEShortField("size", 0)]  # noqa: RUF012

    class Crooked(Packet):
        fields_desc = [synthetic_frames.BitField("bits", 0, 5), XShortField("number", 0)]  # noqa: RUF012

    class Short(Packet):
        fields_desc = [synthetic_frames.BitField("bits", 0, 5)]  # noqa: RUF012

    class Open(Packet):
        fields_desc = [synthetic_frames.BitEnumField("kind", 1, 8, {1: "CALL"})]  # noqa: RUF012

    class Alone(Packet):
        fields_desc = [IntField("number", 0)]  # noqa: RUF012

    for layer in (Text, Little, Crooked, Short, Open):
        bind_layers(Ether, layer, type=0x88B7)
    assert "Text.text" in generation_error(__name__, Text)
    assert "Little.size" in generation_error(__name__, Little)
    assert "Crooked.number" in generation_error(__name__, Crooked)
    assert "Short: its last bit fields" in generation_error(__name__, Short)
    bind_layers(Open, Alone, kind=1)
    assert "Open.kind: every value announces" in generation_error(__name__, Open)
    assert "Alone must be bound to Ether once, is bound 0 times" in generation_error(__name__, Alone)


def test_a_prefix_that_some_stacks_lack_is_an_error() -> None:
    layers = synthetic_frames.Base, synthetic_frames.Call
    assert "PREFIX is 'nothing', which is not a field" in generation_error(
        synthetic_frames.__name__, *layers, PREFIX="nothing"
    )
    assert "PREFIX is 'id': it must end" in generation_error(
        synthetic_frames.__name__, *layers, PREFIX="id", CHECK="id"
    )


def test_a_length_field_in_two_layers_is_an_error() -> None:
    layers = synthetic_frames.Base, synthetic_frames.Call, synthetic_frames.More
    assert "the field id must be in one layer only" in generation_error(synthetic_frames.__name__, *layers, LENGTH="id")
