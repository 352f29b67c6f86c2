"""`testbed protocol new` writes a package under a new name, or reports the reason and writes nothing."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from protocols.core.codegen import generate
from testbed.errors import ConflictError, DescriptionError
from testbed.protocol_template import postcard, write_package
from testbed.protocol_template.postcard import codec


def test_every_spelling_of_the_name_is_the_new_one(tmp_path: Path) -> None:
    files = write_package("pigeon", tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new").rglob("*.py")) == sorted(
        path.name for path in files if path.suffix == ".py"
    )
    for path in files:
        assert "postcard" not in f"{path.relative_to(tmp_path)} {path.read_text()}".lower()
    text = (tmp_path / "new" / "pigeon" / "frames.py").read_text()
    assert "class Pigeon(LengthCheckLayer)" in text
    assert "PIGEON CARD" in text
    entries = (tmp_path / "new" / "pigeon.egg-info" / "entry_points.txt").read_text()
    assert "[testbed.protocols]\npigeon = pigeon.protocol:PROTOCOL\n" in entries


def test_the_ethertype_is_free_or_the_one_that_is_given(tmp_path: Path) -> None:
    write_package("pigeon", tmp_path / "free")
    assert (
        "ETHERTYPE: Final = 0x88B7" in (tmp_path / "free/pigeon/codec.py").read_text()
    )  # the first that no protocol has
    write_package("pigeon", tmp_path / "given", 0x9000)
    assert "ETHERTYPE: Final = 0x9000" in (tmp_path / "given/pigeon/codec.py").read_text()
    with pytest.raises(ConflictError, match="0x88B5 is that of emp"):
        write_package("pigeon", tmp_path / "taken", 0x88B5)
    with pytest.raises(DescriptionError, match="0x0600 to 0xFFFF"):
        write_package("pigeon", tmp_path / "length", 1500)


@pytest.mark.parametrize("name", ["Pigeon", "2pigeons", "class", "carrier-pigeon", "../pigeon", "", "_pigeon", "täube"])
def test_an_invalid_package_name_is_rejected(name: str, tmp_path: Path) -> None:
    with pytest.raises(DescriptionError, match="a name that a Python package can have"):
        write_package(name, tmp_path / "new")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "reason"),
    [("emp", "protocol 'emp'"), ("atm", "'atm'"), ("json", "module 'json'"), ("pytest", "module 'pytest'")],
)
def test_a_name_in_use_is_rejected(name: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ConflictError, match=reason):
        write_package(name, tmp_path / "new")
    assert not list(tmp_path.iterdir())


def test_an_existing_folder_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("of great value")
    for folder in (tmp_path, tmp_path / "mine"):
        with pytest.raises(ConflictError, match="exists: choose another folder"):
            write_package("pigeon", folder)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_templates_codec_equals_the_one_generated_from_its_layers() -> None:
    source = generate(import_module(f"{postcard.__name__}.frames"), "python -m protocols.core.codegen postcard")
    assert Path(codec.__file__).read_text().partition('"""\n')[2] == source.partition('"""\n')[2]
