"""OpenSSH's client configuration with included files, compared with what `ssh -G` makes of the same files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.ssh.client_config import client_config

FILES = {
    "config": """
Include {folder}/first.d/*.conf {folder}/missing
User common
Host inside outside
    Port 2001
    include="{folder}/block"
    ProxyJump first,second
Match originalhost outside all
    HostName %h.example
Include {folder}/last
""",
    "first.d/1.conf": "Host early\n    User first\n",
    "first.d/2.conf": "User second\nHost late\n    Port 2002\n",
    "block": "ConnectTimeout 7\nHost inside\n    User block\nHost early *side !inside\n    HostName reached\n",
    "last": "ConnectTimeout 9\nMatch all\n    Port 2003\nInclude {folder}/nested\n",
    "nested": "Host nested\n    HostName 192.0.2.1\n",
}
OPTIONS = ("hostname", "port", "user", "proxyjump", "connecttimeout")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh/first.d").mkdir(parents=True)
    for name, text in FILES.items():
        (tmp_path / ".ssh" / name).write_text(text.format(folder=tmp_path / ".ssh"))
    return tmp_path / ".ssh"


@pytest.mark.requires("ssh")
@pytest.mark.parametrize("host", ["early", "late", "inside", "outside", "nested", "any"])
def test_included_files_have_the_meaning_that_ssh_gives_them(folder: Path, host: str) -> None:
    printed = subprocess.run(["ssh", "-F", folder / "config", "-G", host], capture_output=True, text=True, check=True)
    lines = (line.partition(" ") for line in printed.stdout.splitlines())
    theirs = {key: value for key, _, value in lines if key in OPTIONS}
    ours = client_config().lookup(host)
    assert {"port": "22", "connecttimeout": "none"} | {key: ours[key] for key in OPTIONS if key in ours} == theirs


def test_names_of_included_files_are_relative_to_the_users_directory_of_ssh(folder: Path) -> None:
    (folder / "config").write_text("Include first.d/*\nInclude ~/.ssh/last\n")
    found = client_config().lookup("late")
    assert (found["user"], found["port"], found["connecttimeout"]) == ("second", "2002", "9")


@pytest.mark.parametrize(
    ("conditions", "is_read"),
    [
        ("Host late", True),
        ("!host early", True),
        ("all", True),
        ("localnetwork 10.0.0.0/8", False),
        ("!localnetwork 10.0.0.0/8", False),
        ("host late tagged lab", False),
    ],
)
def test_a_block_with_a_condition_that_is_not_known_is_not_read(folder: Path, conditions: str, is_read: bool) -> None:
    (folder / "config").write_text(f"Match {conditions}\n    User matched\n    Include {folder}/nested\n")
    (folder / "nested").write_text("Match host late\n    Port 2004\n")
    found = client_config().lookup("late")
    assert (found.get("user"), found.get("port")) == (("matched", "2004") if is_read else (None, None))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Include config\n", "includes itself"),
        ("Include first.d\n", "first.d cannot be read: Is a directory"),
        ("Host 'open\n", "is not a configuration of ssh: No closing quotation"),
        ("Unparsable\n", "is not a configuration of ssh: Unparsable line"),
    ],
)
def test_an_invalid_configuration_is_a_sentence(folder: Path, text: str, words: str) -> None:
    (folder / "config").write_text(text)
    with pytest.raises(TestbedError, match=words) as raised:
        client_config()
    assert "\n" not in str(raised.value)
