"""Concurrent clusters, and foreign objects with a cluster's names, do not affect each other."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from testbed import Cluster
from testbed.cluster import removal
from testbed.cluster.garbage import collect
from testbed.cluster.records.state import Store, names_locked
from testbed.cluster.startup import bring_up
from testbed.errors import ConflictError
from testbed.kernel import namespaces, syscalls
from testbed.kernel.children import in_child
from testbed.spec.resolver import resolve
from tests.live.forked_children import background, kill_after
from tests.live.machine_state import Machine

pytestmark = pytest.mark.requires("root")

Report = Callable[[object], None]


@pytest.mark.requires("ping")
def test_twenty_concurrent_clusters_of_four_processes_leave_nothing(machine: Machine) -> None:
    def worker(number: int) -> Callable[[Report], None]:
        def work(report: Report) -> None:
            with ExitStack() as stack:
                clusters = [
                    stack.enter_context(Cluster.star(5).up(f"many{number}-{i}" if i % 2 else None, keep=i % 2 == 1))
                    for i in range(5)
                ]
                for cluster in clusters:
                    cluster["n1"].run(["ping", "-c1", "-W5", "n5"])
                report(len(clusters))
            report("down")

        return work

    with ExitStack() as stack:
        workers = [stack.enter_context(background(worker(number))) for number in range(4)]
        assert [worker.next_report() for worker in workers] == [5] * 4
        assert [worker.next_report() for worker in workers] == ["down"] * 4
        assert [worker.wait() for worker in workers] == [0] * 4
    machine.assert_unchanged()


def test_clusters_of_two_state_directories_keep_run_netns_for_each_other(machine: Machine, tmp_path: Path) -> None:
    """A `down` often finds /run/netns empty while the other process creates its names there."""

    def worker(root: Path) -> Callable[[Report], None]:
        def work(report: Report) -> None:
            store = Store(root)
            for _ in range(40):
                layout = resolve(Cluster.back_to_back(name=f"separate-{root.name}"))
                done = bring_up(store, layout, name=layout.name, origin="test", lasting=True)
                removal.down(store, done.state.name)
            report("done")

        return work

    with ExitStack() as stack:
        workers = [stack.enter_context(background(worker(tmp_path / name))) for name in ("first", "second")]
        assert [worker.next_report() for worker in workers] == ["done"] * 2
        assert [worker.wait() for worker in workers] == [0] * 2
    machine.assert_unchanged()


def test_run_netns_is_kept_while_another_process_creates_names(machine: Machine, tmp_path: Path) -> None:
    namespaces.make_names_ready()
    with names_locked(exclusive=False):
        removal.tidy(Store(tmp_path / "other"), timeout=0.1)
        assert namespaces.names_ready()
    removal.tidy(Store(tmp_path / "other"))
    assert not namespaces.names_ready()
    machine.assert_unchanged()


def test_clusters_of_several_processes_share_run_netns(machine: Machine) -> None:
    def work(report: Report) -> None:
        for _ in range(10):
            Cluster.star(1).up(f"short{os.getpid()}", keep=True).down()
        report("done")

    with ExitStack() as stack:
        workers = [stack.enter_context(background(work)) for _ in range(4)]
        assert [worker.next_report() for worker in workers] == ["done"] * 4
    machine.assert_unchanged()


@pytest.mark.requires("ping")
@pytest.mark.usefixtures("machine")
def test_two_clusters_of_one_description_are_separate() -> None:
    star = Cluster.star(2)
    with star.up() as first, star.up() as second, star.up("third", keep=True) as third:
        assert len({first.name, second.name, third.name}) == 3
        first["n1"].run(["ping", "-c1", "-W5", "n2"])
        second["n1"].run(["ping", "-c1", "-W5", "n2"])
        second["n2"].run(["ip", "link", "set", "eth0", "down"])
        first["n1"].run(["ping", "-c1", "-W5", "n2"])
        third["n1"].run(["ping", "-c1", "-W5", "n2"])


@pytest.fixture
def foreign(machine: Machine) -> Iterator[str]:  # noqa: ARG001  checks the machine's state at the end
    """Create a namespace with a name that cluster "home" needs, by ``ip netns``."""
    subprocess.run(["ip", "netns", "add", "home.n3"], check=True)
    yield "home.n3"
    subprocess.run(["ip", "netns", "del", "home.n3"], check=True)
    syscalls.umount(str(namespaces.NAMES))
    os.rmdir(namespaces.NAMES)


@pytest.mark.requires("ip")
def test_up_keeps_a_foreign_namespace_and_reports_the_conflict(foreign: str) -> None:
    inode = os.stat(namespaces.NAMES / foreign).st_ino
    before = Machine()
    with pytest.raises(ConflictError, match=r"home\.n3 exists already and is not this cluster's"):
        Cluster.star(5).up("home", keep=True)
    before.assert_unchanged()
    assert os.stat(namespaces.NAMES / foreign).st_ino == inode


@pytest.mark.requires("ip")
def test_a_held_cluster_comes_up_next_to_a_foreign_namespace_with_its_name(foreign: str) -> None:
    with Cluster.star(5).up("home") as cluster:
        assert cluster["n3"].run(["hostname"]).stdout == "n3\n"
    assert namespaces.names() == [foreign]


@pytest.mark.requires("ip")
def test_a_cluster_in_an_existing_run_netns_keeps_foreign_namespaces(foreign: str) -> None:
    before = Machine()
    with Cluster.star(2).up("away", keep=True):
        assert namespaces.names() == ["away", "away.n1", "away.n2", foreign]
    before.assert_unchanged()


@pytest.mark.requires("ip")
def test_a_foreign_namespace_that_replaced_a_nodes_is_kept(foreign: str) -> None:
    subprocess.run(["ip", "netns", "del", foreign], check=True)
    cluster = Cluster.star(3).up("home", keep=True)
    subprocess.run(["ip", "netns", "del", foreign], check=True)
    subprocess.run(["ip", "netns", "add", foreign], check=True)  # the kernel often reuses the old inode
    with pytest.raises(ConflictError, match=r"home\.n3 exists already and is not this cluster's"):
        Cluster.star(3).up("home", keep=True)
    cluster.down()
    assert namespaces.names() == [foreign]


@pytest.mark.requires("ip")
@pytest.mark.usefixtures("machine")
def test_leftovers_of_a_cluster_with_a_lost_state_are_distinguished_from_foreign_objects() -> None:
    in_child(lambda: Cluster.star(2).up("home", keep=True).name)
    shutil.rmtree(Store().directory("home"))
    with pytest.raises(ConflictError, match="'testbed gc' removes it"):
        Cluster.star(2).up("home", keep=True)
    collect(Store())
    assert namespaces.names() == []


def test_concurrent_ups_of_one_name_make_one_cluster(machine: Machine) -> None:
    def up_same(report: Report) -> None:
        outcome = bring_up(Store(), resolve(Cluster.star(5)), name="same", origin="file", lasting=True)
        report(len(outcome.operations))

    with background(up_same) as first, background(up_same) as second:
        done = sorted([int(str(first.next_report())), int(str(second.next_report()))])
    assert done[0] == 0, "the second up has nothing to do"
    assert done[1] > 0
    assert len(namespaces.names()) == 6
    Cluster.star(5).up("same", keep=True, origin="file").down()
    machine.assert_unchanged()


def test_a_name_of_a_held_cluster_is_rejected(machine: Machine) -> None:
    with Cluster.star(2).up("mine"):
        before = Machine()
        with pytest.raises(ConflictError, match=f"belongs to the running process {os.getpid()}"):
            Cluster.star(2).up("mine")
        with pytest.raises(ConflictError, match="belongs to the running process"):
            Cluster.star(2).up("mine", keep=True)
        before.assert_unchanged()
    machine.assert_unchanged()


def test_a_killed_second_up_does_not_affect_the_held_cluster_of_that_name(machine: Machine) -> None:
    with Cluster.star(2).up("mine") as cluster:
        before = Machine()
        kill_after(1, lambda: Cluster.star(2).up("mine"))
        before.assert_unchanged()
        assert cluster["n1"].run(["hostname"]).stdout == "n1\n"
    machine.assert_unchanged()


def test_two_concurrent_downs_of_one_cluster_both_succeed_or_report_that_it_is_down(machine: Machine) -> None:
    cluster = Cluster.star(5).up("same", keep=True)

    def take_down(report: Report) -> None:
        cluster.down()
        report("down")

    with background(take_down) as first, background(take_down) as second:
        assert [first.next_report(), second.next_report()] == ["down", "down"]
    machine.assert_unchanged()
