"""Commands killed after any change to the machine: ``gc`` restores the machine's former state.

Each test runs an action once to count its changes to the machine, then once per change (in CI every third), killed right
after it.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress

import pytest

from testbed.cluster import removal
from testbed.cluster.api import Cluster
from testbed.cluster.garbage import collect
from testbed.cluster.lifecycle import ApplyResult
from testbed.cluster.records.state import Store
from testbed.cluster.startup import bring_up
from testbed.errors import KernelError
from testbed.kernel.changes import observed_by
from testbed.kernel.children import in_child
from testbed.spec.layout import Layout
from testbed.spec.model import Description, Link, Node, Switch
from testbed.spec.resolver import resolve
from tests.live import runaway_programs
from tests.live.forked_children import background, changes_of, kill_after, kill_points
from tests.live.machine_state import Machine

pytestmark = pytest.mark.requires("root")

NAME = "victim"


def star(*nodes: str) -> Layout:
    links = [Link(ends=[node, "s1"]) for node in nodes]
    description = Description(
        name=NAME, nodes=[Node(name=node) for node in nodes], switches=[Switch(name="s1")], links=links
    )
    return resolve(description)


FIVE = star("n1", "n2", "n3", "n4", "n5")
CHANGED = star("n1", "n2", "n4", "n5", "n6", "n7")


def up(layout: Layout = FIVE, *, dry_run: bool = False) -> ApplyResult:
    return bring_up(Store(), layout, name=NAME, origin="test", lasting=True, dry_run=dry_run)


def change() -> ApplyResult:
    return up(CHANGED)


def down() -> None:
    removal.down(Store(), NAME)


def gc() -> None:
    collect(Store())


def is_up(layout: Layout = FIVE) -> bool:
    """Return whether the cluster is recorded as up and the kernel has exactly this layout."""
    state = Store().read(NAME)
    return state is not None and state.phase == "up" and not up(layout, dry_run=True).operations


def keep_state() -> None:
    """Keep the state directory."""


def lose_state() -> None:
    """Remove the state directory, as a restart of a container that shares the machine's namespaces does."""
    shutil.rmtree(Store().root, ignore_errors=True)


with_or_without_state = pytest.mark.parametrize("lose", [keep_state, lose_state], ids=["state_kept", "state_lost"])
Note = Callable[[str, object], None]


@with_or_without_state
def test_gc_cleans_up_after_an_up_killed_at_any_change(
    machine: Machine, lose: Callable[[], None], record_property: Note
) -> None:
    changes = changes_of(up)
    in_child(down)
    machine.assert_unchanged("after an undisturbed up and down")
    complete_at = _last(changes, "rename", "state.json")
    for count, after in kill_points(changes):
        kill_after(count, up)
        lose()
        in_child(gc)
        if count >= complete_at and lose is keep_state:
            assert is_up(), f"killed after {after}"
            in_child(down)
        machine.assert_unchanged(f"up killed after change {count}, {after}")
    record_property(
        "note",
        f"up of 5 nodes ({lose.__name__.replace('_', ' ')}): {len(changes)} changes",
    )


@with_or_without_state
def test_gc_cleans_up_after_a_down_killed_at_any_change(
    machine: Machine, lose: Callable[[], None], record_property: Note
) -> None:
    in_child(up)
    changes = changes_of(down)
    starts_at = _first(changes, "rename", "state.json")
    for count, after in kill_points(changes):
        in_child(up)
        kill_after(count, down)
        lose()
        in_child(gc)
        if count < starts_at and lose is keep_state:
            assert is_up(), f"killed after {after}"
            in_child(down)
        machine.assert_unchanged(f"down killed after change {count}, {after}")
    record_property(
        "note",
        f"down of 5 nodes ({lose.__name__.replace('_', ' ')}): {len(changes)} changes",
    )


@pytest.mark.parametrize("then", [FIVE, CHANGED], ids=["then_the_old_layout", "then_the_new_layout"])
def test_a_cluster_whose_change_was_killed_survives_gc_and_converges(
    machine: Machine, then: Layout, record_property: Note
) -> None:
    in_child(up)
    changes = changes_of(change)
    in_child(down)
    for count, after in kill_points(changes):
        in_child(up)
        kill_after(count, change)
        in_child(gc)
        in_child(lambda: up(then))
        assert is_up(then), f"change killed after change {count}, {after}"
        in_child(down)
        machine.assert_unchanged(f"change killed after change {count}, {after}")
    record_property("note", f"change of 5 nodes into 6: {len(changes)} changes")


def test_a_cluster_whose_change_failed_and_whose_rollback_was_killed_converges(
    machine: Machine, record_property: Note
) -> None:
    """The change fails after its last netlink request, which leaves the most to roll back."""

    def failing_change() -> None:
        failed = False

        def fail_once(announced: str) -> None:
            nonlocal failed
            if announced == last and not failed:
                failed = True
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        with observed_by(fail_once), suppress(KernelError):
            change()

    in_child(up)
    last = next(announced for announced in reversed(changes_of(change)) if announced.startswith("netlink"))
    in_child(down)
    in_child(up)
    changes = changes_of(failing_change)
    assert is_up(), "the rollback restores the cluster"
    in_child(down)
    first = changes.index(last) + 1
    for count, after in kill_points(changes, first):
        for end in (lambda: up(FIVE), lambda: up(CHANGED), down):
            in_child(up)
            kill_after(count, failing_change)
            in_child(gc)
            in_child(end)
            if end is not down:
                in_child(down)
            machine.assert_unchanged(f"rollback killed after change {count}, {after}")
    record_property("note", f"rollback of a failed change: {len(changes) - first} changes")


def test_a_cluster_whose_change_was_killed_and_whose_state_was_lost_is_collected(machine: Machine) -> None:
    in_child(up)
    changes = changes_of(change)
    in_child(down)
    for count, after in kill_points(changes):
        in_child(up)
        kill_after(count, change)
        lose_state()
        in_child(gc)
        machine.assert_unchanged(f"change killed after change {count}, {after}")


def test_a_gc_killed_after_any_change_is_completed_by_the_next_gc(machine: Machine, record_property: Note) -> None:
    before_complete = _last(changes_of(up), "rename", "state.json") - 1
    in_child(down)
    kill_after(before_complete, up)
    changes = changes_of(gc)
    for count, after in kill_points(changes):
        kill_after(before_complete, up)
        kill_after(count, gc)
        in_child(gc)
        machine.assert_unchanged(f"gc killed after change {count}, {after}")
    record_property("note", f"gc of an incomplete cluster: {len(changes)} changes")


def test_a_process_killed_while_it_brings_up_a_held_cluster_leaves_nothing(
    machine: Machine, record_property: Note
) -> None:
    def hold_cluster() -> None:
        Cluster.star(5).up()

    changes = changes_of(hold_cluster)
    for count, after in kill_points(changes):
        kill_after(count, hold_cluster)
        machine.assert_unchanged(f"killed after change {count}, {after}")
    record_property("note", f"up of a held cluster of 5 nodes: {len(changes)} changes")


def test_a_process_killed_while_it_takes_down_a_held_cluster_leaves_nothing(
    machine: Machine, record_property: Note
) -> None:
    def up_and_down() -> None:
        Cluster.star(5).up().down()

    up_changes = len(changes_of(lambda: Cluster.star(5).up()))
    changes = changes_of(up_and_down)
    for count, after in kill_points(changes, up_changes):
        kill_after(count, up_and_down)
        machine.assert_unchanged(f"killed after change {count}, {after}")
    record_property("note", f"down of a held cluster of 5 nodes: {len(changes) - up_changes} changes")


def test_uncooperative_programs_are_killed_with_the_process_that_holds_their_cluster(machine: Machine) -> None:
    def hold_cluster(report: Callable[[object], None]) -> None:
        with Cluster.star(5).up() as cluster:
            runaway_programs.start_program(cluster["n1"], runaway_programs.DOUBLE_FORKED)
            runaway_programs.start_program(cluster["n2"], runaway_programs.IGNORES_SIGTERM)
            runaway_programs.start_program(cluster["n3"], runaway_programs.CHILD_IN_OTHER_NAMESPACE)
            runaway_programs.start_program(cluster["n4"], runaway_programs.IN_OTHER_NAMESPACE)
            report("up")
            signal.pause()

    with background(hold_cluster) as process:
        assert process.next_report() == "up"
        machine.assert_changed()
        process.kill()
    machine.assert_unchanged("its process was killed")


def _last(changes: list[str], kind: str, file: str) -> int:
    return max(_all(changes, kind, file))


def _first(changes: list[str], kind: str, file: str) -> int:
    return min(_all(changes, kind, file))


def _all(changes: list[str], kind: str, file: str) -> list[int]:
    """Return the numbers (from 1) of the changes of this kind to files of this name."""
    return [
        number
        for number, change in enumerate(changes, 1)
        if change.startswith(f"{kind} ") and os.path.basename(change) == file
    ]
