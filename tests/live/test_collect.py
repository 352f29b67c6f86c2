"""``gc`` removes exactly the objects without an owner; a failed ``up`` restores the previous state."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from testbed import Cluster, RunningCluster, TestbedError
from testbed.cluster import removal
from testbed.cluster.garbage import Finding, collect
from testbed.cluster.lifecycle import ApplyResult
from testbed.cluster.records.state import State, Store
from testbed.cluster.startup import bring_up
from testbed.errors import ConflictError, KernelError, UnreadableStateError
from testbed.kernel import namespaces, syscalls
from testbed.kernel.changes import observed_by
from testbed.kernel.children import in_child
from testbed.kernel.processes import identity
from testbed.spec.layout import Layout, Node
from testbed.spec.resolver import resolve
from tests.live import runaway_programs
from tests.live.forked_children import background, changes_of, kill_points
from tests.live.machine_state import Machine

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

NAME = f"garden{os.getpid()}"
FIVE = resolve(Cluster.star(5))
SEVEN = resolve(Cluster.star(7))


def up(layout: Layout = FIVE, *, dry_run: bool = False) -> ApplyResult:
    return bring_up(Store(), layout, name=NAME, origin="test", lasting=True, dry_run=dry_run)


def made_by_another_process(layout: Layout = FIVE) -> RunningCluster:
    """A lasting cluster whose maker has ended, as after the command."""
    in_child(lambda: up(layout))
    state = Store().read(NAME)
    assert state is not None
    return RunningCluster(Store(), state)


def rewrite(**changes: object) -> None:
    """Change keys of the state file."""
    path = Store().directory(NAME) / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def with_another(part: str) -> str:
    """The identity of a process that has ended, with another boot or pid namespace."""
    boot, namespace, pid, start = str(state().owner).split(":")
    return ":".join(
        ("elsewhere" if part == "boot" else boot, "1" if part == "pid namespace" else namespace, pid, start)
    )


def state() -> State:
    actual = Store().read(NAME)
    assert actual is not None
    return actual


def gc() -> list[Finding]:
    """Return the findings about this run's clusters; a concurrent run has other process numbers in its names."""
    return [finding for finding in collect(Store()) if NAME in finding.what]


def test_gc_removes_the_directory_of_a_process_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / f"testbed-{NAME}-{replace(identity(), start=1)}-x"
    left.mkdir()
    assert gc() == [Finding(f"directory {left}", True, f"process {os.getpid()} that made it has ended")]
    assert not left.exists()


# What gc leaves alone


def test_gc_keeps_running_clusters_and_does_not_report_them() -> None:
    with made_by_another_process(), Cluster.star(2).up(f"{NAME}-held"):
        running = Machine()
        assert gc() == []
        running.assert_unchanged()


def test_gc_leaves_a_cluster_that_another_command_is_changing() -> None:
    """A cluster that looks abandoned may be under repair while its lock is held."""

    def work(report: Callable[[object], None]) -> None:
        with Store().locked(NAME, timeout=0):
            report("locked")
            signal.pause()

    with made_by_another_process():
        rewrite(phase="building")
        with background(work) as worker:
            assert worker.next_report() == "locked"
            locked = Machine()
            assert gc() == [Finding(f"cluster {NAME}", False, "another testbed command is changing it")]
            locked.assert_unchanged()
        assert [finding.removed for finding in gc()] == [True]


@pytest.mark.requires("ip")
def test_gc_keeps_foreign_entries_in_run_netns(machine: Machine) -> None:
    subprocess.run(["ip", "netns", "add", f"{NAME}.n1"], check=True)
    (namespaces.NAMES / "a-file").touch()
    foreign = Machine()
    assert gc() == []
    foreign.assert_unchanged()
    subprocess.run(["ip", "netns", "del", f"{NAME}.n1"], check=True)
    (namespaces.NAMES / "a-file").unlink()
    syscalls.umount(str(namespaces.NAMES))
    namespaces.NAMES.rmdir()
    machine.assert_unchanged()


@pytest.mark.parametrize("part", ["boot", "pid namespace"])
def test_gc_only_reports_foreign_objects(part: str, machine: Machine) -> None:
    """The owner may be alive as long as processes run in the nodes."""
    cluster = made_by_another_process()
    rewrite(phase="building", owner=with_another(part))
    processes = runaway_programs.start_program(cluster["n1"], runaway_programs.IGNORES_SIGTERM)
    inhabited = Machine()
    expected = f"it was made in another {part} and processes live in it"
    assert gc() == [Finding(f"cluster {NAME}", False, expected)]
    inhabited.assert_unchanged()
    for process in processes:
        signal.pidfd_send_signal(process, signal.SIGKILL)
    runaway_programs.have_ended(processes)
    assert [finding.removed for finding in gc()] == [True]
    machine.assert_unchanged()


@pytest.mark.requires("ip")
def test_gc_only_reports_an_inhabited_namespace_of_another_boot_that_has_no_state(machine: Machine) -> None:
    cluster = made_by_another_process(resolve(Cluster.star(1)))
    alias = namespaces.alias_of(cluster["n1"].namespace)
    elsewhere = alias.replace(str(state().owner), with_another("boot"))
    cluster["n1"].run(["ip", "link", "set", "lo", "alias", elsewhere])
    processes = runaway_programs.start_program(cluster["n1"], runaway_programs.IGNORES_SIGTERM)
    (Store().directory(NAME) / "state.json").unlink()
    (Store().directory(NAME) / "hosts").unlink()
    Store().directory(NAME).rmdir()
    findings = {finding.what: finding for finding in gc()}
    assert findings[f"network namespace {NAME}"].removed
    kept = findings[f"network namespace {NAME}.n1"]
    assert not kept.removed
    assert kept.reason == "it was made in another boot and processes live in it"
    assert namespaces.names() == [f"{NAME}.n1"]
    for process in processes:
        signal.pidfd_send_signal(process, signal.SIGKILL)
    runaway_programs.have_ended(processes)
    assert [finding.removed for finding in gc()] == [True]
    machine.assert_unchanged()


# What gc removes


@pytest.mark.parametrize("phase", ["building", "removing"])
def test_gc_removes_a_cluster_whose_owner_died_half_way(phase: str, machine: Machine) -> None:
    cluster = made_by_another_process()
    processes = runaway_programs.start_program(cluster["n1"], runaway_programs.DOUBLE_FORKED)
    rewrite(phase=phase)
    assert gc() == [Finding(f"cluster {NAME}", True, f"its owner, process {cluster.state.owner.pid}, has ended")]
    assert runaway_programs.have_ended(processes)
    machine.assert_unchanged()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("", id="empty"),
        pytest.param('{"format":1,"na', id="cut off"),
        pytest.param("[]", id="something else"),
        pytest.param('{"format": 99}', id="another version's"),
        pytest.param("\0" * 4096, id="zeros"),
    ],
)
def test_an_unreadable_state_is_an_error_that_gc_and_down_repair(content: str, machine: Machine) -> None:
    for repair in (gc, lambda: removal.down(Store(), NAME)):
        cluster = made_by_another_process()
        (Store().directory(NAME) / "state.json").write_text(content)
        with pytest.raises(UnreadableStateError, match=r"state\.json cannot be understood"):
            up()
        processes = runaway_programs.start_program(cluster["n1"], runaway_programs.IGNORES_SIGTERM)
        repair()
        assert runaway_programs.have_ended(processes)
        machine.assert_unchanged()


def test_gc_removes_a_held_cluster_whose_holder_died_too(machine: Machine) -> None:
    """No process is left to end the programs, which keep namespaces alive that have no name."""

    def hold_cluster(report: Callable[[object], None]) -> None:
        cluster = Cluster.star(2).up(NAME)
        runaway_programs.start_program(cluster["n1"], runaway_programs.IGNORES_SIGTERM)
        report(cluster.state.holder)
        signal.pause()

    for lose_state in (False, True):
        with background(hold_cluster) as process:
            holder = process.next_report()
            os.kill(holder.pid, signal.SIGKILL)  # type: ignore[attr-defined]
            process.kill()
        if lose_state:
            for file in ("state.json", "hosts"):
                (Store().directory(NAME) / file).unlink()
            Store().directory(NAME).rmdir()
        assert all(finding.removed for finding in gc())
        machine.assert_unchanged(f"lose_state={lose_state}")


def test_gc_of_nothing_changes_nothing(machine: Machine) -> None:
    assert gc() == []
    machine.assert_unchanged()


# Bring-up that fails


def with_address(layout: Layout, node: str, address: str) -> Layout:
    """The layout with an address that no description may have."""

    def change(one: Node) -> Node:
        return replace(one, nics=(replace(one.nics[0], addresses=(address,)),)) if one.name == node else one

    return replace(layout, nodes=tuple(map(change, layout.nodes)))


def test_an_address_that_the_kernel_refuses_rolls_back_and_is_named(machine: Machine) -> None:
    with pytest.raises(KernelError, match=r"10\.0\.0\.3/77.*n3.* failed: Invalid argument"):
        up(with_address(FIVE, "n3", "10.0.0.3/77"))
    machine.assert_unchanged()


def test_a_refused_change_of_a_cluster_restores_it_and_is_named() -> None:
    with made_by_another_process():
        before = Machine()
        with pytest.raises(KernelError, match=r"10\.0\.0\.7/77.*n7.* failed: Invalid argument"):
            up(with_address(SEVEN, "n7", "10.0.0.7/77"))
        assert not up(FIVE, dry_run=True).operations
        before.assert_unchanged()


ENOUGH = 200
"""Open files, for a star of 40 nodes."""


def leave_descriptors(room: int) -> None:
    """Use up this process's file descriptors until exactly `room` can be opened, below a limit that is high enough for who
    asks beforehand."""
    os.dup2(0, ENOUGH)
    most = max(int(name) for name in os.listdir("/proc/self/fd")) + room + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    filling = []
    with contextlib.suppress(OSError):
        while True:
            filling.append(os.dup(0))
    for descriptor in filling[len(filling) - room :]:
        os.close(descriptor)


@pytest.mark.parametrize("room", [*range(4, 13), 20, 40])
def test_exhausted_file_descriptors_are_reported_and_rolled_back(room: int, machine: Machine) -> None:
    def short_of_descriptors() -> object:
        leave_descriptors(room)
        return bring_up(Store(), resolve(Cluster.star(40)), name=NAME, origin="test", lasting=True)

    with pytest.raises(KernelError, match="no file descriptors are left"):
        in_child(short_of_descriptors)
    machine.assert_unchanged()


@pytest.mark.parametrize("room", [*range(4, 13), 20, 40])
def test_no_file_descriptors_left_for_a_held_cluster(room: int, machine: Machine) -> None:
    def short_of_descriptors() -> object:
        leave_descriptors(room)
        return Cluster.star(40).up(NAME).name

    with pytest.raises(KernelError, match="no file descriptors are left"):
        in_child(short_of_descriptors)
    machine.assert_unchanged()


def broken_by(fault: Callable[[], None], count: int, action: Callable[[], object]) -> None:
    """Perform the action; after its change number `count` the fault strikes, once."""
    me, left = os.getpid(), count

    def strike(_: str) -> None:
        nonlocal left
        left -= 1
        if left == 0 and os.getpid() == me:
            fault()

    with observed_by(strike):
        action()


def interrupt() -> None:
    """Raise SIGINT as Control-C does, also where a background shell makes the tests ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def exhaust() -> None:
    raise OSError(28, os.strerror(28))


faults = pytest.mark.parametrize(
    ("fault", "error"),
    [
        pytest.param(interrupt, KeyboardInterrupt, id="Control-C"),
        pytest.param(exhaust, (OSError, TestbedError), id="No space left on device"),
    ],
)


@faults
@pytest.mark.parametrize("kind", ["lasting", "held"])
def test_an_up_aborted_after_any_change_is_rolled_back(
    fault: Callable[[], None], error: type[BaseException], kind: str, machine: Machine
) -> None:
    def act() -> RunningCluster:
        return Cluster.star(5).up(NAME, keep=kind == "lasting")

    changes = changes_of(act)
    gc()
    if kind == "lasting":
        act().down()
    machine.assert_unchanged()
    for count, after in kill_points(changes):
        with pytest.raises(error):
            broken_by(fault, count, act)
        machine.assert_unchanged(f"broken off after change {count}, {after}")


@faults
def test_a_change_aborted_after_any_step_restores_the_cluster(
    fault: Callable[[], None], error: type[BaseException]
) -> None:
    with made_by_another_process() as cluster:
        before = Machine()
        changes = changes_of(lambda: up(SEVEN))
        up(FIVE)
        before.assert_unchanged("there and back")
        for count, after in kill_points(changes):
            with pytest.raises(error):
                broken_by(fault, count, lambda: up(SEVEN))
            assert not up(FIVE, dry_run=True).operations, f"broken off after change {count}, {after}"
            before.assert_unchanged(f"broken off after change {count}, {after}")
            assert cluster["n5"].run(["hostname"]).stdout == "n5\n"


@pytest.mark.requires("ip")
def test_up_touches_nothing_when_somebody_has_taken_the_place_of_a_node(machine: Machine) -> None:
    cluster = made_by_another_process()
    cluster["n2"].run(["ip", "link", "set", "lo", "alias", "somebody else's"])
    with pytest.raises(ConflictError, match=rf"{NAME}\.n2 exists already"):
        up()
    cluster.down()
    assert namespaces.names() == [f"{NAME}.n2"]
    namespaces.remove_name(f"{NAME}.n2")
    gc()
    machine.assert_unchanged()


def test_a_failed_rollback_reports_the_leftovers(machine: Machine) -> None:
    cluster = made_by_another_process()

    def fail_change(change: str) -> None:
        if change.startswith("netlink"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with observed_by(fail_change), pytest.raises(KernelError, match=r"could not be rolled back: .*Input/output error"):
        up(resolve(Cluster.star(4)))
    cluster.down()
    machine.assert_unchanged()
