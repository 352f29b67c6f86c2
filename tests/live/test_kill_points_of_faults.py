"""Commands that impair links or share NICs, killed after any change: the cluster can be healed, converged and taken down,
and ``down`` or ``gc`` restores the machine's former state."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from testbed.cluster import removal
from testbed.cluster.faults import fault_injection
from testbed.cluster.garbage import collect
from testbed.cluster.lifecycle import ApplyResult
from testbed.cluster.records.state import SharedNics, Store
from testbed.cluster.services import nic_sharing
from testbed.cluster.startup import bring_up
from testbed.kernel import processes
from testbed.kernel.children import in_child
from testbed.runtime.supervision import running_supervisor
from testbed.spec.layout import Layout
from testbed.spec.model import Description, Link, Node, Switch
from testbed.spec.resolver import resolve
from tests.live.forked_children import changes_of, kill_after, kill_points
from tests.live.machine_state import Machine, eventually

pytestmark = pytest.mark.requires("root", "ping")

NAME = "victim"
Note = Callable[[str, object], None]


def layout_with(delay: str) -> Layout:
    return resolve(
        Description(
            name=NAME,
            nodes=[Node(name="n1"), Node(name="n2")],
            switches=[Switch(name="s1")],
            links=[Link(ends=["n1", "s1"], delay=delay), Link(ends=["n2", "s1"])],
        )
    )


PLAIN, DELAYED = layout_with("0"), layout_with("1ms")


def up(layout: Layout, *, dry_run: bool = False) -> ApplyResult:
    return bring_up(Store(), layout, name=NAME, origin="test", lasting=True, dry_run=dry_run)


def inject() -> None:
    fault_injection.inject(Store(), NAME, "n2", {"delay": 1_000_000})


def heal() -> None:
    fault_injection.heal(Store(), NAME)


def cut() -> None:
    fault_injection.cut(Store(), NAME, "n2")


def plug_in() -> None:
    fault_injection.heal_cut(Store(), NAME, "n2")


def down() -> None:
    removal.down(Store(), NAME)


def gc() -> None:
    collect(Store())


def test_gc_completes_or_removes_an_impaired_cluster_whose_up_was_killed(
    machine: Machine, record_property: Note
) -> None:
    def up_delayed() -> ApplyResult:
        return up(DELAYED)

    changes = changes_of(up_delayed)
    in_child(down)
    machine.assert_unchanged("after an undisturbed up and down")
    for count, after in kill_points(changes):
        kill_after(count, up_delayed)
        in_child(gc)
        state = Store().read(NAME)
        if state is not None:
            assert state.phase == "up", f"killed after {after}"
            assert not up(DELAYED, dry_run=True).operations, f"killed after {after}"
            in_child(down)
        machine.assert_unchanged(f"up killed after change {count}, {after}")
    record_property("note", f"up of an impaired cluster: {len(changes)} changes")


def assert_usable() -> None:
    """Assert that the cluster converges to its description and accepts an injection and a heal."""
    outcome = up(PLAIN)
    assert outcome.state.phase == "up"
    fault_injection.heal(Store(), NAME)
    inject()
    state = Store().read(NAME)
    assert state is not None
    assert dict(state.datapaths) == {"n2:eth0--s1:2": "relay"}
    fault_injection.heal(Store(), NAME)
    assert not up(PLAIN, dry_run=True).operations


PREPARATIONS = {heal: inject, plug_in: cut}


@pytest.mark.parametrize("action", [inject, heal, cut, plug_in])
def test_a_cluster_is_usable_after_a_fault_command_was_killed(
    action: Callable[[], None], machine: Machine, record_property: Note
) -> None:
    def prepare() -> None:
        in_child(lambda: up(PLAIN))
        if action in PREPARATIONS:
            in_child(PREPARATIONS[action])

    prepare()
    changes = changes_of(action)
    in_child(down)
    machine.assert_unchanged("after an undisturbed change")
    for count, after in kill_points(changes):
        prepare()
        kill_after(count, action)
        in_child(assert_usable)
        in_child(down)
        machine.assert_unchanged(f"{action.__name__} killed after change {count}, {after}")
    record_property("note", f"{action.__name__}: {len(changes)} changes")


def test_an_injection_after_a_killed_one_makes_all_changes_of_the_kernel(machine: Machine) -> None:
    """The state of the killed one lists the change already. Kill after each file that it has written."""

    def inject_again() -> None:
        fault_injection.inject(Store(), NAME, "n2", {"delay": 2_000_000})
        assert not up(PLAIN, dry_run=True).operations

    in_child(lambda: up(PLAIN))
    points = [count for count, change in enumerate(changes_of(inject), 1) if change.startswith("rename")]
    in_child(down)
    for count in points:
        in_child(lambda: up(PLAIN))
        kill_after(count, inject)
        in_child(inject_again)
        in_child(down)
        machine.assert_unchanged(f"inject killed after change {count}")


def share_and_stop() -> None:
    nics = SharedNics("emp", 1, 0, processes.identity())
    nic_sharing.share(Store(), NAME, nics)
    nic_sharing.stop(Store(), NAME, nics)


def assert_nics_can_be_shared() -> None:
    """Assert that NICs can be shared after an earlier sharing was interrupted."""
    nics = SharedNics("emp", 2, 0, processes.identity())
    state = nic_sharing.share(Store(), NAME, nics)
    assert None not in nic_sharing.read_reports(Store(), state).values()
    nic_sharing.stop(Store(), NAME, nics)
    state = Store().read(NAME)
    assert state is not None
    assert (state.phase, state.nics) == ("up", None)
    # The supervisor of the interrupted sharing may get the lock only now; it has nothing to do and ends.
    eventually(lambda: running_supervisor(Store().directory(NAME)) is None, "the supervisor has ended")
    assert not up(PLAIN, dry_run=True).operations


def test_nics_can_be_shared_after_a_sharing_was_killed(machine: Machine, record_property: Note) -> None:
    in_child(lambda: up(PLAIN))
    changes = changes_of(share_and_stop)
    in_child(down)
    machine.assert_unchanged("after undisturbed sharing")
    for count, after in kill_points(changes):
        in_child(lambda: up(PLAIN))
        kill_after(count, share_and_stop)
        in_child(assert_nics_can_be_shared)
        in_child(down)
        machine.assert_unchanged(f"sharing killed after change {count}, {after}")
    record_property("note", f"sharing: {len(changes)} changes")
