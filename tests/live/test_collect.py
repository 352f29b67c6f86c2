"""``gc`` removes exactly the objects without a live owner; a failed ``up`` is rolled back."""

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

NAME = f"gc{os.getpid()}"
FIVE = resolve(Cluster.star(5))
SEVEN = resolve(Cluster.star(7))


def up(layout: Layout = FIVE, *, dry_run: bool = False) -> ApplyResult:
    return bring_up(Store(), layout, name=NAME, origin="test", lasting=True, dry_run=dry_run)


def up_in_another_process(layout: Layout = FIVE) -> RunningCluster:
    """Bring up a lasting cluster in a child that ends, as the command does."""
    in_child(lambda: up(layout))
    state = Store().read(NAME)
    assert state is not None
    return RunningCluster(Store(), state)


def rewrite_state(**changes: object) -> None:
    """Change keys of the cluster's state file."""
    path = Store().directory(NAME) / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def foreign_identity(part: str) -> str:
    """Return the owner's identity with another boot or pid namespace."""
    boot, namespace, pid, start = str(state().owner).split(":")
    return ":".join(
        ("elsewhere" if part == "boot" else boot, "1" if part == "pid namespace" else namespace, pid, start)
    )


def state() -> State:
    current = Store().read(NAME)
    assert current is not None
    return current


def gc() -> list[Finding]:
    """Return the findings about this run's clusters; a concurrent run's names have another pid."""
    return [finding for finding in collect(Store()) if NAME in finding.what]


def test_gc_removes_the_temporary_directory_of_a_killed_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    leftover = tmp_path / f"testbed-{NAME}-{replace(identity(), start=1)}-x"
    leftover.mkdir()
    assert gc() == [Finding(f"directory {leftover}", True, f"process {os.getpid()} that made it has ended")]
    assert not leftover.exists()


# Objects that gc keeps


def test_gc_keeps_running_clusters_and_does_not_report_them() -> None:
    with up_in_another_process(), Cluster.star(2).up(f"{NAME}-held"):
        before = Machine()
        assert gc() == []
        before.assert_unchanged()


def test_gc_keeps_a_cluster_that_another_command_is_changing() -> None:
    """A cluster that looks abandoned may be under repair while its lock is held."""

    def hold_lock(report: Callable[[object], None]) -> None:
        with Store().locked(NAME, timeout=0):
            report("locked")
            signal.pause()

    with up_in_another_process():
        rewrite_state(phase="building")
        with background(hold_lock) as worker:
            assert worker.next_report() == "locked"
            before = Machine()
            assert gc() == [Finding(f"cluster {NAME}", False, "another testbed command is changing it")]
            before.assert_unchanged()
        assert [finding.removed for finding in gc()] == [True]


@pytest.mark.requires("ip")
def test_gc_keeps_foreign_entries_in_run_netns(machine: Machine) -> None:
    subprocess.run(["ip", "netns", "add", f"{NAME}.n1"], check=True)
    (namespaces.NAMES / "a-file").touch()
    before = Machine()
    assert gc() == []
    before.assert_unchanged()
    subprocess.run(["ip", "netns", "del", f"{NAME}.n1"], check=True)
    (namespaces.NAMES / "a-file").unlink()
    syscalls.umount(str(namespaces.NAMES))
    namespaces.NAMES.rmdir()
    machine.assert_unchanged()


@pytest.mark.parametrize("part", ["boot", "pid namespace"])
def test_gc_only_reports_foreign_objects(part: str, machine: Machine) -> None:
    """The owner may be alive as long as processes run in the nodes."""
    cluster = up_in_another_process()
    rewrite_state(phase="building", owner=foreign_identity(part))
    processes = runaway_programs.start_program(cluster["n1"], runaway_programs.IGNORES_SIGTERM)
    before = Machine()
    expected = f"it was made in another {part} and processes run in it"
    assert gc() == [Finding(f"cluster {NAME}", False, expected)]
    before.assert_unchanged()
    for process in processes:
        signal.pidfd_send_signal(process, signal.SIGKILL)
    runaway_programs.have_ended(processes)
    assert [finding.removed for finding in gc()] == [True]
    machine.assert_unchanged()


@pytest.mark.requires("ip")
def test_gc_only_reports_a_stateless_namespace_of_another_boot_with_live_processes(machine: Machine) -> None:
    cluster = up_in_another_process(resolve(Cluster.star(1)))
    alias = namespaces.alias_of(cluster["n1"].namespace)
    elsewhere = alias.replace(str(state().owner), foreign_identity("boot"))
    cluster["n1"].run(["ip", "link", "set", "lo", "alias", elsewhere])
    processes = runaway_programs.start_program(cluster["n1"], runaway_programs.IGNORES_SIGTERM)
    (Store().directory(NAME) / "state.json").unlink()
    (Store().directory(NAME) / "hosts").unlink()
    Store().directory(NAME).rmdir()
    findings = {finding.what: finding for finding in gc()}
    assert findings[f"network namespace {NAME}"].removed
    kept = findings[f"network namespace {NAME}.n1"]
    assert not kept.removed
    assert kept.reason == "it was made in another boot and processes run in it"
    assert namespaces.names() == [f"{NAME}.n1"]
    for process in processes:
        signal.pidfd_send_signal(process, signal.SIGKILL)
    runaway_programs.have_ended(processes)
    assert [finding.removed for finding in gc()] == [True]
    machine.assert_unchanged()


# Objects that gc removes


@pytest.mark.parametrize("phase", ["building", "removing"])
def test_gc_removes_a_cluster_whose_owner_died_during_up_or_down(phase: str, machine: Machine) -> None:
    cluster = up_in_another_process()
    processes = runaway_programs.start_program(cluster["n1"], runaway_programs.DOUBLE_FORKED)
    rewrite_state(phase=phase)
    assert gc() == [Finding(f"cluster {NAME}", True, f"its owner, process {cluster.state.owner.pid}, has ended")]
    assert runaway_programs.have_ended(processes)
    machine.assert_unchanged()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("", id="empty"),
        pytest.param('{"format":1,"na', id="cut off"),
        pytest.param("[]", id="not an object"),
        pytest.param('{"format": 99}', id="unknown format"),
        pytest.param("\0" * 4096, id="zeros"),
    ],
)
def test_an_unreadable_state_is_an_error_and_gc_and_down_remove_the_cluster(content: str, machine: Machine) -> None:
    for repair in (gc, lambda: removal.down(Store(), NAME)):
        cluster = up_in_another_process()
        (Store().directory(NAME) / "state.json").write_text(content)
        with pytest.raises(UnreadableStateError, match=r"state\.json cannot be understood"):
            up()
        processes = runaway_programs.start_program(cluster["n1"], runaway_programs.IGNORES_SIGTERM)
        repair()
        assert runaway_programs.have_ended(processes)
        machine.assert_unchanged()


def test_gc_removes_a_held_cluster_whose_namespace_holder_died_too(machine: Machine) -> None:
    """No process is left to end the programs, which keep unnamed namespaces alive."""

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


def test_gc_without_clusters_changes_nothing(machine: Machine) -> None:
    assert gc() == []
    machine.assert_unchanged()


# Failed up


def with_address(layout: Layout, node: str, address: str) -> Layout:
    """Return the layout with an address that the validation of a description would reject."""

    def change(candidate: Node) -> Node:
        if candidate.name != node:
            return candidate
        return replace(candidate, nics=(replace(candidate.nics[0], addresses=(address,)),))

    return replace(layout, nodes=tuple(map(change, layout.nodes)))


def test_an_address_that_the_kernel_rejects_is_reported_and_rolled_back(machine: Machine) -> None:
    with pytest.raises(KernelError, match=r"10\.0\.0\.3/77.*n3.* failed: Invalid argument"):
        up(with_address(FIVE, "n3", "10.0.0.3/77"))
    machine.assert_unchanged()


def test_a_change_that_the_kernel_rejects_is_reported_and_rolled_back() -> None:
    with up_in_another_process():
        before = Machine()
        with pytest.raises(KernelError, match=r"10\.0\.0\.7/77.*n7.* failed: Invalid argument"):
            up(with_address(SEVEN, "n7", "10.0.0.7/77"))
        assert not up(FIVE, dry_run=True).operations
        before.assert_unchanged()


ENOUGH_DESCRIPTORS = 200
"""Descriptor limit that suffices for a star of 40 nodes."""


def leave_descriptors(free: int) -> None:
    """Open file descriptors until exactly `free` more can be opened, below a limit that passes the check before bring-up."""
    os.dup2(0, ENOUGH_DESCRIPTORS)
    limit = max(int(name) for name in os.listdir("/proc/self/fd")) + free + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    opened = []
    with contextlib.suppress(OSError):
        while True:
            opened.append(os.dup(0))
    for descriptor in opened[len(opened) - free :]:
        os.close(descriptor)


@pytest.mark.parametrize("free", [*range(4, 13), 20, 40])
def test_exhausted_file_descriptors_are_reported_and_rolled_back(free: int, machine: Machine) -> None:
    def up_with_few_descriptors() -> object:
        leave_descriptors(free)
        return bring_up(Store(), resolve(Cluster.star(40)), name=NAME, origin="test", lasting=True)

    with pytest.raises(KernelError, match="no file descriptors are left"):
        in_child(up_with_few_descriptors)
    machine.assert_unchanged()


@pytest.mark.parametrize("free", [*range(4, 13), 20, 40])
def test_exhausted_file_descriptors_are_reported_and_rolled_back_for_a_held_cluster(
    free: int, machine: Machine
) -> None:
    def up_with_few_descriptors() -> object:
        leave_descriptors(free)
        return Cluster.star(40).up(NAME).name

    with pytest.raises(KernelError, match="no file descriptors are left"):
        in_child(up_with_few_descriptors)
    machine.assert_unchanged()


def run_with_fault(fault: Callable[[], None], count: int, action: Callable[[], object]) -> None:
    """Run the action; inject the fault once, after change number `count`."""
    pid, remaining = os.getpid(), count

    def inject(_: str) -> None:
        nonlocal remaining
        remaining -= 1
        if remaining == 0 and os.getpid() == pid:
            fault()

    with observed_by(inject):
        action()


def interrupt() -> None:
    """Raise SIGINT as Control-C does, also where a background shell makes the tests ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def disk_full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


faults = pytest.mark.parametrize(
    ("fault", "error"),
    [
        pytest.param(interrupt, KeyboardInterrupt, id="Control-C"),
        pytest.param(disk_full, (OSError, TestbedError), id="No space left on device"),
    ],
)


@faults
@pytest.mark.parametrize("kind", ["lasting", "held"])
def test_an_up_aborted_after_any_change_is_rolled_back(
    fault: Callable[[], None], error: type[BaseException], kind: str, machine: Machine
) -> None:
    def bring_up_star() -> RunningCluster:
        return Cluster.star(5).up(NAME, keep=kind == "lasting")

    changes = changes_of(bring_up_star)
    gc()
    if kind == "lasting":
        bring_up_star().down()
    machine.assert_unchanged()
    for count, after in kill_points(changes):
        with pytest.raises(error):
            run_with_fault(fault, count, bring_up_star)
        machine.assert_unchanged(f"aborted after change {count}, {after}")


@faults
def test_a_change_aborted_after_any_step_restores_the_cluster(
    fault: Callable[[], None], error: type[BaseException]
) -> None:
    with up_in_another_process() as cluster:
        before = Machine()
        changes = changes_of(lambda: up(SEVEN))
        up(FIVE)
        before.assert_unchanged("after change and reversal")
        for count, after in kill_points(changes):
            with pytest.raises(error):
                run_with_fault(fault, count, lambda: up(SEVEN))
            assert not up(FIVE, dry_run=True).operations, f"aborted after change {count}, {after}"
            before.assert_unchanged(f"aborted after change {count}, {after}")
            assert cluster["n5"].run(["hostname"]).stdout == "n5\n"


@pytest.mark.requires("ip")
def test_up_and_down_keep_a_foreign_namespace_with_a_nodes_name(machine: Machine) -> None:
    cluster = up_in_another_process()
    cluster["n2"].run(["ip", "link", "set", "lo", "alias", "foreign"])
    with pytest.raises(ConflictError, match=rf"{NAME}\.n2 exists already"):
        up()
    cluster.down()
    assert namespaces.names() == [f"{NAME}.n2"]
    namespaces.remove_name(f"{NAME}.n2")
    gc()
    machine.assert_unchanged()


def test_a_failed_rollback_reports_the_leftovers(machine: Machine) -> None:
    cluster = up_in_another_process()

    def fail_change(change: str) -> None:
        if change.startswith("netlink"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with observed_by(fail_change), pytest.raises(KernelError, match=r"could not be rolled back: .*Input/output error"):
        up(resolve(Cluster.star(4)))
    cluster.down()
    machine.assert_unchanged()
