"""Clusters of an ordinary user in a user namespace."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from testbed import Cluster, RunningCluster
from testbed.cluster.garbage import collect
from testbed.cluster.lifecycle import ApplyResult
from testbed.cluster.records.state import Store
from testbed.cluster.records.status import status
from testbed.cluster.removal import down
from testbed.cluster.startup import bring_up, read_if_possible
from testbed.errors import NotFoundError, OtherPidNamespaceError, PermissionDeniedError
from testbed.kernel import processes, syscalls, userns
from testbed.spec.resolver import resolve
from tests.live.machine_state import eventually
from tests.live.ordinary_user import as_user, wait_for_success

pytestmark = [pytest.mark.requires("root", "userns", "ip", "ping"), pytest.mark.usefixtures("machine")]

CLONE_NEWPID = 0x20000000  # include/uapi/linux/sched.h; os.CLONE_NEWPID since Python 3.12


def up(nodes: int) -> ApplyResult:
    layout = resolve(Cluster.star(nodes))
    return bring_up(Store(), layout, name="star", origin="a test", lasting=True)


def test_an_ordinary_user_brings_up_uses_changes_and_takes_down_a_cluster(home: Path) -> None:
    def body() -> None:
        assert len(up(2).operations) == 10
        cluster = RunningCluster.attach()
        assert cluster["n1"].run(["ping", "-n", "-q", "-c1", "-W5", "n2"]).returncode == 0
        assert cluster["n1"].run(["hostname"]).stdout == "n1\n"
        assert up(2).operations == ()
        assert [str(operation) for operation in up(3).operations][:2] == ["make node n3", "make link n3:eth0--s1:3"]
        cluster = RunningCluster.attach()
        cluster["n3"].run(["ping", "-n", "-q", "-c1", "-W5", "n1"])
        cluster_status = status(cluster.state)
        assert [(node.name, node.exists) for node in cluster_status.nodes] == [("n1", True), ("n2", True), ("n3", True)]
        assert all(link.up and link.forward.frames for link in cluster_status.links[:1])
        cluster.down()
        with pytest.raises(NotFoundError):
            RunningCluster.attach("star")
        assert not Store().root.exists()

    wait_for_success(as_user(home, body))


def test_later_processes_of_the_user_can_use_the_cluster(home: Path) -> None:
    def first() -> None:
        up(2)

    def second() -> None:
        RunningCluster.attach("star")["n2"].run(["ping", "-n", "-q", "-c1", "-W5", "n1"])
        up(3)

    def third() -> None:
        cluster = RunningCluster.attach()
        assert len(cluster) == 3
        cluster.down()

    for step in (first, second, third):
        wait_for_success(as_user(home, step))


def test_a_cluster_whose_namespace_holder_died_is_brought_up_again(home: Path) -> None:
    def body() -> None:
        state = up(2).state
        assert state.holder is not None
        processes.end(state.holder)
        assert state.abandoned
        assert len(up(2).operations) == 10
        RunningCluster.attach().down()

    wait_for_success(as_user(home, body))


def test_a_cluster_of_another_pid_namespace_is_neither_used_nor_removed(home: Path) -> None:
    def first() -> None:
        up(2)

    def in_other_pid_namespace() -> None:
        store = Store()
        message = r"^cluster star depends on process \d+ of another pid namespace \(pid:\[\d+\]\), which is not visible"
        for use in (lambda: up(2), lambda: up(3), lambda: RunningCluster.attach("star"), lambda: down(store, "star")):
            with pytest.raises(OtherPidNamespaceError, match=message):
                use()
        [finding] = collect(store)
        assert (finding.what, finding.removed) == ("cluster star", False)
        assert read_if_possible(store, "star") is None

    def last() -> None:
        cluster = RunningCluster.attach("star")
        cluster["n1"].run(["ping", "-n", "-q", "-c1", "-W5", "n2"])
        cluster.down()

    wait_for_success(as_user(home, first))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            syscalls.unshare(CLONE_NEWPID)  # for the children of this process
            wait_for_success(as_user(home, in_other_pid_namespace))
            status = 0
        finally:
            os._exit(status)
    wait_for_success(child)
    wait_for_success(as_user(home, last))


def test_a_held_cluster_ends_with_its_block(home: Path) -> None:
    def body() -> None:
        with Cluster.star(2).up() as cluster:
            cluster["n2"].run(["ping", "-n", "-q", "-c1", "-W5", "n1"])
            holder = cluster.state.holder
            assert holder is not None
            assert holder.is_alive
        assert not holder.is_alive
        assert not Store().root.exists()

    wait_for_success(as_user(home, body))


def test_a_held_cluster_ends_with_its_killed_process(home: Path) -> None:
    reader, writer = os.pipe()

    def hold() -> None:
        os.close(reader)
        cluster = Cluster.star(2).up()
        sleeper = cluster["n1"].popen(["sleep", "1000"])
        os.write(writer, f"{sleeper.pid} {cluster.state.holder}\n".encode())
        signal.pause()

    child = as_user(home, hold)
    os.close(writer)
    with open(reader) as text:
        sleeper, holder = text.readline().split()
    holder = processes.Identity.parse(holder)
    assert holder.is_alive
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    eventually(lambda: not holder.is_alive, "the namespace holder ends")
    eventually(lambda: not Path("/proc", sleeper).exists(), "the program in the node ends")
    eventually(lambda: list(home.iterdir()) == [], "the state is removed")


def test_an_ordinary_users_state_directory_is_private(home: Path) -> None:
    def body() -> None:
        os.umask(0)
        up(2)
        assert stat.S_IMODE(Store().root.stat().st_mode) == 0o700
        RunningCluster.attach().down()

    wait_for_success(as_user(home, body))


def test_a_state_directory_that_others_can_write_is_rejected(home: Path) -> None:
    def body() -> None:
        root = Store().root
        root.mkdir()
        root.chmod(0o777)
        with pytest.raises(PermissionDeniedError, match=f"^{root} can be written by others: 'chmod 700 {root}'"):
            up(2)
        root.rmdir()

    wait_for_success(as_user(home, body))


def test_a_state_directory_of_another_user_is_rejected(home: Path) -> None:
    def body() -> None:
        with pytest.raises(PermissionDeniedError, match=f"^{Store().root} belongs to another user$"):
            up(2)

    foreign = home / "netns-testbed"
    foreign.mkdir(mode=0o755)
    try:
        wait_for_success(as_user(home, body))
    finally:
        foreign.rmdir()


def test_no_interface_is_added_to_the_machines_network_namespace(home: Path) -> None:
    before = subprocess.run(["ip", "-j", "link"], capture_output=True, check=True).stdout

    def body() -> None:
        with Cluster.star(2).up():
            assert subprocess.run(["ip", "-j", "link"], capture_output=True, check=True).stdout == before

    wait_for_success(as_user(home, body))


def test_a_sysctl_that_forbids_user_namespaces_is_reported(home: Path) -> None:
    """user.max_user_namespaces is per user namespace, so the test sets it to 0 in its own."""

    def body() -> None:
        userns.become_namespace_root()
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
        monkeypatch = pytest.MonkeyPatch()
        monkeypatch.setattr(userns, "is_root", lambda: False)
        with pytest.raises(PermissionDeniedError) as caught:
            Cluster.star(2).up()
        assert str(caught.value) == (
            "this machine does not let an unprivileged user make a user namespace (max_user_namespaces is 0): "
            "run as root, or have root run 'sysctl -w user.max_user_namespaces=15000'"
        )

    wait_for_success(as_user(home, body))
