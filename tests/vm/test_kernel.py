"""Clusters on the kernel of a Debian release, which is older than most developers' kernels, and doctor's report on it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from protocols.core.compiled_build import COMPILED, build
from testbed import Cluster, RunningCluster
from testbed.cluster.lifecycle import ApplyResult
from testbed.cluster.records.state import Store
from testbed.cluster.startup import bring_up
from testbed.kernel import syscalls
from testbed.kernel.children import in_child
from testbed.kernel.userns import is_root
from testbed.spec.resolver import resolve
from tests.live import node_sockets

pytestmark = [pytest.mark.requires("vm", "root", "ping"), pytest.mark.usefixtures("machine")]

USER = 65533
TIMEOUT = 60  # seconds; an emulated machine is slow


def up(nodes: int) -> ApplyResult:
    return bring_up(Store(), resolve(Cluster.star(nodes)), name="star", origin="test", lasting=True)


def ping(cluster: RunningCluster, source: str, target: str) -> None:
    cluster[source].run(["ping", "-n", "-q", "-c1", f"-W{TIMEOUT}", target])


def check_star() -> None:
    with RunningCluster(Store(), up(3).state) as cluster:
        ping(cluster, "n1", "n3")
        assert cluster["n2"].run(["hostname"]).stdout == "n2\n"
        assert up(3).operations == ()
        assert [str(step) for step in up(4).operations][:2] == ["make node n4", "make link n4:eth0--s1:4"]
        cluster = RunningCluster.attach("star")
        ping(cluster, "n4", "n2")
        assert "remove node n4" in [str(step) for step in up(3).operations]
        assert up(3).operations == ()
    assert not Store().root.exists()


def test_a_star_is_brought_up_changed_and_removed() -> None:
    check_star()


def test_an_ordinary_user_brings_up_changes_and_removes_a_star(tmp_path: Path) -> None:
    for directory in (tmp_path, *tmp_path.parents[:3]):
        directory.chmod(0o777)
    os.chown(tmp_path, USER, USER)

    def as_user() -> None:
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
        syscalls._libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: the process may read its /proc/self again
        os.environ["XDG_RUNTIME_DIR"] = str(tmp_path)
        assert not is_root()
        check_star()

    in_child(as_user)


def test_two_nodes_without_a_switch_reach_each_other() -> None:
    """The link is two veth pairs joined by redirection."""
    with Cluster.back_to_back().up() as cluster:
        ping(cluster, "n1", "n2")


def test_a_broadcast_in_a_fat_tree_arrives_once_and_the_farthest_nodes_reach_each_other() -> None:
    with Cluster.fat_tree(4).up() as cluster, node_sockets.nic_sockets(cluster) as nics:
        sender = nics.pop("n1")
        sender.send(node_sockets.numbered_frame(node_sockets.BROADCAST, node_sockets.mac(cluster, "n1"), 1))
        for nic in nics.values():
            node_sockets.wait_until_readable(nic, TIMEOUT)
        ping(cluster, "n1", "n16")
        sender.send(node_sockets.numbered_frame(node_sockets.BROADCAST, node_sockets.mac(cluster, "n1"), 2))
        for name, nic in nics.items():
            received_numbers: list[int] = []
            while 2 not in received_numbers:
                node_sockets.wait_until_readable(nic, TIMEOUT)
                received_numbers += node_sockets.frame_numbers(node_sockets.received(nic))
            assert received_numbers == [1, 2], name


def test_doctor_finds_netem_and_the_controllers_of_cgroups() -> None:
    output = subprocess.run(["testbed", "doctor", "--json"], capture_output=True, text=True, check=True).stdout
    present = {ability["name"]: ability["there"] for ability in json.loads(output)["abilities"]}
    assert [name for name in present if not present[name]] == ([] if build() == COMPILED else ["compiled"])
    assert {"netem", "cgroup v2 cpu", "cgroup v2 memory"} <= present.keys()
