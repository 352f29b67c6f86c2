"""Logins on machines by OpenSSH's means: an agent, jump hosts, and included files of the configuration."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.harness.command_timing import command
from tests.live.machine_state import eventually
from tests.live.machines_lab import Lab, lab

pytestmark = [pytest.mark.requires("root", "ip", "ssh", "sshd")]

HOST = "Host {name}\n    HostName {address}\n    User root\n    IdentityFile {folder}/key\n    IdentityFile ~/missing\n"


@pytest.fixture(scope="module")
def machines(_sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("lab")) as running_lab:
        yield running_lab


@pytest.fixture
def ssh(machines: Lab) -> Iterator[Path]:
    """The desk's ~/.ssh, as it was before the test when the test ends."""
    folder = machines.home / ".ssh"
    known = (folder / "known_hosts").read_text()
    yield folder
    (folder / "known_hosts").write_text(known)
    (folder / "config").unlink(missing_ok=True)


def problem(machines: Lab, text: str, **environment: str) -> str:
    """Check the only machine of a file; return its problem, empty for none. environment: of the command."""
    (machines.folder / "other.toml").write_text(text)
    variables = [f"{key}={value}" for key, value in environment.items()]
    with machines.at_desk("env", *variables, *command(), "machines", "check", "--json", "other.toml") as process:
        stdout, stderr = process.communicate(timeout=60)
    assert stderr == ""
    (machine,) = json.loads(stdout)["machines"]
    found: str = machine["problem"]
    assert (found == "") == machine["usable"]
    return found


def last_login(machines: Lab, machine: str) -> str:
    """Return the address from which the last login on a machine came."""
    accepted = [line for line in (machines.folder / f"{machine}.log").read_text().splitlines() if "Accepted" in line]
    return accepted[-1].partition(" from ")[2].split()[0]


@contextmanager
def agent(folder: Path, *keys: Path) -> Iterator[Path]:
    """Run an agent with keys; yield its socket."""
    path = folder / "agent"
    with subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it listens
            subprocess.run(["ssh-add", "-q", *keys], env={"SSH_AUTH_SOCK": str(path)}, check=True)
            yield path
        finally:
            process.terminate()


def test_an_agent_has_the_key(machines: Lab, tmp_path: Path) -> None:
    without_key = machines.file("a", a={"key": None})
    nothing = "cannot log in root: no key is in the machines file, ~/.ssh or an agent (ssh-add)"
    assert problem(machines, without_key) == f"machine a ({machines.address('a')}:22) {nothing}"
    with agent(tmp_path, machines.folder / "key") as socket:
        assert problem(machines, without_key, SSH_AUTH_SOCK=str(socket)) == ""


def test_an_agent_unlocks_a_key_with_a_passphrase(machines: Lab, tmp_path: Path) -> None:
    locked = machines.folder / "locked"
    locked.write_bytes((machines.folder / "key").read_bytes())
    locked.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "passphrase", "-f", locked], check=True)
    text = machines.file("a", a={"key": "locked"})
    assert f"the key {locked} has a passphrase, and no agent has it (ssh-add)" in problem(machines, text)
    with agent(tmp_path, machines.folder / "key") as socket:
        assert problem(machines, text, SSH_AUTH_SOCK=str(socket)) == ""


@pytest.fixture(scope="module")
def full_agent(machines: Lab) -> Iterator[Path]:
    """The socket of an agent that offers more keys than an sshd accepts before the one of the machines."""
    others = [machines.home / f"other{number}" for number in range(6)]  # MaxAuthTries
    for other in others:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    with agent(machines.home, *others, machines.folder / "key") as socket:
        yield socket


def test_only_identities_of_the_configuration_are_offered_to_a_machine_and_its_jump_host(
    machines: Lab, ssh: Path, full_agent: Path
) -> None:
    text = machines.file("c", c={"key": None})
    (ssh / "id").unlink(missing_ok=True)
    (ssh / "id.pub").write_text((machines.folder / "key.pub").read_text())
    jump = machines.address("b")
    configuration = (
        f"IdentityAgent ~/{full_agent.name}\nMatch originalhost {machines.address('c')}\n    ProxyJump root@{jump}\n"
    )
    (ssh / "config").write_text(configuration)
    ended = "refuses the login of root: it ended the connection after 6 keys: 'IdentitiesOnly yes' offers fewer"
    assert problem(machines, text) == f"jump host of machine c ({jump}:22) {ended}"
    (ssh / "config").write_text(f"IdentitiesOnly yes\nIdentityFile ~/.ssh/id\n{configuration}")
    assert problem(machines, text) == ""
    assert last_login(machines, "c") == jump


def test_a_certificate_is_offered_with_its_key(machines: Lab, ssh: Path) -> None:
    key = machines.folder / "other_key"  # not authorized itself
    subprocess.run(
        ["ssh-keygen", "-q", "-s", machines.folder / "key", "-I", "me", "-n", "root", f"{key}.pub"], check=True
    )
    certificate = machines.folder / "other_key-cert.pub"
    certificate.rename(ssh / "certificate")
    text = machines.file("a", a={"key": "other_key"})
    authorized = (machines.folder / "key.pub").read_text()
    (machines.folder / "key.pub").write_text(f"cert-authority {authorized}")
    try:
        assert problem(machines, text).endswith("refuses the login of root: Authentication failed")
        (ssh / "config").write_text("CertificateFile ~/.ssh/certificate\n")
        assert problem(machines, text) == ""
    finally:
        (machines.folder / "key.pub").write_text(authorized)


def test_a_host_key_is_looked_up_by_its_alias(machines: Lab, ssh: Path) -> None:
    known = (ssh / "known_hosts").read_text()
    address = machines.address("a")
    (ssh / "config").write_text(f"Host {address}\n    HostKeyAlias lab-a\n")
    assert "is not trusted: the host key of lab-a (" in problem(machines, machines.file("a"))
    (ssh / "known_hosts").write_text(known.replace(f"{address} ", "lab-a "))
    assert problem(machines, machines.file("a")) == ""


def test_jump_hosts_of_an_included_file_are_passed_in_their_order(machines: Lab, ssh: Path) -> None:
    (ssh / "lab.d").mkdir()
    (ssh / "config").write_text("Include lab.d/*\n")
    hosts = [HOST.format(name=f"lab-{name}", address=machines.address(name), folder=machines.folder) for name in "abc"]
    (ssh / "lab.d/hosts").write_text("".join(hosts) + "    ProxyJump lab-a,lab-b\n")
    assert problem(machines, machines.file("c", c={"address": "lab-c", "user": None, "key": None})) == ""
    assert last_login(machines, "c") == machines.address("b")
    assert last_login(machines, "b") == machines.address("a")
    assert last_login(machines, "a") == machines.cluster[machines.nodes["desk"]].address
    eventually(lambda: machines.programs("c") == [], "no program is left on the machine")


def test_a_jump_host_for_all_hosts_is_not_passed_to_reach_itself(machines: Lab, ssh: Path) -> None:
    (ssh / "config").write_text(
        f"Host *\n    ProxyJump root@{machines.address('b')}\n    IdentityFile {machines.folder}/key\n"
    )
    assert problem(machines, machines.file("c", c={"key": None})) == ""
    assert last_login(machines, "c") == machines.address("b")


def test_a_jump_host_is_verified_and_named_in_errors(machines: Lab, ssh: Path) -> None:
    jump = machines.address("b")
    (ssh / "config").write_text(f"Host {machines.address('c')}\n    ProxyJump root@{jump}:2222\n")
    refused = problem(machines, machines.file("c"))
    assert refused == f"jump host of machine c ({jump}:2222) cannot be reached: Connection refused"
    (ssh / "config").write_text((ssh / "config").read_text().replace(":2222", ""))
    lines = (ssh / "known_hosts").read_text().splitlines(keepends=True)
    (ssh / "known_hosts").write_text("".join(line for line in lines if not line.startswith(jump)))
    unknown = problem(machines, machines.file("c"))
    assert unknown.startswith(f"jump host of machine c ({jump}:22) is not trusted: the host key of {jump} ")


def test_an_invalid_configuration_of_ssh_is_a_machines_problem(machines: Lab, ssh: Path) -> None:
    (ssh / "config").write_text("Include config\n")
    assert "includes itself" in problem(machines, machines.file("a"))
