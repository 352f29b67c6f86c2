"""Keys that are offered to an sshd by the user's configuration, with OpenSSH's own keys, certificates and agent."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from paramiko.ssh_exception import AuthenticationException, SSHException

from testbed.ssh.client_config import client_config
from testbed.ssh.identities import Identities

pytestmark = [pytest.mark.requires("ssh")]

HOST = "machine"


def make_key(file: Path, passphrase: str = "") -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "", "-f", file], check=True)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with keys, and a certificate of the key lab."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("id_ed25519", "lab", "other", "locked"):
        make_key(folder / name, "passphrase" if name == "locked" else "")
    subprocess.run(["ssh-keygen", "-q", "-s", folder / "other", "-I", "me", folder / "lab.pub"], check=True)
    (folder / "lab-cert.pub").rename(folder / "certificate")
    return folder


@pytest.fixture
def home(keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home: the keys are in ~/.ssh, but for other, which is in ~; copies of their public parts in ~/public."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    for folder in (".ssh", "public"):
        shutil.copytree(keys, tmp_path / folder)
    (tmp_path / ".ssh/other").rename(tmp_path / "other")
    (tmp_path / ".ssh/other.pub").unlink()
    return tmp_path


@pytest.fixture
def agent(home: Path) -> Iterator[Path]:
    """The socket of an agent that has the keys other and lab."""
    path = home / "agent"
    with subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it listens
            subprocess.run(
                ["ssh-add", "-q", home / "other", home / ".ssh/lab"], env={"SSH_AUTH_SOCK": str(path)}, check=True
            )
            yield path
        finally:
            process.terminate()


class Sshd:
    """A transport to an sshd that refuses every key, and ends the connection after a number of them."""

    def __init__(self, max_keys: int) -> None:
        self.max_keys = max_keys

    def auth_publickey(self, _user: str, _key: object) -> Sequence[str]:
        self.max_keys -= 1
        raise AuthenticationException("Authentication failed.")

    def is_active(self) -> bool:
        return self.max_keys > 0


def identities(home: Path, configuration: str, *keys: str) -> Identities:
    (home / ".ssh/config").write_text(configuration)
    return Identities("me", client_config().lookup(HOST), [str(home / key) for key in keys])


def offered(home: Path, configuration: str, *keys: str) -> Sequence[str]:
    """The names of the keys that are offered, in their order. keys: those of the machines file."""
    names = {file.read_text().split()[1]: file.stem for file in (home / "public").glob("*.pub")}
    return [
        f"{names[key.get_base64()]}{'' if key.public_blob is None else ' with certificate'}"
        for key in identities(home, configuration, *keys).offers()
    ]


def failure(home: Path, configuration: str, *keys: str, max_keys: int = 100) -> str:
    with pytest.raises(SSHException) as raised:
        identities(home, configuration, *keys).authenticate(Sshd(max_keys))
    return str(raised.value)


LAB = "IdentityFile ~/.ssh/lab\n"
AGENT = "IdentityAgent ~/agent\n"
ONLY = "IdentitiesOnly yes\n"


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize(
    ("configuration", "explicit", "expected"),
    [
        ("", [], ["id_ed25519"]),
        (LAB, [], ["lab"]),
        ("IdentityFile none\n", [], []),
        (LAB, [".ssh/id_ed25519"], ["id_ed25519", "lab"]),
        (AGENT, [], ["other", "lab", "id_ed25519"]),
        (AGENT + LAB, [], ["lab", "other"]),
        (AGENT + LAB + ONLY, [], ["lab"]),
        (AGENT + ONLY, [], ["id_ed25519"]),
        (AGENT + ONLY, ["other"], ["other"]),
        (AGENT + LAB + "PubkeyAuthentication no\n", [], []),
        (LAB + "CertificateFile %d/.ssh/certificate\n", [], ["lab with certificate", "lab"]),
    ],
)
def test_the_configuration_chooses_keys_and_their_order(
    home: Path, configuration: str, explicit: Sequence[str], expected: Sequence[str]
) -> None:
    assert offered(home, configuration, *explicit) == expected


@pytest.mark.parametrize(
    ("value", "variable", "is_used"),
    [
        ("~/agent", None, True),
        ("%d/agent", None, True),
        ("${{HOME}}/agent", None, True),
        ("{home}/agent", None, True),
        ("SSH_AUTH_SOCK", "SSH_AUTH_SOCK", True),
        ("$LAB_AGENT", "LAB_AGENT", True),
        ("$LAB_AGENT", "SSH_AUTH_SOCK", False),
        ("none", "SSH_AUTH_SOCK", False),
    ],
)
def test_the_agent_is_the_one_of_identity_agent(
    home: Path, agent: Path, monkeypatch: pytest.MonkeyPatch, value: str, variable: str | None, is_used: bool
) -> None:
    if variable is not None:
        monkeypatch.setenv(variable, str(agent))
    keys = offered(home, f"IdentityAgent {value.format(home=home)}\n")
    assert keys == (["other", "lab", "id_ed25519"] if is_used else ["id_ed25519"])


def test_an_agent_serves_a_key_whose_public_part_alone_is_there(home: Path, agent: Path) -> None:
    (home / ".ssh/lab").unlink()
    for file in ("IdentityFile ~/.ssh/lab\n", "IdentityFile ~/.ssh/lab.pub\n"):
        assert offered(home, AGENT + ONLY + file) == ["lab"]
    certificate = "IdentityFile none\nCertificateFile ~/.ssh/certificate\n"
    assert offered(home, AGENT + ONLY + certificate) == ["lab with certificate"]
    agent.unlink()
    public = f"only the public part of the key {home}/.ssh/lab exists, and no agent has the key (ssh-add)"
    assert failure(home, LAB) == public


def test_an_agent_unlocks_a_key_also_if_only_configured_keys_are_offered(home: Path, agent: Path) -> None:
    locked = "IdentityFile ~/.ssh/locked\n"
    assert failure(home, locked) == f"the key {home}/.ssh/locked has a passphrase, and no agent has it (ssh-add)"
    ask = {"SSH_ASKPASS_REQUIRE": "force", "SSH_ASKPASS": str(home / "ask"), "SSH_AUTH_SOCK": str(agent)}
    (home / "ask").write_text("#!/bin/sh\necho passphrase\n")
    (home / "ask").chmod(0o700)
    subprocess.run(["ssh-add", "-q", home / ".ssh/locked"], env=ask, check=True)
    for public in (home / ".ssh/locked.pub", home / "missing"):  # the public part stands in the private file, too
        public.unlink(missing_ok=True)
        assert offered(home, AGENT + ONLY + locked) == ["locked"]


def test_a_login_without_a_key_says_what_is_missing(home: Path) -> None:
    assert failure(home, "PubkeyAuthentication no\n").startswith(
        "PubkeyAuthentication is 'no' in the configuration of ssh"
    )
    missing = "IdentityFile ~/.ssh/missing\n"
    assert failure(home, missing) == f"there is no identity file {home}/.ssh/missing, and no agent has a key (ssh-add)"
    assert failure(home, missing + ONLY) == f"there is no identity file {home}/.ssh/missing"
    assert failure(home, missing + AGENT) == f"the agent {home}/agent cannot be used: No such file or directory"
    (home / ".ssh/id_ed25519").write_text(
        "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"
    )
    assert failure(home, "").startswith(f"the key {home}/.ssh/id_ed25519 cannot be used: ")
    for file in ("id_ed25519", "id_ed25519.pub"):
        (home / ".ssh" / file).unlink()
    assert failure(home, "") == "no key is in the machines file, ~/.ssh or an agent (ssh-add)"
    assert (
        failure(home, ONLY) == "no key is in the machines file or ~/.ssh, and IdentitiesOnly excludes those of an agent"
    )


@pytest.mark.usefixtures("agent")
def test_an_agent_with_too_many_keys_is_told(home: Path) -> None:
    assert failure(home, AGENT) == "Authentication failed."
    assert failure(home, AGENT, max_keys=2) == "it ended the connection after 2 keys: 'IdentitiesOnly yes' offers fewer"


class TwoFactors(Sshd):
    """A transport to an sshd that accepts every key, and asks for something else after it."""

    def __init__(self, *further: str) -> None:
        super().__init__(max_keys=100)
        self.further = further
        self.answered = False

    def auth_publickey(self, _user: str, _key: object) -> Sequence[str]:
        return self.further

    def auth_interactive_dumb(self, _user: str) -> Sequence[str]:
        self.answered = True
        return ()


def test_a_second_factor_is_asked_for(home: Path) -> None:
    sshd = TwoFactors("keyboard-interactive")
    identities(home, LAB).authenticate(sshd)
    assert sshd.answered
    with pytest.raises(AuthenticationException, match=r"^it asks for publickey as well$"):
        identities(home, LAB).authenticate(TwoFactors("publickey"))
