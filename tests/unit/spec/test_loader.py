"""Loading a description by the name of a topology or the path of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import DescriptionError
from testbed.spec.loader import load, parse

ONE_NODE = '[[node]]\nname = "n1"\n'


def test_a_files_cluster_is_named_after_the_file_unless_it_has_a_name(tmp_path: Path) -> None:
    file = tmp_path / "lab.toml"
    file.write_text(ONE_NODE)
    cluster = load(file)
    assert cluster.description.name == "lab"
    assert cluster.origin == str(file.resolve())
    file.write_text(f'name = "mine"\n{ONE_NODE}')
    assert load(str(file)).description.name == "mine"


@pytest.mark.parametrize(("stem", "example"), [("läb", "l-b"), ("名", "lab")])
def test_a_file_whose_stem_is_no_valid_cluster_name_needs_a_name(tmp_path: Path, stem: str, example: str) -> None:
    file = tmp_path / f"{stem}.toml"
    file.write_text(ONE_NODE)
    with pytest.raises(DescriptionError) as caught:
        load(file)
    assert [str(problem) for problem in caught.value.problems] == [
        f"name: found '{stem}' from the file's name, expected a name of 1 to 63 letters, digits, '-' and '_' that begins "
        f'with a letter or digit: add a line such as name = "{example}"'
    ]
    file.write_text('generate = { shape = "star", nodes = 2 }')
    assert load(file).description.name == "star-2"
    file.write_text(f'name = "{example}"\n{ONE_NODE}')
    assert load(file).description.name == example


def test_a_text_without_a_name_is_rejected() -> None:
    with pytest.raises(DescriptionError, match="expected the key 'name'"):
        parse(ONE_NODE, "x")


def test_a_users_file_takes_precedence_over_a_shipped_topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load("star-4").origin == "topology:star-4"
    Path("star-4").write_text(ONE_NODE)
    assert load("star-4").origin == str(tmp_path.resolve() / "star-4")


def test_a_directory_of_the_same_name_does_not_hide_a_topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("star-4").mkdir()
    assert load("star-4").origin == "topology:star-4"


def test_the_origin_of_a_symbolic_link_is_its_target(tmp_path: Path) -> None:
    file = tmp_path / "real.toml"
    file.write_text(ONE_NODE)
    (tmp_path / "alias.toml").symlink_to(file)
    assert load(tmp_path / "alias.toml").origin == str(file.resolve())


def test_lines_with_crlf_are_read(tmp_path: Path) -> None:
    file = tmp_path / "dos.toml"
    file.write_bytes(b'name = "c"\r\n[[node]]\r\nname = "n1"\r\n')
    assert load(file).description.name == "c"
