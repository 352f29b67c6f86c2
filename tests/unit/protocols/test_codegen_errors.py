"""Codegen's errors for unknown fields and packages, its dependencies, and the source that it writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from scapy.fields import BitField, ByteField, ShortField
from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_layers

from protocols.core.codegen import generate
from protocols.core.formats import FormatError, words_of
from protocols.core.frame_kinds import Kind
from protocols.core.python_source import WIDTH, fold, literal

LAYERS = """
from scapy.fields import IntField, ShortField
from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_layers


class Parcel(Packet):
    fields_desc = [ShortField("size", 0), ShortField("colour", 0), IntField("sum", 0)]


bind_layers(Ether, Parcel, type=0x88B7)
STACKS = {"parcel": (Ether, Parcel)}
"""


def run_codegen(folder: Path, roles: str, package: str = "parcels") -> subprocess.CompletedProcess[str]:
    """Run codegen as a user of the package does, without any development dependency."""
    (folder / "parcels").mkdir(exist_ok=True)
    (folder / "parcels" / "frames.py").write_text(LAYERS + roles)
    blocked = folder / "blocked"
    (blocked / "ruff").mkdir(parents=True, exist_ok=True)
    (blocked / "ruff" / "__init__.py").write_text("raise ImportError('ruff is not installed')\n")
    paths = os.pathsep.join([str(blocked), str(folder), *sys.path])
    return subprocess.run(
        [sys.executable, "-m", "protocols.core.codegen", package],
        cwd=folder, env={**os.environ, "PYTHONPATH": paths, "PATH": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_codegen_needs_no_development_dependencies(tmp_path: Path) -> None:
    process = run_codegen(tmp_path, 'FLOW = ("colour",)\nLENGTH = "size"\nCHECK = "sum"\n')
    assert (process.returncode, process.stderr) == (0, "")
    sys.path.insert(0, str(tmp_path))
    try:
        from parcels import codec  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(tmp_path))
    frame = codec.pack_parcel(b"\1" * 6, b"\2" * 6, 7, b"contents")
    assert codec.unpack_parcel(frame + b"padding") == (b"\1" * 6, b"\2" * 6, 7, b"contents")


def test_a_field_may_have_the_name_of_a_parameter_of_the_codec() -> None:
    class Odd(Packet):
        fields_desc = [ShortField("first", 0), ShortField("prefix", 0), ShortField("last", 0)]  # noqa: RUF012

    Odd.__module__ = "odd"
    bind_layers(Ether, Odd, type=0x88BB)
    frames = ModuleType("odd")
    vars(frames).update(STACKS={"odd": (Ether, Odd)}, FLOW=("first",), PREFIX="first")
    codec: dict[str, Any] = {}
    exec(generate(frames, "command"), codec)
    frame = codec["pack_odd"](b"\1" * 6, b"\2" * 6, 3, 4, 5)
    assert codec["unpack_odd"](frame)[2:5] == (3, 4, 5)
    assert codec["pack_odd_behind"](frame[:16], 4, 5) == frame


FIELDS = "colour, size, sum"


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"LENGTH": "sice"}, f"LENGTH is 'sice', which is not a field of the protocol's layers: {FIELDS}"),
        ({"LENGTH": ("size", "sice")}, f"LENGTH is 'sice', which is not a field of the protocol's layers: {FIELDS}"),
        (
            {"KINDS": {1: Kind("data", "PARCEL")}},
            "parcels_frames: KIND is ''; with KINDS, it must be a field of the protocol's layers: size, colour, sum",
        ),
        ({"CHECK": "crc"}, f"CHECK is 'crc', which is not a field of the protocol's layers: {FIELDS}"),
        ({"PREFIX": "head"}, f"PREFIX is 'head', which is not a field of the protocol's layers: {FIELDS}"),
        ({"CHECK": "size"}, "CHECK is 'size', of 16 bits: a CRC-32 takes a field of 32 bits"),
        ({"FLOW": ("kind",)}, "FLOW names 'kind', which is not a field of the protocol's layers: size, colour, sum"),
    ],
    ids=str,
)
def test_an_unknown_field_name_is_rejected(roles: dict[str, object], message: str) -> None:
    frames = ModuleType("parcels_frames")
    exec(LAYERS, frames.__dict__)
    frames.__dict__.update({"FLOW": (), **roles})
    with pytest.raises(FormatError) as raised:
        generate(frames, "the tests")
    assert str(raised.value) == message


def test_an_error_names_the_field_whose_value_the_layer_above_leaves_open() -> None:
    class Envelope(Packet):
        fields_desc = [BitField("version", 0, 4), BitField("colour", 0, 4)]  # noqa: RUF012

    class Letter(Packet):
        fields_desc = [ShortField("size", 0)]  # noqa: RUF012

    Letter.__module__ = "letter"
    bind_layers(Ether, Envelope, type=0x88BC)
    bind_layers(Envelope, Letter, version=1)
    frames = ModuleType("letter")
    vars(frames).update(STACKS={"letter": (Ether, Envelope, Letter)}, FLOW=())
    with pytest.raises(FormatError, match="the layer above must determine the value of colour"):
        generate(frames, "the tests")


def test_an_error_names_the_field_that_follows_incomplete_bit_fields() -> None:
    class Odd(Packet):
        fields_desc = [BitField("version", 0, 4), ByteField("colour", 0)]  # noqa: RUF012

    with pytest.raises(
        FormatError, match=r"Odd\.colour: the bit fields before it have 4 bits and must fill 8, 16, 32 or 64"
    ):
        list(words_of(Odd))


def test_an_error_is_one_line_and_leaves_the_codec_unchanged(tmp_path: Path) -> None:
    (tmp_path / "parcels").mkdir()
    codec = tmp_path / "parcels" / "codec.py"
    codec.write_text("# before\n")
    process = run_codegen(tmp_path, "")
    assert (process.returncode, process.stderr) == (2, "parcels: parcels.frames has no FLOW\n")
    assert codec.read_text() == "# before\n"


def test_an_unknown_package_is_an_error_of_one_line(tmp_path: Path) -> None:
    process = run_codegen(tmp_path, "FLOW = ()\n", "letters")
    assert (process.returncode, process.stderr) == (
        2,
        "letters: there is no module letters; the Scapy layers must be in letters.frames\n",
    )


def test_long_lines_are_folded_at_brackets_and_never_in_strings() -> None:
    text = "a (b, c] " * 20
    source = "\n".join(fold(f"value = Kind('data', {literal(text)}, part={literal(('one', 'two'))}, back=True)"))
    assert eval(source.partition(" = ")[2], {"Kind": lambda *positional, **keywords: (positional, keywords)}) == (
        ("data", text),
        {"part": ("one", "two"), "back": True},
    )
    arguments = ", ".join(f"argument_{number}=1" for number in range(20))
    assert max(map(len, fold(f"    value = call({arguments})"))) <= WIDTH


@pytest.mark.parametrize("value", ["it's", 'say "no"', "both ' and \"", b"\x00'", ("one",), {"a": {1: "b"}}, 7])
def test_a_literal_evaluates_to_the_value(value: object) -> None:
    assert eval(literal(value)) == value
