"""The dissector generated from Scapy layers decodes every field in tshark as Scapy does."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from scapy.fields import (
    ByteEnumField,
    ByteField,
    ConditionalField,
    FlagsField,
    IEEEFloatField,
    IntField,
    MACField,
    ShortField,
    StrField,
    StrFixedLenField,
    StrLenField,
)
from scapy.layers.l2 import Ether
from scapy.packet import NoPayload, Packet, Padding, Raw, bind_layers, split_layers
from scapy.utils import PcapNgWriter

from protocols.atm import frames as atm
from protocols.core.frames import CheckField, LastByteField, RouteField, SizedLayer
from protocols.myrinet import frames as myrinet
from protocols.myrinet.envelope import add_envelope
from protocols.ssam import frames as ssam
from testbed import registry
from testbed.errors import TestbedError
from testbed.observe.dissector import lua
from testbed.observe.dissector.lua import dissector
from testbed.observe.dissector.lua_headers import extract_protocol
from tests.unit.observe import synthetic_layers
from tests.unit.protocols import synthetic_frames
from tests.unit.protocols.frame_strategies import PACKAGES, frames_of

MODULES = {package.partition(".")[2]: frames_of(package) for package in PACKAGES}
MODULES |= {"synthetic": synthetic_frames, "many": synthetic_layers, "myrinet": myrinet}
FRAMES = 150
ETHERTYPE = 0x9A9B

pytestmark = pytest.mark.requires("tshark")


def layers_of(module: ModuleType) -> list[type[Packet]]:
    """Return all layers of a module, which are above Ethernet or Myrinet."""
    base_layers = (Ether, myrinet.Myrinet)
    found_layers = [
        layer for base in base_layers for _, layer in base.payload_guess if layer.__module__ == module.__name__
    ]
    for layer in found_layers:
        found_layers += [upper for upper in next_layers(layer).values() if upper not in found_layers]
    return found_layers


def next_layers(layer: type[Packet]) -> dict[tuple[tuple[str, int], ...], type[Packet]]:
    """Return the next layers of the same protocol by the field values that announce them."""
    guess = layer.payload_guess
    return {tuple(bound.items()): upper for bound, upper in guess if upper.__module__ == layer.__module__}


def is_carried(module: ModuleType) -> bool:
    """Return whether a module's frames are carried in Myrinet's packets."""
    return layers_of(module)[0] in [layer for _, layer in myrinet.Myrinet.payload_guess]


def with_carrier(name: str) -> dict[str, ModuleType]:
    """Return the modules that a dissector of `name` needs."""
    return {name: MODULES[name], "myrinet": myrinet}


def field_name(layer: type[Packet], name: str, module: ModuleType) -> str:
    count = Counter(field.name for definition in layers_of(module) for field in definition.fields_desc)
    return f"{layer.__name__.lower()}.{name}" if count[name] > 1 else name


def random_value(rng: random.Random, field: object) -> object:
    """Return a random value of a field, often the smallest or largest."""
    plain_field = field.fld if isinstance(field, ConditionalField) else field
    if isinstance(plain_field, MACField):
        return rng.randbytes(6).hex(":")
    if isinstance(plain_field, RouteField):
        return rng.choice([b"", b"\x81", b"\x81\xbf\x80"])
    if isinstance(plain_field, StrField):
        fixed = isinstance(plain_field, StrFixedLenField)
        return rng.randbytes(plain_field.length_from(None) if fixed else 2 * rng.randrange(9))
    if isinstance(plain_field, IEEEFloatField):
        return rng.choice([0.0, 1.5, -0.25, 1024.0])
    if isinstance(plain_field, LastByteField | CheckField):
        return None
    if plain_field.fmt.endswith(("4s", "16s")):
        return plain_field.i2h(None, plain_field.m2i(None, rng.randbytes(int(plain_field.sz))))
    bits = plain_field.size if hasattr(plain_field, "size") else 8 * int(plain_field.sz)
    low = -(1 << bits - 1) if plain_field.fmt[-1:] in "bhiq" else 0
    high = (1 << bits) - 1 + low
    enumerated = [value for value in getattr(plain_field, "i2s", None) or () if isinstance(value, int)]
    if len(enumerated) == 1:  # constant in every frame
        return enumerated[0]
    return rng.choice([low, 1, high, rng.randint(low, high), *enumerated, *enumerated])


def frames(module: ModuleType, seed: int) -> Iterator[bytes]:
    """Yield random frames built by Scapy: layers bound by field values, a payload and sometimes padding."""
    rng = random.Random(seed)
    for number in range(FRAMES):
        layer: type[Packet] | None = layers_of(module)[0]
        packet: Packet = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
        if is_carried(module):
            packet = packet / myrinet.Myrinet()
        while layer is not None:
            lengths = getattr(module, "LENGTH", ())
            computed_fields = {
                *([lengths] if isinstance(lengths, str) else lengths),
                getattr(module, "CHECK", ""),
                "size",
            }
            values = {
                field.name: random_value(rng, field) for field in layer.fields_desc if field.name not in computed_fields
            }
            if layer is myrinet.Myrinet:
                values["type"] = rng.choice([8, 9, 0x7FFF])  # packet types of no protocol
            upper_layers = next_layers(layer)
            if bindings := [bound for bound in upper_layers if rng.random() < 0.5]:
                values |= dict(rng.choice(bindings))
            packet, last = packet / layer(**values), layer
            layer = next(
                (upper for bound, upper in upper_layers.items() if values.items() >= dict(bound).items()), None
            )
        payload = rng.randbytes(rng.randrange(0, 60))
        if issubclass(last, SizedLayer) and not last.payload_size:
            payload = b""
        padding = bytes(rng.randrange(0, 20)) if getattr(module, "LENGTH", "") else b""
        raw, padding = bytes(packet / Raw(payload) if payload else packet), padding if number % 3 == 0 else b""
        route = bytes([0x81, 0xBF, 0x80][: number % 4])
        yield add_envelope(raw[:-1] + padding, route) if is_carried(module) else raw + padding


def fields_by_scapy(module: ModuleType, frame: bytes) -> dict[str, str]:
    """Return every present field, with numbers to base 10."""
    values: dict[str, str] = {}
    packet: Packet = Ether(frame).payload
    if is_carried(module):
        packet = packet.payload
    while type(packet) in layers_of(module):
        for definition in packet.fields_desc:
            name = field_name(type(packet), definition.name, module)
            plain_field = definition.fld if isinstance(definition, ConditionalField) else definition
            value = packet.getfieldval(definition.name)
            if isinstance(definition, ConditionalField) and not definition.cond(packet):
                continue
            if isinstance(plain_field, StrField):
                values |= {name: bytes(value).hex()} if value else {}
            elif isinstance(plain_field, FlagsField):
                values[name] = str(int(value))
                flags = enumerate(plain_field.names)
                values |= {f"{name}.{str(flag).lower()}": str(int(value) >> bit & 1) for bit, flag in flags}
            else:
                values[name] = f"{value:g}" if isinstance(value, float) else str(value)
        packet = packet.payload
    fields = {field.name for layer in layers_of(module) for field in layer.fields_desc}
    while not isinstance(packet, NoPayload):
        data_field = "padding" if isinstance(packet, Padding) else "payload"
        values[data_field if data_field not in fields else f"{data_field}_bytes"] = bytes(packet.load).hex()
        packet = packet.payload
    return values


def columns_by_tshark(
    folder: Path, modules: dict[str, ModuleType], raw_frames: list[bytes], *options: str
) -> list[list[str]]:
    """Return the requested columns of each frame."""
    script, capture = folder / "test.lua", folder / "test.pcapng"
    script.write_text(dissector([extract_protocol(name, module) for name, module in modules.items()]))
    with PcapNgWriter(str(capture)) as writer:
        for frame in raw_frames:
            writer.write(Ether(frame))
    # Wireshark may refuse to run scripts as root.
    command = [
        "tshark",
        "-n",
        "-X",
        f"lua_script:{script}",
        "-r",
        str(capture),
        "-T",
        "fields",
        "-E",
        "separator=|",
        *options,
    ]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert completed.returncode == 0, completed.stderr
    assert "error" not in completed.stderr.lower(), completed.stderr
    return [line.split("|") for line in completed.stdout.splitlines()]


def plain(text: str) -> str:
    """Convert tshark's value to Scapy's notation: tshark prints some numbers to base 16 and flags as words."""
    return str(int(text, 16)) if text.startswith("0x") else {"True": "1", "False": "0"}.get(text, text)


@pytest.mark.parametrize("name", MODULES)
def test_tshark_and_scapy_find_equal_values_in_every_field_of_every_layer(tmp_path: Path, name: str) -> None:
    module = MODULES[name]
    raw_frames = list(frames(module, 7))
    expected = [fields_by_scapy(module, frame) for frame in raw_frames]
    requested = sorted({field for expected_values in expected for field in expected_values})
    assert {field_name(layer, field.name, module) for layer in layers_of(module) for field in layer.fields_desc} <= set(
        requested
    )
    decoded = columns_by_tshark(tmp_path, with_carrier(name), raw_frames, *[f"-e{name}.{field}" for field in requested])
    for frame, values, expected_values in zip(raw_frames, decoded, expected, strict=True):
        decoded_fields = {field: plain(value) for field, value in zip(requested, values, strict=True) if value}
        assert decoded_fields == expected_values, frame.hex()


@pytest.mark.parametrize("name", MODULES)
def test_a_frame_truncated_within_a_header_is_marked_and_raises_no_error_in_the_script(
    tmp_path: Path, name: str
) -> None:
    module = MODULES[name]
    complete_frames = [max(frames(module, seed), key=len) for seed in range(3)]
    raw_frames = [frame[:size] for frame in complete_frames for size in range(15, len(frame) + 1)]
    decoded = columns_by_tshark(
        tmp_path, with_carrier(name), raw_frames, f"-e{name}.short", "-emyrinet.short", "-e_ws.lua.error"
    )
    assert not any(error for *_, error in decoded)
    is_reported = [bool(own_error or carrier) for own_error, carrier, _ in decoded]
    assert is_reported[0]
    assert not is_reported[-1]


class OtherProtocol(Packet):
    """Frame of another protocol with EMP's EtherType, distinguished by its first byte."""

    fields_desc = [ByteEnumField("version", 9, {9: "OTHER"}), ShortField("value", 0)]  # noqa: RUF012


def test_protocols_that_share_an_ethertype_each_take_their_own_frames(tmp_path: Path) -> None:
    emp, other_module = MODULES["emp"], ModuleType(OtherProtocol.__module__)
    bind_layers(Ether, OtherProtocol, type=emp.ETHERTYPE)
    try:
        emp_frame, other_frame = next(frames(emp, 1)), bytes(Ether(type=emp.ETHERTYPE)) + bytes(OtherProtocol(value=77))
        decoded = columns_by_tshark(
            tmp_path, {"emp": emp, "other": other_module}, [emp_frame, other_frame], "-eemp.version", "-eother.value"
        )
    finally:
        split_layers(Ether, OtherProtocol, type=emp.ETHERTYPE)
    assert decoded == [["1", ""], ["", "77"]]


def test_the_packet_list_has_the_protocols_summary(tmp_path: Path) -> None:
    emp = sys.modules["protocols.emp.frames"]
    packet = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / emp.EMP(type=1, flags=1, message=9)
    raw_frames = [bytes(packet / emp.EMPMessage(destination=1, tag=0x20, total=5) / Raw(b"hello"))]
    raw_frames.append(bytes(Ether() / emp.EMP(type=3, message=9, frame=4, status=1)))
    decoded = columns_by_tshark(tmp_path, {"emp": emp}, raw_frames, "-e_ws.col.Info")
    assert decoded == [
        ["EMP MESSAGE LAST message 9 frame 0, node 0 to 1, tag 0x20, 5 of 5 bytes"],
        ["EMP ACK message 9 frame 4, RESTARTED"],
    ]


def test_a_myrinet_packet_is_described_by_its_protocol_with_its_route_and_a_wrong_crc(tmp_path: Path) -> None:
    am2, mapper = MODULES["am2"], MODULES["myrinet.mapper"]
    head = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    nack = head / myrinet.Myrinet(source_route=b"\x81\xbf") / am2.AM2(kind=3, reason=1, channel=7, sequence=8)
    probe = head / myrinet.Myrinet() / mapper.Mapping(kind=1, number=9, source=3)
    unknown_packet = head / myrinet.Myrinet(type=6) / Raw(b"payload")
    raw_frames = [bytes(unsent) for unsent in (nack, probe, unknown_packet)]
    raw_frames += [entry[:-1] + bytes([entry[-1] ^ 1]) for entry in raw_frames]
    requested = ("-e_ws.col.Info", "-emyrinet.source_route", "-emyrinet.wrong", "-emyrinet.payload")
    decoded = columns_by_tshark(tmp_path, {"am2": am2, "mapper": mapper, "myrinet": myrinet}, raw_frames, *requested)
    text = "AM-II NACK channel 7 sequence 8, OVERRUN, route +1 -1"
    payload = b"payload".hex()
    assert decoded == [
        [text, "81bf", "", ""],
        ["mapping PROBE 9 of node 3", "", "", ""],
        ["MYRINET", "", "", payload],
        [f"{text}, wrong CRC-8", "81bf", "1", ""],
        ["mapping PROBE 9 of node 3, wrong CRC-8", "", "1", ""],
        ["MYRINET, wrong CRC-8", "", "1", payload],
    ]


def test_a_cell_is_described_by_the_protocol_of_its_circuit(tmp_path: Path) -> None:
    """The dissector of ATM is called testbed_atm, since Wireshark has its own protocol "atm"."""
    request = Ether() / atm.Cell(vci=33) / ssam.Ssam(kind=0, session=3, number=7, handler=0x12, length=6, data=b"hi")
    introduction = Ether() / atm.Cell(vpi=1, vci=34, clp=1) / ssam.Ssam(kind=2, handler=2, length=20)
    raw_frames = [bytes(request), bytes(introduction), bytes(introduction)[:40]]
    field_options = [f"-essam.{name}" for name in ("kind", "session", "number", "handler", "length", "short")]
    carrier = [f"-etestbed_atm.{name}" for name in ("vpi", "vci", "clp", "payload")]
    decoded = columns_by_tshark(
        tmp_path, {"atm": atm, "ssam": ssam}, raw_frames, "-e_ws.col.Info", *field_options, *carrier
    )
    assert decoded == [
        [
            "SSAM REQUEST 7 of session 3, handler 0x12, 6 bytes",
            "0",
            "3",
            "7",
            "0x00000012",
            "6",
            "",
            "0",
            "33",
            "0",
            "",
        ],
        [
            "SSAM ACKNOWLEDGEMENT of 0 of session 0, handler 0x2",
            "2",
            "0",
            "0",
            "0x00000002",
            "20",
            "",
            "1",
            "34",
            "1",
            "",
        ],
        ["SSAM, cut off", "2", "0", "0", "0x00000002", "", "1", "1", "34", "1", ""],
    ]


def test_the_command_writes_a_dissector_of_every_protocol_that_has_layers(tmp_path: Path) -> None:
    layers = {str(entry) for entry in registry.offered(registry.FRAMES).values()}
    codecs = {entry.module for entry in registry.offered(registry.FIELDS).values()}
    assert layers == {f"{codec.rpartition('.')[0]}.frames" for codec in codecs}
    path = tmp_path / "all.lua"
    program = "from testbed.cli.main import main; main()"
    command = [sys.executable, "-c", program, "dissector"]
    completed = subprocess.run([*command, "-o", path], capture_output=True, text=True, check=True, timeout=60)
    assert (completed.stdout, completed.stderr) == ("", "")
    for name in registry.offered(registry.FRAMES):
        assert f'protocol("{name}", ' in path.read_text()
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert printed == path.read_text()


class ForeignCondition(Packet):
    fields_desc = [  # noqa: RUF012
        ConditionalField(ByteField("more", 0), lambda packet: packet.underlayer.type == ETHERTYPE),
    ]


class WideCondition(Packet):
    fields_desc = [IntField("size", 0), ConditionalField(ByteField("more", 0), lambda packet: packet.size > 7)]  # noqa: RUF012


class ComputedLength(Packet):
    fields_desc = [ByteField("size", 0), StrLenField("text", b"", length_from=lambda packet: packet.size**2)]  # noqa: RUF012


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (
            ForeignCondition,
            "ForeignCondition.more: no dissector can be made for this field: it depends on more than its layer's fields",
        ),
        (
            WideCondition,
            "WideCondition.more: no dissector can be made for this field: it depends on size, which has too many values",
        ),
        (ComputedLength, "ComputedLength.text: no dissector can be made for this field: its length is not a multiple"),
    ],
)
def test_a_field_of_unsupported_condition_or_length_is_rejected_with_its_name(layer: type[Packet], reason: str) -> None:
    module = ModuleType(layer.__module__)
    bind_layers(Ether, layer, type=ETHERTYPE)
    try:
        with pytest.raises(TypeError, match=re.escape(reason)):
            extract_protocol("test", module)
    finally:
        split_layers(Ether, layer, type=ETHERTYPE)


def test_a_protocol_without_a_dissector_is_omitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    modules = {"emp": MODULES["emp"], "other": ModuleType("other")}
    monkeypatch.setattr(lua, "frame_modules", lambda: modules)
    text, omissions = lua.generate_dissector()
    assert 'protocol("emp", ' in text
    assert omissions == ["other is omitted: other: 0 of its layers are bound to an EtherType, not 1"]
    del modules["emp"]
    with pytest.raises(TestbedError, match="no protocol has a dissector"):
        lua.generate_dissector()
