"""Fabric over ssh on nodes: its command with an ordinary fabfile, and its Python API."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed import Cluster, RunningCluster
from tests.live.machine_state import eventually

pytestmark = [pytest.mark.requires("root", "ssh", "sshd"), pytest.mark.usefixtures("machine")]

FABFILE = '''
from fabric import task


@task
def deploy(c):
    """Copy a service to a machine and run it."""
    c.put("service.sh", "/tmp/{directory}/service-" + c.host)
    c.run("sh /tmp/{directory}/service-" + c.host + " >/tmp/{directory}/output-" + c.host)
'''


@pytest.fixture
def star() -> Iterator[RunningCluster]:
    with Cluster.star(3).up() as cluster:
        yield cluster


def test_an_unchanged_fabfile_runs_on_nodes(star: RunningCluster, tmp_path: Path) -> None:
    config = star.ssh()
    (tmp_path / "fabfile.py").write_text(FABFILE.replace("/tmp/{directory}", str(tmp_path)))
    (tmp_path / "service.sh").write_text("hostname\n")
    fab = [sys.executable, "-m", "fabric", "-H", "n1,n3", "--ssh-config", str(config), "deploy"]
    done = subprocess.run(
        fab, cwd=tmp_path, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False
    )
    assert done.returncode == 0, done.stderr
    reported = {file.name: file.read_text() for file in tmp_path.glob("output-*")}
    assert reported == {"output-n1": "n1\n", "output-n3": "n3\n"}


def test_a_nodes_connection_reconnects_and_is_closed_with_the_cluster(star: RunningCluster) -> None:
    node, before = star["n2"], threading.active_count()
    done = node.connection.run("hostname; echo $TESTBED_NODE >&2", hide=True)
    assert (done.stdout, done.stderr) == ("n2\n", "n2\n")
    assert node.connection is node.connection
    content = io.BytesIO()
    node.connection.get("/etc/hosts", content)
    assert content.getvalue().decode() == node.run(["cat", "/etc/hosts"]).stdout
    assert node.connection.run("exit 3", warn=True).exited == 3
    node.connection.close()
    assert node.connection.run("hostname", hide=True).stdout == "n2\n"
    star.down()
    assert not node.connection.is_connected
    eventually(lambda: threading.active_count() == before, "no thread is left")


@pytest.mark.parametrize("threads", [False, True])
def test_a_group_of_nodes_runs_a_command(star: RunningCluster, threads: bool) -> None:
    done = star.group("n3", "n1", threads=threads).run("hostname", hide=True)
    assert {connection.host: result.stdout for connection, result in done.items()} == {"n1": "n1\n", "n3": "n3\n"}
    assert len(star.group(threads=threads)) == 3


def test_fabric_is_imported_only_for_connections() -> None:
    program = "import sys, testbed.cli.main, testbed.cli.exec_commands\n"
    program += "import testbed.controller.runs.runner, testbed.cluster.running_cluster\n"
    program += (
        "import testbed.cluster.access.secure_shell\nprint(sorted({'fabric', 'paramiko', 'invoke'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
