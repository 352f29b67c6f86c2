"""sshd in nodes: connections from outside and between nodes, without changes to the machine's and the user's files."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from glob import glob
from importlib import import_module
from pathlib import Path

import jsonschema
import pytest

from testbed import Cluster, RunningCluster
from testbed.cli.documents import schema_of
from testbed.cluster.access import secure_shell
from testbed.cluster.records.state import Store
from testbed.cluster.records.status import status
from testbed.errors import ConflictError, TestbedError, UnsupportedError
from testbed.kernel import syscalls
from testbed.kernel.changes import observed_by
from testbed.spec.toml_writer import to_toml
from tests.live import ordinary_user
from tests.live.forked_children import changes_of, kill_after
from tests.live.iproute2 import query
from tests.live.ordinary_user import as_user, wait_for_success
from tests.live.testbed_command import assert_error, testbed

import_module("testbed.ssh.node_connections")  # imported before the child drops its privileges

pytestmark = [pytest.mark.requires("root", "ip", "ssh", "sshd"), pytest.mark.usefixtures("machine")]


@pytest.fixture
def star() -> Iterator[RunningCluster]:
    with Cluster.star(2).up() as cluster:
        yield cluster


def ssh(config: Path, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["ssh", "-F", str(config), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        **options,  # type: ignore[call-overload,no-any-return]
    )


def test_the_ssh_command_logs_in_and_the_daemons_end_with_the_cluster() -> None:
    testbed("up", "star-2")
    try:
        result = testbed("ssh", "--json", "star-2")
        jsonschema.validate(json.loads(result.stdout), schema_of("ssh"))
        config = Path(json.loads(result.stdout)["configuration"])
        assert testbed("ssh", "star-2").stdout == f"ssh -F {config} NODE\n"
        assert testbed("ssh", "star-2", "n2", "hostname").stdout == "n2\n"
        assert testbed("ssh", "star-2", "n1", "exit 7").returncode == 7
        (cluster_status,) = json.loads(testbed("status", "--json").stdout)["clusters"]
        assert [len(node["programs"]) for node in cluster_status["nodes"]] == [1, 1]
        assert {path.stat().st_mode & 0o077 for path in config.parent.iterdir() if path.suffix != ".pub"} == {0}
        assert_error(testbed("ssh", "star-2", "n3"), 4, "no node 'n3'")
        assert_error(testbed("ssh", "star-2", "--json"), 2, "options of ssh go before it")
    finally:
        assert testbed("down").returncode == 0
    assert not config.parent.exists()
    assert_error(testbed("ssh", "star-2"), 4, "no cluster")


def test_ssh_from_outside_bypasses_the_links_and_ssh_between_nodes_uses_them(
    star: RunningCluster,
) -> None:
    config = star.ssh()
    assert ssh(config, "n1", "hostname; echo $SSH_CONNECTION").stdout.split()[:2] == ["n1", "127.0.0.1"]
    with star.inject("n2", rules=["drop tcp.dport == 22"]):
        assert ssh(config, "n2", "hostname").stdout == "n2\n"
        blocked = star["n1"].run(["ssh", "-oConnectTimeout=1", "n2", "hostname"], check=False)
        assert "timed out" in blocked.stderr
    connection = star["n1"].run(["ssh", "n2", "echo $SSH_CONNECTION $TESTBED_NODE"], timeout=60).stdout.split()
    assert connection[:1] + connection[2:] == [star["n1"].address, star["n2"].address, "22", "n2"]
    assert star["n1"].run(["ssh", "-F", str(config), star["n2"].address, "hostname"], timeout=60).stdout == "n2\n"


def test_scp_and_terminals_work(star: RunningCluster, tmp_path: Path) -> None:
    config = star.ssh()
    content = os.urandom(300_000)
    (tmp_path / "here").write_bytes(content)
    subprocess.run(["scp", "-q", "-F", config, tmp_path / "here", f"n1:{tmp_path}/there"], check=True, timeout=60)
    assert (tmp_path / "there").read_bytes() == content
    assert "/dev/pts/" in ssh(config, "-tt", "n1", "tty").stdout


def test_no_ssh_file_of_the_user_or_the_machine_is_changed(star: RunningCluster) -> None:
    home = str(Path.home())
    patterns = (
        f"{home}/.ssh",
        f"{home}/.ssh/*",
        "/etc/ssh/*",
        "/run/sshd*",
        "/run/utmp",
        "/var/log/wtmp",
        "/var/log/lastlog",
    )

    def file_stamps() -> list[tuple[str, int, int]]:
        files = [Path(file) for pattern in patterns for file in glob(pattern)]
        return [(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files]

    before = file_stamps()
    config = star.ssh()
    assert ssh(config, "-tt", "n1", "tty").returncode == 0
    star["n1"].run(["ssh", "n2", "true"], timeout=60)
    assert file_stamps() == before


def test_a_second_call_keeps_running_daemons_and_restarts_missing_ones(star: RunningCluster) -> None:
    def programs() -> dict[str, str]:
        return {node: (folder / f"{node}.pid").read_text() for node in ("n1", "n2")}

    folder = star.ssh().parent
    before, key = programs(), (folder / "host_key.pub").read_text()
    star.ssh()
    assert programs() == before
    star["n2"].run(["sh", "-c", "kill $(cut -d: -f3 $TESTBED_STATE/ssh/n2.pid)"])
    wait_for_end = ["sh", "-c", "while ss -Hltn | grep -q :22; do :; done"]
    star["n2"].run(wait_for_end, timeout=30)
    config = star.ssh()
    assert programs()["n1"] == before["n1"]
    assert programs()["n2"] != before["n2"]
    assert (folder / "host_key.pub").read_text() == key
    assert ssh(config, "n2", "hostname").stdout == "n2\n"


def test_an_ssh_call_killed_after_any_change_is_completed_by_the_next() -> None:
    with Cluster.star(1).up() as cluster:
        count = len(changes_of(cluster.ssh))
    for number in range(1, count + 1):
        with Cluster.star(1).up() as cluster:
            kill_after(number, cluster.ssh)
            cluster.ssh()
            (node,) = status(cluster.state).nodes
            assert len(node.programs) == 1, f"killed after change {number}"


def test_an_sshd_whose_parent_was_killed_does_not_block_the_next_call(star: RunningCluster) -> None:
    def kill(change: str) -> None:
        if change.startswith("start testbed-sshd"):
            os.kill(os.getpid(), signal.SIGKILL)

    with observed_by(kill), pytest.raises(TestbedError):
        star.ssh()
    assert ssh(star.ssh(), "n1", "hostname").stdout == "n1\n"


def test_a_node_added_later_gets_an_sshd_and_is_known_to_running_sessions(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(to_toml(Cluster.star(2)))
    testbed("up", str(file), "--name", "extended")
    try:
        running = RunningCluster.attach("extended")
        config = running.ssh()
        remote_command = "while ! test -e added; do sleep 0.01; done; ssh n3 hostname"
        with running["n1"].popen(["ssh", "n2", f"cd {tmp_path}; {remote_command}"], stdout=subprocess.PIPE) as session:
            file.write_text(file.read_text() + '\n[[node]]\nname = "n3"\n\n[[link]]\nends = ["n3", "s1"]\n')
            testbed("up", str(file), "--name", "extended")
            assert ssh(config, "n3", "hostname").returncode != 0
            assert testbed("ssh", "extended", "n3", "hostname").stdout == "n3\n"
            (tmp_path / "added").touch()
            assert session.communicate(timeout=60)[0] == "n3\n"
    finally:
        testbed("down", "--name", "extended")


def test_ssh_works_with_a_world_writable_run_directory(star: RunningCluster) -> None:
    before = os.stat("/run").st_mode & 0o7777
    os.chmod("/run", 0o1777)  # as after docker run --tmpfs /run
    try:
        assert ssh(star.ssh(), "n1", "hostname").stdout == "n1\n"
    finally:
        os.chmod("/run", before)


def test_the_machines_sshd_directory_may_appear_and_disappear(star: RunningCluster) -> None:
    directory = Path("/run/sshd")  # systemd makes and removes it with the machine's sshd
    directory.mkdir()
    config = star.ssh()
    directory.rmdir()
    assert ssh(config, "n1", "hostname").stdout == "n1\n"


def test_a_server_with_another_key_is_not_trusted(star: RunningCluster) -> None:
    config = star.ssh()
    folder = config.parent
    for file in ("host_key", "host_key.pub"):
        (folder / file).unlink()
    (folder / "n1.conf").unlink()
    known_hosts = (folder / "known_hosts").read_text()
    secure_shell.ensure(Store(), star.name, ["n1"])
    (folder / "known_hosts").write_text(known_hosts)
    done = ssh(config, "n1", "hostname")
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr


def test_a_port_in_use_is_reported(star: RunningCluster) -> None:
    listen = "import socket; server = socket.create_server(('', 22)); print('ready', flush=True); server.accept()"
    server = star["n2"].popen(["python3", "-c", listen], stdout=subprocess.PIPE)
    assert server.stdout is not None
    with server, server.stdout as reported:
        assert reported.readline() == "ready\n"
        with pytest.raises(ConflictError, match="another program listens on port 22 of node n2"):
            star.ssh()
        server.kill()


def test_ssh_passes_the_nodes_environment_and_works_with_a_locked_password() -> None:
    cluster = Cluster.star(2)
    description = to_toml(cluster).replace(
        'name = "n1"\n',
        'name = "n1"\nenvironment = { ROLE = "a \\"b\\" \\\\c" }\nfiles = { "/etc/shadow" = "root:!:19000::::::\\n" }\n',
    )
    with Cluster.from_toml(description).up() as running:
        config = running.ssh()
        assert ssh(config, "n1", 'echo "$ROLE"; cat /etc/shadow').stdout == 'a "b" \\c\nroot:*:19000::::::\n'


@pytest.fixture
def postgres_user(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the ordinary user postgres, which has a name and a shell, with a readable Python; return its directory."""
    account = pwd.getpwnam("postgres")
    monkeypatch.setattr(ordinary_user, "NOBODY", account.pw_uid)
    os.chown(home, account.pw_uid, account.pw_uid)
    shutil.copytree(Path(syscalls.__file__).parents[1], tmp_path / "python" / "testbed")
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "python"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return home


@pytest.mark.requires("userns", "postgresql")
def test_rootless_ssh_sessions_run_as_the_user(postgres_user: Path) -> None:
    def body() -> None:
        with Cluster.star(2).up() as cluster:
            config = cluster.ssh()
            assert ssh(config, "n1", "hostname; whoami").stdout == "n1\npostgres\n"
            ssh_command = ["ssh", "n2", "whoami; echo $SSH_CONNECTION; ssh n1 hostname"]
            whoami, connection, hostname = cluster["n1"].run(ssh_command, timeout=60).stdout.splitlines()
            assert (whoami, hostname) == ("postgres", "n1")
            assert connection.split()[0] == cluster["n1"].address
            assert "/dev/pts/" in ssh(config, "-tt", "n1", "tty").stdout
            assert ssh(config, "n1", "ip link set eth0 down").returncode != 0
            assert cluster["n2"].connection.run("hostname", hide=True).stdout == "n2\n"
            before = (config.parent / "n1.pid").read_text()
            assert cluster.ssh() == config
            assert (config.parent / "n1.pid").read_text() == before

    wait_for_success(as_user(postgres_user, body))


@pytest.mark.requires("userns")
def test_a_user_without_a_name_gets_an_error_with_the_reason(home: Path) -> None:
    def body() -> None:
        with Cluster.star(2).up() as cluster:
            with pytest.raises(UnsupportedError, match=f"user {os.getuid()} has no name"):
                cluster.ssh()
            assert not Store().ssh_directory(cluster.name).exists()

    wait_for_success(as_user(home, body))


def test_ssh_adds_no_interface_to_the_machine(star: RunningCluster) -> None:
    before = query("/proc/self/ns/net", "ip", "link")
    star.ssh()
    assert query("/proc/self/ns/net", "ip", "link") == before
